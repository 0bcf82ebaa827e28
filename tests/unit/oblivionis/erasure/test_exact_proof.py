"""What the rounds of a run show of a request that was erased exactly."""

import pytest

from oblivionis.erasure.exact_proof import Proof
from oblivionis.erasure.request import SERVED, Request
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
