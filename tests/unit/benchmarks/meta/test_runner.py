"""`oblivionis bench metrics_meta`: its mistakes, what it writes, and how it goes on."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from support.commands import call
from support.meta_suite import TINY, same_files

from benchmarks import suite_kinds as suites
from benchmarks.meta import results, runner
from benchmarks.meta.metrics import JUDGES
from benchmarks.meta.models import JUDGED, MODELS, STATES
from oblivionis.errors import FileError

SUITE = suites.FOLDER / "metrics_meta.yaml"
CELLS = len(JUDGED) * len(STATES)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a small suite, and what the command printed."""
    folder = tmp_path_factory.mktemp("meta") / "out"
    return folder, call("bench", SUITE, *TINY, "--output", folder)


def files(folder):
    """Everything below a folder, by its path there."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -- the suite that ships ------------------------------------------------------------------------------------------


def test_the_suite_makes_over_a_hundred_models():
    kind, suite = suites.load(SUITE)
    assert kind == "metrics_meta" and len(suite.seeds) * len(MODELS) == 125
    first, second = (suite.configuration(seed) for seed in (0, 7))
    assert (first.seed, first.data.seed, second.seed, second.data.seed) == (0, 0, 7, 7)
    assert first.attack.quantisers == ["nf4"] and first.federation.client_threads == 1
    least = first.evaluation.leakage.alpha ** (1 / first.evaluation.leakage.full_samples)
    assert 1 - least < first.evaluation.leakage.limit  # a question without a leak can be certified


def test_every_key_of_the_settings_is_in_the_suite_that_ships():
    given = OmegaConf.to_container(OmegaConf.load(SUITE))
    assert given.pop("kind") == "metrics_meta"
    assert set(given) == {field.name for field in dataclasses.fields(suites.KINDS["metrics_meta"].settings)}


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    result = call("bench", "metrics_meta", "seeds=[3, 4]", "--jobs", "2", "--dry-run", "--output", tmp_path / "out")
    assert result.code == 0 and not (tmp_path / "out").exists()
    for line in (
        "federations: 2, 2 at once; seeds 3, 4",
        "models: 10 (knows, never saw, other people, false answers, oracle), 15 rounds each",
        "states: plain, quantised (nf4), relearned (40 updates)",
        f"measurements: 24, by {len(JUDGES)} metrics",
    ):
        assert line in result.out.splitlines()


# -- mistakes ------------------------------------------------------------------------------------------------------

MISTAKES = {
    "one federation": (["seeds=[3]"], "seeds: one federation says nothing of another; expected at least 2 seeds"),
    "negative seed": (["seeds=[0, -1]"], "seeds: -1 is out of range"),
    "unknown key": (["sedes=[1]"], "sedes: unknown key; did you mean seeds?"),
    "unknown key of the configuration": (["base.data.autors=3"], "data.autors: unknown key"),
    "other data": (["base.data.name=muse_tiny"], "base.data: 'muse_tiny' has no records about further"),
    "all forgotten": (["base.data.forget_authors=12"], "data.forget_authors: 12 of 12 authors leave nobody"),
    "too few others": (["base.data.reference_authors=2"], "base.data.reference_authors: 2 are fewer than the 3"),
    "no holdout": (["base.data.holdout_authors=0"], "base.data.holdout_authors: membership inference has nobody"),
    "no adapters": (["base.model.mode=full"], "base.model: only adapters on an unquantised model"),
    "two formats": (["base.attack.quantisers=[int8, nf4]"], "base.attack.quantisers: ['int8', 'nf4'] are not one"),
    "no updates": (["base.attack.relearn.steps=[0]"], "base.attack.relearn.steps: [0] are not one"),
    "confidence": (["intervals.confidence=1"], "intervals.confidence: 1.0 is out of range"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message(mistake, tmp_path):
    overrides, expected = MISTAKES[mistake]
    result = call("bench", SUITE, *overrides, "--output", tmp_path / "out")
    assert result.code == 2 and "Traceback" not in result.err
    assert expected in result.err and result.err.count("problem in the configuration") == 1, result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("given", "left"), [(["--slurm"], "--slurm"), (["--ray-address", "auto"], "--ray-address")])
def test_it_runs_on_this_machine_alone(given, left, tmp_path):
    result = call("bench", SUITE, *given, "--output", tmp_path / "out")
    assert result.code == 2 and f"leave {left} out" in result.err and not (tmp_path / "out").exists()


def test_a_training_that_diverges_is_told(tmp_path):
    result = call("bench", SUITE, *TINY, "base.training.learning_rate=1e30", "--output", tmp_path / "out")
    assert result.code == 1 and "Traceback" not in result.err and "federation 0: " in result.err, result.err


# -- a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_have_a_row_per_federation_model_state_and_metric(finished):
    folder, result = finished
    assert result.code == 0, result.err
    frame = pd.read_parquet(folder / "results.parquet")
    assert list(frame.columns) == ["federation", "model", "state", "metric", "value"]
    cells = frame[["federation", "model", "state"]].drop_duplicates()
    expected = [(seed, model, state) for seed in (0, 1) for model in JUDGED for state in STATES]
    assert list(cells.itertuples(index=False, name=None)) == expected
    assert np.isfinite(frame["value"]).all() and not frame.duplicated(["federation", "model", "state", "metric"]).any()
    always = set(frame["metric"][frame.groupby("metric")["value"].transform("size") == 2 * CELLS])
    tests = [judge.key for judge in JUDGES if re.fullmatch(r"membership_auc_.*_(difference|p)", judge.key)]
    assert tests and {judge.key for judge in JUDGES} - always <= {"wikimem_forget_strength", *tests}
    assert not always.intersection(tests), "two records are too few to test a difference"


@pytest.mark.slow
def test_attacks_change_the_model_and_other_models_are_others(finished):
    frame = pd.read_parquet(finished[0] / "results.parquet")
    probability = frame[frame["metric"] == "forget_prob"]["value"]
    assert probability.nunique() == 2 * CELLS


@pytest.mark.slow
def test_the_model_that_knows_is_where_s_shift_begins(finished):
    values = results.values_of(pd.read_parquet(finished[0] / "results.parquet"))["ruler_shift"]
    assert np.abs(values[:, 0, 0]).max() < 1e-6 < np.abs(values[:, 1:]).min()


@pytest.mark.slow
def test_tables_figure_and_page_are_written(finished):
    folder, result = finished
    names = {"summary", "models", "knows", "attacks", "agreement", "directions"}
    assert {p.name for p in (folder / "tables").iterdir()} == {f"{n}.{end}" for n in names for end in ("md", "csv")}
    knows = pd.read_csv(folder / "tables" / "knows.csv")
    assert len(knows) == len(JUDGES) and set(knows["values"]) <= {f"{n} of 24" for n in range(25)}
    page = (folder / "suite.html").read_text()
    assert "Which metric can be believed?" in page and page.count("<table") == len(names) and "<svg" in page
    assert (folder / "figures" / "auc.svg").read_text().lstrip().startswith("<?xml")
    for title in ("The models", "Who knows?", "After quantisation", "Agreement between federations"):
        assert title in result.out


# -- going on ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_finished_suite_does_nothing_more(finished, monkeypatch):
    folder, _ = finished
    before = files(folder)
    monkeypatch.setattr(runner, "federation", None)
    result = call("bench", SUITE, *TINY, "--output", folder, "--resume")
    assert result.code == 0, result.err
    assert files(folder) == before


@pytest.mark.slow
def test_an_interrupted_suite_goes_on_where_it_was(finished, tmp_path, monkeypatch):
    folder, written = tmp_path / "out", []

    def until(writer, most):
        write = getattr(results, writer)

        def interrupted(path, content):
            if len(written) == most:
                written.append(None)
                raise KeyboardInterrupt
            write(path, content)
            written.append(path)

        monkeypatch.setattr(results, writer, interrupted)

    until("write_model", 5 + CELLS + 3)
    until("write_measurement", 4 + 5)
    for _ in range(2):
        stopped = call("bench", SUITE, *TINY, "--output", folder, *(["--resume"] if written else []))
        assert stopped.code == 130 and "--resume" in stopped.err and "Traceback" not in stopped.err
        assert not (folder / "results.parquet").exists()
    resumed = call("bench", SUITE, *TINY, "--output", folder, "--resume")
    assert resumed.code == 0, resumed.err
    paths = [path for path in written if path is not None]
    assert len(written) == len(paths) + 2 and len(paths) == len(set(paths)) == 2 * (len(MODELS) + CELLS)
    same_files(folder, finished[0])


@pytest.mark.slow
def test_federations_at_once_are_the_same_and_an_error_in_one_process_is_told(finished, tmp_path):
    folder = tmp_path / "out"
    done = call("bench", SUITE, *TINY, "--output", folder, "--jobs", "2")
    assert done.code == 0, done.err
    same_files(folder, finished[0])
    shutil.rmtree(folder)
    diverges = "base.training.learning_rate=1e30"
    failed = call("bench", SUITE, *TINY, diverges, "--output", folder, "--jobs", "2")
    assert failed.code == 1 and re.search(r"federation \d: .*NaN", failed.err) and "Traceback" not in failed.err


@pytest.mark.slow
def test_more_federations_are_added_and_other_models_are_refused(finished, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(finished[0], folder)
    refused = call("bench", SUITE, *TINY, "base.attack.relearn.records=3", "--output", folder, "--resume")
    assert refused.code == 2 and "base.attack.relearn.records was 2, is 3" in refused.err
    more = call("bench", SUITE, *TINY, "seeds=[0, 1, 2]", "intervals.confidence=0.8", "--output", folder, "--resume")
    assert more.code == 0, more.err
    both = [pd.read_parquet(f / "results.parquet") for f in (folder, finished[0])]
    assert set(both[0]["federation"]) == {0, 1, 2}
    first = both[0][both[0]["federation"] < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, both[1], check_exact=True)
    fewer = call("bench", SUITE, *TINY, "--output", folder, "--resume")
    assert fewer.code == 0 and (folder / "results.parquet").read_bytes() == files(finished[0])["results.parquet"]


@pytest.mark.parametrize("spoilt", ["models/0/knows.safetensors", "measurements/1/never_saw-plain.json"])
@pytest.mark.slow
def test_a_spoilt_file_is_named(spoilt, finished, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(finished[0], folder)
    (folder / "measurements/0/knows-plain.json").unlink()
    (folder / spoilt).write_bytes(b"nothing")
    result = call("bench", SUITE, *TINY, "--output", folder, "--resume")
    assert result.code == 2 and spoilt in result.err and "Traceback" not in result.err, result.err


@pytest.mark.slow
def test_a_model_of_other_adapters_is_named(finished, tmp_path):
    file = tmp_path / "knows.safetensors"
    results.write_model(file, np.zeros(3, np.float32))
    with pytest.raises(FileError, match=r"knows\.safetensors is another model's: it has 3 numbers, expected 4"):
        results.read_model(file, 4)


@pytest.mark.slow
def test_a_metric_that_no_model_has_is_shown_without_a_statistic(finished):
    from benchmarks.meta.report import tables_of
    from benchmarks.meta.verdicts import verdicts

    _, settings = suites.load(SUITE, TINY)
    frame = pd.read_parquet(finished[0] / "results.parquet")
    found = verdicts(frame[frame["metric"] != "ruler_gap"], settings.intervals)
    tables = tables_of(settings, frame, found)
    row = next(r for r in tables["knows"].rows if r is not None and r[1] == "S_gap")
    assert row[2:] == ["0 of 24", *["–"] * 5]
    row = next(r for r in tables["summary"].rows if r is not None and r[1] == "S_gap")
    assert row[2:] == ["0 of 24", *["–"] * 8]


@pytest.mark.slow
def test_a_measurement_holds_plain_numbers(finished):
    found = json.loads((finished[0] / "measurements" / "0" / "knows-plain.json").read_text())
    assert list(found) == ["metrics"] and all(isinstance(v, (int, float)) for v in found["metrics"].values())
