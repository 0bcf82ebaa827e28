"""Tables of suites: pivoting, means over seeds, marks, a paper's numbers beside ours, and the formats."""

import csv
import io
import itertools
import math

import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console
from support.commands import call

from benchmarks import suite_kinds as suites
from benchmarks.federated import papers, results
from benchmarks.federated.settings import Layout, Measure, Settings, problems
from benchmarks.federated.tables import build, unknown_metrics
from oblivionis.measures import registry
from oblivionis.reports.format import short
from oblivionis.reports.table import Marked, Table

AXES = ["strategy", "unlearning", "seed"]
MU = Measure("MU", "model_utility", best="max", style="bold", runner_up="underline")
FTR = Measure("FTR", "forget_truth_ratio", best="max", style="underline")


def frame(values, failed=()):
    """Rows for {(strategy, unlearning, seed): {stage: {metric: value}}}, as a suite has them."""
    rows = []
    for labels, stages in values.items():
        head = {"cell": "/".join(labels), **dict(zip(AXES, labels, strict=True))}
        for stage, metrics in stages.items():
            fixed = {**head, "stage": stage, "status": "done", "error": "", "run": "r"}
            rows += [{**fixed, "metric": metric, "value": value} for metric, value in metrics.items()]
    for labels in failed:
        head = {"cell": "/".join(labels), **dict(zip(AXES, labels, strict=True))}
        rows.append({**head, "stage": "", "status": "failed", "error": "e", "run": "", "metric": "", "value": math.nan})
    return results.table_of(rows, AXES)


def grid(values, seeds=("0",)):
    """The same finetuned and retrained model for both methods of an aggregator; the seed adds 0.1 per step."""
    made = {}
    for (strategy, method), seed in itertools.product(values, seeds):
        mu, ftr = values[strategy, method]
        shift = 0.1 * int(seed)
        made[strategy, method, seed] = {
            "finetune": {"model_utility": 0.5 + shift, "forget_truth_ratio": 0.4},
            "unlearn": {"model_utility": mu + shift, "forget_truth_ratio": ftr},
            "retrain": {"model_utility": 0.6 + shift, "forget_truth_ratio": 0.7},
        }
    return frame(made)


GRID = {
    ("fedavg", "npo"): (0.461, 0.62),
    ("fedavg", "simnpo"): (0.2, 0.65),
    ("fedadam", "npo"): (0.459, 0.68),
    ("fedadam", "simnpo"): (0.00018, 0.69),
}
LAYOUT = Layout("t", "Title", (MU, FTR), rows="unlearning", columns="strategy")


def without(table, failed):
    """The rows of a table, but for those that an evaluator failed to measure: by cell its stage and name."""
    rows = []
    for row in table.to_pylist():
        of = [(s, e) for cell, s, e in failed if cell == row["cell"]]
        if not any(registry.not_measured(row["metric"], row["stage"], of) for _ in of):
            rows.append(row)
    for cell, stage, evaluator in failed:
        head = next(row for row in rows if row["cell"] == cell)
        lacking = {"stage": stage, "status": "not measured", "error": "why", "metric": evaluator, "value": None}
        rows.append({**head, **lacking})
    return results.table_of(rows, AXES)


def test_a_seed_without_figures_is_said_beside_the_mean_of_the_others():
    found = without(grid(GRID, ("0", "1")), [("fedavg/npo/1", "unlearn", "tofu")])
    rows = [row for row in build(found, AXES, LAYOUT).rows if row]
    assert rows[1][:3] == ["NPO", "0.46 (1 failed)", "0.62 (1 failed)"] and rows[1][3] == "0.51 ± 0.07"
    assert rows[1][1].style == "alarm" and getattr(rows[2][1], "style", "") != "underline", "it is no best of its row"
    assert "Not measured, the evaluator failed: fedavg/npo/1 (tofu in unlearn)." in build(found, AXES, LAYOUT).note


def test_a_cell_without_any_figure_says_that_it_failed():
    found = without(grid(GRID), [("fedadam/simnpo/0", "unlearn", "tofu")])
    rows = [row for row in build(found, AXES, LAYOUT).rows if row]
    assert rows[2] == ["SimNPO", "0.20", "0.65", "failed", "failed"]
    assert list(unknown_metrics(found, LAYOUT)) == []


def test_what_compares_with_the_retrained_model_fails_with_it():
    layout = Layout("t", "", (Measure("gap", "ruler_gap"),), "unlearning", "strategy", models=("unlearn",))
    found = without(grid(GRID), [("fedavg/npo/0", "retrain", "ruler")])
    rows = [row for row in build(found, AXES, layout).rows if row]
    assert rows[0][1:] == ["failed", "–"]


def test_rows_are_methods_and_columns_aggregators_by_metric():
    table = build(grid(GRID), AXES, LAYOUT)
    assert table.columns == ["method", "FedAvg\nMU", "FedAvg\nFTR", "FedAdam\nMU", "FedAdam\nFTR"]
    assert table.rows == [
        ["Finetune", "0.50", "0.40", "0.50", "0.40"],
        ["NPO", "0.46", "0.62", "0.46", "0.68"],
        ["SimNPO", "0.20", "0.65", "0.00018", "0.69"],
        ["Retrain", "0.60", "0.70", "0.60", "0.70"],
    ]


def test_the_best_of_a_row_is_marked_as_it_is_printed():
    rows = build(grid(GRID), AXES, LAYOUT).rows
    styles = [[getattr(cell, "style", "") for cell in row[1:]] for row in rows if row]
    assert styles[1] == ["bold", "", "bold", "underline"], "0.461 and 0.459 print alike and share the mark"
    assert styles[2] == ["bold", "", "underline", "underline"], "the runner-up of MU is underlined"


def test_the_note_names_a_style_only_where_a_number_has_it():
    assert build(grid(GRID), AXES, LAYOUT).note == (
        "Bold: best MU of its row. Underlined: best FTR of its row. Runner-up: underline."
    )
    alone = {labels: found for labels, found in GRID.items() if labels[0] == "fedavg"}
    assert build(grid(alone), AXES, LAYOUT).note == "", "a row of one number has no best"


def test_the_best_of_a_column_and_the_smallest():
    layout = Layout("t", "", (Measure("MU", "model_utility", best="min"),), "unlearning", "strategy", mark_over="rows")
    rows = build(grid(GRID), AXES, layout).rows
    assert [[isinstance(cell, Marked) for cell in row[1:]] for row in rows if row] == [
        [False, False],
        [False, False],
        [True, True],
        [False, False],
    ]


def test_a_style_alone_marks_what_the_catalogue_calls_best():
    given = {
        "MU": {"metric": "model_utility", "style": "underline"},
        "s": {"metric": "seconds", "runner_up": "bold"},
        "MU, no mark": {"metric": "model_utility", "style": "bold", "best": None},
        "worst": {"metric": "model_utility", "style": "bold", "best": "min"},
        "plain": "model_utility",
    }
    (layout,) = Settings(tables={"t": {"metrics": given}}).layouts()
    assert [m.best for m in layout.measures] == ["max", "min", None, "min", None]
    unknown = {"metrics": {"x": {"metric": "forget_prob", "style": "bold"}, "y": {"metric": "new", "style": "none"}}}
    (problem,) = problems(Settings(tables={"t": unknown}), {})
    assert problem.path == "tables.t.metrics.x.style" and "forget_prob is best is not known" in problem.message


def test_several_seeds_are_their_mean_and_sample_deviation():
    table = build(grid(GRID, seeds=("0", "1", "2")), AXES, LAYOUT)
    assert table.rows[0][1] == "0.60 ± 0.10", "a shared stage counts once per seed, not once per method"
    assert table.rows[1][1] == "0.56 ± 0.10" and table.rows[1][2] == "0.62 ± 0.00"
    assert "over 3 seeds" in table.note


def test_an_axis_that_the_layout_leaves_out_becomes_groups():
    layout = Layout("t", "", (MU,), rows="unlearning")
    table = build(grid(GRID), AXES, layout)
    assert table.columns == ["strategy", "method", "MU"]
    assert [row[0] if row else None for row in table.rows] == ["FedAvg"] * 4 + [None] + ["FedAdam"] * 4


def test_models_do_not_depend_on_the_method_but_on_other_axes():
    layout = Layout("t", "", (MU,), rows="strategy", columns="unlearning")
    table = build(grid(GRID), AXES, layout)
    assert [row[0] for row in table.rows if row] == [
        f"{s}, {m}" for m in ("finetune", "unlearn", "retrain") for s in ("FedAvg", "FedAdam")
    ]
    only = build(grid(GRID), AXES, Layout("t", "", (MU,), rows="strategy", columns="unlearning", models=("unlearn",)))
    assert [row[0] for row in only.rows if row] == ["FedAvg", "FedAdam"]


def test_what_is_not_there_is_a_dash_and_what_failed_is_named():
    values = grid({k: v for k, v in GRID.items() if k != ("fedadam", "simnpo")})
    table = build(pa.concat_tables([values, frame({}, [("fedadam", "simnpo", "0")])]), AXES, LAYOUT)
    assert table.rows[2] == ["SimNPO", "0.20", "0.65", "–", "–"]
    assert "Failed: fedadam/simnpo/0." in table.note


def test_a_papers_numbers_stand_beside_ours():
    layout = Layout(
        *("t", "", (MU, FTR), "unlearning", "strategy"),
        paper="oblivionis_table_2",
        paper_axes={"model": "Llama-3.2-1B"},
        show=("ours", "paper", "difference"),
    )
    rows = build(grid(GRID), AXES, layout).rows
    assert rows[:3] == [
        ["Finetune", "ours", "0.50", "0.40", "0.50", "0.40"],
        ["Finetune", "paper", "0.50", "0.49", "0.45", "0.60"],
        ["Finetune", "difference", "+0.00", "-0.09", "+0.05", "-0.20"],
    ]
    assert rows[3][1:] == ["ours", "0.46", "0.62", "0.46", "0.68"]
    assert rows[4][1:] == ["paper", "0.46", "0.62", "0.45", "0.68"]


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.4567, None, "0.46"),
        (0.01, None, "0.01"),
        (0.00018, None, "0.00018"),
        (6.5e-5, None, "6.5e-05"),
        (0, None, "0.00"),
        (-0.004, None, "-0.004"),
        (12.345, 1, "12.3"),
        (math.nan, None, "–"),
    ],
)
def test_numbers_are_printed_as_in_the_papers(value, digits, expected):
    assert short(value, digits) == expected


# -- the papers' numbers -------------------------------------------------------------------------------------------


def look_up(name, metric, **labels):
    table = pd.DataFrame(papers.read(name))
    for column, value in {**labels, "metric": metric}.items():
        table = table[table[column] == value]
    (value,) = table["value"]
    return value


def test_published_numbers_are_where_they_stand_in_the_papers():
    small = {"model": "Llama-3.2-1B", "strategy": "fedadagrad", "stage": "unlearn"}
    assert look_up("oblivionis_table_2", "FTR", unlearning="simnpo", **small) == 0.74
    assert look_up("oblivionis_table_2", "MU", model="Llama-3.2-3B", strategy="fedavgm", unlearning="simnpo") == 0.0013
    assert look_up("oblivionis_table_9", "MU", model="Llama-3.1-8B", strategy="fedyogi", unlearning="npo") == 0.48
    assert look_up("oblivionis_table_3", "UP", strategy="fedprox", stage="retrain") == 0.52
    assert look_up("oblivionis_table_3", "NVM", strategy="fedavgm", unlearning="grad_ascent") == 0.0059
    assert look_up("oblivionis_table_6", "seconds", strategy="fedprox", stage="retrain") == 1629.37
    assert look_up("probabilistic_table_1", "ED score", unlearning="npo") == 0.34
    assert look_up("wikimem_table_1", "M", model="LLaMA 3.1-8B", cohort="well-known") == 38.84


@pytest.mark.parametrize("name", papers.names())
def test_a_published_table_is_whole_and_has_a_source(name):
    table = pd.DataFrame(papers.read(name))
    keys = [column for column in table.columns if column != "value"]
    assert papers.source(name) not in ("", "None") and table["value"].notna().all() and not table.duplicated(keys).any()
    counts = table.groupby([k for k in keys if k not in ("metric", "stage", "unlearning")] or "metric").size()
    assert counts.nunique() == 1, "every block has the same rows"


# -- formats -------------------------------------------------------------------------------------------------------

TABLE = Table(
    "Forget & retain",
    ["method", "A\nMU", "A\nFTR", "B_1\nMU"],
    [["NPO", Marked("0.5", "bold"), Marked("0.4", "underline"), "50%"], None, ["Retrain", "–", "0.1 ± 0.2", "0"]],
    "A note.",
    texts=1,
)


def test_markdown():
    assert TABLE.markdown() == (
        "## Forget & retain\n\n| method | A MU | A FTR | B_1 MU |\n| --- | ---: | ---: | ---: |\n"
        "| NPO | **0.5** | <u>0.4</u> | 50% |\n| Retrain | – | 0.1 ± 0.2 | 0 |\n\nA note.\n"
    )


def test_latex_escapes_marks_and_spans():
    lines = TABLE.latex().splitlines()
    assert r"\caption{Forget \& retain. A note.}" in lines and r"\begin{tabular}{lrrr}" in lines
    assert r" & \multicolumn{2}{c}{A} & \multicolumn{1}{c}{B\_1} \\" in lines
    assert r"NPO & \textbf{0.5} & \underline{0.4} & 50\% \\" in lines
    assert r"Retrain & -- & 0.1 $\pm$ 0.2 & 0 \\" in lines
    assert lines.count(r"\midrule") == 2


def test_csv_is_read_back():
    assert list(csv.reader(io.StringIO(TABLE.csv()))) == [
        ["method", "A MU", "A FTR", "B_1 MU"],
        ["NPO", "0.5", "0.4", "50%"],
        ["Retrain", "–", "0.1 ± 0.2", "0"],
    ]


def test_a_terminal_sees_the_headings_and_the_note():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(TABLE.rich())
    shown = console.export_text()
    assert "Forget & retain" in shown and "A note." in shown and "0.1 ± 0.2" in shown


def test_columns_that_do_not_fit_come_below_with_their_heading():
    table = build(grid(GRID), AXES, LAYOUT)
    assert table.parts(200) == [[1, 2, 3, 4]]
    assert table.parts(30) == [[1, 2], [3, 4]], "columns of a heading stay together"
    assert table.parts(12) == [[1], [2], [3], [4]]
    for width in range(20, 70):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(table.rich())
        shown = console.export_text()
        assert "…" not in shown and all(cell in shown for row in table.rows for cell in row)


def test_a_metric_that_no_model_has_is_named():
    layout = Layout("t", "", (MU, Measure("FTR", "forget_truth_ration")), rows="unlearning", columns="strategy")
    (problem,) = unknown_metrics(grid(GRID), layout)
    assert problem == (
        "tables.t.metrics.FTR: no model has the metric 'forget_truth_ration'; did you mean forget_truth_ratio?"
    )
    assert not list(unknown_metrics(grid(GRID), LAYOUT)) and not list(unknown_metrics(grid(GRID).slice(0, 0), layout))


# -- bench table ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    results.write(grid(GRID), tmp_path)
    return tmp_path


def test_a_bare_file_takes_the_layouts_of_the_suites_that_ship(folder):
    file = folder / results.FILE
    made = call("bench", "table", file, "--layout", "quick", "--format", "md")
    assert made.code == 0 and "| NPO | **0.46** | 0.62 | **0.46** | <u>0.68</u> |" in made.out
    assert call("bench", "table", folder, "--layout", "quick", "--format", "md").out == made.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{file}"], "has no tables of its own; name one with --layout"),
        (["{file}", "--layout", "paper-table-22"], "did you mean paper-table-2?"),
        (["{file}", "--layout", "wikimem-table-1"], "these results have no such axis"),
        (["{file}", "--format", "pdf"], "--format pdf: expected one of text, md, latex, csv, html"),
        (["{folder}/none"], "cannot be read as results"),
        (["{folder}/text.parquet"], "cannot be read as results"),
    ],
)
def test_mistakes_are_told(folder, arguments, expected):
    (folder / "text.parquet").write_text("no parquet")
    given = [a.format(file=folder / results.FILE, folder=folder) for a in arguments]
    result = call("bench", "table", *given)
    assert result.code == 2 and expected in result.err and "Traceback" not in result.err


def test_a_suite_of_the_other_kind_has_no_jobs(tmp_path):
    result = call("bench", suites.FOLDER / "ruler_tabular.yaml", "--jobs", "2", "--output", tmp_path / "x")
    assert result.code == 2 and "leave --jobs out" in result.err


WHY = "the paper's ROUGE reads Latin letters and digits alone; evaluation.rouge=any_script reads others"


def test_a_metric_that_is_left_out_is_a_dash_with_its_reason_under_the_table():
    found = grid(GRID, ("0", "1")).to_pylist()
    unread = [{**row, "value": None, "error": WHY} if row["metric"] == "model_utility" else row for row in found]
    table = results.table_of(unread, AXES)
    made = build(table, AXES, LAYOUT)
    assert {row[1] for row in made.rows if row} == {"–"} and f"MU: {WHY}." in made.note
    assert "–" in made.csv() and "nan" not in made.csv().lower() and WHY in made.markdown().replace("\\", "")
    assert list(unknown_metrics(table, LAYOUT)) == []
    assert "reads Latin" not in build(grid(GRID), AXES, LAYOUT).note
