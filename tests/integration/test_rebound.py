"""What comes back while the others train on: hand-made curves, measured in a real run, the same after a resume."""

from __future__ import annotations

import html
import math
import threading

import numpy as np
import pytest
from support.stages import Recorded, execute, new_run

from evaluation.metrics.rebound import Curve, mean_shares, rebound_metrics
from oblivionis.config import compose as configuration
from oblivionis.erasure.ledger import Ledger
from oblivionis.errors import RunInterrupted
from oblivionis.measures.assessor import Assessor, assemble_for
from oblivionis.measures.rebound import report as rebound_report
from oblivionis.measures.rebound.tracker import rebound_curves
from oblivionis.models.configured_corpus import corpus_of
from oblivionis.reports import run_summary as report
from oblivionis.reports.html import rebound as rebound_section
from oblivionis.reports.html import run_page as html_report
from oblivionis.runs.directory import RunDirectory

PLAIN = ("evaluation.wikimem.enabled=false", "evaluation.leakage.samples=0", "evaluation.leakage.full_samples=0")
ROUNDS = (
    *PLAIN,
    "stages=[finetune, unlearn]",
    "federation.rounds.unlearn=5",
    "federation.keep_checkpoints=9",
    "evaluation.rebound.rouge=true",
)


def curve(before: float, after: float, *later: float) -> Curve:
    return Curve("r", 1, before, after, later)


@pytest.mark.parametrize(
    ("before", "after", "later", "life"),
    [
        (0.9, 0.1, (0.2, 0.4, 0.5, 0.8), 2.0),  # half of 0.8 is back at 0.5
        (0.9, 0.1, (0.5, 0.1, 0.1), 0.0),  # the serving round's own fine-tuning
        (0.9, 0.1, (0.2, 0.6, 0.1), 1.0),  # the first time counts, even if it is forgotten again
        (0.9, 0.1, (0.1, 0.2, 0.3), math.inf),
        (0.9, 0.1, (), math.inf),
        (0.5, 0.5, (0.9,), None),
        (0.5, 0.495, (0.9,), None),
        (0.1, 0.9, (0.1,), None),
    ],
)
def test_half_lives_of_hand_made_curves(before, after, later, life):
    assert curve(before, after, *later).half_life == life


def test_shares_and_metrics_of_hand_made_curves():
    back, partly, gone = curve(0.9, 0.1, 0.1, 0.5, 0.9), curve(0.6, 0.2, 0.1, 0.3), curve(0.4, 0.4, 0.9)
    assert back.shares == pytest.approx([0, 0.5, 1]) and partly.shares == pytest.approx([-0.25, 0.25])
    assert gone.shares is None
    found = rebound_metrics([back, partly, gone])
    assert found == pytest.approx(
        {
            "requests": 2,
            "forgotten": 0.6,
            "share_back_at_end": 0.625,
            "censored_share": 0.5,
            "half_life_median": 1,
        }
    )
    assert mean_shares([back, partly, gone]) == pytest.approx([-0.125, 0.375, 1])
    assert "half_life_median" not in rebound_metrics([partly])
    assert rebound_metrics([gone]) == {"requests": 0} and rebound_metrics([]) == {} and not mean_shares([gone]).size


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config, run = new_run(tmp_path_factory.mktemp("runs"), "whole", *ROUNDS)
    execute(config, run)
    return config, run


def values(run):
    rows = [r for r in run.metrics() if r["evaluator"] == "rebound"]
    return [(r["stage"], r["round"], r["moment"], r["metrics"], r["requests"]) for r in rows]


def test_every_served_request_is_measured_in_every_round_from_its_own_on(finished):
    _, run = finished
    served = {r.id: r.served_round for r in Ledger(run.ledger_path)}
    assert served
    rows = values(run)
    assert {stage for stage, *_ in rows} == {"unlearn"}
    for round in range(1, 6):
        new = {i for i, r in served.items() if r == round}
        so_far = {i for i, r in served.items() if r <= round}
        of = {moment: set(requests["prob"]) for _, r, moment, _, requests in rows if r == round}
        expected = {"before_unlearn": new, "after_unlearn": new} if new else {}
        assert of == expected | ({"round": so_far} if so_far else {})


def test_values_are_those_of_the_checkpoints(finished):
    """Before and at the end of a round: scored anew, one record at a time, from the checkpoints that were kept."""
    config, run = finished
    corpus = corpus_of(config)
    assessor = Assessor(assemble_for(run, config), corpus, config)
    requests = {r.id: r for r in Ledger(run.ledger_path)}

    def prob(vector, request):
        each = [assessor.knowledge(vector, [i], rouge=False)["prob"][i] for i in requests[request].record_ids]
        return np.mean(each)

    for found in rebound_curves(run.metrics(), "unlearn"):
        start = run.load_checkpoint("unlearn", found.round - 1) if found.round > 1 else run.load_checkpoint("finetune")
        assert found.before == pytest.approx(prob(start.vector, found.request), rel=1e-5)
        assert len(found.later) == 5 - found.round + 1
        for k, value in enumerate(found.later):
            vector = run.load_checkpoint("unlearn", found.round + k).vector
            assert value == pytest.approx(prob(vector, found.request), rel=1e-5)
            (recall,) = [
                c.later[k] for c in rebound_curves(run.metrics(), "unlearn", "rouge") if c.request == found.request
            ]
            ids = requests[found.request].record_ids
            assert recall == pytest.approx(np.mean(list(assessor.recalls(vector, ids).values())))


def test_the_summary_and_the_reports_tell_it(finished):
    config, run = finished
    summary = run.stage_summary("unlearn")
    curves = rebound_curves(run.metrics(), "unlearn")
    expected = {f"rebound_{k}": v for k, v in rebound_metrics(curves).items()}
    assert expected.items() <= summary["metrics"].items() and "rebound_requests" in expected
    assert set(summary["rebound"]["prob"]) == {c.request for c in curves}
    assert not any(k.startswith("rebound") for k in run.stage_summary("finetune")["metrics"])
    html_report.write_html(run, config)
    page = (run.path / "report.html").read_text()
    for line in rebound_report.sentences(run):
        assert html.escape(line) in page
    assert "Rebound of Prob" in page and report.summary(run, config)


@pytest.mark.parametrize("stop_in", [2, 4])
def test_resume_equals_not_stopping(finished, tmp_path, stop_in):
    _, whole = finished
    config, run = new_run(tmp_path, "stopped", *ROUNDS)
    stop = threading.Event()
    with pytest.raises(RunInterrupted):
        execute(config, run, events=Recorded(stop, ("unlearn", stop_in)))
    # As after a kill between the measuring and the checkpoint of a round.
    late = {
        **next(r for r in run.metrics() if r["evaluator"] == "rebound"),
        "round": stop_in,
        "moment": "before_unlearn",
    }
    run.append_metrics([late])
    execute(configuration.from_yaml(run.read_config()), RunDirectory.open(run.path))
    assert values(run) == values(whole)
    assert run.stage_summary("unlearn")["rebound"] == whole.stage_summary("unlearn")["rebound"]


def test_it_can_be_switched_off_and_bounded(tmp_path):
    common = (*PLAIN, "federation.rounds.unlearn=2", "stages=[finetune, unlearn]", "unlearning.requests.scope=client")
    config, run = new_run(tmp_path, "off", *common, "evaluation.rebound.enabled=false")
    execute(config, run)
    assert not values(run) and "rebound" not in run.stage_summary("unlearn")
    assert not rebound_section.section(run) and not rebound_report.sentences(run)
    few, other = new_run(tmp_path, "few", *common, "evaluation.rebound.records=1", f"start_from={run.path}")
    execute(few, other)
    first = min(Ledger(other.ledger_path), key=lambda r: r.id)
    assert len(first.record_ids) > 1
    assessor = Assessor(assemble_for(other, few), corpus_of(few), few)
    known = assessor.knowledge(other.load_checkpoint("finetune").vector, first.record_ids[:1], rouge=False)
    assert rebound_curves(other.metrics(), "unlearn")[0].before == pytest.approx(known["prob"][first.record_ids[0]])
