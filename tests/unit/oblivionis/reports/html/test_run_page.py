"""The report of unusual runs: its order, and that no sentence is false of them."""

from __future__ import annotations

import json
import math
import re

import htpy as h
import pytest
from support.pages import Text, page_lines
from support.reports import log_of, make_run, metrics_of

from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.files import write_json
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.naming import LOG_SETS
from oblivionis.reports.html.run_page import sections

NODES = ("data=node", "unlearning.requests.policy=nodes", "stages=[finetune,unlearn]")


def page(run, config):
    return str(h.fragment[sections(run, config)])


def lines(run, config):
    return page_lines(page(run, config), 10_000)


def headings(run, config):
    return [line.lstrip("+# ") for line in lines(run, config) if re.match(r"(\+ )?## ", line)]


@pytest.mark.slow
def test_the_verdict_is_first_then_figure_numbers_and_requests_and_measures_are_folded(tmp_path):
    run, config = make_run(tmp_path)
    found = lines(run, config)
    parts = ("(outcome", "figure: Prob", "The unlearned model:", "## What each person", "## What was", "+ ## Answers")
    first = [next(i for i, line in enumerate(found) if line.startswith(part)) for part in parts]
    assert first == sorted(first) and first[0] == 0
    assert not any(line.startswith("figure") for line in found[first[1] + 1 : first[3]]), (
        "one figure before the requests"
    )
    source = page(run, config)
    assert "<details open" not in source and source.index("<details") > source.index('id="requests"')


def test_numbers_stand_beside_those_of_the_other_two_models(tmp_path):
    """At most five, the first of them the probability of the forget answers."""
    run, config = make_run(tmp_path, metrics=lambda stage: metrics_of(stage) | {"leakage_mean": 0.25})
    found = lines(run, config)
    start = found.index("The unlearned model:")
    end = found.index("## What each person asked and got")
    assert found[start + 1 : end] == [
        *("Forget: [Prob]", "    *4.3e-7* finetuned 0.900, retrained 0.500"),
        *("Forget: [ROUGE-L recall]", "    *0.291* finetuned 0.873, retrained 0.485"),
        *("Retain: [ROUGE-L recall]", "    *0.261* finetuned 0.783, retrained 0.435"),
        *("Forget, sampled: [Mean leakage]", "    *0.250* finetuned 0.250, retrained 0.250"),
        *("All but forget: [Model utility]", "    *0.000* finetuned 0.900, retrained 0.500"),
    ]


def test_a_run_that_has_not_begun(tmp_path):
    run, config = make_run(tmp_path, [])
    words = Text(page(run, config)).words
    for said in ("No verdict yet: the stage unlearn has not come to its end.", "No stage is finished.", "No curves:"):
        assert said in words
    assert "There is no deletion request in the run's ledger." in lines(run, config) and "<svg" not in page(run, config)
    assert "model :" not in words and headings(run, config) == [
        *("What each person asked and got", "Warnings", "What was measured"),
        *("What was set up finetune, retrain, unlearn with fedavg, npo", "What was done"),
    ]


def test_a_run_that_is_not_finished_shows_its_curves(tmp_path):
    run, config = make_run(tmp_path, ["finetune"])
    row = {"stage": "unlearn", "round": 1, "moment": "round", "evaluator": "tofu", "metrics": metrics_of("unlearn")}
    run.append_metrics([row])
    found = lines(run, config)
    assert found[0] == "(outcome doubtful) No verdict yet: the stage unlearn has not come to its end."
    assert "figure: Prob of forget and retain answers over the rounds of finetune and unlearn" in found
    assert "The finetuned model:" in found and "    *0.900*" in found, "no other model is named"
    numbers = found[found.index("The finetuned model:") : found.index("## What each person asked and got")]
    assert not any("retrained" in line for line in numbers)


def test_a_run_without_the_stage_unlearn(tmp_path):
    run, config = make_run(tmp_path, ["finetune"], overrides=["stages=[finetune]"])
    found = lines(run, config)
    assert found[0] == "(outcome doubtful) No verdict is given without the stage unlearn."
    assert not any(line.startswith("## Warnings") for line in found)


def test_a_run_without_a_retrained_model_is_compared_with_none(tmp_path):
    run, config = make_run(tmp_path, ["finetune", "unlearn"], overrides=["stages=[finetune,unlearn]"])
    words = Text(page(run, config)).words
    assert "Dashed" not in words and "finetuned 0.900, retrained" not in words
    assert "No forget quality: it compares with the retrained model." in words


def test_a_run_that_measures_nothing(tmp_path):
    run, config = make_run(tmp_path, metrics=lambda _: {}, logs=lambda _: {})
    words = Text(page(run, config)).words
    assert "Nothing was measured at the end of a stage." in words and "No curves:" in words and "model :" not in words


def test_numbers_that_are_none_are_dashes(tmp_path):
    run, config = make_run(tmp_path, metrics=lambda _: {"forget_prob": 0.5})
    file = run.path / "stages" / "unlearn.json"
    file.write_text(json.dumps({"stage": "unlearn", "metrics": {"forget_prob": math.nan, "retain_prob": None}}))
    found = lines(run, config)
    assert "    *–* finetuned 0.500, retrained 0.500" in found and "nan" not in page(run, config).lower().split()


def test_what_clients_measured_stands_for_what_the_server_cannot_know(tmp_path):
    run, config = make_run(tmp_path, ["finetune", "unlearn"], overrides=NODES, metrics=lambda _: {}, logs=lambda _: {})
    ledger = Ledger(run.ledger_path)
    for name, values in (("q", (0.9, 0.1)), ("r", (0.5, 0.3))):
        ledger.submit(Request(name, 1, (f"{name}1",), 1, scope="subject"))
        ledger.served(name, 1)
        numbers = dict(zip(("before", "final"), ({"request_prob": v} for v in values), strict=True))
        write_json(audit_path(run.path, name), {"request": name, "client": 1, **numbers})
    found = lines(run, config)
    start = found.index("Means over requests, measured by their clients at the end:")
    assert found[start + 1 : start + 3] == ["Prob", "    *0.200* before 0.700"]
    text = "\n".join(found)
    assert "Prob 0.900 → 0.100, as its client measured" in text and "1 record about a person whom it knows" in text
    assert "The server measured nothing: the clients did" in text and "retrained" not in text.partition("(warnings")[0]


def test_sealed_requests_are_not_said_to_be_none(tmp_path):
    sealed = (*NODES, "unlearning.cover=3", "federation.secure_aggregation.enabled=true", "federation.clients=4")
    run, config = make_run(tmp_path, ["finetune", "unlearn"], overrides=sealed)
    found = lines(run, config)
    assert found[0].startswith(
        "(outcome doubtful) Requests are sealed: who asked for what is known to the clients alone"
    )
    text = "\n".join(found)
    assert "Requests of this run are sealed" in text and "no deletion request" not in text and "nobody" not in text


@pytest.mark.slow
def test_a_thousand_requests_leave_the_page_small_and_show_what_is_left_to_be_done(tmp_path):
    run, config = make_run(tmp_path)
    ledger = Ledger(run.ledger_path)
    ledger.submit(*(Request(f"q{i:04}", i % 30, (f"x{i}",), 1 + i % 500, "by letter " * 3) for i in range(1000)))
    for i in range(990):
        ledger.served(f"q{i:04}", 1 + i % 500)
        ledger.verified(f"q{i:04}", 2, Judgement("verified", "all were recited before, none is any more", 0.1), 0.5)
    source = page(run, config)
    assert len(source.encode()) < 300_000
    (table,) = (t for t in Text(source).tables if t[0] == ["request", "asked", "got"])
    assert [row[0] for row in table[1:12]] == [*(f"q{i:04}" for i in range(990, 1000)), "q0000"] and len(table) == 101
    assert "100 of 1,000 requests are shown, those of which something is left to be done first." in Text(source).words
    assert "1000 deletion requests for 1000 records: 10 pending, 990 verified" in Text(source).words


def log(stage, probabilities):
    made = log_of(stage)
    made[LOG_SETS["forget"]]["avg_gt_loss"] = {str(i): -math.log(p) for i, p in enumerate(probabilities)}
    return made


def test_a_request_has_the_probability_of_its_own_records_before_now_and_retrained(tmp_path):
    """Two of three records were asked about: means of (0.8, 0.6), (0.2, 0.1), (0.3, 0.5)."""
    of = {"finetune": (0.8, 0.6, 0.9, 0.9), "unlearn": (0.2, 0.1, 0.9, 0.9), "retrain": (0.3, 0.5, 0.9, 0.9)}
    run, config = make_run(tmp_path, logs=lambda stage: log(stage, of[stage]))
    name = LOG_SETS["forget"]
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("two", 1, (f"{name}-0", f"{name}-1", "other"), 1), Request("none", 2, ("other",), 1))
    found = Text(page(run, config)).tables[0]
    assert "Prob of 2 of its records 0.700 → 0.150 (retrained model 0.400)" in found[1][2]
    assert "Prob" not in found[2][2]


@pytest.mark.parametrize("stages", [["unlearn"], ["retrain"], ["finetune", "retrain"]])
def test_any_stages_make_a_page(tmp_path, stages):
    run, config = make_run(tmp_path, stages)
    named = {"unlearn": "The unlearned model:", "retrain": "The retrained model:", "finetune": "The finetuned model:"}
    assert named[stages[0]] in lines(run, config)
