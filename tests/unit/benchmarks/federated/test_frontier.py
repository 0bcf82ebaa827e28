"""The points of a suite's frontier, from its results."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from benchmarks.federated import frontier
from benchmarks.federated.results import DONE, FAILED, table_of
from benchmarks.output.frontier import Point

AXES = ["seed", "served"]


def rows(served, seed, before, after, cost, equal=None):
    head = {"cell": f"{served}/{seed}", "seed": seed, "served": served, "status": DONE, "error": "", "run": "r"}
    found = {("finetune", "model_utility"): before, ("unlearn", "model_utility"): after}
    found |= {("unlearn", "serving_processor_seconds"): cost, ("unlearn", "equal_to_never_saw"): equal}
    return [{**head, "stage": s, "metric": m, "value": v} for (s, m), v in found.items() if v is not None]


def table():
    failed = {**rows("c", "0", 1, 1, 1)[0], "status": FAILED, "stage": "", "metric": "", "value": None}
    exact = [*rows("a", "0", 0.5, 0.25, 2.0, 10.0), *rows("a", "1", 0.75, 0.75, 4.0, 10.0)]
    return table_of([*exact, *rows("b", "0", 0.5, 0.5, 1.0), *rows("d", "0", 0.5, 0.5, None), failed], AXES)


def test_a_point_is_the_mean_over_seeds_of_what_is_known(tmp_path):
    exact, other = frontier.points(table(), AXES)
    assert exact == Point("a", 3.0, 0.625, 0.5, pytest.approx(0.125**0.5), exact=True)
    assert other == Point("b", 1.0, 0.5, 0.5)


@pytest.mark.slow
def test_the_figure_is_a_file_and_part_of_the_page(tmp_path):
    figure = str(frontier.figure(frontier.points(table(), AXES), tmp_path))
    assert (tmp_path / frontier.FILE).read_bytes().startswith(b"<?xml")
    assert "<svg role" in figure and "On the frontier, the cheapest first: b (1.000 s: 0.500)." in figure
    assert "Of the exact ones, the cheapest first: a (3.000 s: 0.500)." in figure
