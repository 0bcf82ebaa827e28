"""What a run tells while it goes on, on a terminal and elsewhere."""

import io

from rich.console import Console

from oblivionis.runs.progress import LineEvents, LiveEvents, for_console

METRICS = {"forget_rouge": 0.25, "retain_rouge": 0.5, "forget_prob": 0.75, "model_utility": 0.125}


def play(events):
    """Two rounds of unlearn, of which the second one is an extra round with a failed client."""
    events.note("a [note]")
    events.stage_started("unlearn", 0, 1)
    events.evaluated(0, "start", METRICS, 0.1)
    for round in (1, 2):
        events.round_started(round)
        events.exchange_started("unlearn", [3])
        events.arrived(1, 1)
        events.reply(3, round == 1, "OutOfMemoryError: [bold]no room")
        events.exchange_started("train", [1, 2])
        events.reply(1, True, "")
        events.reply(2, True, "")
        events.evaluating("round")
        events.evaluated(round, "round", METRICS, 0.1)
        events.round_finished(round, 0.5)
    events.stage_finished("unlearn", 2.0)
    events.close()


def test_progress_as_lines():
    out = io.StringIO()
    events = for_console(Console(file=out, width=40), {"unlearn": 1})
    assert isinstance(events, LineEvents)
    play(events)
    numbers = "forget ROUGE 0.250 Prob 0.750 · retain ROUGE 0.500 · model utility 0.125"
    assert out.getvalue().splitlines() == [
        "a [note]",
        "[unlearn] 1 round",
        f"[unlearn] round 0/1 (before): {numbers}",
        "[unlearn] FedTU: client 3 asks to forget",
        f"[unlearn] round 1/1: {numbers}",
        "[unlearn] round 1/1 done: 2 of 2 clients answered, 0.5 s",
        "[unlearn] FedTU: client 3 asks to forget",
        "[unlearn] client 3 left out: OutOfMemoryError: [bold]no room",
        f"[unlearn] round 2/2: {numbers}",
        "[unlearn] round 2/2 done: 2 of 2 clients answered, 0.5 s",
        "[unlearn] finished in 2 s",
    ]


def test_progress_on_a_terminal():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None, legacy_windows=False)
    events = for_console(console, {"unlearn": 1})
    assert isinstance(events, LiveEvents)
    play(events)
    text = out.getvalue()
    assert "warning: client 3 left out: OutOfMemoryError: [bold]no room" in text and "a [note]" in text
    last = text[text.rindex("whole run") :]
    assert "2/2" in last.splitlines()[0] and "2/2" in last.splitlines()[1], "the extra round counts"
    assert "done" in last and "unlearn, round 2/2: forget ROUGE 0.250" in last


def test_who_asks_for_what_is_told_once():
    out = io.StringIO()
    events = LineEvents(Console(file=out, width=200))
    events.stage_started("unlearn", 0, 2)
    events.requests("client 3 leaves with 7 records")
    events.exchange_started("unlearn", [3])
    events.exchange_started("unlearn", [4])
    assert out.getvalue().splitlines()[1:] == [
        "[unlearn] FedTU: client 3 leaves with 7 records",
        "[unlearn] FedTU: client 4 asks to forget",
    ]


def test_the_stage_local_counts_clients():
    out = io.StringIO()
    events = LineEvents(Console(file=out, width=200))
    events.stage_started("local", 1, 3)
    events.evaluated(17, "end", METRICS, 0.1)
    events.round_finished(2, 0.5)
    first, second, third = out.getvalue().splitlines()
    assert first == "[local] 3 clients, continuing after client 1"
    assert second.startswith("[local] client 17: forget ROUGE") and third == "[local] 2 of 3 clients done"
