"""The figures of the families of measures: every number read back from the page, against the log that it is of."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from support.pages import Text
from support.reports import make_run
from support.svg_data import Drawing

from oblivionis.reports.html.measure_figures import figure_of
from oblivionis.reports.run_summary import stage_metrics

BOUNDS = {
    "unlearn": {"a": (0.1, 0.2, 0.3), "b": (0.5, 0.75, 0.9), "c": (0.0, 0.05, 0.15)},
    "retrain": {"a": (0.2, 0.25, 0.3), "c": (0.0, 0.1, 0.2)},
}
RANKS = {"finetune": [0.9, 0.8, 1.0], "unlearn": [0.4, 0.6], "retrain": [0.5]}
SCORES = {
    "finetune": {"members": [-0.1, -0.2, -0.3, -0.4], "others": [-4.0, -3.0, -3.5]},
    "unlearn": {"members": [-2.0, -2.1, -2.2, -3.9], "others": [-2.0, -3.0, -4.0]},
}


def numbered(values):
    return {f"r{i}": value for i, value in enumerate(values)}


def made(folder, name, logs, metrics=()):
    """A finished run whose logs hold no more than these, by stage."""
    run, _ = make_run(
        folder,
        metrics=lambda _: dict.fromkeys(metrics, 0.5),
        logs=lambda stage: {name: logs[stage]} if stage in logs else {},
    )
    return run, str(figure_of(name, run, stage_metrics(run)))


def near(lines):
    return [[pytest.approx(p, abs=5e-3) for p in line] for line in lines]


def leakage_rows(stage):
    bounds = BOUNDS[stage].items()
    return {i: {"mu_lower": low, "mean": mean, "mu_upper": high, "samples": 64} for i, (low, mean, high) in bounds}


def test_leakage_has_each_question_between_its_bounds_the_worst_first(tmp_path):
    """A band is one path around: forth along one bound, a question a step, and back along the other."""
    run, page = made(tmp_path, "leakage", {stage: leakage_rows(stage) for stage in BOUNDS})
    figure = Drawing(page, "leakage")
    heights = [y for ((_, y),) in figure.lines("leakage-unlearn")]
    assert heights == [pytest.approx(y, abs=5e-3) for y in (0.75, 0.2, 0.05)]
    assert [y for ((_, y),) in figure.lines("leakage-retrain")] == [pytest.approx(y, abs=5e-3) for y in (0.25, 0.1)]
    places = [x for ((x, _),) in figure.lines("leakage-unlearn")]
    assert [x for ((x, _),) in figure.lines("leakage-retrain")] == pytest.approx(places[1:])
    (band,) = figure.lines("leakage-band")
    half = (places[1] - places[0]) / 2
    for x, i in zip(places, "bac", strict=True):
        low, _, high = BOUNDS["unlearn"][i]
        steps = [(a, b) for a, b in pairwise(band) if abs(a[1] - b[1]) < 1e-6 < abs(a[0] - b[0])]
        over = sorted(a[1] for a, b in steps if min(a[0], b[0]) < x < max(a[0], b[0]))
        assert over == [pytest.approx(low, abs=5e-3), pytest.approx(high, abs=5e-3)]
        assert all(abs(abs(a[0] - b[0]) - 2 * half) < 1e-3 for a, b in steps)
    assert "mean leakage of 64 sampled answers to each of 3 questions, in the unlearned model." in Text(page).words
    assert run.stage_summary("unlearn") is not None


def test_questions_of_an_edited_log_that_lack_a_bound_or_a_mean_are_left_out(tmp_path):
    without = {**leakage_rows("unlearn"), "b": {"mean": 0.75}}
    _, page = made(tmp_path, "leakage", {"unlearn": without, "retrain": {"a": {}, "c": {"mean": 0.1}}})
    figure = Drawing(page, "leakage")
    assert [y for ((_, y),) in figure.lines("leakage-unlearn")] == [pytest.approx(y, abs=5e-3) for y in (0.2, 0.05)]
    assert [y for ((_, y),) in figure.lines("leakage-retrain")] == [pytest.approx(0.1, abs=5e-3)]


def test_leakage_of_the_retrained_model_is_only_spoken_of_where_it_is(tmp_path):
    _, page = made(tmp_path, "leakage", {"finetune": leakage_rows("unlearn")})
    words = Text(page).words
    assert "in the finetuned model" in words and "retrained" not in words and "Hollow" not in words


def test_many_questions_are_shown_in_part_and_the_caption_says_so(tmp_path):
    rows = {f"q{i}": {"mu_lower": 0.0, "mean": i / 1000, "mu_upper": 1.0} for i in range(801)}
    _, page = made(tmp_path, "leakage", {"unlearn": rows})
    figure, words = Drawing(page, "leakage"), Text(page).words
    heights = [y for ((_, y),) in figure.lines("leakage-unlearn")]
    assert len(heights) == 161 and "to each of 161 questions of 801, in" in words, "every fifth"
    assert heights[:2] == [pytest.approx(0.8, abs=5e-3), pytest.approx(0.795, abs=4e-3)] and len(page) < 60_000


@pytest.mark.parametrize("name", ["ruler", "wikimem"])
def test_each_record_or_phrasing_has_a_tick_at_its_rank(tmp_path, name):
    log = {
        "ruler": numbered,
        "wikimem": lambda ranks: {"forget": {"facts": [{"ranks": ranks[:1]}, {"ranks": ranks[1:]}]}},
    }
    _, page = made(tmp_path, name, {stage: log[name](ranks) for stage, ranks in RANKS.items()})
    figure = Drawing(page, name)
    for stage, ranks in RANKS.items():
        ticks = figure.lines(f"{name}-{stage}")
        assert [x for (x, _), _ in ticks] == [pytest.approx(rank, abs=5e-3) for rank in sorted(ranks)]
        assert all(low[0] == high[0] for low, high in ticks)
        (((mean, _),),) = figure.lines(f"{name}-{stage}-mean")
        assert mean == pytest.approx(sum(ranks) / len(ranks), abs=5e-3)
    assert {"finetuned (3)", "unlearned (2)", "retrained (1)"} <= set(figure.words)
    heights = [figure.lines(f"{name}-{stage}-mean")[0][0][1] for stage in RANKS]
    assert len({round(y, 3) for y in heights}) == 3, "a row for each model"


def test_ranks_that_were_not_kept_give_no_figure(tmp_path):
    """Logs of earlier versions have what came first alone."""
    _, page = made(tmp_path, "wikimem", {"unlearn": {"forget": {"facts": [{"first": ["x"]}]}, "retain": {}}})
    assert page == "None"


def test_the_densities_are_shares_of_the_records_and_add_up_to_one(tmp_path):
    logs = {stage: {"zlib": {k: numbered(v) for k, v in of.items()}} for stage, of in SCORES.items()}
    _, page = made(tmp_path, "membership", logs)
    figure = Drawing(page, "membership")
    edges = [-4.0 + 3.9 / 16 * i for i in range(17)]
    for stage, of in SCORES.items():
        for word, values in (("forget", of["members"]), ("holdout", of["others"])):
            (outline,) = figure.lines(f"membership-{stage}-{word}")
            for left, right in pairwise(edges):
                middle = (left + right) / 2
                tops = [
                    a[1]
                    for a, b in pairwise(outline)
                    if abs(a[1] - b[1]) < 1e-6 and min(a[0], b[0]) < middle < max(a[0], b[0])
                ]
                share = sum(left <= v < right or (right == edges[-1] and v >= right) for v in values) / len(values)
                assert max(tops) == pytest.approx(share, abs=0.01), (stage, word, left)
    assert [w for w in figure.words if w.endswith("ed")] == ["finetuned", "unlearned"]
    words = Text(page).words
    assert "How the attack zlib scores 4 records to be forgotten and 3 of the holdout" in words


def test_the_attack_is_the_one_that_tells_the_models_apart_best(tmp_path):
    """Of two attacks on ten records each the second scores all records alike in the retrained model only."""
    spread = {"members": numbered([i / 10 for i in range(10)]), "others": numbered([-1 + i / 9 for i in range(10)])}
    alike = {"members": numbered([i / 10 for i in range(10)]), "others": numbered([i / 10 for i in range(10)])}
    logs = {
        "unlearn": {"loss": alike, "zlib": spread},
        "retrain": {"loss": alike, "zlib": alike},
    }
    _, page = made(tmp_path, "membership", logs, ("membership_auc_loss", "membership_auc_zlib"))
    assert "How the attack zlib scores 10 records" in Text(page).words


def test_what_is_no_number_is_left_out(tmp_path):
    (tmp_path / "r").mkdir()
    run, _ = make_run(tmp_path / "r", ["unlearn"], metrics=lambda _: {}, logs=lambda _: {})
    none = {"ruler": {"a": math.nan}, "leakage": {"a": {"mu_lower": math.nan, "mean": 0.1, "mu_upper": 0.2}}}
    none |= {"membership": {"loss": {"members": {"a": math.nan}, "others": {"b": 0.1}}}}
    (run.path / "evaluations" / "unlearn.json").write_text(json.dumps(none), encoding="utf-8")
    assert [figure_of(name, run, {"unlearn": {}}) for name in (*none, "fluency")] == [None] * 4
