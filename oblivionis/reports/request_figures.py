"""What a run's logs say of each request's own records against the retrained model, and of their representations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from evaluation.metrics.retrained_comparison import judge_probability
from evaluation.ruler.rank_significance import rank_test
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.verification_records import seen_by_oracle
from oblivionis.files import json_text, read_json
from oblivionis.runs.answers import forget_answers
from oblivionis.runs.directory import RunDirectory

FILE = "request_figures.json"
STAGE = "unlearn"


class _Oracle(TypedDict):
    verdict: str
    value: float
    oracle: float
    questions: int
    records: int


_Rank = TypedDict("_Rank", {"mean rank": float, "records": int, "p": float | None, "verdict": str})


class _Figures(TypedDict, total=False):
    oracle: _Oracle
    rank: _Rank


def write_request_figures(run: RunDirectory) -> None:
    """Write `request_figures.json`: by request `oracle` and `rank`, each absent where its records were not compared.

    Records that the retrained model was trained on are not compared with it.
    """
    if run.stage_summary(STAGE) is None or not (requests := list(Ledger(run.ledger_path))):
        return
    log = run.evaluation_log(STAGE)
    ranks = (log or {}).get("ruler") or {}
    ours, theirs = (
        {i: answer["avg_gt_loss"] for i, answer in forget_answers(of_stage).items() if "avg_gt_loss" in answer}
        for of_stage in (log, run.evaluation_log("retrain"))
    )
    seen = {request: frozenset(ids) for request, ids in seen_by_oracle(run).items()}
    figures = {
        r.id: {
            **_oracle([i for i in r.record_ids if i not in seen.get(r.id, ())], ours, theirs),
            **_rank(r.record_ids, ranks),
        }
        for r in requests
    }
    run.keep({FILE: json_text(figures)})


def request_figures(run: RunDirectory, request_id: str) -> dict[str, Any]:
    """What the file says of a request; empty without it.

    Raises
    ------
    FileError
        With the key, for a damaged file.
    """
    try:
        return read_json(run.path / FILE, dict[str, _Figures]).get(request_id, {})
    except FileNotFoundError:
        return {}


def _oracle(ids: Sequence[str], ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, Any]:
    """The verdict on the losses of these records in this model and in the retrained one; empty without any of both."""
    both = [i for i in ids if i in ours and i in theirs]
    verdict = judge_probability([ours[i] for i in both], [theirs[i] for i in both]) if both else None
    if verdict is None:
        return {}
    facts = {"verdict": verdict.verdict, "value": verdict.value, "oracle": verdict.oracle}
    return {"oracle": {**facts, "questions": verdict.questions, "records": len(ids)}}


def _rank(ids: tuple[str, ...], ranks: Mapping[str, float]) -> dict[str, Any]:
    """The test of the ranks of these records; empty where none was ranked."""
    of_request = [ranks[i] for i in ids if i in ranks]
    if not of_request:
        return {}
    test = rank_test(of_request)
    p = None if math.isnan(test.p_value) else test.p_value
    return {"rank": {"mean rank": test.mean, "records": test.records, "p": p, "verdict": test.verdict}}
