"""A run, and a folder of runs, as plain values: what `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oblivionis.config.schema import Config
from oblivionis.erasure.ledger import Ledger
from oblivionis.reports import client_tables as node_report
from oblivionis.reports import run_outcome, verdicts
from oblivionis.reports.run_summary import stage_metrics, stage_notes
from oblivionis.runs.directory import RunDirectory, list_runs
from oblivionis.runs.failed_evaluators import Failure, failures
from oblivionis.runs.privacy import read_account
from oblivionis.runs.run_status import glance


def run_document(run: RunDirectory, config: Config) -> dict[str, Any]:
    """What the last screen of a run shows.

    Parameters
    ----------
    run : RunDirectory
        The run, finished or not.
    config : Config
        Its configuration.

    Returns
    -------
    dict
        `run`, its folder; `state` and `stages`, how far it came; `metrics` by stage and by the names of the
        metrics, None for one that is left out for a reason in `notes`, which are by the same names; `outcome`, the
        sentence above the tables with its grade and the next steps; `verdicts` as in verdicts.json; `requests` with the
        ledger's fields and each `outcome`; `audits`, what clients measured; `privacy` as in privacy.json; `failed`, the
        evaluations that failed; `report`, the page.
    """
    seen = glance(run.path)
    evaluation, page, notes = config.evaluation, run.path / "report.html", stage_notes(run)
    metrics = stage_metrics(run, evaluation.truth_ratio, evaluation.membership.confidence)
    return {
        "run": run.path,
        "state": seen.state,
        "stages": [asdict(stage) for stage in seen.stages],
        "metrics": {stage: with_left_out(values, notes.get(stage, {})) for stage, values in metrics.items()},
        "notes": notes,
        "outcome": run_outcome.of_run(run, config),
        "verdicts": verdicts.verdict_document(run, evaluation.truth_ratio),
        "requests": [asdict(request) | {"outcome": request.outcome} for request in Ledger(run.ledger_path)],
        "audits": node_report.audits(run),
        "privacy": read_account(run),
        "failed": failures(run),
        "report": page if page.exists() else None,
    }


def runs_document(folder: Path) -> list[dict[str, Any]]:
    """What the runs of a folder did and how far they came, oldest first; `note`: what is missing of a damaged one."""
    return [{"run": run.name, **asdict(glance(run.path))} for run in list_runs(folder)]


def failed_now(stage: str, server_round: int, failed: Mapping[str, str]) -> list[Failure]:
    """The evaluators that failed, by name why, as failures at the end of a stage."""
    return [Failure(stage, server_round, "end", name, reason) for name, reason in failed.items()]


def with_left_out(metrics: Mapping[str, float], notes: Mapping[str, str]) -> dict[str, float | None]:
    """Metrics of a model, and None for each that is left out for a reason in `notes`."""
    return {**dict.fromkeys(notes), **metrics}
