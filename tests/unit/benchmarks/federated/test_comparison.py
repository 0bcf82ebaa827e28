"""Results beside earlier ones: intervals against scipy and by simulation, what is matched, what is told."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import t as student
from scipy.stats import ttest_ind
from support.commands import call

from benchmarks import printing
from benchmarks.federated import results
from benchmarks.federated.comparison import LEVEL, Pair, compare
from oblivionis.errors import RunError

AXES = ["strategy", "unlearning", "seed"]


def table(values, axes=AXES):
    """Of {(labels…): {stage: {metric: value}}}."""
    rows = [
        {
            **{"cell": "/".join(labels), "status": "done", "error": "", "run": "r", "stage": stage},
            **dict(zip(axes, labels, strict=True)),
            **{"metric": metric, "value": value},
        }
        for labels, stages in values.items()
        for stage, metrics in stages.items()
        for metric, value in metrics.items()
    ]
    return results.table_of(rows, axes)


def grid(seeds=3, shift=0.0, methods=("npo", "simnpo")):
    """Utility and ROUGE of two stages; `shift` moves what SimNPO leaves of ROUGE."""
    noise = np.random.default_rng(0)
    made = {}
    for seed in range(seeds):
        base = noise.normal(0.5, 0.01)
        for method in methods:
            moved = shift if method == "simnpo" else 0.0
            made["fedavg", method, str(seed)] = {
                "finetune": {"model_utility": base, "seconds": 5.0},
                "unlearn": {"model_utility": base - 0.1, "forget_rouge": base - 0.2 + moved, "seconds": 3.0},
            }
    return table(made)


def beside(mine, theirs):
    return compare(mine, AXES, theirs, AXES)


# -- intervals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 3), (3, 5), (2, 9)])
def test_outside_is_what_students_test_calls_different_and_so_does_welchs_with_the_fewest_degrees_of_freedom(n, m):
    rng = np.random.default_rng(n * 10 + m)
    seen = set()
    for _ in range(300):
        pair = Pair((), rng.normal(rng.choice([0, 9]), 1, n), rng.normal(0, 2, m))
        welch = student.sf(abs(ttest_ind(pair.ours, pair.theirs, equal_var=False).statistic), min(n, m) - 1) * 2
        different = max(ttest_ind(pair.ours, pair.theirs).pvalue, welch) < LEVEL
        assert (abs(pair.difference) > pair.margin()) == different
        seen.add(bool(different))
    assert len(seen) == 2


@pytest.mark.parametrize(("n", "m"), [(1, 3), (3, 1), (1, 6)])
def test_one_seed_lies_within_the_others_interval_as_often_as_it_says(n, m):
    rng = np.random.default_rng(5)
    pairs = [Pair((), rng.normal(7, 2, n), rng.normal(7, 2, m)) for _ in range(4000)]
    share = np.mean([abs(p.difference) > p.margin() for p in pairs])
    assert abs(share - LEVEL) < 4 * np.sqrt(LEVEL * (1 - LEVEL) / 4000)


def test_without_a_second_seed_or_spread_nothing_is_judged_unless_the_seeds_are_many():
    assert np.isnan(Pair((), np.ones(1), np.zeros(1)).margin())
    assert np.isnan(Pair((), np.full(3, 0.1), np.ones(4)).margin()), "2 of 35 divisions"
    assert Pair((), np.full(4, 0.1), np.ones(4)).margin() == 0.0, "2 of 70"
    found = beside(grid(1), grid(1, shift=0.3))
    assert not found.outside(found.pairs) and not list(found.apart())
    assert "nothing says how far apart two seeds are" in found.table().note
    assert all(row[-1] == "–" for row in found.table().rows if row)


# -- what is matched -----------------------------------------------------------------------------------------------


def test_the_same_results_do_not_differ():
    found = beside(grid(), grid())
    assert len(found.pairs) == 1 + 2 * 2, "the finetuned model counts once, and seconds do not"
    assert not list(found.apart()) and found.missing == found.extra == 0
    assert found.summary() == "no difference in 5 values" and not found.table().rows
    assert {row[3] for row in found.table(full=True).rows if row} == {"+0.000"}


def test_what_moved_is_named_and_nothing_else():
    found = beside(grid(shift=0.2), grid())
    (line,) = found.apart()
    assert line == "FedAvg, SimNPO: unlearn, Forget ROUGE-L recall: 0.502, reference 0.302 ± 0.014"
    row = next(row for row in found.table().rows if row and "ROUGE" in row[1])
    assert row[2:5] == ["2", "+0.100", "0.200"] and row[6] == "1"
    assert [row[1] for row in found.table().rows if row] == [row[1]], "no row where nothing differs"
    assert found.summary() == "1 of 5 values differ; 1 of them by more than their margin"
    assert "1 of 5 values lie outside" in found.table().note


def test_seeds_that_balance_in_the_mean_are_a_difference():
    mine = {("fedavg", "npo", seed): {"unlearn": {"model_utility": value}} for seed, value in (("0", 0.2), ("1", 0.4))}
    theirs = {("fedavg", "npo", seed): {"unlearn": {"model_utility": 0.3}} for seed in ("0", "1")}
    found = beside(table(mine), table(theirs))
    assert found.pairs[0].difference == pytest.approx(0) and found.summary() == "1 of 1 value differ"
    assert len(found.table().rows) == 1


def test_cells_of_one_side_are_counted():
    found = beside(grid(methods=("npo",)), grid())
    assert (len(found.pairs), found.missing, found.extra) == (3, 2, 0)
    assert found.summary() == "no difference in 3 values; only the reference has 2 values, only the new results 0"
    assert (beside(grid(), grid(methods=("npo",)))).extra == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_as_if_it_were_not_there(value):
    labels = ("fedavg", "npo", "0")
    found = beside(table({labels: {"unlearn": {"model_utility": value, "forget_rouge": 0.3}}}), grid())
    assert [pair.place[-1] for pair in found.pairs] == ["forget_rouge"] and found.missing == 4


def test_an_axis_of_one_side_may_have_one_label_there():
    labelled = {("fedavg", "npo", str(s), "a"): {"unlearn": {"model_utility": 0.5 + s / 100}} for s in range(3)}
    axes = [*AXES, "model"]
    assert len(compare(table(labelled, axes), axes, grid(), AXES).pairs) == 1
    labelled |= {("fedavg", "npo", "0", "b"): {"unlearn": {"model_utility": 0.1}}}
    with pytest.raises(RunError, match="these results vary model"):
        compare(table(labelled, axes), axes, grid(), AXES)
    with pytest.raises(RunError, match="the reference vary model"):
        compare(grid(), AXES, table(labelled, axes), axes)


def test_results_without_a_common_value_are_no_comparison():
    with pytest.raises(RunError, match="no value in common"):
        beside(grid(methods=("npo",)), table({("fedadam", "npo", "0"): {"unlearn": {"model_utility": 1.0}}}))


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Results in `mine/quick`, and others that ship under this name."""
    for name, made in (("mine/quick", grid(shift=0.2)), ("shipped/quick", grid())):
        (tmp_path / name).mkdir(parents=True)
        results.write(made, tmp_path / name)
    monkeypatch.setattr(printing, "REFERENCE", tmp_path / "shipped")
    return tmp_path


def test_results_are_held_against_those_that_ship_under_their_name(folders):
    made = call("bench", "compare", folders / "mine" / "quick")
    assert made.code == 0 and "Beside the reference" in made.out and "FedAvg, SimNPO: unlearn" in made.out
    assert call("bench", "compare", folders / "mine" / "quick", "quick").out == made.out
    other = call("bench", "compare", folders / "mine" / "quick", folders / "shipped" / "quick" / results.FILE)
    assert other.out == made.out
    assert "| unlearn" in call("bench", "compare", folders / "mine" / "quick", "--format", "md").out.lower()


def test_results_that_are_the_same_take_one_line(folders):
    same = folders / "shipped" / "quick"
    assert call("bench", "compare", same, same).out == "Beside the reference: no difference in 5 values\n"
    assert "Forget ROUGE-L recall" in call("bench", "compare", same, same, "--full").out


def test_a_table_names_the_metrics_that_are_compared(folders):
    mine = folders / "mine" / "quick"
    (mine / "suite.yaml").write_text(
        "kind: federated\ntitle: mine\nmatrix: {strategy: [fedavg], unlearning: [npo, simnpo]}\n"
        "tables: {few: {rows: unlearning, models: [unlearn], metrics: {MU: {metric: model_utility}}}}\n"
    )
    told = call("bench", "compare", mine, "--layout", "few")
    assert told.out == "Beside the reference: no difference in 3 values\n", told.err
    assert "did you mean few?" in call("bench", "compare", mine, "--layout", "fwe").err


def test_settings_in_which_the_suites_differ_are_told(folders):
    for name, rounds in (("mine", 3), ("shipped", 8)):
        text = f"kind: federated\ntitle: {name}\nbase: {{federation.rounds.unlearn: {rounds}, data.path: /{name}}}\n"
        (folders / name / "quick" / "suite.yaml").write_text(text)
    told = call("bench", "compare", folders / "mine" / "quick")
    assert told.out.count("other settings") == 1
    assert "other settings: base.federation.rounds.unlearn was 8, is 3" in told.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{0}/mine/quick", "quikc"], "did you mean quick?"),
        (["{0}/mine"], "there are no reference results 'mine'"),
        (["{0}/none"], "cannot be read as results"),
        (["{0}/mine/quick", "--format", "pdf"], "--format pdf: expected one of text, md, latex, csv, html"),
    ],
)
def test_mistakes_are_told(folders, arguments, expected):
    if arguments == ["{0}/mine"]:
        results.write(grid(), folders / "mine")
    told = call("bench", "compare", *[a.format(folders) for a in arguments])
    assert told.code == 2 and expected in told.err and "Traceback" not in told.err


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in printing.REFERENCE.glob("*/results.parquet")), ids=str
)
def test_results_that_ship_agree_with_themselves_and_name_no_folder(folder):
    comparison, settings = printing.comparison_of(folder, folder.name)
    assert comparison.pairs and not comparison.missing and not comparison.extra and settings == []
    assert all(pair.difference == 0 for pair in comparison.pairs)
    with zipfile.ZipFile(folder / "runs.zip") as archive:
        configs = [yaml.safe_load(archive.read(name)) for name in archive.namelist() if name.endswith("config.yaml")]
        runs = {Path(name).name for name in results.read(folder)[0].column("run").to_pylist()}
        assert {name.split("/")[0] for name in archive.namelist()} == runs
    texts = [str(config) for config in configs] + [(folder / "suite.yaml").read_text()]
    assert not any(re.search(r"['\" ]/\w+/", text) for text in texts)
