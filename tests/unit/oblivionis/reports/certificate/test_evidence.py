"""What a certificate states of a request, from hand-made files of a run."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from statistics import fmean

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import beta
from support.reports import log_of, make_run, metrics_of

from oblivionis.chain import check_chain
from oblivionis.erasure.hidden_requests import Opened, SealError, commit_to, digest_of
from oblivionis.erasure.ledger import EXCHANGE, EXCHANGE_UNDONE, Ledger
from oblivionis.erasure.node_key import audit_bytes, public_hex
from oblivionis.erasure.request import Request
from oblivionis.erasure.unlearn_messages import Demand
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.files import write_json
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.reports.certificate.checks import check_leakage, leak_bounds
from oblivionis.reports.certificate.evidence import (
    CLIENT,
    RUN,
    exchange_of,
    gather,
    gather_opened,
    program_of,
    run_name,
)
from oblivionis.reports.certificate.signing import build
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import Checkpoint, RunDirectory, vector_hash

FINAL, EARLIER = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
IDS = tuple(f"eval_log_forget-{i}" for i in range(3))
LOSSES = (0.5, 1.5, 2.5, 4.0)
ALPHA = 0.01
RULE = ("temperature", "top_p", "top_k", "confidence")


def logs(stage):
    log = log_of(stage)
    log["eval_log_forget"]["avg_gt_loss"] = {str(i): loss for i, loss in enumerate(LOSSES)}
    return log


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Request r0 of client 1 names two records that the evaluation asks and one that it does not."""
    run, config = make_run(tmp_path_factory.mktemp("evidence"), logs=logs)
    summary = run.stage_summary("unlearn")
    write_json(run.path / "stages" / "unlearn.json", {**summary, "fingerprint": "f" * 64, "rounds": 2})
    run.save_checkpoint(Checkpoint("unlearn", 2, FINAL, {}, {}), keep=1)
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("r0", 1, (*IDS[:2], "elsewhere"), 1), Request("r1", 2, IDS[2:], 1))
    ledger.served("r0", 1)
    ledger.applied("r0", 1, "a" * 64, "b" * 64)
    ledger.applied("r1", 1, "c" * 64, "d" * 64)
    ledger.verified("r0", 2, Judgement("not testable", "short", 0.25), 0.5)
    return run, config


@pytest.fixture
def made(template, tmp_path):
    run, config = template
    return RunDirectory.open(shutil.copytree(run.path, tmp_path / "made")), config


def found_in(made, name="r0"):
    run, config = made
    return gather(run, config, Ledger(run.ledger_path).get(name))


def judge(run, **of):
    request = {"outcome": "verified", "why": "w", "knows": "", "rouge": 0.125, "records": {}, "twins": {}, **of}
    write_json(run.path / "judgements.json", {"limit": 0.5, "doubt": "", "model": "m", "requests": {"r0": request}})


def measured_at(round, moment, of, evaluator="requests"):
    rows = {name: {i: {"rouge": rouge, "prob": prob} for i, (rouge, prob) in ids.items()} for name, ids in of.items()}
    head = {"stage": "unlearn", "round": round, "moment": moment, "evaluator": evaluator, "metrics": {}}
    return {**head, "requests": rows}


def test_what_the_ledger_and_the_checkpoints_say(made):
    run, _ = made
    run.append_metrics(
        [
            {"stage": stage, "round": n, "evaluator": "federation", "metrics": {}, "clients": {"train": [n]}}
            for stage in ("finetune", "unlearn")
            for n in (1, 2)
        ]
    )
    found = found_in(made)
    assert found["source"] == RUN and found["signed_by"] == []
    entries = check_chain(run.ledger_path).entries
    assert found["ledger"] == {"lines": len(entries), "head": check_chain(run.ledger_path).head, "faults": []}
    assert [e["event"] for e in found["events"]] == ["submitted", "served", "applied", "verification_failed"]
    assert found["events"][2] == {k: entries[3][k] for k in ("event", "round", "time", "before", "after", "hash")}
    assert found["models"] == {
        "base": {"source": made[1].model.source, "fingerprint": "f" * 64},
        "before": "a" * 64,
        "after": "b" * 64,
        "final": {"round": 2, "sha256": vector_hash(FINAL)},
    }
    assert found["rounds"] == [{"round": n, "clients": {"train": [n]}} for n in (1, 2)]
    assert found["judgement"] == {"outcome": "not testable", "why": "short", "rouge": 0.25}
    absent = {"leakage": None, "rank": None, "oracle": None, "attacks": None}
    assert {name: found[name] for name in absent} == absent
    assert not {"privacy", "failed", "failed_attacks"} & found.keys()
    Ledger(run.ledger_path).applied("r0", 2, "e" * 64, "f" * 64)
    assert found_in(made)["models"]["after"] == "f" * 64, "the last exchange that served it"
    (run.path / "requests.jsonl").write_text(run.ledger_path.read_text().replace('"round": 1', '"round": 3', 1))
    assert found_in(made)["ledger"]["faults"]


def test_the_runs_own_measurements_are_means_over_the_requests_records(made):
    """Before the first exchange that measured the request, after the last; the probability at the end of the records
    that were asked."""
    run, _ = made
    mine, other = {"x": (0.9, 0.5), "y": (0.6, 0.25)}, {"z": (0.1, 0.1)}
    run.append_metrics(
        [
            measured_at(1, "before_unlearn", {"r0": mine}),
            measured_at(1, "after_unlearn", {"r0": {"x": (0.7, 0.25)}}),
            measured_at(2, "before_unlearn", {"r0": {"x": (0.2, 0.2)}, "r1": other}),
            measured_at(3, "before_unlearn", {"r1": other}),
            measured_at(2, "after_unlearn", {"r0": {"x": (0.3, 0.125)}}),
        ]
    )
    found = found_in(made)
    assert found["before"] == pytest.approx({"rouge": 0.75, "prob": 0.375, "records": 2})
    assert found["after"] == pytest.approx({"rouge": 0.3, "prob": 0.125, "records": 1})
    prob = (math.exp(-0.5) + math.exp(-1.5)) / 2
    assert found["final"] == pytest.approx({"rouge": 0.25, "prob": prob, "records": 3}), "ROUGE as the ledger has it"
    assert found_in(made, "r1")["final"] == pytest.approx({"prob": math.exp(-2.5), "records": 1}), "was never judged"
    judge(run, twins={"x": ["t"], "y": ["t", "u"]}, seen=["x"])
    found = found_in(made)
    assert found["final"]["rouge"] == 0.125 and found["judgement"]["twins"] == 2
    assert found["judgement"]["outcome"] == "verified" and "seen" not in found["judgement"]
    assert found["oracle"] == {"of": "the request's records", "own": True, "seen": 1}


# -- leakage -----------------------------------------------------------------------------------------------------


def sampled(**questions):
    return [{"id": i, "samples": n, "m_bin": m_bin, "mu_lower": low} for i, (n, m_bin, low) in questions.items()]


def audited(run, config, name="0002", **changes):
    terms = config.evaluation.leakage
    rule = {name: getattr(terms, name) for name in RULE}
    audit = {
        "questions": sampled(**{IDS[0]: (64, 0.3, 0.1), IDS[1]: (32, 0.2, 0.15), IDS[2]: (8, 0.9, 0.8)}),
        "terms": {"alpha_per_question": 0.005, "alpha": terms.alpha, "leaks_from": terms.leaks_from},
        "function": terms.function,
        "sampling": {"rule": rule},
        "model": vector_hash(FINAL),
        "asked": "forget questions",
        **changes,
    }
    write_json(run.path / "audits" / f"leakage-unlearn-{name}" / "audit.json", audit)


def test_leakage_is_that_of_the_requests_worst_question_in_the_latest_audit(made):
    run, config = made
    audited(run, config)
    write_json(run.path / "audits" / "leakage-unlearn-0001" / "audit.json", {"questions": []})
    ledger = Ledger(run.ledger_path)
    ledger.note("measured", files={"audits/leakage-unlearn-0001/audit.json": "0" * 64})
    ledger.note("measured", files={"attacks/unlearn-0001/results.json": "0" * 64})
    found = found_in(made)["leakage"]
    from_mean = config.evaluation.leakage.leaks_from
    bounds = [leak_bounds(*of, 0.005, from_mean) for of in ((0.3, 0.1, 64), (0.2, 0.15, 32))]
    assert found == {
        "of": "the worst of 2 questions about the request's 3 records, the latest audit",
        "own": True,
        "questions": 2,
        "records": 3,
        "upper": 0.3,
        "lower": max(lower for lower, _ in bounds),
        "samples": 32,
        "confidence": 0.995,
        "audits": 1,
    }


def test_an_audit_that_is_repeated_until_it_passes_is_counted(made):
    """Only the last of three counts, and the certificate says that there were three, and asks more of the last."""
    run, config = made
    file = run.path / "audits" / "leakage-unlearn-0002" / "audit.json"
    none = float(1 - 0.005 ** (1 / 64))
    for upper in (0.9, 0.8, none):
        audited(run, config, questions=sampled(**{i: (64, upper, 0.0) for i in (*IDS, "elsewhere")}))
        artifact_binding.measured(run, file, json.loads(file.read_text()))
    found = found_in(made)["leakage"]
    # None of 64 answers leaks: at a twelfth of alpha.
    assert found["upper"] == pytest.approx(1 - (0.005 / 12) ** (1 / 64)) and found["audits"] == 3
    assert found["confidence"] == 1 - 0.005 / 12
    check = check_leakage(found, config.certificate.max_leakage)
    assert check.figure["audits made"] == 3 and "as audit 3 of this model" in check.why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"function": "other"}, "an audit with another function than the configuration is set aside"),
        (
            {"terms": {"alpha_per_question": 0.5, "alpha": 0.5, "leaks_from": 2.0}},
            "an audit with another alpha, leaks_from than the configuration is set aside",
        ),
        ({"sampling": {"rule": dict.fromkeys(RULE, 9)}}, "with another temperature, top_p, top_k, confidence than"),
        ({"model": vector_hash(EARLIER)}, "an audit of another model is set aside"),
        ({"asked": "names"}, "an audit of other questions is set aside"),
    ],
)
def test_an_audit_on_other_terms_is_set_aside(made, changes, why):
    """Then the stage's own samples count, and without any the mean over all questions."""
    run, config = made
    audited(run, config, **changes)
    assert found_in(made)["leakage"] is None
    leakage = {"samples": 16, "m_bin": 0.4, "mu_lower": 0.2}
    record = {"units": 5, "final": 0.1, "before": None, "oracle": None}
    judge(run, records={IDS[0]: {**record, "leakage": leakage}, IDS[1]: {**record, "leakage": None}})
    found = found_in(made)["leakage"]
    assert found["of"].startswith("the worst of 1 question about the request's 3 records, the stage's end (")
    assert why in found["of"]
    assert (found["upper"], found["samples"]) == (0.4, 16)
    assert found["confidence"] == 1 - config.evaluation.leakage.alpha and found["own"]


def test_the_lower_and_the_upper_bound_may_be_those_of_different_questions(made):
    """40 leaks of 64 show that more leaks than 2 of 4 do, and 2 of 4 rule out less: both bounds by Clopper and Pearson,
    at 0.005."""
    run, config = made
    low, high = (lambda k, n: beta.ppf(0.005, k, n - k + 1)), (lambda k, n: beta.ppf(0.995, k + 1, n - k))
    rows = {i: (n, high(k, n), 0.0) for i, k, n in zip(IDS[:2], (40, 2), (64, 4), strict=True)}
    for order in (IDS[:2], IDS[1::-1]):
        audited(run, config, questions=sampled(**{i: rows[i] for i in order}))
        found = found_in(made)["leakage"]
        assert found["lower"] == pytest.approx(low(40, 64)) and low(40, 64) > low(2, 4)
        assert found["upper"] == pytest.approx(high(2, 4)) and high(2, 4) > high(40, 64)
        assert found["samples"] == 4


def test_a_question_without_a_bound_does_not_count(made):
    run, config = made
    audited(run, config, questions=[*sampled(**{IDS[0]: (64, 0.3, 0.1)}), {"id": IDS[1], "samples": 2}])
    found = found_in(made)["leakage"]
    assert (found["questions"], found["samples"], found["upper"]) == (1, 64, 0.3)


@pytest.mark.parametrize(("questions", "lower"), [(1, ALPHA ** (1 / 20)), (4, 0.0)])
def test_how_many_answers_leaked_is_read_off_the_bound_of_one_question_alone(tmp_path, questions, lower):
    """Clopper and Pearson's lower bound of 20 of 20 is α^(1/20); a mean of 1.0 over four questions tells no count."""
    told = {"leakage_samples": 20.0, "leakage_questions": questions, "leakage_mu_lower": 0.0, "leakage_m_bin": 1.0}
    run, config = make_run(tmp_path, metrics=lambda s: metrics_of(s) | told)
    run.save_checkpoint(Checkpoint("unlearn", 2, FINAL, {}, {}), keep=1)
    Ledger(run.ledger_path).submit(Request("r0", 1, IDS, 1))
    assert found_in((run, config))["leakage"]["lower"] == pytest.approx(lower)


@pytest.mark.parametrize("questions", [1, 4])
def test_without_samples_of_its_own_questions_there_is_the_mean_over_all(tmp_path, questions):
    """Only of one question M_bin tells how many answers leaked, and so their lower bound."""
    told = {"leakage_samples": 20.0, "leakage_questions": questions, "leakage_mu_lower": 0.8}
    m_bin = 1 - ALPHA ** (1 / 20)  # Clopper and Pearson's of 0 of 20
    run, config = make_run(tmp_path, metrics=lambda s: metrics_of(s) | told | {"leakage_m_bin": m_bin})
    run.save_checkpoint(Checkpoint("unlearn", 2, FINAL, {}, {}), keep=1)
    Ledger(run.ledger_path).submit(Request("r0", 1, IDS, 1))
    found = found_in((run, config))["leakage"]
    terms = config.evaluation.leakage
    samples = 20 if questions == 1 else 0
    assert found == {
        "of": f"all forget questions, mean over {questions}",
        "own": False,
        "questions": questions,
        "upper": m_bin,
        "lower": leak_bounds(m_bin, 0.8, samples, terms.alpha, terms.leaks_from)[0],
        "samples": 20,
        "confidence": 1 - terms.alpha,
    }
    assert found["lower"] == pytest.approx(0.6)


# -- rank, oracle, attacks, failures -----------------------------------------------------------------------------


def test_rank_and_oracle_of_its_own_records(made):
    run, _ = made
    rank = {"mean rank": 0.75, "records": 2, "p": 0.04, "verdict": "above"}
    oracle = {"verdict": "near", "value": 0.1, "oracle": 0.2, "questions": 2, "records": 3}
    write_json(run.path / "request_figures.json", {"r0": {"rank": rank, "oracle": oracle}})
    found = found_in(made)
    own = {"of": "the request's records", "own": True}
    assert found["rank"] == {**own, **rank} and found["oracle"] == {**own, **oracle}
    assert found_in(made, "r1")["rank"] is None


def test_rank_beside_retrained_models_of_all_forget_records(made):
    run, _ = made
    band = {"low": 0.4, "high": 0.6, "mean": 0.5, "n": 3, "confidence": 0.9, "values": [0.5]}
    metrics = {**metrics_of("unlearn"), "ruler_mean_rank": 0.55}
    summary = {"stage": "unlearn", "metrics": metrics, "ruler": {"bands": {"mean_rank": band}}}
    run.finish_stage("unlearn", summary, {**logs("unlearn"), "ruler": {IDS[0]: 0.5, IDS[1]: 0.6}})
    assert found_in(made)["rank"] == {
        "of": "all forget questions",
        "own": False,
        "mean rank": 0.55,
        "records": 2,
        "band low": 0.4,
        "band high": 0.6,
        "band confidence": 0.9,
        "retrained models": 3,
    }


def attacked(run, name="unlearn-0002", vector=FINAL, failed=()):
    def row(attack, variant, stage="unlearn", **more):
        models = {s: {"before": {"rouge": 0.2}, "after": {"rouge": 0.6}} for s in {stage, "unlearn"}}
        return {"attack": attack, "variant": variant, "questions": 9, "models": models, **more}

    rows = [
        row("none", ""),
        row(
            "prefix", "8 words", records={"unlearn": {IDS[0]: 0.5, IDS[1]: 0.7}, "retrain": {IDS[0]: 0.4, IDS[1]: 0.1}}
        ),
        row("relearn", "", verdict="near", records={"unlearn": {IDS[2]: 0.9}}),
    ]
    head = {"run": "made", "stage": "unlearn", "round": 2, "oracle": None, "membership": [], "left_out": {}}
    results = {**head, "rows": rows, "failed": dict(failed), "adapters": {"unlearn": vector_hash(vector)}}
    write_json(run.path / "attacks" / name / "results.json", results)


def test_attacks_on_the_final_model_with_each_of_its_questions(made):
    run, _ = made
    attacked(run)
    attacked(run, "unlearn-0003", EARLIER)
    (run.path / "attacks" / "unlearn-0004").mkdir()
    judge(run, seen=[IDS[1]])
    first, second = found_in(made)["attacks"]
    assert first == {
        "attack": "prefix: 8 words",
        "own": True,
        "questions": 2,
        "before": 0.2,
        "rouge": pytest.approx(0.6),
        "verdict": None,
        "worst": 0.7,
        "recalls": [[0.5, 0.4], [0.7, None]],
    }
    assert second == {
        "attack": "relearn",
        "own": False,
        "questions": 9,
        "before": 0.2,
        "rouge": 0.6,
        "verdict": "near",
    }
    assert fmean((0.5, 0.7)) == pytest.approx(first["rouge"])


def test_what_failed_on_the_final_model_is_named(made):
    run, _ = made
    row = {"stage": "unlearn", "round": 2, "moment": "end", "evaluator": "muse", "metrics": {}, "error": "no memory"}
    others = [row | {"moment": "round", "round": 1}, row | {"stage": "retrain"}]
    run.append_metrics([row, *others])
    attacked(run, failed={"prefix.unlearn": "no memory", "prefix.retrain": "no memory"})
    found = found_in(made)
    assert len(found["failed"]) == 1 and found["failed"][0].startswith("muse in unlearn, round 2")
    assert found["failed_attacks"] == ["prefix"]


# -- what a client measured --------------------------------------------------------------------------------------

NUMBERS = {"request_rouge": 0.4, "request_prob": 0.3, "request_recited": 0, "request_short": 0, "forget_records": 3}


def signed(moments, key, request="r0", client=1, **facts):
    """A client's audit whose moments are signed by `key`."""
    audit = {"request": request, "client": client, "round": 1, **moments, "signed_by": public_hex(key)}
    audit["signatures"] = {}
    for moment, numbers in moments.items():
        said = {"run": "made", "stage": "unlearn", "round": 2, "model": vector_hash(FINAL), **facts.get(moment, {})}
        said["signature"] = key.sign(audit_bytes(request, client, moment, numbers, said)).hex()
        audit["signatures"][moment] = said
    return audit


def test_what_the_client_itself_measured_takes_the_place_of_the_runs_figures(made):
    run, _ = made
    key = Ed25519PrivateKey.generate()
    more = {"leakage_samples": 20, "leakage_questions": 3, "leakage_m_bin": 0.25, "leakage_mu_lower": 0.1}
    final = {**NUMBERS, **more, "ruler_mean_rank": 0.7}
    audit = signed({"before": {**NUMBERS, "request_rouge": 0.9}, "final": final}, key)
    write_json(audit_path(run.path, "r0"), {**audit, "failed": {"after": "busy"}})
    write_json(
        run.path / "request_figures.json",
        {"r0": {"rank": {"mean rank": 0.1, "records": 3, "p": 0.5, "verdict": "near"}}},
    )
    attacked(run)
    found = found_in(made)
    assert found["source"] == CLIENT and found["signed_by"] == [public_hex(key)]
    assert (found["before"]["rouge"], found["final"]["rouge"], found["final"]["prob"]) == (0.9, 0.4, 0.3)
    assert found["after"] == {} and not [k for k in found["final"] if k.startswith("request_")]
    assert found["final"]["recited"] == 0 and found["final"]["forget_records"] == 3
    assert found["rank"] == {"of": "the request's records", "own": True, "mean rank": 0.7, "records": 3}
    assert found["oracle"] is None and found["attacks"] is None and "failed" not in found
    leakage = found["leakage"]
    assert (leakage["own"], leakage["records"], leakage["questions"], leakage["upper"]) == (True, 3, 3, 0.25)
    assert found_in(made, "r1")["source"] == RUN
    del audit["final"], audit["signatures"]["final"]
    write_json(audit_path(run.path, "r0"), {**audit, "failed": {"final": "no memory"}})
    found = found_in(made)
    assert found["failed"] == ["the client did not audit the final model: no memory"]
    assert found["final"]["rouge"] == 0.25 and found["leakage"] is None and found["rank"] is None


@pytest.mark.parametrize("event", ["opened", artifact_binding.STAGE])
def test_the_name_of_a_run_and_its_program_are_those_of_its_ledger(made, event):
    run, _ = made
    assert (run_name(run), program_of(run)) == ("made", None)
    Ledger(run.ledger_path).note(event, run="first", program="0.1")
    Ledger(run.ledger_path).note(event, run="second", program="0.2")
    assert (run_name(run), program_of(run)) == ("first", "0.1" if event == artifact_binding.STAGE else None)


# -- requests that the server does not see -----------------------------------------------------------------------


def opened_in(
    run, key, moments=None, client=1, records=("x", "y", "z"), session="s" * 32, before="a" * 64, models=None
):
    """An opened request, and the line of the ledger that counts it."""
    demand = Demand("mine", "records", tuple(records))
    digests = (digest_of(demand, "1" * 64), "2" * 64)
    commitment = commit_to("made", session, client, "3" * 64, digests)
    Ledger(run.ledger_path).note(
        EXCHANGE,
        round=1,
        session=session,
        commitments={str(client): commitment, "5": "4" * 64, "6": "5" * 64},
        survivors=[client, 5],
        before=before,
        after="b" * 64,
        count=3,
    )
    first = {**NUMBERS, "request_rouge": 1.0, "request_recited": 3}
    moments = {"before": first, "after": NUMBERS, "final": NUMBERS, **(moments or {})}
    models = {"before": {"model": before}, "after": {"model": "b" * 64}, **(models or {})}
    audit = signed({m: n for m, n in moments.items() if n}, key, "mine", client, **models)
    line = check_chain(run.ledger_path).hashes[-1]
    return Opened("made", session, 1, client, demand, ("3" * 64, "1" * 64), digests, commitment, line, audit)


@pytest.fixture
def key():
    return Ed25519PrivateKey.generate()


def test_what_a_node_opened_counts_where_it_is_signed(made, key):
    run, config = made
    opened = opened_in(run, key)
    found = gather_opened(run, config, opened)
    checked = check_chain(run.ledger_path)
    assert found["source"] == CLIENT and found["signed_by"] == [public_hex(key)]
    assert found["judgement"]["outcome"] == "verified" and found["judgement"]["rouge"] == 0.4
    assert found["before"]["rouge"] == 1.0 and found["final"]["rouge"] == found["after"]["rouge"] == 0.4
    assert found["ledger"] == {"lines": len(checked.entries), "head": checked.head, "faults": []}
    assert [e["event"] for e in found["events"]] == [EXCHANGE] and found["models"]["before"] == "a" * 64
    assert found["sealed"] == {
        "session": "s" * 32,
        "commitment": opened.commitment,
        "salts": ["3" * 64, "1" * 64],
        "digests": list(opened.digests),
        "line": checked.hashes[-1],
        "clients addressed": 3,
        "clients in the sum": 2,
        "records in the sum": 3,
    }
    assert json.dumps(found)


def test_opened_numbers_that_contradict_the_limit_above_which_a_record_is_recited(made, key):
    """If none of three is recited, none is above two words of three, and so their mean is not."""
    run, config = made
    opened = opened_in(run, key, {"final": {**NUMBERS, "request_rouge": 0.67}})
    with pytest.raises(SealError, match="make no sense"):
        gather_opened(run, config, opened)


@pytest.mark.parametrize("covered", [(), ("v", "w")])
def test_a_certificate_of_an_opened_request_leaves_open_what_others_of_its_node_name(made, key, covered):
    run, _ = made
    certificate = build(run, [dataclasses.replace(opened_in(run, key), covered=covered)])
    assert certificate["demand"] == {"id": "mine", "clients": [1], "records": 3}
    (part,) = certificate["requests"]
    assert part["request"]["state"] == "verified" and part["evidence"]["unnamed"] == len(covered)
    result = next(check["result"] for check in part["checks"] if check["name"] == "scope")
    assert result == ("INCONCLUSIVE" if covered else "PASS")


@pytest.mark.parametrize(
    ("moments", "models", "outcome", "why"),
    [
        ({"final": None}, {}, "inconclusive", "the node did not measure"),
        ({}, {"final": {"model": "9" * 64}}, "inconclusive", "another model than the final one of the exchange"),
        ({}, {"before": {"model": "9" * 64}}, "inconclusive", "another model than the first one of the exchange"),
        ({}, {"after": {"model": "9" * 64}}, "inconclusive", "another model than the last one of the exchange"),
        ({"before": None}, {}, "inconclusive", "was not asked for them"),
        ({"after": None}, {}, "inconclusive", "right after the exchange was not asked for them"),
        (
            {"after": {**NUMBERS, "request_rouge": 0.8, "request_recited": 2}},
            {},
            "not verified",
            "right after the exchange 2 of 3 were still recited",
        ),
        (
            {"final": {**NUMBERS, "failed_evaluators": 1}},
            {},
            "inconclusive",
            "1 evaluators failed in the client's audit",
        ),
        ({"final": {**NUMBERS, "request_twins": 1}}, {}, "inconclusive", "1 of its records is also held"),
        ({"final": {**NUMBERS, "request_rouge": 0.8, "request_recited": 2}}, {}, "not verified", "recites 2 of 3"),
    ],
)
def test_what_an_opened_request_does_not_show(made, key, moments, models, outcome, why):
    run, config = made
    found = gather_opened(run, config, opened_in(run, key, moments, models=models))
    assert found["judgement"]["outcome"] == outcome and why in found["judgement"]["why"]
    if "another model" in why or "did not measure" in why:
        assert found["signed_by"] == [] and found["final"] == {} and found["leakage"] is None


def test_an_opened_request_that_the_run_does_not_bear_out(made, key):
    run, config = made
    opened = opened_in(run, key)

    def refused(match, run_name="made", **changes):
        with pytest.raises(SealError, match=match):
            exchange_of(check_chain(run.ledger_path), dataclasses.replace(opened, **changes), run_name)

    assert exchange_of(check_chain(run.ledger_path), opened, "made")["count"] == 3
    refused(r"was served in a run called 'made', not 'other'", "other")
    refused("was not made of this", client=5)
    refused("has no line with the hash 000000000000…", line="0" * 64)
    refused("line 7 is not about session 's+' in round 2", round=2)
    submitted = check_chain(run.ledger_path).hashes[0]
    refused("line 1 is not about session", line=submitted)
    Ledger(run.ledger_path).note(EXCHANGE_UNDONE, round=1, session="s" * 32, of=opened.line)
    refused("line 7 was undone")
    forged = {**opened.audit, "final": {**NUMBERS, "request_rouge": 0.0}}
    other = opened_in(run, key, session="t" * 32)
    for audit in (forged, {**opened.audit, "client": 2}, {**opened.audit, "request": "r0"}):
        with pytest.raises(SealError, match="are not those that its node signed"):
            gather_opened(run, config, dataclasses.replace(other, audit=audit))
    wrong = opened_in(run, key, {"final": {**NUMBERS, "forget_records": 2}}, session="u" * 32)
    with pytest.raises(SealError, match="make no sense: forget_records is 2"):
        gather_opened(run, config, wrong)
    run.ledger_path.write_text(run.ledger_path.read_text().replace('"count": 3', '"count": 4', 1))
    refused("is broken, and nothing is certified of it")


@pytest.mark.parametrize(
    ("commitment", "survivors", "why"),
    [("7" * 64, [1, 5], "does not hold the commitment .* of client 1"), (None, [5], "client 1 is not in the sum")],
)
def test_the_ledger_must_count_the_very_commitment(made, key, commitment, survivors, why):
    run, _ = made
    opened = opened_in(run, key)
    entry = dict(check_chain(run.ledger_path).entries[-1])
    own = commitment or opened.commitment
    fields = {"round": 1, "session": "s" * 32, "before": "a" * 64, "after": "b" * 64, "count": 3}
    Ledger(run.ledger_path).note(
        EXCHANGE, commitments={**entry["commitments"], "1": own}, survivors=survivors, **fields
    )
    line = check_chain(run.ledger_path).hashes[-1]
    with pytest.raises(SealError, match=why):
        exchange_of(check_chain(run.ledger_path), dataclasses.replace(opened, line=line), "made")
