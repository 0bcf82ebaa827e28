"""Once in a round: what a client does again for a sum under masks is other work."""

import pytest

from oblivionis.client.single_participation import MOST_TIMES, Turn, hidden, take_part
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.errors import ClientError

WORK = {"kind": "train", "run": "run", "stage": "train", "round": 1}
RECORDS = [f"r{n}" for n in range(7)]


def part(folder, seed=5, masked=True, **changes):
    return take_part(folder, seed, {**WORK, **changes}, masked=masked)


def bare(folder, seed=5, kind="train"):
    NodeLedger(folder).note("exchanged", kind=kind, run="run", client=0, round=1, seed=seed)


def test_the_first_time_goes_by_the_runs_seed_and_on_all_records(tmp_path):
    turn = part(tmp_path)
    assert turn == Turn(5, again=False) and turn.left_out(RECORDS) == set()


def test_the_second_time_is_by_a_seed_that_nobody_can_derive(tmp_path):
    part(tmp_path)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "requests.jsonl").write_bytes((tmp_path / "requests.jsonl").read_bytes())
    seeds = {5, part(tmp_path).seed, part(tmp_path).seed, part(tmp_path / "copy").seed}
    assert len(seeds) == 4


@pytest.mark.parametrize("changes", [{"run": "other"}, {"stage": "x"}, {"round": 2}])
def test_the_names_of_the_run_and_its_rounds_decide_nothing(tmp_path, changes):
    part(tmp_path)
    assert part(tmp_path, **changes).again


@pytest.mark.parametrize("changes", [{"seed": 6}, {"kind": "train.unlearn"}])
def test_other_work_is_other_work(tmp_path, changes):
    part(tmp_path)
    assert not part(tmp_path, **changes).again


def test_a_line_is_written_before_anything_is_trained(tmp_path):
    part(tmp_path)
    part(tmp_path)
    lines = NodeLedger(tmp_path).lines("took_part")
    assert [(e["seed"], e["times"], e["round"], e["run"]) for e in lines] == [(5, 1, 1, "run"), (5, 2, 1, "run")]


def test_it_ends(tmp_path):
    for _ in range(MOST_TIMES):
        part(tmp_path)
    with pytest.raises(ClientError, match=r"^round 1 of train was held 3 times with this client.*another seed$"):
        part(tmp_path)
    assert len(NodeLedger(tmp_path).lines()) == MOST_TIMES
    assert not part(tmp_path, seed=6).again


def test_updates_that_nobody_masks_are_repeated_as_they_are(tmp_path):
    """A run without masks that is resumed ends with the same model."""
    for _ in range(MOST_TIMES + 1):
        assert part(tmp_path, masked=False) == Turn(5, again=False)
        bare(tmp_path)
    assert NodeLedger(tmp_path).lines("took_part") == []


def test_what_is_in_a_sum_is_not_sent_bare_and_what_was_sent_bare_is_in_no_sum(tmp_path):
    part(tmp_path)
    assert part(tmp_path, masked=False).again and part(tmp_path, masked=False).seed != 5
    bare(tmp_path, seed=6)
    assert part(tmp_path, seed=6).again
    bare(tmp_path, seed=7, kind="train.unlearn")
    assert not part(tmp_path, seed=7).again


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_half_of_the_records_stays_and_a_coin_decides_of_the_odd_one(count):
    turn = Turn(1, again=True)
    outs = [turn.left_out(RECORDS[:count]) for _ in range(200)]
    assert {len(out) for out in outs} == {count // 2, -(-count // 2)}
    assert set().union(*outs) == set(RECORDS[:count]), "each of them"


def test_noise_takes_the_place_of_the_half_only_where_it_is_noise():
    """A server names the level and the multiplier: by a tiny one it would have the same update again."""
    assert hidden("record", 0.5) and hidden("record", 3.0)
    assert not any((hidden("record", 0.49), hidden("record", 0.0), hidden("client", 9.0), hidden("none", 9.0)))


def test_where_a_record_must_stay_one_does():
    turn = Turn(1, again=True)
    assert all(turn.left_out(["r0"], least=1) == set() for _ in range(50))
    assert turn.left_out([], least=1) == set()
