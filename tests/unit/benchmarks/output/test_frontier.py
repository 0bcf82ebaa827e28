"""Cost against utility: which methods no other one beats, and their figure."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("matplotlib")

from benchmarks.output.frontier import Point, frontier_of, in_words
from benchmarks.output.frontier_drawing import draw, svg

POINTS = [
    Point("dear", 8.0, 0.7, 0.6, exact=True),
    Point("beaten", 8.0, 0.7, 0.5, exact=True),
    Point("middle", 4.0, 0.6, 0.5, 0.01),
    Point("thrifty", 1.0, 0.5, 0.5, exact=True),
    Point("poor", 0.5, 0.5, 0.2),
]


def test_the_frontier_are_those_that_no_other_one_beats():
    def beaten(point):
        return any(
            (o.cost, -o.after) != (point.cost, -point.after) and o.cost <= point.cost and o.after >= point.after
            for o in POINTS
        )

    expected = sorted((p for p in POINTS if not beaten(p)), key=lambda p: p.cost)
    for order in itertools.permutations(POINTS):
        assert frontier_of(order) == expected


def test_the_sentence_names_both_frontiers():
    text = in_words(POINTS, "s")
    every, exact = text.split(". Of the exact ones")
    assert [every.index(name) for name in ("poor", "thrifty", "dear")] == sorted(
        map(every.index, ("poor", "thrifty", "dear"))
    )
    assert "poor" not in exact and "beaten" not in text and "middle" not in text
    assert "Of the exact ones" not in in_words([p for p in POINTS if p.exact], "s")


@pytest.mark.slow
def test_the_figure_repeats_and_names_every_method():
    first, again = (svg(draw(POINTS, "seconds", "utility")) for _ in range(2))
    assert first == again
    text = first.decode()
    assert all(f">{point.label}<" in text for point in POINTS)
    assert ">frontier of exact ones<" in text and ">approximate, after the demands<" in text
    assert ">approximate, after the demands<" not in svg(draw(POINTS[:2], "seconds", "utility")).decode()
