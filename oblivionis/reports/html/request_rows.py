"""What each person asked and got: a row per deletion request that fits a phone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import htpy as h

from oblivionis.config.schema import Config
from oblivionis.erasure.hidden_requests import seals
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import COVERED, PENDING, REJECTED, Request
from oblivionis.erasure.verification_records import seen_by_oracle
from oblivionis.erasure.verification_rules import DONE, NOT_VERIFIED, OVER_UNLEARNED
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.reports import run_summary as report
from oblivionis.reports.format import counted, number
from oblivionis.reports.html import request_pages
from oblivionis.reports.markup import explained, html_table, with_code
from oblivionis.runs.answers import forget_answers
from oblivionis.runs.directory import RunDirectory
from strategies.message_keys import SCOPE_CLIENT, SCOPE_SUBJECT

MOST = 100
"""Requests that the report shows; each has a page of its own."""
_COMPARED = ("finetune", "unlearn", "retrain")
BAD = (NOT_VERIFIED, OVER_UNLEARNED, REJECTED)
SEALED = (
    "Requests of this run are sealed: the server takes part in exchanges without seeing who asked for what, so this "
    "page cannot tell. Each client's own ledger does (`oblivionis request list --node-dir DIR`)."
)
NONE = "There is no deletion request in the run's ledger."


@dataclass(frozen=True)
class _Known:
    """What is known of the run but its ledger: probability of each record's answer by model, and which records the
    retained data still had when the retrained model was trained, by request."""

    run: RunDirectory
    probabilities: Mapping[str, Mapping[str, float]]
    seen: Mapping[str, Sequence[str]]


def rows(run: RunDirectory, config: Config) -> h.Node:
    """The requests in short and a row for each, at most `MOST`: those of which something is left to be done first."""
    requests = list(Ledger(run.ledger_path))
    if not requests:
        return h.p[with_code(SEALED if seals(config) else NONE)]
    line = report.requests_line(run)
    few = sorted(requests, key=lambda r: r.outcome in (*DONE, COVERED))[:MOST] if len(requests) > MOST else requests
    others = report.unverified_lines(run) if len(few) < len(requests) else []
    known = _Known(run, _probabilities(run), seen_by_oracle(run))
    cells = [[h.a(href=request_pages.page_of(r.id))[r.id], _asked(r), _got(r, known)] for r in few]
    heads = ["request", "asked", explained("Request state", "got")]
    return [
        h.p[line, "."],
        *(h.p[found, "."] for found in (*report.erased_lines(run), *others)),
        html_table(heads, ["break", "break", "break"], cells, "What each person asked and got"),
        h.p(".legend")[_how_many(len(few), len(requests))] if len(few) < len(requests) else None,
    ]


def _how_many(shown: int, count: int) -> str:
    return (
        f"{shown:,} of {count:,} requests are shown, those of which something is left to be done first. Each has a "
        f"page under {request_pages.FOLDER}/."
    )


def _asked(request: Request) -> list[h.Node]:
    """Who asked for what, since when, and why."""
    count = counted(len(request.record_ids), "record")
    what = {
        SCOPE_CLIENT: f"leaves, with all its records ({count})",
        SCOPE_SUBJECT: f"{count} about {request.subject or 'a person whom it knows'}",
    }.get(request.scope, count)
    more = [f"{counted(request.already, 'more record')} had been asked for before"] if request.already else []
    more += [f"one demand with all requests of {request.group}"] if request.group else []
    small = [f"from round {request.round} on", *more]
    reason = f" “{request.reason}”" if request.reason else ""
    return [f"client {request.client}: {what}{reason} ", h.small["; ".join(small)]]


def _got(request: Request, known: _Known) -> list[h.Node]:
    """What became of it, and what the models know of its records."""
    kind = "bad" if request.outcome in BAD else "good" if request.outcome in DONE else ""
    small = [f"served in round {request.served_round}"] if request.served_round is not None else []
    small += [counted(request.attempts, "failed attempt")] if request.attempts else []
    small += [request.why] if request.why else []
    small += [f"last failure: {request.failure}"] if request.state == PENDING and request.failure else []
    small += _numbers(request, known)
    return [h.b(class_=kind)[request.outcome], [" ", h.small["; ".join(small)]] if small else None]


def _numbers(request: Request, known: _Known) -> list[str]:
    """Prob of the request's records: before, now and in the retrained model, or as its client measured."""
    ids = [i for i in request.record_ids if i in known.probabilities.get("unlearn", {})]
    if ids:
        means = {stage: _mean(of, ids) for stage, of in known.probabilities.items()}
        if known.seen.get(request.id):
            means.pop("retrain", None)  # it was trained on the like: no model to compare with
        part = "" if len(ids) == len(request.record_ids) else f" of {len(ids)} of its records"
        return [f"Prob{part} {_course(means.get('finetune'), means['unlearn'], means.get('retrain'))}"]
    audit = read_audit(known.run.path, request.id) or {}
    before, final = (audit.get(moment, {}).get("request_prob") for moment in ("before", "final"))
    return [] if final is None else [f"Prob {_course(before, final, None)}, as its client measured"]


def _course(before: float | None, now: float | None, retrained: float | None) -> str:
    words = number(now) if before is None else f"{number(before)} → {number(now)}"
    return words if retrained is None else f"{words} (retrained model {number(retrained)})"


def _mean(of: Mapping[str, float], ids: Sequence[str]) -> float | None:
    """The mean over the records; None where one is missing."""
    return sum(of[i] for i in ids) / len(ids) if all(i in of for i in ids) else None


def _probabilities(run: RunDirectory) -> dict[str, dict[str, float]]:
    """By stage and record, how probable the model at its end finds the true answer."""
    found: dict[str, dict[str, float]] = {}
    for stage in _COMPARED:
        answers = forget_answers(run.evaluation_log(stage)) if run.stage_summary(stage) is not None else {}
        losses = {i: answer.get("avg_gt_loss") for i, answer in answers.items()}
        found[stage] = {i: math.exp(-loss) for i, loss in losses.items() if loss is not None and math.isfinite(loss)}
    return found
