"""`oblivionis bench`: suites, their mistakes, folders of results, resuming, and the tabular suite's report."""

import dataclasses
import json
import shutil
from urllib.error import URLError

import pandas as pd
import pytest
from omegaconf import OmegaConf
from support.commands import call

from benchmarks import suite_kinds as suites
from benchmarks.tabular import data
from benchmarks.tabular.experiment import KEYS
from benchmarks.tabular.results import Results
from clients import losses

SUITE = suites.FOLDER / "ruler_tabular.yaml"
SMALL = [
    "datasets=[breast_cancer]",
    "seeds=[0, 1]",
    "forget_fractions=[0.05, 0.1]",
    "pretraining.epochs=3",
    "network.width=16",
    "methods={grad_ascent: {epochs: 1}, neg_grad: {epochs: 1}, fine_tune: {epochs: 1}, scrub: null, bad_teacher: null}",
]
MODELS = ["original", "oracle", "oracle_twin", "oracle_pair", "grad_ascent", "neg_grad", "fine_tune"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """OpenML cannot be reached, on any machine."""

    def fails(**_):
        raise URLError("no route to host")

    monkeypatch.setattr(data.shipped, "fetch_openml", fails)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a small suite, and what the command printed."""
    folder = tmp_path_factory.mktemp("bench") / "out"
    return folder, call("bench", SUITE, *SMALL, "--output", folder)


# -- the suite that ships ------------------------------------------------------------------------------------------


def test_the_suite_has_the_papers_settings():
    kind, suite = suites.load(SUITE)
    assert kind == "ruler_tabular"
    assert suite.forget_fractions == [0.01, 0.05, 0.10] and suite.min_forget == 10
    assert suite.seeds == list(range(10)) and (suite.unlearning_seed, suite.split_seed) == (100, 999)
    assert (suite.network.width, suite.network.dropout, suite.pretraining.epochs) == (128, 0.2, 50)
    assert set(filter(data.in_paper, data.SOURCES)) <= set(suite.datasets)
    epochs = {plan.method: plan.epochs for plan in suite.plans()}
    assert epochs == {"grad_ascent": 5, "neg_grad": 10, "fine_tune": 10, "scrub": 10, "bad_teacher": 10}
    assert {plan.method: set(plan.parameters) for plan in suite.plans()} == {
        name: set(losses.hyperparameters(name)) for name in epochs
    }


def test_every_key_of_the_settings_is_in_the_suite_that_ships():
    given = OmegaConf.to_container(OmegaConf.load(SUITE))
    assert given.pop("kind") == "ruler_tabular"
    assert set(given) == {field.name for field in dataclasses.fields(suites.KINDS["ruler_tabular"].settings)}


def test_overrides_change_values_and_leave_methods_out():
    _, suite = suites.load(SUITE, [*SMALL, "methods.neg_grad.alpha=1"])
    assert [p.method for p in suite.plans()] == ["grad_ascent", "neg_grad", "fine_tune"]
    neg_grad = suite.plans()[1]
    assert (neg_grad.epochs, neg_grad.learning_rate, neg_grad.parameters) == (1, 1e-4, {"alpha": 1.0})


# -- mistakes ------------------------------------------------------------------------------------------------------

MISTAKES = {
    "no such suite": ("ruler_tabula", [], "there is no 'ruler_tabula'", "did you mean ruler_tabular?"),
    "unknown key": (SUITE, ["sedes=[1]"], "sedes: unknown key", "did you mean seeds?"),
    "unknown key in a section": (SUITE, ["network.with=3"], "network.with: unknown key", "did you mean network.width?"),
    "section with a bare value": (SUITE, ["network=3"], "network: 3 is not a section", ""),
    "wrong type": (SUITE, ["pretraining.epochs=many"], "pretraining.epochs: 'many' is not a whole number", ""),
    "out of range": (SUITE, ["network.dropout=1"], "network.dropout: 1.0 is out of range", "0 <= value < 1"),
    "fraction out of range": (SUITE, ["forget_fractions=[0.1, 1.5]"], "forget_fractions[1]: 1.5 is out of range", ""),
    "unknown dataset": (
        SUITE,
        ["datasets=[breast_cancr]"],
        "datasets[0]: unknown choice",
        "did you mean breast_cancer?",
    ),
    "no seeds": (SUITE, ["seeds=[]"], "seeds: the list is empty", ""),
    "negative seed": (SUITE, ["seeds=[3, -1]"], "seeds: -1 is out of range", ""),
    "offset onto a seed": (SUITE, ["seeds=[0, 5]", "pair_seed_offset=5"], "pair_seed_offset: leads from", "another, 5"),
    "unknown method": (
        SUITE,
        ["methods.scrubb.epochs=3"],
        "methods.scrubb: unknown method",
        "did you mean methods.scrub?",
    ),
    "method without hidden states": (
        SUITE,
        ["methods.rmu.epochs=3"],
        "methods.rmu: unknown method",
        "one of bad_teacher",
    ),
    "method that is no mapping": (SUITE, ["methods=[scrub]"], "methods: ['scrub'] is no mapping", ""),
    "unknown hyperparameter": (
        SUITE,
        ["methods.scrub.alhpa=1"],
        "methods.scrub.alhpa: unknown key",
        "methods.scrub.alpha",
    ),
    "hyperparameter out of range": (
        SUITE,
        ["methods.neg_grad.alpha=2"],
        "methods.neg_grad.alpha: 2.0 is out of",
        "<= 1",
    ),
    "method without its rate": (
        SUITE,
        ["methods.npo={epochs: 3}"],
        "methods.npo.learning_rate: null is not allowed",
        "",
    ),
    "malformed override": (SUITE, ["seeds"], "malformed override", "key=value"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message(mistake, tmp_path):
    suite, overrides, *expected = MISTAKES[mistake]
    result = call("bench", suite, *overrides, "--output", tmp_path / "out")
    assert result.code == 2 and "Traceback" not in result.err
    assert all(text in result.err for text in expected), result.err
    assert result.err.count("problem in the configuration") == 1
    assert not (tmp_path / "out").exists()


FILES = {
    "no kind": ("datasets: [wine]\n", "kind: a value must be given; expected one of federated, ruler_tabular"),
    "unknown kind": (
        "kind: ruler_tablar\n",
        "kind: unknown kind 'ruler_tablar'; expected one of federated, ruler_tabular, metrics_meta; did you mean",
    ),
    "no methods": ("kind: ruler_tabular\n", "methods: no method is given; expected some of bad_teacher"),
    "no YAML": ("kind: [\n", "is not valid YAML"),
    "no mapping": ("- kind\n", "is no mapping"),
    "place of a value": ("kind: ruler_tabular\nseeds: 3\n", "seeds: 3 is not a list"),
}


@pytest.mark.parametrize("mistake", FILES)
def test_a_mistake_in_a_file_is_one_message_with_its_place(mistake, tmp_path):
    text, expected = FILES[mistake]
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    result = call("bench", file)
    assert result.code == 2 and "Traceback" not in result.err
    assert expected in result.err and "mine.yaml" in result.err


def test_all_mistakes_are_told_at_once():
    result = call("bench", SUITE, "seeds=[]", "network.width=0", "bogus=1")
    assert result.err.startswith("3 problems in the configuration:")


def test_forgetting_more_than_there_is_is_a_mistake(tmp_path):
    result = call("bench", SUITE, *SMALL, "datasets=[wine]", "min_forget=141", "--output", tmp_path / "out")
    assert result.code == 2 and "Traceback" not in result.err
    assert "Wine: 141 of 142 records are to be forgotten" in result.err and "min_forget" in result.err


def test_a_diverging_training_is_told_and_what_is_finished_is_kept(tmp_path):
    result = call("bench", SUITE, *SMALL, "methods.neg_grad.learning_rate=1e30", "--output", tmp_path / "out")
    assert result.code == 1 and "Traceback" not in result.err
    assert "Breast Cancer, fraction 0.05, seed 0" in result.err and "learning rates" in result.err


# -- a run ---------------------------------------------------------------------------------------------------------


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    result = call("bench", "ruler_tabular", "seeds=[0, 1, 2]", "--dry-run", "--output", tmp_path / "out")
    assert result.code == 0 and not (tmp_path / "out").exists()
    for line in (
        "datasets from scikit-learn: breast_cancer, wine, digits",
        "forget fractions: 0.01, 0.05, 0.1 (at least 10 records)",
        "seeds: 0, 1, 2",
        "neg_grad: 10 updates at 0.0001, alpha 0.5",
        "108 cells (dataset × fraction × seed), 9 models measured in each",
        f"results: {tmp_path / 'out'}",
    ):
        assert line in result.out.splitlines()


@pytest.mark.slow
def test_results_have_a_row_per_dataset_seed_fraction_and_model(finished):
    folder, result = finished
    assert result.code == 0, result.err
    frame = pd.read_parquet(folder / "results.parquet")
    expected = [("breast_cancer", f, s, m) for f in (0.05, 0.1) for s in (0, 1) for m in MODELS]
    assert list(frame[list(KEYS)].itertuples(index=False, name=None)) == expected
    assert set(frame["forget_records"]) == {22, 45} and frame["retain_records"].isin([433, 410]).all()
    described = json.loads((folder / "datasets.json").read_text())["breast_cancer"]
    assert described["forget"] == {"0.05": 22, "0.1": 45} and described["in_paper"] is True


@pytest.mark.slow
def test_what_was_run_is_kept_beside_the_results(finished):
    folder, _ = finished
    assert suites.load(folder / "suite.yaml") == suites.load(SUITE, SMALL)
    pngs = {file.name for file in (folder / "figures").iterdir()}
    assert pngs == {"shift.png", "rank.png", "gap.png"}
    assert all((folder / "figures" / name).read_bytes().startswith(b"\x89PNG") for name in pngs)


@pytest.mark.slow
def test_an_interrupted_run_continues_without_repeating_a_cell(finished, tmp_path, monkeypatch):
    folder, add, calls = tmp_path / "out", Results.add, []

    def interrupted(self, cell, rows):
        add(self, cell, rows)
        calls.append(cell)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Results, "add", interrupted)
    stopped = call("bench", SUITE, *SMALL, "--output", folder)
    assert stopped.code == 130 and "Traceback" not in stopped.err
    assert f"--output {folder} --resume" in stopped.err
    assert len(pd.read_parquet(folder / "results.parquet")) == 3 * len(MODELS)
    again = call("bench", SUITE, *SMALL, "--output", folder)
    assert again.code == 2 and "continue them with --resume" in again.err
    resumed = call("bench", SUITE, *SMALL, "--output", folder, "--resume")
    assert resumed.code == 0, resumed.err
    assert len(calls) == len(set(calls)) == 4
    whole = pd.read_parquet(finished[0] / "results.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "results.parquet"), whole, check_exact=True)
    assert (folder / "tables.md").read_text() == (finished[0] / "tables.md").read_text()


@pytest.mark.slow
def test_resuming_with_more_seeds_adds_them_and_with_other_settings_is_refused(finished, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    few = [*SMALL, "seeds=[1]", "forget_fractions=[0.1]"]
    assert call("bench", SUITE, *few, "--output", folder).code == 0
    refused = call("bench", SUITE, *few, "network.width=8", "--output", folder, "--resume")
    assert refused.code == 2 and "other settings: network.width was 16, is 8" in refused.err
    assert call("bench", SUITE, *SMALL, "--output", folder, "--resume").code == 0
    whole = pd.read_parquet(finished[0] / "results.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "results.parquet"), whole, check_exact=True)


def test_resuming_what_was_never_started_is_a_mistake(tmp_path):
    result = call("bench", SUITE, *SMALL, "--output", tmp_path / "out", "--resume")
    assert result.code == 2 and "nothing to resume" in result.err


@pytest.mark.parametrize("name", ["results.parquet", "suite.yaml"])
@pytest.mark.slow
def test_a_spoilt_file_of_an_earlier_run_is_named(name, finished, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(finished[0], folder)
    (folder / name).write_text("[spoilt", encoding="utf-8")
    result = call("bench", SUITE, *SMALL, "--output", folder, "--resume")
    assert result.code == 2 and name in result.err and "Traceback" not in result.err


@pytest.mark.slow
def test_a_dataset_that_cannot_be_fetched_is_named_everywhere_and_left_out(tmp_path):
    quick = [*SMALL, "datasets=[breast_cancer, phoneme]", "seeds=[0]", "forget_fractions=[0.1]"]
    result = call("bench", SUITE, *quick, "--output", tmp_path / "out")
    assert result.code == 0
    assert "left out: Phoneme (OpenML's 'phoneme', version 1: URLError" in result.out
    described = json.loads((tmp_path / "out" / "datasets.json").read_text())
    assert "no route to host" in described["phoneme"]["missing"]
    assert "Phoneme" in (tmp_path / "out" / "tables.md").read_text()
    assert set(pd.read_parquet(tmp_path / "out" / "results.parquet")["dataset"]) == {"breast_cancer"}


def test_a_run_without_any_dataset_says_so(tmp_path):
    result = call("bench", SUITE, *SMALL, "datasets=[phoneme]", "--output", tmp_path / "out")
    assert result.code == 1 and "no dataset could be had" in result.err and "left out: Phoneme" in result.out
