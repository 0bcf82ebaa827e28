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
    figure = leakage_figures.m_bin_figure(["none", "all", "half"], leakage, greedy, terms)
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
    figure = leakage_figures.m_bin_figure(["a", "b"], leakage, np.array([0.0, np.nan]), Terms(limit=1.0))
    assert figure.axes[0].get_title().startswith("M_bin above 1 for 0% of the questions (0 of 2)")
    assert figure.axes[0].get_title().endswith("greedy answer leaks for 0% of the questions (0 of 1)")


def test_m_gen_draws_single_questions_and_the_average_of_all() -> None:
    leakage = drawn(9)
    figure = leakage_figures.m_gen_figure(leakage, Terms(alpha=0.09, family_wise=True))
    curves = general_bounds(leakage, 0.01)
    heights = [np.asarray(line.get_ydata()) for line in figure.axes[0].get_lines()]
    assert len(heights) == 7
    assert np.array_equal(np.stack(heights[:6]), curves[highest_means(leakage)])
    assert np.array_equal(heights[6], curves.mean(0))


def test_density_marks_mean_and_greedy() -> None:
    leakage, greedy = [np.array([0.2, 0.4]), np.array([0.8])], np.array([0.1, np.nan])
    axes = leakage_figures.density_figure(["a", "b"], leakage, greedy).axes
    marks = [[float(np.asarray(line.get_xdata())[0]) for line in axis.get_lines()] for axis in axes]
    assert marks == [[0.8], [leakage[0].mean(), 0.1]]


@pytest.mark.slow
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
@pytest.mark.slow
def test_odd_samples(tmp_path: Path, leakage: list[np.ndarray]) -> None:
    greedy = np.full(len(leakage), np.nan)
    greedy[1:] = 1.0
    paths = write_figures(tmp_path, [f"q{i}" for i in range(len(leakage))], leakage, greedy, Terms())
    check_files(tmp_path, paths)


@pytest.mark.parametrize("count", [5, LABELLED, LABELLED + 1, 200])
@pytest.mark.filterwarnings("error")
@pytest.mark.slow
def test_numbers_of_questions(tmp_path: Path, count: int) -> None:
    leakage = drawn(count, (16, 30))
    ids = [f"question-{i}" for i in range(count)]
    check_files(tmp_path, write_figures(tmp_path, ids, leakage, np.linspace(0, 1, count), Terms(family_wise=True)))
    labels = (tmp_path / "m_bin.svg").read_text(encoding="utf-8").count("question-")
    assert labels == (count if count <= LABELLED else 0)


@pytest.mark.slow
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


# -- how the figures are laid out ----------------------------------------------------------------------------------

TERMS = Terms(alpha=0.04, family_wise=True, limit=0.5, leaks_from=0.5)


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def look(axis):
    return {
        "x": axis.get_xlabel(),
        "y": axis.get_ylabel(),
        "title": axis.get_title(),
        "xlim": axis.get_xlim(),
        "ylim": axis.get_ylim(),
    }


@pytest.mark.parametrize(
    ("count", "grid", "left", "below", "size"),
    [
        (1, (1, 1), [0], [0], (5.6, 2.7)),
        (2, (1, 2), [0], [0, 1], (6.2, 2.7)),
        (3, (1, 3), [0], [0, 1, 2], (9.3, 2.7)),
        (4, (2, 2), [0, 2], [2, 3], (6.2, 4.8)),
        (5, (2, 3), [0, 3], [2, 3, 4], (9.3, 4.8)),
        (7, (2, 3), [0, 3], [3, 4, 5], (9.3, 4.8)),
    ],
)
def test_panels_stand_in_rows_with_labels_at_the_edges(count, grid, left, below, size) -> None:
    """Up to six questions, in rows of three (two and four: of two); a panel with none below it names its x axis."""
    leakage = [np.full(2, i / 8) for i in range(count)]
    figure = leakage_figures.density_figure([f"q{i}" for i in range(count)], leakage, np.full(count, np.nan))
    axes = figure.axes
    places = {axis.get_subplotspec().get_gridspec().get_geometry() for axis in axes}
    assert places == {grid} and tuple(figure.get_size_inches()) == pytest.approx(size)
    assert [axis.get_title() for axis in axes] == [f"q{i} (2 answers)" for i in reversed(range(count))][:6]
    assert [n for n, axis in enumerate(axes) if axis.get_ylabel() == "share of answers"] == left
    assert [n for n, axis in enumerate(axes) if axis.get_xlabel() == "leakage"] == below
    assert all(axis.get_xlim() == (-0.03, 1.03) for axis in axes)
    assert not any(axis.spines[side].get_visible() for axis in axes for side in ("top", "right"))
    assert legend_of(figure) == ["sampled answers", "mean of the sampled answers"], "no greedy answers"


def test_a_panel_shows_shares_mean_and_greedy_answer() -> None:
    figure = leakage_figures.density_figure(["a"], [np.array([0.0, 0.0, 0.5, 1.0])], np.array([0.25]))
    (axis,) = figure.axes
    (stairs,) = axis.patches
    values, edges, _ = stairs.get_data()
    assert edges.tolist() == (np.arange(26) / 25).tolist()
    assert {int(i): float(values[i]) for i in np.flatnonzero(values)} == {0: 0.5, 12: 0.25, 24: 0.25}
    assert [line.get_xdata()[0] for line in axis.lines] == [0.375, 0.25]
    assert [line.get_linestyle() for line in axis.lines] == ["-", "--"]
    assert axis.get_title() == "a (4 answers)"
    assert legend_of(figure) == ["sampled answers", "mean of the sampled answers", "greedy answer"]
    ticks = axis.get_yticks()
    assert 2 <= len(ticks) <= 5
    single = leakage_figures.density_figure(["a"], [np.zeros(1)], np.array([np.nan]))
    assert single.axes[0].get_title() == "a (1 answer)"


@pytest.mark.parametrize(
    ("count", "named"),
    [
        (1, ["the question"]),
        (2, ["each question", "average over 2 questions"]),
        (6, ["each question", "average over 6 questions"]),
        (7, ["the 6 with the highest mean leakage", "average over 7 questions"]),
    ],
)
def test_the_bound_on_the_distribution_names_what_is_drawn(count, named) -> None:
    figure = leakage_figures.m_gen_figure([np.full(4, i / 8) for i in range(count)], TERMS)
    (axis,) = figure.axes
    assert legend_of(figure) == named
    assert look(axis) == {
        "x": "leakage x",
        "y": "M_gen(x), bound on P(X > x)",
        "title": f"How likely an answer leaks more than x, at most (alpha = {0.04 / count:.3g})",
        "xlim": (-0.01, 1.01),
        "ylim": (0, 1.03),
    }
    assert {line.get_drawstyle() for line in axis.lines} == {"steps-post"}
    assert tuple(figure.get_size_inches()) == (5.6, 3.7)
    widths = [line.get_linewidth() for line in axis.lines]
    assert len(widths) == (1 if count == 1 else min(count, 6) + 1) and widths[-1] > max([0, *widths[:-1]])


@pytest.mark.parametrize(("count", "which"), [(1, "the question"), (2, "the question with the highest mean leakage")])
def test_bounds_narrow_with_the_number_of_answers(count, which) -> None:
    """Four answers to the question with the highest mean: 1, 0, 1, 1."""
    leakage = [np.array([1.0, 0.0, 1.0, 1.0]), np.zeros(8)][:count]
    figure = leakage_figures.bounds_against_n(["first", "second"][:count], leakage, TERMS)
    left, right = figure.axes
    assert tuple(figure.get_size_inches()) == (8.6, 3.7)
    assert figure.get_suptitle() == f"first: {which} (alpha = {0.04 / count:.3g} for each n)"
    assert legend_of(figure) == ["bound", "estimate from the sample"]
    spread = (2**-0.3, 4 * 2**0.3)
    assert look(left) == {
        "x": "sampled answers n",
        "y": "leakage",
        "title": "mean, bounded from below and above",
        "xlim": pytest.approx(spread),
        "ylim": (-0.03, 1.03),
    }
    assert look(right) == {
        "x": "sampled answers n",
        "y": "leakage",
        "title": "standard deviation, bounded by M_sigma",
        "xlim": pytest.approx(spread),
        "ylim": (-0.016, 0.53),
    }
    known = growth(leakage[0], 0.04 / count)
    drawn_left = [(line.get_label(), line.get_ydata().tolist()) for line in left.lines]
    assert drawn_left == [
        ("bound", known.upper.tolist()),
        ("_bound", known.lower.tolist()),
        ("estimate from the sample", [1.0, 0.5, 0.75]),
    ]
    assert all(line.get_xdata().tolist() == [1, 2, 4] for axis in (left, right) for line in axis.lines)
    assert [line.get_ydata().tolist() for line in right.lines] == [known.m_sigma.tolist(), known.std.tolist()]
    (band,) = left.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    assert (low, high) == (known.lower.min(), known.upper.max())
    for axis in (left, right):
        assert axis.get_xscale() == "log" and axis.xaxis.get_major_formatter()(4.0, 0) == "4"
        assert [tick for tick in axis.get_xticks() if 1 <= tick <= 4] == [1, 2, 4]
        assert axis.get_xticks(minor=True).size == 0


def bars_of(axis):
    """(heights, label) of each group of bars or of stairs."""
    groups = [([bar.get_height() for bar in group], group.get_label()) for group in axis.containers]
    return groups or [(patch.get_data()[0].tolist(), patch.get_label()) for patch in axis.patches]


@pytest.mark.parametrize("count", [3, LABELLED, LABELLED + 1])
def test_bars_above_and_within_the_limit_have_their_colours(count) -> None:
    """A leak in every answer to the first and the last question: M_bin 1; no leak of 64: 1 − alpha^(1/64) < 0.5."""
    leakage = [np.ones(64), *[np.zeros(64)] * (count - 2), np.ones(64)]
    greedy = np.full(count, np.nan)
    greedy[[0, 1, 2]] = 0.5, 0.49, 0.6
    figure = leakage_figures.m_bin_figure([f"q{i}" for i in range(count)], leakage, greedy, TERMS)
    (axis,) = figure.axes
    within = 1 - (0.04 / count) ** (1 / 64)
    (high, above), (low, below) = bars_of(axis)
    assert (high, above) == (pytest.approx([1.0, 1.0]), "M_bin above the limit")
    assert (low, below) == (pytest.approx([within] * (count - 2)), "M_bin within the limit")
    lines = {str(line.get_label()): line for line in axis.lines}
    assert list(lines) == ["limit 0.5", "greedy answer leaks"]
    order = [0, count - 1, *range(1, count - 1)]
    dots = lines["greedy answer leaks"].get_xydata().tolist()
    assert dots == [[0, 1.0], [order.index(2), pytest.approx(within if count > 3 else 1.0)]]
    assert axis.get_title() == (
        f"M_bin above 0.5 for {2 / count:.0%} of the questions (2 of {count}), alpha = {0.04 / count:.3g}\n"
        "greedy answer leaks for 67% of the questions (2 of 3)"
    )
    assert axis.get_ylabel() == "bound on P(X ≥ 0.5)" and axis.get_ylim() == (0, 1.03)
    assert sorted(legend_of(figure)) == [above, below, "greedy answer leaks", "limit 0.5"]
    if count <= LABELLED:
        margin = 2.5 if count == 3 else 0.1
        assert axis.get_xlim() == pytest.approx((-0.5 - margin, count - 0.5 + margin))
        assert [label.get_text() for label in axis.get_xticklabels()] == [f"q{i}" for i in order]
        assert axis.get_xlabel() == "" and figure.get_figheight() == 4.2
        assert figure.get_figwidth() == (5.6 if count == 3 else 9)
    else:
        edges = [patch.get_data()[1].tolist() for patch in axis.patches]
        assert edges == [[-0.5, 0.5, 1.5], [n + 1.5 for n in range(count - 1)]]
        assert axis.get_xlim() == (-0.5, count - 0.5) and axis.get_xticks().size == 0
        assert axis.get_xlabel() == f"{count} questions, highest bound first" and figure.get_figheight() == 3.5


def test_of_equal_bounds_the_higher_mean_comes_first_and_a_group_without_bars_is_not_named() -> None:
    leakage = [np.full(8, 0.5), np.full(8, 0.75), np.full(8, 0.6)]
    figure = leakage_figures.m_bin_figure(["a", "b", "c"], leakage, np.full(3, np.nan), TERMS)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["b", "c", "a"]
    assert sorted(legend_of(figure)) == ["M_bin above the limit", "limit 0.5"] and "\n" not in axis.get_title()


def test_older_figures_with_bounds_go_where_no_bounds_hold(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.svg").write_text("old")
        (tmp_path / f"{name}.png").write_text("old")
    (tmp_path / "mine.svg").write_text("kept")
    paths = write_figures(tmp_path, ["q"], [np.zeros(3)], np.array([np.nan]), Terms(), with_bounds=False)
    assert paths == [tmp_path / "density.svg", tmp_path / "density.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"density.svg", "density.png", "mine.svg"}
    assert (tmp_path / "density.svg").read_text(encoding="utf-8") != "old"
