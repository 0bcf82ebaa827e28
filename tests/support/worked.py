"""A run made by hand whose every figure can be worked out on paper: see `test_worked_run`.

Eight forget questions e0 to e7. The true answer of question i has the probability 4/5 in the finetuned model, 1/2 in
the retrained one and 2^-(i + 2) in the unlearned one. It is five times as likely as the wrong answers in the finetuned
model, three times in the retrained one, and in the unlearned one twice (first four questions) or three times.
"""

import math

from support.audits import audit_of, phrasings, write
from support.reports import make_run

from oblivionis.audits.people_outcomes import Outcome, Person, PersonFact, Phrasing, person_slug
from oblivionis.chain import GENESIS, append_all
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import Judgement
from oblivionis.files import read_lines, write_json
from oblivionis.measures.audit_numbers import audit_path
from oblivionis.naming import LOG_SETS
from oblivionis.runs.privacy import FILE as PRIVACY

OVERRIDES = (
    *("federation.clients=4", "seed=7", "unlearning.epochs=3", "evaluation.samples_shown=2"),
    *("stages=[finetune,retrain,unlearn,local]", "evaluation.light.questions_per_set=2"),
)
QUESTIONS = range(8)
LIKELY = {"finetune": lambda i: 4 / 5, "retrain": lambda i: 1 / 2, "unlearn": lambda i: 2.0 ** -(i + 2)}
OVER_WRONG = {"finetune": lambda i: 5, "retrain": lambda i: 3, "unlearn": lambda i: 2 if i < 4 else 3}
RECALL = {"finetune": 0.9, "retrain": 0.3, "unlearn": 0.1}
METRICS = {
    "finetune": {"forget_prob": 0.8, "forget_rouge": 0.9, "retain_rouge": 0.8, "model_utility": 0.6},
    "unlearn": {"forget_prob": 0.0625, "forget_rouge": 0.1, "retain_rouge": 0.4, "model_utility": 0.45},
    "retrain": {"forget_prob": 0.5, "forget_rouge": 0.3, "retain_rouge": 0.75, "model_utility": 0.55},
}
RANKS = {f"e{i}": 0.55 + 0.05 * i for i in QUESTIONS}
BAND = {"low": 0.4, "high": 0.6, "mean": 0.5, "n": 3, "confidence": 0.95, "values": [0.45, 0.5, 0.55]}


def worked_run(folder):
    """The run, finished but for the stage local, and its configuration."""
    run, config = make_run(folder, overrides=OVERRIDES, metrics=METRICS.__getitem__, logs=_log)
    found = run.stage_summary("unlearn")
    more = {"rounds": 2, "seconds": 61.4, "ruler": {"bands": {"mean_rank": BAND}}}
    metrics = {**found["metrics"], "ruler_mean_rank": 0.725, "leakage_samples": 8.0}
    run.finish_stage("unlearn", {**found, **more, "metrics": metrics}, _log("unlearn"))
    run.finish_stage(
        "retrain", {**run.stage_summary("retrain"), "rounds": 2, "reused_from": "/runs/other"}, _log("retrain")
    )
    versions = {"flwr": "1.2", "torch": "2.3", "numpy": "4.5"}
    run.write_environment(oblivionis="9.8", python="3.11", platform="Linux", cpus=8, packages=versions)
    _rounds(run)
    _requests(run)
    _audits(run)
    _attacks(run)
    write_json(run.path / PRIVACY, _privacy())
    return run, config


def _log(stage):
    if stage not in LIKELY:
        return {}
    names = ("Ann", "Bo", "Cy", "Di", "Ed", "Fay", "Gus", "Hal")
    texts = {
        str(i): [f"Question: Where does {name} live?\nAnswer:", f" {stage} says Vell.", f"{name} lives in Ost."]
        for i, name in enumerate(names)
    }
    forget = {
        "avg_gt_loss": {str(i): -math.log(LIKELY[stage](i)) for i in QUESTIONS},
        "rougeL_recall": {str(i): RECALL[stage] for i in QUESTIONS},
        "avg_paraphrased_loss": {str(i): 1.0 for i in QUESTIONS},
        "average_perturb_loss": {str(i): [1.0 + math.log(OVER_WRONG[stage](i))] for i in QUESTIONS},
        "generated_text": texts,
    }
    other = {"generated_text": {"0": ["Question: Who is Kim?\nAnswer:", "" if stage == "unlearn" else " Kim.", "Kim."]}}
    ids = {LOG_SETS["forget"]: [f"e{i}" for i in QUESTIONS], LOG_SETS["retain"]: ["k0"]}
    found = {LOG_SETS["forget"]: forget, LOG_SETS["retain"]: other, "ids": ids}
    return found | ({"ruler": RANKS} if stage == "unlearn" else {})


def _rounds(run):
    def row(stage, server_round, seconds, clients=None, failures=0, **more):
        metrics = {"seconds": seconds, "failures": failures}
        found = {
            "stage": stage,
            "round": server_round,
            "moment": "round",
            "evaluator": "federation",
            "metrics": metrics,
        }
        return found | ({"clients": clients} if clients else {}) | more

    cut = [{"client": 3, "what": "norm"}, {"client": 0, "what": "norm"}, {"client": 3, "what": "weight"}]
    rebound = {"stage": "unlearn", "evaluator": "rebound", "metrics": {}}
    run.append_metrics(
        [
            row("finetune", 1, 4.0, {"train": [2, 0, 1], "failed": [3]}, failures=1),
            row("finetune", 2, 5.25, {"train": [3, 0]}, failures=2, cut=cut),
            row("unlearn", 1, 6.5, {"unlearn": [1], "calibrate": [2], "train": [0, 3]}),
            row("unlearn", 2, 7.0),
            {"stage": "unlearn", "round": 2, "moment": "end", "evaluator": "muse", "metrics": {}, "error": "no memory"},
            *(
                {**rebound, "round": n, "moment": moment, "requests": {"prob": {"mine": value}}}
                for n, moment, value in (
                    *((1, "before_unlearn", 0.9), (1, "after_unlearn", 0.1), (1, "round", 0.3), (2, "round", 0.5)),
                )
            ),
        ]
    )


def _requests(run):
    """Written at noon of 1 January 1970 and every minute thereafter: the ledger's own clock is the machine's."""
    ledger = Ledger(run.path / "scratch.jsonl")
    about = {"scope": "subject", "subject": "Ann Lee", "group": "ann", "already": 2}
    ledger.submit(Request("mine", 1, ("e0", "e1"), 1, "asked by letter", **about))
    ledger.submit(Request("other", 2, ("e2",), 1))
    ledger.submit(Request("leaves", 3, ("z1", "z2"), 2, scope="client"))
    ledger.submit(Request("refused", 0, ("e5",), 2))
    ledger.submit(Request("covered", 1, (), 2, already=1))
    ledger.failed("mine", 1, "it was away")
    ledger.served(
        "mine", 1, told={"forget-nll-before": 0.25, "forget-nll-after": 3.5, "unlearn-steps": 4, "unlearn-seconds": 2.5}
    )
    ledger.applied("mine", 1, "0123456789abcdef", "fedcba9876543210")
    ledger.served("other", 1)
    ledger.failed("leaves", 2, "too slow")
    ledger.rejected("refused", 2, "unknown records")
    ledger.verified("mine", 2, Judgement("verified", "", 0.1), 0.5)
    ledger.verified("other", 2, Judgement("inconclusive", "it was not asked before", 0.125), 0.5)
    lines = [{k: v for k, v in line.items() if k not in ("prev", "hash")} for line in read_lines(ledger.path)]
    append_all(run.ledger_path, [{**line, "time": 43200 + 60 * n} for n, line in enumerate(lines)], GENESIS)
    ledger.path.unlink()
    folder = run.path / "certificates" / person_slug("ann")
    write_json(folder / "certificate.json", {"result": "PASS", "issued": "1970-01-02", "signature": "s"})


BORN = PersonFact("P19", "place of birth", ("Bergen", "Oslo"), "born", phrasings(3.0, None), Outcome(2, 2, 1.25, None))
WORK = PersonFact("P106", "occupation", ("baker",), "work", phrasings(None, None), Outcome(1, 2, 0.5, "smith"))
ALONE = PersonFact("P1", "name", ("Bo",), "bo", (Phrasing("t", True, 0.5, 1, "Bo"),))
PEOPLE = (
    Person("Ann Lee", "known", "Lee, Ann", ("e0", "e3"), (BORN, WORK)),
    Person("Bo", None, None, ("e2",), (ALONE,)),
)


def _audits(run):
    write(audit_of(run, PEOPLE, "unlearn", against="finetune of a run"), run.path / "audits" / "person-unlearn-0002")
    rows = [
        {"id": "e0", "samples": 64, "greedy": 0.5, "mean": 0.25, "ed": 0.375, "m_mu": 0.625, "m_bin": 0.75},
        {"id": "e7", "samples": 16, "greedy": 0.0, "mean": 0.125, "ed": 0.2, "m_mu": 0.3, "m_bin": 0.4},
    ]
    write_json(run.path / "audits" / "leakage-unlearn-0002" / "audit.json", {"questions": rows})
    measured = {
        "before": {"request_rouge": 1.0, "request_prob": 0.5},
        "final": {"request_rouge": 0.125, "retain_prob": 0.25},
    }
    write_json(
        audit_path(run.path, "mine"), {"request": "mine", "client": 1, "round": 1, **measured, "failed": {"after": "x"}}
    )


def _attacks(run):
    def model(before, after, **more):
        return {
            "before": dict(zip(_MEASURES, before, strict=True)),
            "after": dict(zip(_MEASURES, after, strict=True)) | more,
        }

    ours, theirs = (0.25, 0.5, 0.75), (0.125, 0.375, 0.625)
    rows = [
        ("none", "", "near", 0.5, model(ours, ours), model(theirs, theirs)),
        (
            "jailbreak",
            "ask twice",
            "still known",
            0.0031,
            model(ours, (0.75, 0.5, 0.25)),
            model(theirs, (0.25, 0.5, 0.5)),
        ),
        ("quantise", "nf4", "undecided", 0.031, model(ours, (0.5, 0.5, 0.5)), model(theirs, theirs)),
        ("quantise", "int8", "over-unlearned", 1.0, model(ours, (0.0, 0.5, 0.5)), model(theirs, theirs)),
        ("sampling", "8", None, None, model(ours, ours, m_mu=0.5, m_bin=0.25), model(theirs, theirs, m_mu=0.375)),
    ]
    found = [
        {
            **{"attack": attack, "variant": variant, "questions": 8, "models": {"unlearn": mine, "retrain": oracle}},
            "difference": {m: mine["after"][m] - oracle["after"][m] for m in _MEASURES},
            **({"verdict": verdict, "p_above": p} if verdict else {}),
        }
        for attack, variant, verdict, p, mine, oracle in rows
    ]
    aucs = {"unlearn": {"auc": 0.75, "low": 0.5, "high": 1.0}, "retrain": {"auc": 0.5, "low": 0.25, "high": 0.75}}
    inference = [
        {"variant": "zlib", "members": 8, "others": 9, "models": aucs, "difference": 0.25, "p": 0.031},
        {"variant": "own", "members": 4, "others": 9, "models": {"unlearn": aucs["unlearn"]}},
    ]
    results = {"run": run.name, "stage": "unlearn", "round": 2, "oracle": "retrain", "rows": found}
    results |= {
        "membership": inference,
        "left_out": {"relearn": "it has no holdout"},
        "failed": {"prefix": "no memory"},
    }
    write_json(run.path / "attacks" / "unlearn-0002" / "results.json", {**results, "any_script": 3})
    alone = [{**found[1], "models": {"finetune": found[1]["models"]["unlearn"]}}]
    alone = [{key: row[key] for key in ("attack", "variant", "questions", "models")} for row in alone]
    of = {"stage": "finetune", "oracle": None, "rows": alone, "membership": [], "left_out": {}, "failed": {}}
    write_json(run.path / "attacks" / "finetune-0002" / "results.json", results | of)


_MEASURES = ("prob", "rouge", "truth_ratio")


def _privacy():
    spent = {"epsilon": 2.5, "epsilon_if_drawing_is_known": 4.0, "releases": 4, "unlearning_exchanges": 1}
    alone = {"epsilon": 1.5, "epsilon_if_drawing_is_known": 1.5, "releases": 2, "unlearning_exchanges": 0}
    return {
        "level": "client",
        "delta": 1e-3,
        "units": 4,
        "target_epsilon": None,
        "noise_multiplier": 1.0,
        "noise": "seed",
        "lineages": {"finetune and unlearn": spent, "retrain": alone},
        "requests": [{"id": "mine", "round": 1, "epsilon_before": 2.0, "epsilon_after": 2.5}],
        "releases": [],
    }
