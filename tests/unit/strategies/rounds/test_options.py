"""Options of FedTU that exclude each other."""

from __future__ import annotations

import pytest

from strategies.privacy.private_mean import PrivateMean
from strategies.rounds.client_sampling import BySize, Sampling
from strategies.rounds.compression import Compression
from strategies.rounds.fedtu import Options
from strategies.rounds.model_versions import Buffer
from strategies.rounds.simulated_durations import Durations
from strategies.rounds.update_bounds import Bounds
from strategies.secure.agreed_parameters import SecureSettings


class Plain(BySize):
    weighs = False


def sampling(kind: type = Plain) -> Sampling:
    return object.__new__(kind)


BUFFER, SECURE, PRIVATE = Buffer(1, 1), SecureSettings(clipping=1.0), PrivateMean(0.0, 1.0)
COMPRESSION, FITTING = Compression("int8"), lambda kind, arrays: lambda client: None
DURATIONS = Durations("lognormal", 1.0, 0.0, 0.0)
EXCLUDED = [
    ({"cover": 1}, "cover takes secure aggregation"),
    ({"buffer": BUFFER, "fitting": FITTING}, "asynchronous rounds .buffer. take models of one form"),
    ({"buffer": BUFFER, "compression": COMPRESSION}, "asynchronous rounds .buffer. take models of one form"),
    ({"fitting": FITTING, "secure": SECURE}, "models of several forms"),
    ({"compression": COMPRESSION, "secure": SECURE}, "updates of fewer numbers or bits"),
    ({"server_state_on_unlearn": "drop"}, "expected 'keep' or 'reset'"),
    ({"secure": SECURE, "sampling": sampling(BySize)}, "weighs single clients' updates"),
    ({"private_mean": PRIVATE, "sampling": sampling(BySize)}, "weighs single clients' updates"),
    ({"private_mean": PRIVATE, "bounds": Bounds(max_update_norm=2.0)}, "private_mean clips each update by itself"),
    ({"deadline": 0.0}, "expected deadline > 0"),
    ({"deadline": float("nan")}, "expected deadline > 0"),
    ({"oversample": 0.99}, "oversample >= 1"),
    ({"secure": SECURE, "deadline": 1.0}, "a secure sum is held with all"),
    ({"secure": SECURE, "oversample": 1.5}, "a secure sum is held with all"),
    ({"secure": SECURE, "durations": DURATIONS}, "a secure sum is held with all"),
    ({"secure": SECURE, "buffer": BUFFER}, "a secure sum is held with all"),
    ({"buffer": BUFFER, "deadline": 1.0}, "asynchronous rounds have no deadline"),
    ({"buffer": BUFFER, "oversample": 1.5}, "asynchronous rounds have no deadline"),
    ({"buffer": BUFFER, "private_mean": PRIVATE}, "asynchronous rounds have no deadline"),
    ({"buffer": BUFFER, "sampling": sampling()}, "are drawn uniformly"),
    ({"oversample": 1.5, "sampling": sampling()}, "are drawn uniformly"),
    ({"oversample": 1.5, "private_mean": PRIVATE}, "who is fast must not decide"),
]


@pytest.mark.parametrize(("options", "why"), EXCLUDED)
def test_what_does_not_go_together_is_refused(options: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Options(**options)


@pytest.mark.parametrize(
    ("options", "hurried", "one_by_one"),
    [
        ({}, False, False),
        ({"cover": 1, "secure": SECURE}, False, False),
        ({"secure": SECURE, "sampling": sampling()}, False, False),
        ({"private_mean": PRIVATE, "bounds": Bounds(max_weight_share=0.5)}, False, False),
        ({"sampling": sampling(BySize), "bounds": Bounds(max_update_norm=2.0)}, False, False),
        ({"fitting": FITTING, "compression": COMPRESSION, "deadline": 1.0}, True, True),
        ({"oversample": 1.5, "server_state_on_unlearn": "reset"}, True, True),
        ({"private_mean": PRIVATE, "deadline": 1.0}, True, True),
        ({"durations": DURATIONS, "sampling": sampling()}, False, True),
        ({"buffer": BUFFER, "durations": DURATIONS}, False, True),
    ],
)
def test_what_goes_together(options: dict, hurried: bool, one_by_one: bool) -> None:
    made = Options(**options)
    assert (made.hurried, made.one_by_one) == (hurried, one_by_one)


def test_what_is_not_said_is_switched_off_and_nobody_waits_for_long():
    options = Options()
    assert (options.seed, options.stage, options.oversample) == (0, "train", 1.0)
    assert options.extra_rounds == options.cover == 0
    assert options.available_within == 30.0 and not options.one_by_one and not options.cover_each
