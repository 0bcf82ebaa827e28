"""The curves that the leakage figures draw against the bounds themselves, and the files on ordinary and odd samples."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from evaluation.leakage.bounds import (
    binary_leakage_bound,
    expectation_bounds,
    general_leakage_bound,
    std_upper_bound,
)
from evaluation.leakage.summary import Terms
from oblivionis.reports import leakage_figures
from oblivionis.reports.leakage_figures import (
    BINS,
    LABELLED,
    LEVELS,
    binary_bounds,
    general_bounds,
    growth,
    highest_means,
    shares,
    short_id,
    write_figures,
)

NAMES = ("density", "m_gen", "bounds_against_n", "m_bin")


def drawn(count: int, sizes: tuple[int, ...] = (64, 100), seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.round(rng.beta(1 + i % 3, 4, sizes[i % len(sizes)]) * 11) / 11 for i in range(count)]


def check_files(folder: Path, paths: list[Path]) -> None:
    assert paths == [folder / f"{name}.{kind}" for name in NAMES for kind in ("svg", "png")]
    assert sorted(folder.iterdir()) == sorted(paths)  # no temporary file is left
    for path in paths:
        if path.suffix == ".svg":
            assert ElementTree.fromstring(path.read_bytes()).tag.endswith("svg")
        else:
            image = imread(io.BytesIO(path.read_bytes()), format="png")
            assert image.ndim == 3 and min(image.shape[:2]) > 300
            assert np.ptp(image[..., :3]) > 0.5


def test_growth_bounds_every_prefix() -> None:
    values = drawn(1, (100,))[0]
    known = growth(values, 0.03)
    assert known.n.tolist() == [1, 2, 4, 8, 16, 32, 64, 100]
    for k, n in enumerate(known.n):
        first = values[:n]
        assert (known.lower[k], known.upper[k]) == expectation_bounds(first, 0.03)
        assert known.m_sigma[k] == std_upper_bound(first, 0.03)
        assert known.mean[k] == first.mean() and known.std[k] == first.std()


@pytest.mark.parametrize(("size", "steps"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])])
def test_growth_ends_with_all_answers_once(size: int, steps: list[int]) -> None:
    assert growth(np.full(size, 0.5), 0.01).n.tolist() == steps


def test_general_bounds_are_those_of_each_question() -> None:
    leakage = drawn(3)
    curves = general_bounds(leakage, 0.02)
    assert curves.shape == (3, LEVELS.size)
    for curve, values in zip(curves, leakage, strict=True):
        assert np.array_equal(curve, general_leakage_bound(values, LEVELS, 0.02))
        assert curve[0] == min((values > 0).mean() + np.sqrt(np.log(50) / (2 * values.size)), 1)


@pytest.mark.parametrize("family_wise", [False, True])
def test_binary_bounds_count_from_the_threshold(family_wise: bool) -> None:
    terms = Terms(alpha=0.1, family_wise=family_wise, leaks_from=0.25)
    leakage = [np.array([0, 0.25, 0.24, 1]), np.array([0.0, 0.0]), np.array([0.3])]
    alpha = 0.1 / 3 if family_wise else 0.1
    expected = [binary_leakage_bound(s, n, alpha) for s, n in ((2, 4), (0, 2), (1, 1))]
    assert binary_bounds(leakage, terms).tolist() == expected


def test_shares_of_bins() -> None:
    assert shares(np.array([0.0, 0.0, 0.5, 1.0]))[[0, 12, -1]].tolist() == [0.5, 0.25, 0.25]
    assert shares(np.array([BINS[7]]))[7] == 1
    for values in drawn(4):
        found = shares(values)
        assert found.sum() == pytest.approx(1)
        for i in range(found.size - 1):
            assert found[i] == pytest.approx(((values >= BINS[i]) & (values < BINS[i + 1])).mean())


def test_highest_means_come_first_and_ties_keep_their_order() -> None:
    leakage = [np.array(v) for v in ([0.1], [0.5, 0.7], [0.9], [0.6, 0.6, 0.6], [0.1, 0.1])]
    assert highest_means(leakage) == [2, 1, 3, 0, 4]
    assert highest_means(leakage, 2) == [2, 1]
    assert len(highest_means(drawn(20))) == 6


def test_short_ids() -> None:
    assert short_id("q-1") == "q-1"
    assert short_id("a\nb\x00c") == "a b c"
    assert short_id("x" * 24) == "x" * 24
    cut = short_id("forget10/author-12/question-3")
    assert len(cut) == 24 and cut == "forget10…r-12/question-3"


def test_m_bin_draws_sorted_bars_limit_and_leaking_greedy_answers() -> None:
    terms = Terms(limit=0.6, leaks_from=0.5)
    leakage = [np.zeros(20), np.ones(5), np.repeat([0.0, 1.0], 20)]
    greedy = np.array([1.0, np.nan, 0.4])
    figure = leakage_figures._m_bin(["none", "all", "half"], leakage, greedy, terms)
    (axis,) = figure.axes
    bound = binary_bounds(leakage, terms)
    assert [bar.get_height() for group in axis.containers for bar in group] == [bound[1], bound[2], bound[0]]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["all", "half", "none"]
    lines = {str(line.get_label()): line for line in axis.get_lines()}
    assert np.asarray(lines["limit 0.6"].get_ydata()).tolist() == [0.6, 0.6]
    assert np.asarray(lines["greedy answer leaks"].get_xydata()).tolist() == [[2, bound[0]]]
    assert f"{int((bound > 0.6).sum())} of 3" in axis.get_title() and "(1 of 2)" in axis.get_title()


def test_a_bound_of_just_the_limit_is_within_it() -> None:
    """All answers to the first question leak: its bound is 1."""
    leakage = [np.ones(8), np.zeros(8)]
    figure = leakage_figures._m_bin(["a", "b"], leakage, np.array([0.0, np.nan]), Terms(limit=1.0))
    assert figure.axes[0].get_title().startswith("M_bin above 1 for 0% of the questions (0 of 2)")
    assert figure.axes[0].get_title().endswith("greedy answer leaks for 0% of the questions (0 of 1)")


def test_m_gen_draws_single_questions_and_the_average_of_all() -> None:
    leakage = drawn(9)
    figure = leakage_figures._m_gen(leakage, Terms(alpha=0.09, family_wise=True))
    curves = general_bounds(leakage, 0.01)
    heights = [np.asarray(line.get_ydata()) for line in figure.axes[0].get_lines()]
    assert len(heights) == 7
    assert np.array_equal(np.stack(heights[:6]), curves[highest_means(leakage)])
    assert np.array_equal(heights[6], curves.mean(0))


def test_density_marks_mean_and_greedy() -> None:
    leakage, greedy = [np.array([0.2, 0.4]), np.array([0.8])], np.array([0.1, np.nan])
    axes = leakage_figures._density(["a", "b"], leakage, greedy).axes
    marks = [[float(np.asarray(line.get_xdata())[0]) for line in axis.get_lines()] for axis in axes]
    assert marks == [[0.8], [leakage[0].mean(), 0.1]]


def test_files_are_whole_and_svgs_repeat(tmp_path: Path) -> None:
    ids, leakage = [f"forget10/author-{i}/question-{i}" for i in range(9)], drawn(9)
    greedy = np.array([0.5, np.nan, *[0.1] * 7])
    first = write_figures(tmp_path / "a", ids, leakage, greedy, Terms())
    second = write_figures(tmp_path / "b", ids, leakage, greedy, Terms())
    check_files(tmp_path / "a", first)
    for one, other in zip(first, second, strict=True):
        assert one.suffix != ".svg" or one.read_bytes() == other.read_bytes()
    assert write_figures(tmp_path / "a", ids, leakage, greedy, Terms()) == first  # replaced, not added


@pytest.mark.parametrize(
    "leakage",
    [
        [np.array([0.4])],
        [np.array([1.0])],
        [np.zeros(50)],
        [np.zeros(50), np.ones(50), np.full(3, 0.5), np.array([0.2])],
        [np.repeat([0.0, 1.0], 30), np.repeat([1.0, 0.0], 3)],
    ],
    ids=["one answer", "one leaking answer", "nothing leaks", "point masses", "binary"],
)
@pytest.mark.filterwarnings("error")
def test_odd_samples(tmp_path: Path, leakage: list[np.ndarray]) -> None:
    greedy = np.full(len(leakage), np.nan)
    greedy[1:] = 1.0
    paths = write_figures(tmp_path, [f"q{i}" for i in range(len(leakage))], leakage, greedy, Terms())
    check_files(tmp_path, paths)


@pytest.mark.parametrize("count", [5, LABELLED, LABELLED + 1, 200])
@pytest.mark.filterwarnings("error")
def test_numbers_of_questions(tmp_path: Path, count: int) -> None:
    leakage = drawn(count, (16, 30))
    ids = [f"question-{i}" for i in range(count)]
    check_files(tmp_path, write_figures(tmp_path, ids, leakage, np.linspace(0, 1, count), Terms(family_wise=True)))
    labels = (tmp_path / "m_bin.svg").read_text(encoding="utf-8").count("question-")
    assert labels == (count if count <= LABELLED else 0)


def test_ids_are_no_markup(tmp_path: Path) -> None:
    ids = ["$\\frac{", "a $x$ <b> & \x00\ud800"]
    check_files(tmp_path, write_figures(tmp_path, ids, drawn(2), np.zeros(2), Terms()))
    assert "$\\frac{" in (tmp_path / "m_bin.svg").read_text(encoding="utf-8")


def test_no_questions_no_files(tmp_path: Path) -> None:
    assert write_figures(tmp_path / "none", [], [], np.array([]), Terms()) == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("ids", "leakage", "greedy"),
    [
        (["a"], drawn(2), np.zeros(2)),
        (["a", "b"], drawn(2), np.zeros(1)),
        (["a"], [np.zeros((2, 3))], np.zeros(1)),
        (["a"], [np.zeros(0)], np.zeros(1)),
        (["a"], [np.array([1.5])], np.zeros(1)),
        (["a"], [np.array([np.nan])], np.zeros(1)),
        (["a"], [np.zeros(3)], np.array([-0.1])),
    ],
)
def test_wrong_input_is_refused(tmp_path: Path, ids: list[str], leakage: list[np.ndarray], greedy: np.ndarray) -> None:
    with pytest.raises(ValueError):
        write_figures(tmp_path, ids, leakage, greedy, Terms())
    assert not list(tmp_path.iterdir())
