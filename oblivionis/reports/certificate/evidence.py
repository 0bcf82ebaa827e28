"""What is known of a served request, from the files of its run: nothing is measured anew."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from oblivionis.chain import HASH, Checked, check_chain
from oblivionis.config import method_traits
from oblivionis.config.identity import text_hash
from oblivionis.config.schema import Config
from oblivionis.erasure.hidden_requests import Opened, SealError
from oblivionis.erasure.ledger import EXCHANGE, EXCHANGE_UNDONE, Ledger
from oblivionis.erasure.node_key import signers
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_records import MOMENTS, exchanges, judgement_of
from oblivionis.erasure.verification_rules import INCONCLUSIVE, Thresholds
from oblivionis.measures.audit_numbers import MOMENTS as MOMENTS_OF_AUDIT
from oblivionis.measures.audit_numbers import check_numbers, judge_numbers, own_names, read_audit
from oblivionis.measures.ruler import report as ruler_report
from oblivionis.reports import privacy as privacy_report
from oblivionis.reports.attacks import read_results
from oblivionis.reports.certificate.checks import leak_bounds, spent, upper_at
from oblivionis.reports.format import counted
from oblivionis.reports.record_results import leakage_audit
from oblivionis.reports.request_figures import request_figures
from oblivionis.runs import artifact_binding
from oblivionis.runs.answers import forget_answers
from oblivionis.runs.directory import RunDirectory, vector_hash
from oblivionis.runs.failed_evaluators import failures
from oblivionis.runs.ledger_run_events import run_name as name_by_ledger
from oblivionis.runs.ledger_run_events import served_again

STAGE = "unlearn"
ENVIRONMENT_FILE = "environment.json"
"""In the run: the versions of the packages that made it. Left out where the ledger of the run does not bind it."""
EVENT_FIELDS = (
    *("event", "round", "time", "rouge", "limit", "outcome", "why", "before", "after", "told", "num-examples"),
    *("unlearn-steps", HASH),
)
CLIENT, RUN = "the client itself, on its own records", "the server of the run"


def gather(run: RunDirectory, config: Config, request: Request) -> dict[str, Any]:
    """Everything that a certificate states of `request`, as JSON values.

    `source` says who measured `before`, `after` and `final`, `signed_by` whose key signed what a client reported.
    `leakage`, `rank`, `oracle` and `attacks` are None where nothing was measured; each says in `of` what it is about,
    and in `own` whether that are the request's own records. `privacy` is there only with differential privacy.
    """
    audit = client_audit(run.path, request.id)
    judgement = judgement_of(run, request.id)
    seen = judgement.pop("seen", [])
    judgement |= {"twins": len(twins)} if (twins := judgement.pop("twins", {})) else {}
    measured = audit or _own_measurements(run, request, judgement)
    checked = check_chain(run.ledger_path)
    figures = {} if audit else request_figures(run, request.id)
    final = {k: v for k, v in measured.get("final", {}).items() if k not in ("rouge", "prob")}
    final |= {"rouge": _of(measured, "rouge", request.rouge), "prob": _of(measured, "prob", None)}
    return {
        "source": CLIENT if audit else RUN,
        "signed_by": _signers(run, request.id) if audit else [],
        "before": dict(measured.get("before", {})),
        "after": dict(measured.get("after", {})),
        "final": {k: v for k, v in final.items() if v is not None},
        "judgement": judgement or {"outcome": request.outcome, "why": request.why, "rouge": request.rouge},
        "leakage": _client_leakage(audit, config, _final_audits(run, request.id))
        if audit
        else _run_leakage(run, config, request, judgement),
        "rank": _client_rank(audit) if audit else _run_rank(run, figures),
        "oracle": _oracle(figures, seen),
        "attacks": None if audit else _attacks(run, request, seen),
        "ledger": {"lines": len(checked.entries), "head": checked.head, "faults": list(checked.faults)},
        "events": [_event(e) for e in checked.entries if e.get("id") == request.id],
        "models": _models(run, config, checked.entries, request, audit),
        "rounds": _rounds(run),
        **({} if (spent := privacy_report.of_request(run, request.id)) is None else {"privacy": spent}),
        **_failed(run, audit),
    }


def gather_exact(run: RunDirectory, config: Config, request: Request) -> dict[str, Any]:
    """The same of a request that an exact erasure served: what the ledger says of it, and nothing that was measured."""
    checked, twins = check_chain(run.ledger_path), len(judgement_of(run, request.id).get("twins", {}))
    return {
        "source": "nobody, it rests on the rounds that were held again",
        "signed_by": [],
        "judgement": {"outcome": request.outcome, "why": request.why, **({"twins": twins} if twins else {})},
        "ledger": {"lines": len(checked.entries), "head": checked.head, "faults": list(checked.faults)},
        "events": [_event(e) for e in checked.entries if e.get("id") == request.id],
        "models": _models(run, config, checked.entries, request, None),
    }


def _failed(run: RunDirectory, audit: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """What was to be measured of the final model and failed: nothing follows from its absence."""
    if audit:
        unmeasured = audit.get("failed", {})
        failed = [f"the client did not audit the final model: {unmeasured['final']}"] if "final" in unmeasured else []
        attacks: list[str] = []
    else:
        failed = [f.as_text() for f in failures(run) if f.final and f.stage == STAGE]
        attacks = [
            n.removesuffix(f".{STAGE}") for n in _latest_attacks(run).get("failed", {}) if n.endswith(f".{STAGE}")
        ]
    return {name: texts for name, texts in (("failed", failed), ("failed_attacks", attacks)) if texts}


def _signers(run: RunDirectory, request_id: str) -> list[str]:
    """The public keys, in hexadecimal digits, whose signatures fit what the client reported of the request."""
    return sorted(set(signers(read_audit(run.path, request_id) or {}).values()))


def client_audit(run: Path, request_id: str) -> dict[str, Any] | None:
    """What the client measured for a request, with `rouge` and `prob` of its records; None where it did not."""
    audit = read_audit(run, request_id)
    return None if audit is None or audit.get("request") != request_id else _named(audit)


def _named(audit: dict[str, Any]) -> dict[str, Any]:
    """A client's audit whose numbers of its request's records are called `rouge`, `prob`, …."""
    for moment in ("before", "after", "final"):
        numbers = audit.get(moment)
        if isinstance(numbers, dict):
            audit[moment] = own_names(numbers)
    return audit


def gather_opened(run: RunDirectory, config: Config, opened: Opened) -> dict[str, Any]:
    """The same of a request that the server did not see, from what its node opened; `sealed` says of what exchange.

    What the node measured counts if it is signed, of the models that the exchange began and ended with, and of the
    run's final one. SealError where the run's ledger does not hold the commitment, where the client's part
    is not in the sum, and where the numbers are not those that were signed.
    """
    checked = check_chain(run.ledger_path)
    entry = exchange_of(checked, opened, run_name(run))
    audit, judged, keys = _opened_audit(run, config, opened, entry)
    return {
        "source": CLIENT,
        "signed_by": keys,
        "before": dict(audit.get("before", {})),
        "after": dict(audit.get("after", {})),
        "final": dict(audit.get("final", {})),
        "judgement": judged,
        "leakage": _client_leakage(audit, config, int(audit.get("audits", 1))),
        "rank": _client_rank(audit),
        "oracle": None,
        "attacks": None,
        "ledger": {"lines": len(checked.entries), "head": checked.head, "faults": list(checked.faults)},
        "events": [_event(entry)],
        "models": _models_of(run, config, entry),
        "rounds": _rounds(run),
        "sealed": {
            "session": opened.session,
            "commitment": opened.commitment,
            "salts": list(opened.salts),
            "digests": list(opened.digests),
            "line": opened.line,
            "clients addressed": len(entry["commitments"]),
            "clients in the sum": len(entry["survivors"]),
            "records in the sum": entry["count"],
        },
    }


def exchange_of(checked: Checked, opened: Opened, run: str) -> Mapping[str, Any]:
    """The line of a run's ledger that counts an opened request. SealError, with the reason, where there is none."""
    opened.check()
    if opened.run != run:
        raise SealError(f"request {opened.demand.request_id!r} was served in a run called {opened.run!r}, not {run!r}")
    if checked.faults:
        raise SealError(f"{checked.path} is broken, and nothing is certified of it: {checked.faults[0]}")
    lines = dict(zip(checked.hashes, enumerate(checked.entries, start=1), strict=True))
    if opened.line not in lines:
        raise SealError(
            f"{checked.path} has no line with the hash {opened.line[:12]}…, of which the server told the node: it is "
            "another ledger, or was written anew"
        )
    number, entry = lines[opened.line]
    where, client = f"{checked.path}: line {number}", opened.client
    recorded = (entry.get("event"), entry.get("session"), entry.get("round"))
    if recorded != (EXCHANGE, opened.session, opened.round):
        raise SealError(f"{where} is not about session {opened.session!r} in round {opened.round}")
    if entry["commitments"].get(str(client)) != opened.commitment:
        raise SealError(f"{where} does not hold the commitment {opened.commitment[:12]}… of client {client}")
    if client not in entry["survivors"]:
        raise SealError(f"{where} says that the part of client {client} is not in the sum")
    if any(e.get("event") == EXCHANGE_UNDONE and e.get("of") == opened.line for e in checked.entries):
        raise SealError(f"{where} was undone: the run resumed from an earlier checkpoint")
    return entry


def _opened_audit(
    run: RunDirectory, config: Config, opened: Opened, entry: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """What the node measured, what follows from it, and whose keys signed it."""
    audit, thresholds = dict(opened.audit), Thresholds.of(config.unlearning.requests)
    unknown = {"outcome": INCONCLUSIVE, "why": "the node did not measure what the final model knows of its records"}
    if not audit.get("final"):
        return {}, unknown, []
    records, name = len(opened.demand.record_ids), opened.demand.request_id
    moments = [moment for moment in MOMENTS_OF_AUDIT if moment in audit]
    keys = signers(audit)
    about = (audit.get("request"), audit.get("client"))
    if about != (name, opened.client) or set(moments) != keys.keys():
        raise SealError(f"the numbers that were opened with request {name!r} are not those that its node signed")
    models = {
        "before": entry["before"],
        "after": entry["after"],
        "final": vector_hash(run.load_checkpoint(STAGE).vector),
    }
    if other := [moment for moment in moments if audit["signatures"][moment]["model"] != models[moment]]:
        which = " and ".join({"before": "first", "after": "last"}.get(moment, "final") for moment in other)
        return {}, unknown | {"why": f"the node measured another model than the {which} one of the exchange"}, []
    try:
        numbers = {m: check_numbers(audit[m], records, thresholds) for m in moments}
    except ValueError as error:
        raise SealError(f"the numbers that were opened with request {name!r} make no sense: {error}") from None
    judgement = judge_numbers(thresholds, numbers, records)
    assert judgement is not None
    judged = {"outcome": judgement.outcome, "why": judgement.why, "rouge": judgement.recall}
    return _named(audit), judged, sorted(set(keys.values()))


def _of(measured: Mapping[str, Any], name: str, default: float | None) -> float | None:
    return measured.get("final", {}).get(name, default)


def _own_measurements(run: RunDirectory, request: Request, judgement: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Mean ROUGE-L recall and probability of the request's records: right before the first exchange that served it,
    right after the last, and at the end (the probability on those that the evaluation asked)."""
    measured: dict[str, dict[str, float]] = {}
    for moment, name, end in zip(("before", "after"), MOMENTS, (0, -1), strict=True):
        rows = [records for row in exchanges(run, STAGE, name) if (records := row["requests"].get(request.id))]
        if rows:
            records = rows[end]
            measured[moment] = {
                **{name: fmean(values[name] for values in records.values()) for name in ("rouge", "prob")},
                "records": float(len(records)),
            }
    log = forget_answers(run.evaluation_log(STAGE))
    losses = [log[i]["avg_gt_loss"] for i in request.record_ids if "avg_gt_loss" in log.get(i, {})]
    measured["final"] = {
        **({"rouge": judgement["rouge"]} if judgement else {}),
        **({"prob": fmean(math.exp(-loss) for loss in losses)} if losses else {}),
        "records": float(len(request.record_ids)),
    }
    return measured


def _run_leakage(
    run: RunDirectory, config: Config, request: Request, judgement: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Of the worst of the request's questions: in the latest audit on the run's own terms, else at the stage's end."""
    terms = config.evaluation.leakage
    audit = leakage_audit(run, STAGE)
    if audit is not None and not (why_not := _other_terms(run, audit, config)):
        rows = {r["id"]: r for r in audit["questions"] if r.get("m_bin") is not None}
        alpha, source = audit["terms"]["alpha_per_question"], "the latest audit"
    else:
        records = judgement.get("records", {})
        rows = {i: record["leakage"] for i, record in records.items() if record.get("leakage")}
        alpha, source = terms.alpha, "the stage's end" + (f" ({why_not})" if audit is not None else "")
    of_request = [rows[i] for i in request.record_ids if i in rows]
    if not of_request:
        metrics = (run.stage_summary(STAGE) or {}).get("metrics", {})
        return _mean_leakage(metrics, config, "all forget questions", own=False)
    bounds = [leak_bounds(r["m_bin"], r["mu_lower"], int(r["samples"]), alpha, terms.leaks_from) for r in of_request]
    notes = Ledger(run.ledger_path).notes(artifact_binding.MEASURED)
    audits = sum(any("leakage" in file for file in note["files"]) for note in notes)
    # What was sampled at the stage's end, if anything, was looked at as well.
    looks = audits + bool((run.stage_summary(STAGE) or {}).get("metrics", {}).get("leakage_samples"))
    figures = {
        "of": f"the worst of {counted(len(of_request), 'question')} about the request's "
        f"{counted(len(request.record_ids), 'record')}, {source}",
        "own": True,
        "questions": len(of_request),
        "records": len(request.record_ids),
        "upper": max(upper for _, upper in bounds),
        "lower": max(lower for lower, _ in bounds),
        "samples": min(int(r["samples"]) for r in of_request),
        "confidence": 1 - alpha,
        "audits": audits,
    }
    if source != "the latest audit" or looks <= 1:
        return figures
    # Each question by its own number of answers.
    uppers = [upper_at(u, int(r["samples"]), alpha, looks) for r, (_, u) in zip(of_request, bounds, strict=True)]
    return _corrected(figures, max(uppers), looks, alpha)


def _corrected(figures: Mapping[str, Any], upper: float, audits: int, alpha: float) -> dict[str, Any]:
    """The same for the last of several audits of a model: its `upper` bound takes no more of alpha than is left.

    The lower one stays: that a model leaks is not said less often because it was measured more often.
    """
    more = {"upper": upper, "confidence": 1 - spent(alpha, audits), "audits": audits, "corrected": True}
    return {**figures, **more}


def _other_terms(run: RunDirectory, audit: Mapping[str, Any], config: Config) -> str:
    """Why an audit does not count: it was on other terms than the configuration fixed, or of another model."""
    wanted = config.evaluation.leakage
    rule = {name: getattr(wanted, name) for name in ("temperature", "top_p", "top_k", "confidence")}
    terms = audit.get("terms", {})
    audited = {
        "function": audit.get("function"),
        "alpha": terms.get("alpha"),
        "leaks_from": terms.get("leaks_from"),
        **{name: audit.get("sampling", {}).get("rule", {}).get(name) for name in rule},
    }
    fixed = {"function": wanted.function, "alpha": wanted.alpha, "leaks_from": wanted.leaks_from, **rule}
    other = [name for name, value in fixed.items() if audited[name] != value]
    if audit.get("model") != vector_hash(run.load_checkpoint(STAGE).vector):
        return "an audit of another model is set aside"
    if audit.get("asked") != "forget questions":
        return "an audit of other questions is set aside"
    return f"an audit with another {', '.join(other)} than the configuration is set aside" if other else ""


def _client_leakage(audit: Mapping[str, Any], config: Config, audits: int = 1) -> dict[str, Any] | None:
    """What the client sampled last; audits: how often it measured the final model."""
    leakage = _mean_leakage(audit.get("final", {}), config, "the request's records", own=True)
    if leakage is None:
        return None
    if audits > 1:
        alpha = config.evaluation.leakage.alpha
        leakage = _corrected(leakage, upper_at(leakage["upper"], leakage["samples"], alpha, audits), audits, alpha)
    return leakage | {"records": int(audit["final"].get("forget_records", 0))}


def _final_audits(run: RunDirectory, request_id: str) -> int:
    """How often the client measured the final model for a request."""
    rows = [r for r in run.metrics() if (r["evaluator"], r["moment"]) == ("client_audit", MOMENTS_OF_AUDIT["final"])]
    return sum(request_id in r.get("requests", {}) for r in rows)


def _mean_leakage(metrics: Mapping[str, float], config: Config, of: str, *, own: bool) -> dict[str, Any] | None:
    if not metrics.get("leakage_samples") or "leakage_m_bin" not in metrics:
        return None
    terms, samples = config.evaluation.leakage, int(metrics["leakage_samples"])
    questions = int(metrics.get("leakage_questions", 0))
    lower, upper = leak_bounds(
        metrics["leakage_m_bin"],
        metrics["leakage_mu_lower"],
        samples if questions == 1 else 0,
        terms.alpha,
        terms.leaks_from,
    )
    return {
        "of": f"{of}, mean over {questions}",
        "own": own,
        "questions": questions,
        "upper": upper,
        "lower": lower,
        "samples": samples,
        "confidence": 1 - terms.alpha,
    }


def _run_rank(run: RunDirectory, figures: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of the request's own records by the test; by a noise band, where there is one, of all forget records."""
    if rank := figures.get("rank"):
        return {"of": "the request's records", "own": True, **rank}
    banded = ruler_report.bands(run).get("mean_rank")
    if banded is None:
        return None
    return {
        "of": "all forget questions",
        "own": False,
        "mean rank": banded.value,
        "records": len((run.evaluation_log(STAGE) or {}).get("ruler") or {}),
        "band low": banded.band.low,
        "band high": banded.band.high,
        "band confidence": banded.band.confidence,
        "retrained models": banded.band.n,
    }


def _client_rank(audit: Mapping[str, Any]) -> dict[str, Any] | None:
    final = audit.get("final", {})
    if "ruler_mean_rank" not in final:
        return None
    records = int(final.get("forget_records", 0))
    return {"of": "the request's records", "own": True, "mean rank": final["ruler_mean_rank"], "records": records}


def _oracle(figures: Mapping[str, Any], seen: Sequence[str]) -> dict[str, Any] | None:
    """Compared with the retrained model, without the records `seen`, on which it was itself trained."""
    known = {**figures.get("oracle", {}), **({"seen": len(seen)} if seen else {})}
    return {"of": "the request's records", "own": True, **known} if known else None


def _attacks(run: RunDirectory, request: Request, seen: Sequence[str]) -> list[dict[str, Any]] | None:
    """The latest attacks on the final model, the harmless one left out."""
    results = _latest_attacks(run)
    if not results:
        return None
    rows = [row for row in results["rows"] if row["attack"] != "none" and STAGE in row["models"]]
    return [_attack(row, request, seen) for row in rows]


def _latest_attacks(run: RunDirectory) -> Mapping[str, Any]:
    """The latest results of attacks on the final model; empty where there are none."""
    for folder in sorted((run.path / "attacks").glob(f"{STAGE}-*"), reverse=True):
        try:
            results = read_results(folder / "results.json")
        except FileNotFoundError:  # not finished
            continue
        if results.get("adapters", {}).get(STAGE) == vector_hash(run.load_checkpoint(STAGE).vector):
            return results
    return {}


def _attack(row: Mapping[str, Any], request: Request, seen: Sequence[str]) -> dict[str, Any]:
    """A row of the attacks on the request's own records, where it tells of each question."""
    by_model = row.get("records", {})
    recalls_of_model, oracle = by_model.get(STAGE, {}), by_model.get("retrain", {})
    of_request = [
        [recalls_of_model[i], None if i in seen else oracle.get(i)] for i in request.record_ids if i in recalls_of_model
    ]
    recalls = [recall for recall, _ in of_request]
    known = {} if not of_request else {"rouge": fmean(recalls), "worst": max(recalls), "recalls": of_request}
    return {
        "attack": f"{row['attack']}: {row['variant']}" if row["variant"] else row["attack"],
        "own": bool(of_request),
        "questions": len(of_request) or row["questions"],
        "before": row["models"][STAGE]["before"]["rouge"],
        "rouge": row["models"][STAGE]["after"]["rouge"],
        "verdict": row.get("verdict"),
        **known,
    }


def _event(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in EVENT_FIELDS if entry.get(name) is not None}


def _models(
    run: RunDirectory,
    config: Config,
    entries: Sequence[Mapping[str, Any]],
    request: Request,
    audit: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The hashes of base model and adapters: before and after the exchange that served the request, or of the later one
    that its client's audit is of, and at the end."""
    lines = [e for e in entries if e.get("event") == "applied" and e.get("id") == request.id]
    later = served_again(entries, STAGE).get(audit.get("round", 0)) if audit is not None else None
    if later is not None and request.id in later["requests"] and later["round"] != request.served_round:
        lines.append(later)
    return _models_of(run, config, lines[-1] if lines else {})


def _models_of(run: RunDirectory, config: Config, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the exchange that a line of the ledger tells of."""
    summary = run.stage_summary(STAGE) or {}
    return {
        "base": {"source": config.model.source, "fingerprint": summary.get("fingerprint")},
        "before": entry.get("before"),
        "after": entry.get("after"),
        **{name: entry[name] for name in ("parts_before", "parts_after") if name in entry},
        "final": {"round": summary.get("rounds"), "sha256": vector_hash(run.load_checkpoint(STAGE).vector)},
    }


def run_facts(run: RunDirectory, config: Config, files: Collection[str]) -> dict[str, Any]:
    """What a certificate says of its run; `files`: those that its ledger names."""
    return {
        "name": run_name(run),
        "seed": config.seed,
        "aggregator": config.strategy.name,
        "method": method_traits.label(config.unlearning.method),
        "clients": config.federation.clients,
        "config_sha256": text_hash(run.read_config()),
        "oblivionis": program_of(run),
        "packages": run.environment().get("packages", {}) if ENVIRONMENT_FILE in files else {},
    }


def request_facts(request: Request, state: str) -> dict[str, Any]:
    """What a certificate says of a request in that state."""
    return {
        "id": request.id,
        "client": request.client,
        "scope": request.scope,
        "records": len(request.record_ids),
        "record_ids": list(request.record_ids),
        "round": request.round,
        "served_round": request.served_round,
        "state": state,
    }


def run_name(run: RunDirectory) -> str:
    """The name of a run by its ledger; that of its folder where an earlier version made it."""
    return name_by_ledger(_lines(run)) or run.name


def program_of(run: RunDirectory) -> str | None:
    """The version of the program that made the run, by its ledger."""
    programs = (e.get("program") for e in _lines(run) if e.get("event") == artifact_binding.STAGE)
    return next((program for program in programs if isinstance(program, str)), None)


def _lines(run: RunDirectory) -> Sequence[Mapping[str, Any]]:
    return check_chain(run.ledger_path).entries


def _rounds(run: RunDirectory) -> list[dict[str, Any]]:
    """Who took part in which round of the stage: by exchange the clients whose answers counted."""
    rows = [r for r in run.metrics() if r["stage"] == STAGE and r["evaluator"] == "federation"]
    return [{"round": r["round"], "clients": r.get("clients", {})} for r in rows]
