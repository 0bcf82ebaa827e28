"""What the finished cells of a suite measured."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.federated.graph import Graph, Node
from benchmarks.federated.identity import NEVER_SAW, UNLEARN
from benchmarks.federated.matrix import Axis, Cell
from benchmarks.federated.results import BASE_MODEL, DONE, FAILED, NOT_MEASURED, SECONDS, table_of
from benchmarks.federated.serving import of_demands
from oblivionis.config.schema import STAGES
from oblivionis.reports import run_summary as report
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory, named_metrics
from oblivionis.runs.failed_evaluators import END, failures


def collect(
    axes: Sequence[Axis], cells: Sequence[Cell], graph: Graph, store: Path, folder: Path, failures: Mapping[str, str]
) -> pa.Table:
    """The rows of every cell that is finished or failed, in the order of the cells; the table is that of `results`.

    Raises RunError for a finished run that is not as its ledger says.
    """
    rows: list[dict[str, Any]] = []
    for node in graph.nodes:
        if node.finished(store) and node.checked is None:
            artifact_binding.require_intact(node.run(store), with_models=False)
    for cell in cells:
        nodes = graph.of_cell[cell.id]
        head = {"cell": cell.id, **cell.labels}
        if all(node.finished(store) for node in nodes):
            rows += [{**head, **row} for node in nodes for row in _measured(node, store, folder)]
        elif error := "; ".join(failures[node.key] for node in nodes if node.key in failures):
            rows.append({**head, "stage": "", "status": FAILED, "error": error, "run": "", "metric": "", "value": None})
    return table_of(rows, [axis.name for axis in axes])


def _measured(node: Node, store: Path, folder: Path) -> Iterator[dict[str, Any]]:
    run = node.run(store)
    if node.checked is not None:
        yield from _checked(run, folder)
        return
    evaluation = node.config.evaluation
    known = report.stage_metrics(run, evaluation.truth_ratio, evaluation.membership.confidence)
    sources = {stage: need.run(store) for need in node.needs for stage in need.config.stages}
    first, served = next(iter(sources.values()), run), (node.trained or node).run(store)
    for stage in (BASE_MODEL, *STAGES, "local_unlearned"):
        summary = run.stage_summary(stage)
        values: Mapping[str, float] = _of_base(first) if stage == BASE_MODEL else {}
        if summary is not None:
            values = {
                SECONDS: summary["seconds"],
                **summary.get("traffic", {}),
                **summary["metrics"],
                **known.get(stage, {}),
                **(of_demands(served) if stage == UNLEARN else {}),
            }
        source = first if stage == BASE_MODEL else sources.get(stage, run)
        place = Path(os.path.relpath(source.path, folder)).as_posix()
        notes = _notes_of_base(first) if stage == BASE_MODEL else (summary or {}).get("notes", {})
        for metric, value in {**dict.fromkeys(notes), **values}.items():
            row = {"stage": stage, "status": DONE, "error": notes.get(metric, ""), "run": place}
            yield {**row, "metric": metric, "value": value}
        for evaluator, why in _failed(source, stage).items():
            missing = {"stage": stage, "status": NOT_MEASURED, "error": why, "run": place}
            yield {**missing, "metric": evaluator, "value": None}


def _checked(run: RunDirectory, folder: Path) -> Iterator[dict[str, Any]]:
    """What a check of the models of unlearn found."""
    row = {"stage": UNLEARN, "status": DONE, "error": "", "run": Path(os.path.relpath(run.path, folder)).as_posix()}
    for metric, value in (run.stage_summary(NEVER_SAW) or {"metrics": {}})["metrics"].items():
        yield {**row, "metric": metric, "value": value}


def _failed(run: RunDirectory, stage: str) -> dict[str, str]:
    """Why figures of a stage's last model are missing, by evaluator."""
    start = ("finetune", "start") if stage == BASE_MODEL and run.stage_summary(BASE_MODEL) is None else None
    return {f.evaluator: f.reason for f in failures(run) if (f.stage, f.moment) == (start or (stage, END))}


def _of_base(run: RunDirectory) -> Mapping[str, float]:
    """The metrics of the base model, where `evaluation.base` or `evaluation.at_start` had them measured."""
    if (summary := run.stage_summary(BASE_MODEL)) is not None:
        return summary["metrics"]
    return {name: value for r in _started(run) for name, value in named_metrics(r["evaluator"], r["metrics"]).items()}


def _notes_of_base(run: RunDirectory) -> Mapping[str, str]:
    """The notes on these."""
    if (summary := run.stage_summary(BASE_MODEL)) is not None:
        return summary.get("notes", {})
    rows = [(r["evaluator"], r["notes"]) for r in _started(run) if "notes" in r]
    return {name: note for evaluator, notes in rows for name, note in named_metrics(evaluator, notes).items()}


def _started(run: RunDirectory) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl from before the first round of finetune."""
    return [r for r in run.metrics() if (r["stage"], r["moment"]) == ("finetune", "start")]


def facts(
    graph: Graph, store: Path, failures: Mapping[str, str], found: Collection[str], seconds: float | None
) -> dict[str, Any]:
    """What was run and what was found done, for the folder of the suite.

    failures: why, by key; found: keys of what was there before; seconds: that the suite took, None where
    others did the runs.
    """
    return {
        "seconds": seconds,
        "nodes": [
            {
                "key": node.key,
                "label": node.label,
                "stage": node.stage,
                "cells": [cell.id for cell in node.cells],
                "seconds": node.seconds(store),
                "shared": node.key in found,
                "error": failures.get(node.key, ""),
            }
            for node in graph.nodes
            if node.finished(store) or node.key in failures
        ],
    }
