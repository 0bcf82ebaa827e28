"""What a tuning says: what it asked of the clients, and its table."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks.tuning import results, running
from benchmarks.tuning.objective import MEASURES, Oracle
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
    assert results.effort_in_words(found) == said


def test_the_headings_are_whole_at_80_columns():
    told = {"distance": 14.81, "violation": 0.06, "utility_share": 0.89, "measures": dict.fromkeys(MEASURES, 0.5)}
    entry = results.Entry(1, {}, told)
    found = SimpleNamespace(method="rapid_retraining", untuned=entry, best=entry)
    console = Console(file=io.StringIO(), width=80)
    console.print(results.table([found], Oracle(told["measures"], told["measures"], 0.8), 0.95))
    said = console.file.getvalue()
    assert all(word in said for word in ("distance", "Prob", "AUC", "leakage", "utility", "14.81", "89%!"))
    assert "…" not in said
