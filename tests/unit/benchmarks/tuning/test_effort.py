"""What a search says that it asked of the clients."""

from types import SimpleNamespace

import pytest

from benchmarks.tuning import results, running
from oblivionis.config.compose import compose

HEAD = {"stage": "unlearn", "evaluator": "federation"}
ROWS = [
    {**HEAD, "metrics": {"seconds": 1.0}, "clients": {"unlearn": [3, 4]}},
    {**HEAD, "metrics": {"seconds": 2.0}, "clients": {"unlearn": [5]}},
    {**HEAD, "metrics": {"seconds": 4.0}},
]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("npo", "3 exchanges, 21 passes over a request's records"),
        ("fedosd", "3 exchanges, 21 passes over a request's records"),
        ("fused", "3 exchanges"),
        ("federaser", "3 exchanges"),
    ],
)
def test_passes_are_those_of_methods_that_go_through_what_is_forgotten(method, said):
    config = compose("default", [f"unlearning={method}", "unlearning.epochs=7"])
    found = running.effort(SimpleNamespace(metrics=lambda: ROWS), config)
    assert (found["rounds"], found["seconds"]) == (3, 7.0)
    assert results.effort(found) == said
