"""A hand-made suite: two aggregators, two methods, two seeds, with stages that cells share."""

from pathlib import Path

import pandas as pd

from benchmarks.output.page import SuiteView
from oblivionis.reports.table import Table

STRATEGIES, METHODS, SEEDS = ("fedavg", "fedadam"), ("npo", "rmu"), (0, 1)
SECONDS = {"finetune": 60.0, "retrain": 50.0, "unlearn": 20.0}


def value(strategy: str, unlearning: str, seed: int, stage: str, metric: str) -> float:
    base = {"finetune": 0.9, "retrain": 0.2, "unlearn": 0.3 if unlearning == "npo" else 0.6}[stage]
    base = 0.8 if metric == "model_utility" else base
    return base + 0.1 * seed - 0.05 * (strategy == "fedadam")


def cells(seeds=SEEDS, failed: str | None = None) -> pd.DataFrame:
    """Tidy rows; `failed` names a cell that broke off in unlearn."""
    rows = []
    for strategy in STRATEGIES:
        for unlearning in METHODS:
            for seed in seeds:
                cell = f"{strategy}/{unlearning}/seed={seed}"
                head = {"cell": cell, "strategy": strategy, "unlearning": unlearning, "seed": seed}
                for stage in SECONDS:
                    shared = f"stages/{stage}-{strategy}-{seed}"
                    run = f"{shared}-{unlearning}" if stage == "unlearn" else shared
                    state = {"stage": stage, "status": "done", "error": "", "run": run}
                    if cell == failed and stage == "unlearn":
                        broken = {"status": "failed", "error": "client 3 <died>", "metric": "", "value": float("nan")}
                        rows.append({**head, **state, **broken})
                        continue
                    for metric in ("forget_rouge", "model_utility"):
                        number = value(strategy, unlearning, seed, stage, metric)
                        rows.append({**head, **state, "metric": metric, "value": number})
                    rows.append({**head, **state, "metric": "seconds", "value": SECONDS[stage]})
    return pd.DataFrame(rows)


def view(folder: Path, **changes) -> SuiteView:
    given = {
        "title": "Two methods & two aggregators",
        "description": "A suite made by hand.",
        "folder": folder,
        "cells": cells(),
        "axes": ("strategy", "unlearning", "seed"),
        "tables": [Table("ROUGE", ["strategy", "method", "Model utility"], [["fedavg", "npo", "0.8"], None], "Means.")],
        "paper": pd.DataFrame(
            [
                {"strategy": "fedavg", "unlearning": "npo", "metric": "forget_rouge", "value": 0.25},
                {"strategy": "fedavg", "unlearning": "rmu", "metric": "forget_rouge", "value": 0.5},
                {"strategy": "fedavg", "unlearning": "simnpo", "metric": "forget_rouge", "value": 0.5},
            ]
        ),
        "facts": {"Experiment": "default", "Code": "0.1.0"},
        "warnings": ["Made <by> hand."],
    }
    return SuiteView(**{**given, **changes})
