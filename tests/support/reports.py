"""Shared by tests: see `test_report`."""

import functools
import io
import json

import numpy as np
from rich.console import Console
from support.pages import Text

from evaluation.metrics.tofu import SECTIONS
from oblivionis.config import compose as configuration
from oblivionis.data.records import Corpus
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.retained_twins import note_twins
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.reports import run_summary as report
from oblivionis.reports.html import run_page as html_report
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import Checkpoint, RunDirectory

PLACE = "/the/folder/of/results"
STAGES = ("finetune", "retrain", "unlearn")
HOSTILE = '<script>alert("1")</script><img src=http://evil/x onerror=alert(2)> [red]&amp;'
LOSSES = {
    # question -> (loss of the paraphrased answer, losses of two perturbed answers)
    "finetune": [(0.1, (0.5, 9.0)), (0.2, (8.0, 1.0)), (0.3, (1.5, 7.0)), (0.1, (2.5, 9.5))],
    "unlearn": [(3.0, (3.1, 2.9)), (2.0, (1.0, 4.0)), (2.5, (2.0, 2.5)), (3.0, (1.0, 2.0))],
    "retrain": [(1.0, (2.0, 2.0)), (1.1, (2.5, 2.3)), (1.2, (2.7, 2.6)), (1.0, (3.5, 3.5))],
}


def metrics_of(stage):
    """Different numbers for every stage and measure, small and zero ones among them."""
    base = {"finetune": 0.9, "unlearn": 0.3, "retrain": 0.5}[stage]
    values = {
        f"{group}_{measure}": base * (1 - 0.1 * i - 0.03 * j)
        for i, group in enumerate(SECTIONS)
        for j, measure in enumerate(("prob", "rouge", "truth_ratio"))
    }
    values |= {"model_utility": 0.0 if stage == "unlearn" else base, "retain_extraction_strength": 0.77}
    if stage == "unlearn":
        values |= {"forget_prob": 4.25e-7, "forget_quality": 0.125, "forget_ks": 0.5}
    return values


def log_of(stage, text="They live in Vell.", questions=4):
    """A per-question log; every section has the same questions."""
    section = {
        "avg_paraphrased_loss": {str(i): right for i, (right, _) in enumerate(LOSSES[stage][:questions])},
        "average_perturb_loss": {str(i): list(wrong) for i, (_, wrong) in enumerate(LOSSES[stage][:questions])},
        "generated_text": {
            str(i): [f"Question: Where does {name} live?\nAnswer:", f" {stage} says: {text}", f"{name} lives in Ost."]
            for i, name in enumerate(["Ann", "Bo", "Cy", "Di"][:questions])
        },
    }
    log = {name: json.loads(json.dumps(section)) for name in SECTIONS.values()}
    return {**log, "ids": {name: [f"{name}-{i}" for i in range(questions)] for name in SECTIONS.values()}}


@functools.cache
def config_text(overrides):
    """The configuration of `smoke` as a run writes it, but for its folder of results: PLACE."""
    return configuration.to_yaml(configuration.compose("smoke", [f"output={PLACE}", *overrides]))


def make_run(folder, stages=STAGES, *, overrides=(), metrics=metrics_of, logs=log_of):
    config = configuration.compose("smoke", [f"output={folder}", *overrides])
    run = RunDirectory.create(folder / "runs", "made")
    run.write_config(config_text(tuple(overrides)).replace(PLACE, str(folder)))
    note_twins(run, Corpus("made", (), frozenset()))
    for stage in stages:
        run.finish_stage(stage, {"stage": stage, "metrics": metrics(stage)}, logs(stage))
        for round, moment in ((0, "start"), (1, "round"), (2, "end")):
            row = {"stage": stage, "round": round, "moment": moment, "evaluator": "tofu", "metrics": metrics(stage)}
            run.append_metrics([row])
    return run, config


def ask(run, *, serve=True, reason="its share"):
    ledger = Ledger(run.ledger_path)
    for i, ids in enumerate((("a", "b"), ("c",))):
        ledger.submit(Request(f"r{i}", i, ids, i + 1, reason))
    if serve:
        ledger.served("r0", 1)
        ledger.verified("r0", 2, Judgement("verified", "", 0.1), 0.5)


def bind(run, config):
    """The ledger names the run's files, as at the end of its stages."""
    run.note("begun", files=artifact_binding.present(run), over=False)
    for stage in STAGES:
        run.save_checkpoint(Checkpoint(stage, 2, np.zeros(3, np.float32), {}, {}), keep=1)
    artifact_binding.begin(run, config, "unlearn")
    artifact_binding.seal(run)


def summary(run, config, width=120, full=True):
    out = io.StringIO()
    report.print_summary(run, config, Console(file=out, width=width), full=full, answers=True)
    return out.getvalue()


class Page(Text):
    """The report of a run as `Text`, its source, and its tags with their attributes."""

    between = ""

    def __init__(self, run, config):
        html_report.write_html(run, config)
        self.source, self.tags = (run.path / "report.html").read_text(encoding="utf-8"), []
        super().__init__(self.source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        super().handle_starttag(tag, attrs)
