"""`suite.html` of a hand-made suite: cells, warnings, costs, the paper's numbers, links."""

import re
import shutil

import numpy as np
import pytest
from support.pages import Text
from support.reports import make_run, metrics_of
from support.suite_view import cells, value, view

from benchmarks.output.page import write_suite_html
from oblivionis.reports.table import Table


def written(folder, **changes):
    path = write_suite_html(folder, view(folder, **changes))
    return path.read_text(encoding="utf-8")


def words(source):
    return " ".join(Text(re.sub(r"<style>.*?</style>", "", source)).text.split())


@pytest.mark.slow
def test_everything_of_the_view_is_on_the_page(tmp_path):
    source = written(tmp_path)
    text = words(source)
    for part in ("Two methods & two aggregators", "A suite made by hand.", "Made <by> hand.", "Experiment", "Means."):
        assert part in text
    assert "8 of 8 done" in text and "fedavg, fedadam" in text and "seed 0, 1" in text
    assert source.count("<svg") == 2, "the two metrics that the cells have"
    drawn = [figure.split("</svg>")[0] for figure in source.split("<svg")[1:]]
    assert [">paper<" in figure for figure in drawn] == [True, False], "it has numbers of one metric only"


def test_ours_beside_the_papers(tmp_path):
    text = words(written(tmp_path))
    ours = [value("fedavg", "npo", seed, "unlearn", "forget_rouge") for seed in (0, 1)]
    expected = f"{np.mean(ours):.3f} ± {np.std(ours, ddof=1):.3f} 2 0.250 {np.mean(ours) - 0.25:+.3f}"
    assert f"fedavg npo Forget ROUGE-L recall {expected}" in text
    assert "simnpo" not in text, "there is no such cell"


@pytest.mark.slow
def test_shared_stages_are_counted_once(tmp_path):
    """4 finetune runs of 60 s serve 8 cells, 4 retrain runs of 50 s likewise; nobody shares unlearn, 20 s."""
    text = words(written(tmp_path))
    assert "finetune 4 8 60 240 240" in text and "retrain 4 8 50 200 200" in text and "unlearn 8 8 20 160 0" in text
    assert "together 600 440" in text


@pytest.mark.slow
def test_failed_cells_and_one_seed_are_warned_of(tmp_path):
    source = written(tmp_path, cells=cells(failed="fedadam/rmu/seed=1"))
    text = words(source)
    assert "1 of 8 cells failed: fedadam/rmu/seed=1." in text and "client 3 <died>" in text and "<died>" not in source
    assert "7 of 8 done, 1 failed" in text and "One seed only" not in text
    assert "One seed only" in words(written(tmp_path, cells=cells(seeds=(0,))))


@pytest.mark.slow
def test_warnings_and_reports_come_from_the_cells(tmp_path):
    made, _ = make_run(tmp_path, ["finetune", "unlearn"], metrics=lambda s: metrics_of(s) | {"model_utility": 0.5})
    (made.path / "report.html").write_text("<p>")
    frame = cells()
    run = frame[(frame.cell == "fedavg/npo/seed=0") & (frame.stage == "unlearn")].run.iloc[0]
    shutil.copytree(made.path, tmp_path / run)
    source = written(tmp_path)
    text = words(source)
    assert "1 of 8 cells, without a retrained model" in text and ": fedavg/npo/seed=0." in text
    links = [link for link in Text(source).links if not link.startswith("#")]
    assert links == [f"{run}/report.html"] and (tmp_path / links[0]).is_file()


def test_a_suite_without_cells_paper_or_tables(tmp_path):
    text = words(written(tmp_path, cells=cells().iloc[:0], paper=None, tables=[], warnings=[]))
    assert "Nothing to draw yet" in text and "0 of 0 done" in text and "No seconds" in text and "Warnings" not in text


@pytest.mark.slow
def test_one_axis_and_three(tmp_path):
    frame = cells().assign(rounds="10")
    assert "<svg" in written(tmp_path, cells=frame[frame.strategy == "fedavg"], axes=("unlearning", "seed"), paper=None)
    assert "npo · 10" in written(tmp_path, cells=frame, axes=("strategy", "unlearning", "rounds", "seed"), paper=None)


def test_missing_columns_are_named(tmp_path):
    with pytest.raises(ValueError, match="run, status"):
        write_suite_html(tmp_path, view(tmp_path, cells=cells().drop(columns=["run", "status"])))


def test_a_table_as_html():
    rows = [["a", "b", "1"], ["a", "c", "2"], None, ["a", "<", "3"]]
    source = str(Table("A <b>", ["x", "y", "Model utility"], rows).html())
    assert "A &lt;b&gt;" in source and "&lt;</td>" in source and 'href="#g-model-utility"' in source
    assert source.count('<th scope="row">a</th>') == 2, "a first cell that repeats the one above is blank"
