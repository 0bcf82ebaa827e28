"""What the rounds of a run show of a request that was erased exactly."""

import json
from types import SimpleNamespace

import pytest

from oblivionis.erasure.exact_proof import FILE, Proof, exchanges, read_proof
from oblivionis.erasure.request import SERVED, Request
from oblivionis.errors import FileError
from oblivionis.runs.directory import RunDirectory
from strategies.protocols.update_history import PastRound

AFTER = "a" * 64
MACHINE = {"software": {}, "processor": ""}


def past(stage, round, clients, replayed=0, model=AFTER, entries=True):
    hashes = dict.fromkeys(clients, "h")
    return PastRound(stage, round, clients, False, hashes, replayed, model, hashes if entries else {})


def missing(*rounds, served=1, client=1, after=AFTER):
    request = Request("x", client, ("r",), 1, state=SERVED, served_round=served)
    applied = [{"id": "x", "round": served, "before": "", "after": after}]
    return Proof({0: rounds}, MACHINE).missing_for(request, applied if after else [])


def test_rounds_that_were_held_again_since_show_it():
    assert missing(past("finetune", 1, (0, 1), 1), past("finetune", 2, (0,)), past("unlearn", 1, (0, 1))) == ""


def test_rounds_that_a_later_erasure_held_again_show_it_too():
    assert missing(past("finetune", 1, (0, 1), 3), past("unlearn", 1, (0, 1), 3, model="b" * 64)) == ""


@pytest.mark.parametrize("replayed", [0, 1])
def test_a_round_that_was_not_held_again_since_does_not(replayed):
    why = missing(past("finetune", 1, (0, 1), 2), past("unlearn", 1, (1,), replayed), served=2)
    assert why == "client 1 took part in round 1 of unlearn, which was not held again"


def test_a_round_of_others_need_not_be_held_again():
    assert missing(past("finetune", 1, (0, 2)), past("unlearn", 1, (0, 2))) == ""


def test_a_round_without_the_hash_of_what_a_client_did_shows_nothing():
    assert missing(past("finetune", 1, (0,), entries=False)).startswith("round 1 of finetune has no hash")
    assert missing(past("finetune", 1, (0,), model="")).startswith("round 1 of finetune has no hash")


def test_a_round_that_begins_with_another_model_than_the_exchange_left_does_not():
    why = missing(past("finetune", 1, (1,), 1), past("unlearn", 1, (1,)), after="c" * 64)
    assert why == "round 1 of unlearn begins with another model than its exchange ended with"


def test_a_ledger_without_hashes_of_the_exchange_shows_nothing():
    assert (
        missing(past("finetune", 1, (1,), 1), after="")
        == "the ledger has no hashes of the model before and after its exchange"
    )


def of_shards(own, other, *, parts=("o" * 64, AFTER), later=()):
    """Client 1 is of shard 1 of two, and was served in round 1."""
    request = Request("x", 1, ("r",), 1, state=SERVED, served_round=1)
    applied = [{"id": "x", "round": 1, "before": "", "after": "w" * 64, "parts_after": list(parts)}, *later]
    return Proof({0: other, 1: own}, MACHINE, (0, 1, 0, 1)).missing_for(request, applied)


HELD = past("finetune", 1, (1, 3), 1)


def test_in_shards_the_rounds_of_the_clients_own_show_it():
    assert of_shards((HELD, past("unlearn", 1, (1, 3))), (past("finetune", 1, (0, 2), model=""),)) == ""


def test_a_round_of_another_shard_with_the_client_does_not():
    why = of_shards((HELD,), (past("finetune", 1, (0, 1)),))
    assert why == "client 1 is of shard 1, and took part in round 1 of finetune of shard 0"


def test_the_shards_next_round_is_compared_with_its_part_also_where_it_is_a_later_one():
    late = past("unlearn", 3, (1,))
    assert of_shards((HELD, late), ()) == ""
    why = of_shards((HELD, late), (), parts=("o" * 64, "c" * 64))
    assert why == "round 3 of unlearn begins with another model than its exchange ended with"
    second = {"id": "y", "round": 2, "before": "", "after": "v" * 64, "parts_after": ["n" * 64, AFTER]}
    assert of_shards((HELD, late), (), parts=("o" * 64, "c" * 64), later=(second,)) == ""


def test_a_ledger_without_hashes_of_the_shards_parts_shows_nothing():
    why = of_shards((HELD,), (), parts=())
    assert why == "the ledger has no hashes of the model before and after its exchange"


@pytest.mark.parametrize("client", ["one", "-1", "", "9" * 5000])
def test_a_client_that_is_no_number_is_a_damaged_file(tmp_path, client):
    run = RunDirectory.create(tmp_path, "run")
    row = {"stage": "finetune", "round": 1, "clients": [1], "hashes": {client: "h"}}
    (run.path / FILE).write_text(json.dumps({"machine": MACHINE, "rounds": [row]}))
    with pytest.raises(FileError, match=rf"{FILE}: .*rounds\[0\]\.hashes"):
        read_proof(run)


def test_an_exchange_that_was_made_again_after_a_resume_counts_once(tmp_path, monkeypatch):
    """And one of a round whose service was undone not at all."""
    served = [SimpleNamespace(id="a", served_round=3), SimpleNamespace(id="b", served_round=2)]
    monkeypatch.setattr("oblivionis.erasure.exact_proof.Ledger", lambda path: served)
    applied = [("b", 2, "x"), ("a", 2, "y"), ("a", 3, "cut off"), ("a", 3, "made again")]
    lines = [{"event": "applied", "id": i, "round": r, "after": after} for i, r, after in applied]
    monkeypatch.setattr(RunDirectory, "lines", lambda self, *events: lines)
    found = [(line["id"], line["after"]) for line in exchanges(RunDirectory(tmp_path))]
    assert found == [("b", "x"), ("a", "made again")]
