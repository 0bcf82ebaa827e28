"""What a run's logs and audits hold about single records, for pages and certificates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oblivionis.naming import LOG_SETS
from oblivionis.runs.directory import RunDirectory


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


def leakage_audit(run: RunDirectory, stage: str) -> dict[str, Any] | None:
    """The latest readable leakage audit of a stage: its `terms` and `questions` among others; None without any."""
    for path in sorted((run.path / "audits").glob(f"leakage-{stage}-*/audit.json"), reverse=True):
        try:
            audit = json.loads(path.read_text(encoding="utf-8"))
            if all("id" in row for row in audit["questions"]):
                return audit
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
