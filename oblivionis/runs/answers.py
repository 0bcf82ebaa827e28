"""What the per-question log of a stage holds about single forget questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oblivionis.naming import LOG_SETS


def forget_answers(log: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """By record id: probability and ROUGE-L recall of the answer, the prompt and the answer itself."""
    section = (log or {}).get(LOG_SETS["forget"], {})
    ids = (log or {}).get("ids", {}).get(LOG_SETS["forget"], [])
    found: dict[str, dict[str, Any]] = {i: {} for i in ids}
    for name in ("avg_gt_loss", "rougeL_recall", "generated_text"):
        values = list((section.get(name) or {}).values())
        if len(values) == len(ids):
            for record_id, value in zip(ids, values, strict=True):
                found[record_id][name] = value
    return {i: values for i, values in found.items() if values}
