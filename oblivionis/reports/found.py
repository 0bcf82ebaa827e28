"""What a run's audits hold about single records, for pages and certificates."""

from __future__ import annotations

import json
from typing import Any

from oblivionis.runs.directory import RunDirectory


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
