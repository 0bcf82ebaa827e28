"""RULER through whole runs in one process: what it measures, what it keeps, what it refuses, and the noise band."""

import json
import shutil
import threading

import numpy as np
import pytest
import torch
from scipy.stats import t
from support.reports import summary
from support.stages import WHOLE_MODEL, Recorded, execute, final_metrics, new_run

from evaluation.engine import likelihood
from evaluation.ruler import lenses
from oblivionis import seeds
from oblivionis.array_files import read_arrays, write_arrays
from oblivionis.config import compose as configuration
from oblivionis.data.corpora import load_corpus
from oblivionis.data.tokenize import encode_pairs
from oblivionis.errors import RunError, RunInterrupted
from oblivionis.measures.assessor import evaluate_checkpoint
from oblivionis.models.assembly import assemble
from oblivionis.reports.html import run_page as html_report
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.saved_representations import read_states

FAST = (
    WHOLE_MODEL,
    "federation.rounds.finetune=1",
    "federation.rounds.retrain=1",
    "evaluation.leakage.samples=0",
    "evaluation.leakage.full_samples=0",
    "evaluation.full.sets=[forget,retain]",
    "evaluation.full.questions_per_set=null",
)
"""Both profiles ask what the other one asks not: 2 of 4 forget questions after a round, all at the end."""


class Noted(Recorded):
    """Keeps the notes as well, with the stage in which they came."""

    def __init__(self, *options):
        super().__init__(*options)
        self.notes = []

    def note(self, text):
        self.notes.append((self.stage, text))

    def ruler_notes(self):
        return [text for _, text in self.notes if text.startswith("RULER")]


def start(folder, name, *overrides, events=None):
    config, run = new_run(folder, name, *FAST, *overrides)
    events, grid = execute(config, run, events=events or Noted())
    return config, run, events, grid


def rows(run, stage):
    return [r for r in run.metrics() if r["stage"] == stage and r["evaluator"] == "ruler"]


def plain_states(config, vector, set_name, pooling="last", layer=None):
    """Representations of all records of a question set, one after the other through transformers' own forward pass."""
    assembled = assemble(config.model, seeds.derive(config.seed, "adapter"))
    assembled.flat.load(vector)
    records = load_corpus(config.data).evaluation[set_name]
    pairs = [(r.question, r.answer) for r in records]
    encoded = encode_pairs(pairs, assembled.tokenizer, assembled.template, max_length=512, on_overflow="error")
    found = []
    for one in encoded:
        with torch.no_grad():
            output = assembled.model(input_ids=torch.tensor([[*one.prompt, *one.answer]]), output_hidden_states=True)
        states = output.hidden_states[-1 if layer is None else layer + 1][0, len(one.prompt) :]
        found.append(states[-1] if pooling == "last" else states.mean(0))
    return [r.id for r in records], torch.stack(found).numpy()


def expected_metrics(config, run, pooling="last", layer=None):
    """The final metrics of unlearn from the checkpoints alone."""
    models = {}
    for stage in ("finetune", "retrain", "unlearn"):
        vector = run.load_checkpoint(stage).vector
        models[stage] = [plain_states(config, vector, s, pooling, layer)[1] for s in ("forget", "retain")]
    (original, _), (oracle, oracle_r), (forget, retain) = models.values()
    return {
        "ruler_mean_rank": lenses.percentile_rank(forget, retain).mean,
        "ruler_oracle_similarity": lenses.oracle_similarity(forget, oracle),
        "ruler_gap": lenses.calibration_gap(forget, oracle, retain, oracle_r),
        "ruler_shift": lenses.representation_shift(original, forget, oracle),
    }


def ruler_metrics(run, stage="unlearn"):
    return {k: v for k, v in run.stage_summary(stage)["metrics"].items() if k.startswith("ruler_")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return start(tmp_path_factory.mktemp("runs"), "whole")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Three oracles of other seeds."""
    folder = tmp_path_factory.mktemp("oracles")
    return [start(folder, f"oracle-{i}", "stages=[retrain]", f"seed={i}")[1] for i in (1, 2, 3)]


# -- what is measured ----------------------------------------------------------------------------------------------


def test_the_metrics_are_the_lenses_on_the_states_of_the_checkpoints(finished):
    config, run, _, _ = finished
    assert ruler_metrics(run) == pytest.approx(expected_metrics(config, run), abs=1e-5)
    for stage in ("finetune", "retrain"):
        assert set(ruler_metrics(run, stage)) == {"ruler_mean_rank"}


@pytest.mark.parametrize("choice", [("mean", -1), ("last", 1)])
def test_pooling_and_layer_can_be_chosen_also_afterwards(finished, choice):
    config, run, _, _ = finished
    pooling, layer = choice
    before = sorted(p.name for p in run.path.rglob("*"))
    overrides = [f"evaluation.ruler.pooling={pooling}", f"evaluation.ruler.layer={layer}"]
    events = Noted()
    metrics = evaluate_checkpoint(run.path, "unlearn", overrides, events)[2].metrics
    count = assemble(config.model, 0).model.config.num_hidden_layers
    if layer == 1:  # transformers gives the states of inner layers only as they leave them
        expected = expected_metrics(config, run, pooling, layer % count)
        assert {k: metrics[k] for k in expected} == pytest.approx(expected, abs=1e-5)
    assert {k: metrics[k] for k in ruler_metrics(run)} != pytest.approx(ruler_metrics(run), abs=1e-3)
    assert [text.split(" in ")[0].split()[-1] for text in events.ruler_notes()] == ["finetune", "retrain"]
    assert sorted(p.name for p in run.path.rglob("*")) == before, "nothing is written into a finished run"


def test_it_is_measured_at_every_moment_lens_1_in_unlearn_alone(finished):
    _, run, _, _ = finished
    lens_2, both = {"mean_rank"}, {"mean_rank", "oracle_similarity", "gap", "shift"}
    for stage, names in (("finetune", lens_2), ("retrain", lens_2), ("unlearn", both)):
        found = {(r["round"], r["moment"]): set(r["metrics"]) for r in rows(run, stage)}
        moments = {(r["round"], r["moment"]) for r in run.metrics() if r["stage"] == stage and r["evaluator"] == "tofu"}
        assert set(found) == moments and all(m == names for m in found.values())
    first = rows(run, "unlearn")[0]["metrics"]
    assert first["shift"] == pytest.approx(0, abs=1e-7), "nothing has moved yet"
    log = run.evaluation_log("unlearn")
    assert list(log["ruler"]) == log["ids"]["eval_log_forget"]
    assert np.mean(list(log["ruler"].values())) == pytest.approx(ruler_metrics(run)["ruler_mean_rank"])


def test_no_sequence_is_scored_twice(tmp_path, monkeypatch):
    """All evaluators of one moment share one pass, in which each distinct sequence occurs once.

    Only the membership inference by reference and, at the end, fluency have another: of the base model.
    """
    calls = []
    score = likelihood.score

    def watched(model, sequences, **options):
        calls.append((list(sequences), options["only"]))
        return score(model, sequences, **options)

    monkeypatch.setattr(likelihood, "score", watched)
    _, run, _, _ = start(tmp_path, "counted", "stages=[finetune]", "evaluation.membership.attacks=[loss, min_k_40]")
    *measured, (of_base, without_states) = calls
    assert len(measured) == len(rows(run, "finetune")) == 2
    for sequences, wanted in measured:
        assert len(sequences) == len(set(sequences)) > len(wanted) > 0
    assert len(of_base) == len(set(of_base)) > 0 and not without_states


def test_what_is_kept_are_the_states_of_the_final_models(finished):
    config, run, _, _ = finished
    for stage in ("finetune", "retrain"):
        arrays, info = read_arrays(run.path / "evaluations" / f"{stage}.states.safetensors", "file")
        assert (info["stage"], info["pooling"], info["layer"], info["seed"]) == (stage, "last", None, 0)
        assert info["fingerprint"] == run.environment()["fingerprint"]
        for name in ("forget", "retain"):
            ids, states = plain_states(config, run.load_checkpoint(stage).vector, name)
            assert info[f"{name}_ids"] == ids
            np.testing.assert_allclose(arrays[name], states, atol=1e-4)
    assert not (run.path / "evaluations" / "unlearn.states.safetensors").exists()


def test_the_look_before_unlearning(finished):
    config, run, events, _ = finished
    (note,) = events.ruler_notes()
    assert ("unlearn", note) in events.notes
    base = assemble(config.model, seeds.derive(config.seed, "adapter")).flat.numpy()
    expected = {}
    for name, vector in (("base", base), ("finetuned", run.load_checkpoint("finetune").vector)):
        forget, retain = (plain_states(config, vector, s)[1] for s in ("forget", "retain"))
        expected[name] = lenses.percentile_rank(forget, retain).ranks
    facts = run.stage_summary("unlearn")["ruler"]["before"]
    for name, ranks in expected.items():
        assert facts[name]["mean"] == pytest.approx(ranks.mean())
        assert facts[name]["error"] == pytest.approx(ranks.std(ddof=1) / 2), "4 records"
        assert f"{ranks.mean():.3f} ± " in note
    assert "few records cannot tell it from 0.5" in note


def test_the_report_shows_it_with_the_finetuned_and_the_retrained_model_beside(finished):
    config, run, _, _ = finished
    text = summary(run, config)
    table = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        if len(cells) == 5:
            table[cells[1]] = cells[2:]
    found = {name: [float(x) for x in table[name]] for name in ("S_gap (null 0)", "S_oracle", "S_shift")}
    assert found["S_gap (null 0)"][2] == 0 and found["S_oracle"][2] == 1 and found["S_shift"][0] == 0
    assert found["S_shift"][2] == pytest.approx(1 - found["S_oracle"][0], abs=1.1e-3), "what there was to gain"
    stored = ruler_metrics(run)
    assert found["S_gap (null 0)"][1] == pytest.approx(stored["ruler_gap"], abs=6e-4)
    ranks = [run.stage_summary(s)["metrics"]["ruler_mean_rank"] for s in ("finetune", "unlearn", "retrain")]
    assert [float(x) for x in table["Mean rank (null 0.5)"]] == pytest.approx(ranks, abs=6e-4)
    assert "RULER: mean rank of the forget records in the unlearned model" in text
    html_report.write_html(run, config)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "S_gap (null 0)" in page and "RULER: mean rank of the forget records" in page
    verdict = json.loads((run.path / "verdicts.json").read_text())["ruler"]
    assert set(verdict) == {"mean_rank"} and verdict["mean_rank"]["verdict"] == "undecided"


# -- interrupted, reused, measured anew ------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_in", [("retrain", 1), ("unlearn", 1), ("unlearn", 2)])
def test_a_resumed_run_has_the_same_metrics(finished, tmp_path, stop_in):
    _, whole, _, _ = finished
    config, run = new_run(tmp_path, "stopped", *FAST)
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Noted(threading.Event(), stop_in))
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path), events=Noted())
    assert final_metrics(run) == final_metrics(whole)
    for stage in ("finetune", "retrain", "unlearn"):
        assert [(r["round"], r["metrics"]) for r in rows(run, stage)] == [
            (r["round"], r["metrics"]) for r in rows(whole, stage)
        ]
    assert run.stage_summary("unlearn")["ruler"] == whole.stage_summary("unlearn")["ruler"]


def test_start_from_takes_the_states_over(finished, tmp_path):
    _, whole, _, _ = finished
    _, run, events, _ = start(tmp_path, "second", f"start_from={whole.path}")
    assert final_metrics(run) == final_metrics(whole)
    for stage in ("finetune", "retrain"):
        ours, theirs = (r.path / f"evaluations/{stage}.states.safetensors" for r in (run, whole))
        assert ours.read_bytes() == theirs.read_bytes()
    assert len(events.ruler_notes()) == 1, "the look before unlearning, and nothing was computed anew"


def test_a_run_that_kept_no_states_is_started_from_all_the_same(finished, tmp_path):
    _, whole, _, _ = finished
    old = RunDirectory(tmp_path / "old")
    shutil.copytree(whole.path, old.path)
    for path in old.path.glob("evaluations/*.states.safetensors"):
        path.unlink()
    _, run, events, _ = start(tmp_path, "new", f"start_from={old.path}")
    assert [text for text in events.ruler_notes() if "it kept none" in text] == events.ruler_notes()[:2]
    assert ruler_metrics(run) == pytest.approx(ruler_metrics(whole), abs=1e-6)
    assert not list(old.path.glob("evaluations/*.states.safetensors"))
    assert read_states(run, "retrain").seed == 0


def test_states_taken_otherwise_are_computed_anew(finished, tmp_path):
    _, whole, _, _ = finished
    config, run, events, _ = start(
        tmp_path, "mean", f"start_from={whole.path}", "evaluation.ruler.pooling=mean", "evaluation.ruler.layer=0"
    )
    assert sum("other tokens or another layer" in text for text in events.ruler_notes()) == 2
    assert ruler_metrics(run) == pytest.approx(expected_metrics(config, run, "mean", 0), abs=1e-5)
    assert read_states(run, "finetune").pooling == "mean"


def test_a_light_profile_that_asks_more_than_the_full_one(tmp_path):
    few = "evaluation.full.questions_per_set=2"
    _, run, events, _ = start(tmp_path, "few", few, "evaluation.light.questions_per_set=3")
    assert sum("kept none of some records" in text for text in events.ruler_notes()) == 2
    assert all(set(r["metrics"]) >= {"gap", "mean_rank"} for r in rows(run, "unlearn"))
    assert {len(read_states(run, s).embedded.forget_ids) for s in ("finetune", "retrain")} == {3}


# -- what is left out, and what is refused ---------------------------------------------------------------------------


def test_without_an_oracle_there_is_lens_2(tmp_path):
    _, run, events, _ = start(tmp_path, "alone", "stages=[finetune,unlearn]")
    assert set(ruler_metrics(run)) == {"ruler_mean_rank"} and len(events.ruler_notes()) == 1
    assert "lens_1" not in run.stage_summary("unlearn")["ruler"]


def test_it_can_be_switched_off(tmp_path):
    _, run, events, _ = start(tmp_path, "off", "evaluation.ruler.enabled=false")
    assert not events.ruler_notes() and not [r for r in run.metrics() if r["evaluator"] == "ruler"]
    assert not list(run.path.rglob("*.states.safetensors")) and "ruler" not in run.stage_summary("unlearn")


@pytest.mark.parametrize("limit", ["evaluation.light.questions_per_set=1", "evaluation.light.sets=[forget]"])
def test_too_few_retain_records_leave_it_out_with_one_warning(tmp_path, limit):
    _, run, events, _ = start(tmp_path, "few", limit)
    (warning,) = [text for text in events.warnings if "RULER" in text]
    asked = "1 forget and 1 retain" if "questions" in limit else "2 forget and 0 retain"
    assert f"evaluation.light asks {asked} questions" in warning
    assert {r["moment"] for r in run.metrics() if r["evaluator"] == "ruler"} == {"end"}
    assert not [r for r in run.metrics() if r.get("error")]


def test_a_layer_that_the_model_lacks_is_told_before_anything_runs(tmp_path):
    config, run = new_run(tmp_path, "deep", *FAST, "evaluation.ruler.layer=99")
    with pytest.raises(RunError, match=r"evaluation.ruler.layer: the model has decoder layers 0 to 3, .* not 99"):
        execute(config, run)
    assert not run.metrics()


def refused(config, run, match):
    """The run breaks off with this message, and no client was asked for anything."""
    events = Noted()
    with pytest.raises(RunError, match=match):
        execute(config, run, events=events)
    assert not events.trained and not events.unlearned


def copied(whole, folder, *gone):
    """Without the ledger, which names the files as they were: what follows is about the files themselves."""
    run = RunDirectory(folder / "copy")
    shutil.copytree(whole.path, run.path)
    run.ledger_path.unlink()
    for stage in gone:
        (run.path / f"stages/{stage}.json").unlink()
        shutil.rmtree(run.path / "checkpoints" / stage)
    return run


def test_an_oracle_of_another_seed_is_refused(finished, tmp_path):
    _, whole, _, _ = finished
    run = copied(whole, tmp_path, "retrain", "unlearn")
    (run.path / "evaluations/retrain.states.safetensors").unlink()
    run.write_config(run.read_config().replace("\nseed: 0\n", "\nseed: 7\n"))
    edited = configuration.from_yaml(run.read_config())
    refused(edited, run, r"finetuned model has seed 0 .*, the retrained one seed 7 .*evaluation.ruler.enabled=false")


@pytest.mark.parametrize(("key", "value"), [("seed", 7), ("fingerprint", "f" * 64)])
def test_a_reused_oracle_of_another_seed_or_base_model_is_refused(finished, tmp_path, key, value):
    _, whole, _, _ = finished
    source = copied(whole, tmp_path, "unlearn")
    path = source.path / "stages/retrain.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    arrays, info = read_arrays(source.path / "evaluations/retrain.states.safetensors", "file")
    write_arrays(source.path / "evaluations/retrain.states.safetensors", arrays, {**info, key: value})
    config, run = new_run(tmp_path, "new", *FAST, f"start_from={source.path}")
    refused(config, run, f"retrained one .*{str(value)[:12]}.*retrain with the same seed and base model")


@pytest.mark.parametrize(("key", "value"), [("seed", 7), ("fingerprint", "f" * 64)])
def test_a_file_of_states_that_contradicts_its_stage_is_refused(finished, tmp_path, key, value):
    _, whole, _, _ = finished
    run = copied(whole, tmp_path, "unlearn")
    path = run.path / "evaluations/finetune.states.safetensors"
    arrays, info = read_arrays(path, "file")
    write_arrays(path, arrays, {**info, key: value})
    refused(finished[0], run, r"finetune.states.safetensors belongs to .*; delete the file")


@pytest.mark.parametrize("damage", ["torn", "rows", "info"])
def test_a_damaged_file_of_states_is_named(finished, tmp_path, damage):
    _, whole, _, _ = finished
    run = copied(whole, tmp_path, "unlearn")
    path = run.path / "evaluations/retrain.states.safetensors"
    arrays, info = read_arrays(path, "file")
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "rows":
        write_arrays(path, {**arrays, "forget": arrays["forget"][:1]}, info)
    else:
        write_arrays(path, arrays, {k: v for k, v in info.items() if k != "pooling"})
    refused(finished[0], run, r"retrain.states.safetensors is .*computed anew")


# -- the noise band --------------------------------------------------------------------------------------------------


def prediction_interval(values):
    mean, deviation, n = np.mean(values), np.std(values, ddof=1), len(values)
    half = t.ppf(0.975, n - 1) * deviation * np.sqrt(1 + 1 / n)
    return mean - half, mean + half


def test_the_noise_band_of_other_oracles(finished, others, tmp_path):
    _, whole, _, _ = finished
    named = f"evaluation.ruler.oracles=[{','.join(str(o.path) for o in others)}]"
    config, run, _, _ = start(tmp_path, "banded", f"start_from={whole.path}", named)
    assert final_metrics(run) == final_metrics(whole), "the band changes no metric"
    states = {}
    for oracle in (whole, *others):
        vector = oracle.load_checkpoint("retrain").vector
        states[oracle.path] = [plain_states(config, vector, s)[1] for s in ("forget", "retain")]
    own_f, own_r = states[whole.path]
    ranks = [lenses.percentile_rank(f, r).mean for f, r in states.values()]
    gaps = [lenses.calibration_gap(states[o.path][0], own_f, states[o.path][1], own_r) for o in others]
    facts = run.stage_summary("unlearn")["ruler"]
    assert [o["seed"] for o in facts["oracles"]] == [1, 2, 3]
    for name, values in (("mean_rank", ranks), ("gap", gaps)):
        band = facts["bands"][name]
        assert band["values"] == pytest.approx(values, abs=1e-5) and band["n"] == len(values)
        assert (band["low"], band["high"]) == pytest.approx(prediction_interval(values), abs=1e-4)
    verdicts = json.loads((run.path / "verdicts.json").read_text())["ruler"]
    text = summary(run, config, width=400)
    for name, label in (("mean_rank", "mean rank"), ("gap", "S_gap")):
        value, band = ruler_metrics(run)[f"ruler_{name}"], facts["bands"][name]
        inside = band["low"] <= value <= band["high"]
        assert verdicts[name]["band"]["verdict"] == ("indistinguishable from retrained" if inside else "outside")
        (line,) = [x for x in text.splitlines() if x.startswith(f"RULER: {label} {value:.3f}, 95% band of ")]
        assert line.endswith("indistinguishable from retrained." if inside else "not like a retrained model.")
    for oracle in others:
        assert not oracle.metrics() or {r["stage"] for r in oracle.metrics()} == {"retrain"}


def test_oracles_that_cannot_serve_are_all_named_before_anything_runs(finished, others, tmp_path):
    config, whole, _, _ = finished
    unfinished = copied(others[0], tmp_path / "a", "retrain")
    twin = copied(others[1], tmp_path / "b")
    other = copied(others[2], tmp_path / "c")
    other.write_config(other.read_config().replace("forget_authors: 2", "forget_authors: 1"))
    foreign = copied(others[0], tmp_path / "d")
    path = foreign.path / "stages/retrain.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fingerprint": "f" * 64}))
    same = copied(whole, tmp_path / "e")
    given = [unfinished, twin, others[1], other, foreign, same]
    named = f"evaluation.ruler.oracles=[{','.join(str(o.path) for o in given)}]"
    config, run = new_run(tmp_path, "new", *FAST, f"start_from={whole.path}", named)
    with pytest.raises(RunError) as caught:
        execute(config, run)
    lines = str(caught.value).splitlines()
    assert lines[0] == "evaluation.ruler.oracles:"
    assert [line.strip() for line in lines[1:]] == [
        f"{unfinished.path} has no finished stage retrain",
        f"{others[1].path} has the seed 2 of {twin.path}; each needs its own",
        f"{other.path} was made with other settings: data.forget_authors was 1, is 2",
        f"{foreign.path} was made with other settings: the base model's fingerprint",
        f"{same.path} has the seed 0 of this run; each needs its own",
    ]


def test_oracles_without_states_are_read_from_their_checkpoints(finished, others, tmp_path):
    _, whole, _, _ = finished
    bare = [copied(o, tmp_path / str(i)) for i, o in enumerate(others)]
    for oracle in bare:
        (oracle.path / "evaluations/retrain.states.safetensors").unlink()
    found = []
    for name, runs in (("kept", others), ("bare", bare)):
        named = f"evaluation.ruler.oracles=[{','.join(str(o.path) for o in runs)}]"
        _, run, _, _ = start(tmp_path, name, f"start_from={whole.path}", named)
        found.append({k: b["values"] for k, b in run.stage_summary("unlearn")["ruler"]["bands"].items()})
    assert found[0]["gap"] == pytest.approx(found[1]["gap"], abs=1e-6)
    assert found[0]["mean_rank"] == pytest.approx(found[1]["mean_rank"], abs=1e-6)
    assert not any((o.path / "evaluations/retrain.states.safetensors").exists() for o in bare)


@pytest.mark.parametrize(
    ("oracles", "message"),
    [
        ("[{0},{1}]", "2 runs cannot tell how far retrained models lie apart; expected at least 3, or none"),
        ("[{0},{1},{0}/../{0.name}]", "names a run more than once"),
        ("[{0},{1},/nowhere]", "/nowhere is no run directory"),
    ],
)
def test_the_configuration_check_counts_the_oracles(others, oracles, message):
    with pytest.raises(configuration.ConfigError) as caught:
        configuration.compose("default", [f"evaluation.ruler.oracles={oracles.format(*(o.path for o in others))}"])
    (problem,) = caught.value.problems
    assert problem.path == "evaluation.ruler.oracles" and message in str(problem)
