"""What is known of a served request, from the files of its run: nothing is measured anew."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from oblivionis.assessment.audit_numbers import read_audit
from oblivionis.chain import HASH, check_chain
from oblivionis.config.schema import Config
from oblivionis.reports import ruler as ruler_report
from oblivionis.reports import verdicts
from oblivionis.reports.certificate.checks import leak_bounds
from oblivionis.reports.found import leakage_audit
from oblivionis.requests.ledger import Request
from oblivionis.requests.ledger_lines import told_numbers
from oblivionis.runs.answers import forget_answers
from oblivionis.runs.directory import RunDirectory, vector_hash

STAGE = "unlearn"
CLIENT, RUN = "the client, on its own records", "the run, on its forget questions"


def gather(run: RunDirectory, config: Config, request: Request) -> dict[str, Any]:
    """Everything that a certificate states of `request`, as JSON values.

    `source` says who measured `before`, `after` and `final`. `leakage`, `rank`, `oracle` and `attacks` are None where
    nothing was measured; each says in `of` whether it is about the request's own records or all forget questions.
    """
    audit = client_audit(run.path, request.id)
    measured = audit or _own_measurements(run, request)
    checked = check_chain(run.ledger_path)
    final = {k: v for k, v in measured.get("final", {}).items() if k not in ("rouge", "prob")}
    final |= {"rouge": _of(measured, "rouge", request.rouge), "prob": _of(measured, "prob", None)}
    return {
        "source": CLIENT if audit else RUN,
        "before": dict(measured.get("before", {})),
        "after": dict(measured.get("after", {})),
        "final": {k: v for k, v in final.items() if v is not None},
        "leakage": _client_leakage(audit, config) if audit else _run_leakage(run, config, request),
        "rank": _client_rank(audit, run) if audit else _run_rank(run, request),
        "oracle": None if audit else _oracle(run, config),
        "attacks": _attacks(run),
        "ledger": {"lines": len(checked.entries), "head": checked.head, "faults": list(checked.faults)},
        "events": [_event(e) for e in checked.entries if e.get("id") == request.id],
        "models": _models(run, checked.entries, request),
        "rounds": _rounds(run),
    }


def client_audit(run: Path, request_id: str) -> dict[str, Any] | None:
    """What the client measured for a request, with `rouge` and `prob` of its records; None where it did not."""
    found = read_audit(run, request_id)
    if found is None or found.get("request") != request_id:
        return None
    for moment in ("before", "after", "final"):
        numbers = found.get(moment)
        if isinstance(numbers, dict):
            found[moment] = {k: v for k, v in sorted(numbers.items()) if not k.startswith("request_")}
            found[moment] |= {k.removeprefix("request_"): v for k, v in numbers.items() if k.startswith("request_")}
    return found


def _of(measured: Mapping[str, Any], name: str, default: float | None) -> float | None:
    return measured.get("final", {}).get(name, default)


def _own_measurements(run: RunDirectory, request: Request) -> dict[str, dict[str, float]]:
    """Mean ROUGE-L recall and probability on those of the request's records that the evaluation asked, by moment."""
    moments = {"before": "finetune", "final": STAGE}
    found: dict[str, dict[str, float]] = {}
    for moment, stage in moments.items():
        log = forget_answers(run.evaluation_log(stage))
        rows = [log[i] for i in request.record_ids if i in log]
        rouge = [r["rougeL_recall"] for r in rows if r.get("rougeL_recall") is not None]
        prob = [math.exp(-r["avg_gt_loss"]) for r in rows if r.get("avg_gt_loss") is not None]
        found[moment] = {
            **({"rouge": fmean(rouge)} if rouge else {}),
            **({"prob": fmean(prob)} if prob else {}),
            "records": float(len(rows)),
        }
    if request.rouge is not None:
        found["final"]["rouge"] = request.rouge  # of all its records
    return found


def _run_leakage(run: RunDirectory, config: Config, request: Request) -> dict[str, Any] | None:
    """Of the worst of the request's questions in the latest leakage audit; else of all, at the stage's end."""
    audit = leakage_audit(run, STAGE)
    if audit is not None:
        terms = audit["terms"]
        rows = [r for r in audit["questions"] if r["id"] in set(request.record_ids) and r.get("m_bin") is not None]
        alpha = terms["alpha_per_question"]
        bounds = [leak_bounds(r["m_bin"], r["mu_lower"], r["samples"], alpha, terms["leaks_from"]) for r in rows]
        if bounds:
            return {
                "of": f"the worst of the request's {len(rows)} questions",
                "upper": max(upper for _, upper in bounds),
                "lower": max(lower for lower, _ in bounds),
                "samples": min(r["samples"] for r in rows),
                "confidence": 1 - alpha,
            }
    metrics = (run.stage_summary(STAGE) or {}).get("metrics", {})
    return _mean_leakage(metrics, config, "all forget questions")


def _client_leakage(audit: Mapping[str, Any], config: Config) -> dict[str, Any] | None:
    return _mean_leakage(audit.get("final", {}), config, "the request's records")


def _mean_leakage(metrics: Mapping[str, float], config: Config, of: str) -> dict[str, Any] | None:
    if not metrics.get("leakage_samples") or "leakage_m_bin" not in metrics:
        return None
    terms, samples = config.evaluation.leakage, int(metrics["leakage_samples"])
    single = metrics.get("leakage_questions") == 1.0
    lower, upper = leak_bounds(
        metrics["leakage_m_bin"],
        metrics["leakage_mu_lower"],
        samples if single else 0,
        terms.alpha,
        terms.leaks_from,
    )
    return {
        "of": f"{of}, mean over {metrics.get('leakage_questions', 0):g}",
        "upper": upper,
        "lower": lower,
        "samples": samples,
        "confidence": 1 - terms.alpha,
    }


def _run_rank(run: RunDirectory, request: Request) -> dict[str, Any] | None:
    """Of the request's own records by the test; by a noise band, where there is one, of all forget records."""
    ranks = (run.evaluation_log(STAGE) or {}).get("ruler") or {}
    if (banded := ruler_report.bands(run).get("mean_rank")) is not None:
        return {
            "of": "all forget questions",
            "mean rank": banded.value,
            "records": len(ranks),
            "band low": banded.band.low,
            "band high": banded.band.high,
            "band confidence": banded.band.confidence,
            "retrained models": banded.band.n,
        }
    mine = ruler_report.request_ranks(run).get(request.id)
    return {"of": "the request's records", **mine} if mine else None


def _client_rank(audit: Mapping[str, Any], run: RunDirectory) -> dict[str, Any] | None:
    final = audit.get("final", {})
    if "ruler_mean_rank" not in final:
        return None
    records = int(final.get("forget_records", 0))
    return {"of": "the request's records", "mean rank": final["ruler_mean_rank"], "records": records}


def _oracle(run: RunDirectory, config: Config) -> dict[str, Any] | None:
    found = verdicts.find_verdicts(run, config.evaluation.truth_ratio).get("prob")
    if found is None:
        return None
    return {
        "of": "all forget questions",
        "verdict": found.verdict,
        "value": found.value,
        "oracle": found.oracle,
        "questions": found.questions,
    }


def _attacks(run: RunDirectory) -> list[dict[str, Any]] | None:
    """The latest attacks on the final model, the harmless one left out."""
    for path in sorted((run.path / "attacks").glob(f"{STAGE}-*/results.json"), reverse=True):
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
            return [_attack(row) for row in rows if row["attack"] != "none" and STAGE in row["models"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _attack(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attack": f"{row['attack']}: {row['variant']}" if row["variant"] else row["attack"],
        "questions": row["questions"],
        "before": row["models"][STAGE]["before"]["rouge"],
        "rouge": row["models"][STAGE]["after"]["rouge"],
        "verdict": row.get("verdict"),
    }


def _event(entry: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("event", "round", "time", "rouge", "limit", "before", "after", HASH)
    told = {k: v for k, v in told_numbers(entry).items() if k in ("num-examples", "unlearn-steps")}
    return {name: entry[name] for name in kept if entry.get(name) is not None} | told


def _models(run: RunDirectory, entries: Sequence[Mapping[str, Any]], request: Request) -> dict[str, Any]:
    """The hashes of base model and adapters: before and after the exchange that served the request, and at the end."""
    environment = run.environment()
    applied = [e for e in entries if e.get("event") == "applied" and e.get("id") == request.id]
    models: dict[str, Any] = {
        "base": {"source": environment.get("base_model"), "fingerprint": environment.get("fingerprint")},
        "before": applied[-1]["before"] if applied else None,
        "after": applied[-1]["after"] if applied else None,
    }
    checkpoint = run.load_checkpoint(STAGE)
    return models | {"final": {"round": checkpoint.round, "sha256": vector_hash(checkpoint.vector)}}


def _rounds(run: RunDirectory) -> list[dict[str, Any]]:
    """Who took part in which round of the stage: by exchange the clients whose answers counted."""
    rows = [r for r in run.metrics() if r["stage"] == STAGE and r["evaluator"] == "federation"]
    return [{"round": r["round"], "clients": r.get("clients", {})} for r in rows]
