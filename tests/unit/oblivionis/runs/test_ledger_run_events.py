"""What the lines of a run's ledger say of exchanges that were held anew, or undone."""

from oblivionis.runs.ledger_run_events import served_again


def _again(number: int, *requests: str) -> dict[str, object]:
    return {"event": "served_again", "round": number, "requests": list(requests)}


def _resumed(number: int, stage: str = "unlearn") -> dict[str, object]:
    return {"event": "resumed", "stage": stage, "round": number}


def _found(*entries: dict[str, object]) -> dict[int, list[str]]:
    return {number: line["requests"] for number, line in served_again(entries, "unlearn").items()}


def test_the_last_line_of_a_round_counts():
    assert _found(_again(2, "a"), _again(3, "a"), _resumed(2), _again(3, "b")) == {2: ["a"], 3: ["b"]}


def test_an_exchange_that_was_undone_has_none():
    assert _found(_again(2, "a"), _again(3, "a"), _resumed(1)) == {}
    assert _found(_again(2, "a"), _resumed(0), _again(4, "a")) == {4: ["a"]}


def test_another_stage_undoes_nothing():
    assert _found(_again(2, "a"), _resumed(0, "retrain"), {"event": "stage", "stage": "unlearn"}) == {2: ["a"]}


def test_ledgers_of_earlier_versions_have_the_last_line_of_a_round():
    assert _found(_again(2, "a"), _again(2, "b")) == {2: ["b"]}
