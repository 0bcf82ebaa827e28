"""The report of the tabular suite: its numbers are those of the rows, its verdicts those of the definitions."""

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import false_discovery_control, wilcoxon

from benchmarks.tabular import report
from benchmarks.tabular.experiment import COLUMNS, ORACLE, models
from benchmarks.tabular.settings import Settings
from evaluation.ruler import statistics
from oblivionis.reports.format import fixed, p_value
from oblivionis.reports.table import Table

DATASETS = ("breast_cancer", "wine", "digits")
SEEDS = range(6)
METHODS = {name: {"epochs": 1, "learning_rate": 1e-3} for name in ("neg_grad", "scrub")}


def settings(datasets=DATASETS):
    return Settings(datasets=list(datasets), seeds=list(SEEDS), forget_fractions=[0.05], methods=METHODS)


def results(datasets=DATASETS):
    """Rows with random measures, a shift of their own for each dataset."""
    rng = np.random.default_rng(0)
    rows = []
    for place, dataset in enumerate(sorted(datasets)):
        for seed in SEEDS:
            for method in models(settings(datasets)):
                measures = rng.normal(0.5 + 0.1 * place, 0.05, len(COLUMNS) - 6)
                rows.append((dataset, 0.05, seed, method, 22, 433, *measures))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def column(frame, method, name):
    return frame[frame["method"] == method][name].to_numpy()


def row(table, name):
    return next(cells for cells in table.rows if cells is not None and cells[1] == name)


def test_many_datasets_are_tested_by_the_mixed_model():
    frame = results()
    rows = report.planned(settings(), frame)
    groups = column(frame, "scrub", "dataset")
    for table, name, null, digits in ((report.gaps(rows), "s_gap", 0.0, 4), (report.ranks(rows), "mean_rank", 0.5, 3)):
        values = column(frame, "scrub", name)
        fit = statistics.mixed_model(values, groups, null)
        means = frame[frame["method"] == "scrub"].groupby("dataset")[name].mean()
        effect = statistics.signed_rank(means.to_numpy(), null)
        assert not fit.singular
        expected = [fixed(values.mean(), digits), fixed(fit.z, 2), p_value(fit.p)]
        expected += [f"{effect.signed:+.2f} {effect.label}", fixed(fit.icc, 2)]
        assert row(table, "SCRUB")[2:] == expected


def test_a_singular_fit_is_told_and_replaced_by_wilcoxons_test():
    frame = results()
    frame.loc[frame["method"] == "scrub", "s_gap"] = [0.1, 0.2, -0.3, 0.4, -0.2, 0.1] * 3
    table = report.gaps(report.planned(settings(), frame))
    assert row(table, "SCRUB")[3:5] == ["–", "0.250 W"] and row(table, "SCRUB")[-1] == "–"
    assert "5 %, SCRUB: singular fit" in table.note and "NegGrad: singular" not in table.note


def test_one_dataset_is_tested_by_wilcoxons_test_of_its_seeds():
    frame = results(["breast_cancer"])
    values = column(frame, "neg_grad", "s_gap")
    p = wilcoxon(values).pvalue
    rows = report.planned(settings(["breast_cancer"]), frame)
    assert row(report.gaps(rows), "NegGrad")[2:5] == [fixed(values.mean(), 4), "–", f"{p_value(p)} W"]
    single = row(report.single_dataset(rows), "NegGrad")
    assert single[2:5] == [fixed(values.mean(), 4), fixed(values.std(ddof=1), 4), p_value(p)]
    band = statistics.noise_band(column(frame, "oracle_twin", "s_gap"))
    assert f"[{band.low:.4f}, {band.high:.4f}] (5 %)" in report.single_dataset(rows).note


@pytest.mark.parametrize(("mia", "verdict"), [(0.55, "✓"), (0.45, "✓"), (0.56, "✗"), (0.44, "✗")])
def test_membership_inference_passes_near_one_half(mia, verdict):
    frame = results()
    frame.loc[frame["method"] == "scrub", "mia"] = mia
    assert row(report.output_level(report.planned(settings(), frame)), "SCRUB")[2] == f"{mia:.3f} {verdict}"


def test_accuracies_pass_near_the_oracles():
    frame = results()
    for method, value in ((ORACLE, 0.9), ("scrub", 0.86), ("neg_grad", 0.84)):
        frame.loc[frame["method"] == method, "test_accuracy"] = value
    table = report.output_level(report.planned(settings(), frame))
    assert [row(table, name)[-1] for name in ("oracle", "SCRUB", "NegGrad")] == ["0.900", "0.860 ✓", "0.840 ✗"]


def test_methods_are_compared_on_the_same_runs():
    frame = results(["wine"])
    frame.loc[frame["method"] == "scrub", "mia"] = column(frame, "neg_grad", "mia") + 0.01
    table = report.post_hoc(report.planned(settings(["wine"]), frame))
    cells = {line[2]: line for line in table.rows}
    assert list(cells) == ["S_gap", "mean R", "MIA", "retain acc."]
    assert cells["MIA"][1] == "NegGrad – SCRUB" and cells["MIA"][3:5] == ["-0.0100", "-1.00"]
    assert cells["MIA"][-1] == "" and cells["MIA"][-2] == p_value(4 * 2**-5), "the smallest of four p of six seeds"


def test_methods_are_compared_by_the_means_of_several_datasets():
    frame = results()
    frame.loc[frame["method"] == "scrub", "mia"] = column(frame, "neg_grad", "mia") + 0.01
    table = report.post_hoc(report.planned(settings(), frame))
    means = frame.groupby(["method", "dataset"])[["s_gap", "mean_rank", "mia", "retain_accuracy"]].mean()
    p = wilcoxon(means.loc["neg_grad"], means.loc["scrub"]).pvalue
    assert [line[5] for line in table.rows] == [p_value(value) for value in false_discovery_control(p)]
    assert "3 datasets' means (too few: p is at least 0.25)" in table.note


@pytest.mark.slow
def test_the_report_names_what_is_left_out_and_what_is_not_the_papers(tmp_path):
    out = io.StringIO()
    suite = settings((*DATASETS, "phoneme"))
    described = {"phoneme": {"title": "Phoneme", "missing": "no route"}}
    report.write(suite, results(), described, tmp_path, Console(file=out, width=80))
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "- Phoneme (no route)" in text and "Not among the paper's ten datasets: Wine, Digits." in text
    assert "left out, reasons in tables.md: Phoneme" in out.getvalue()
    assert "…" not in out.getvalue(), "nothing is cut off in 80 columns"
    for title in ("Breast Cancer alone", "Wine alone", "Digits alone", "Methods against each other"):
        assert f"## {title}" in text and title in out.getvalue()


def test_a_table_leaves_repetitions_out_on_the_terminal_only():
    table = Table("T", ["a", "b", "c"], [["x", "y", "1"], ["x", "z", "2"], None, ["x", "w", "3"]], "note")
    out = io.StringIO()
    Console(file=out, width=40).print(table.rich())
    assert [line.split() for line in out.getvalue().splitlines()[3:7]] == [
        ["x", "y", "1"],
        ["z", "2"],
        [],
        ["x", "w", "3"],
    ]
    assert table.markdown().count("| x |") == 3 and "| --- | --- | ---: |" in table.markdown()


def test_numbers_are_written_for_readers():
    assert [fixed(0.12345), fixed(float("nan")), fixed(-1.0, 1)] == ["0.123", "–", "-1.0"]
    assert [p_value(0.0004), p_value(0.0312), p_value(float("nan"))] == ["<0.001", "0.031", "–"]
