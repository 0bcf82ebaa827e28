"""Sampling: the likeliest answer may hide what others of many give away."""

from __future__ import annotations

import dataclasses

import numpy as np

from evaluation.engine.sampling import Rule
from evaluation.leakage import functions as leakage_functions
from evaluation.leakage.evaluator import LeakageEvaluator, Prompted
from evaluation.leakage.functions import Asked
from evaluation.leakage.summary import Terms
from oblivionis import seeds
from oblivionis.audits.attack_questions import Attack, Battery, Row

LABEL = "sample"
ORDER = 3


def make(battery: Battery) -> list[Attack]:
    """`attack.samples` answers per question by the rule of `evaluation.leakage`: their mean, and the best of them."""
    own, count = battery.config.evaluation.leakage, battery.config.attack.samples
    seed = seeds.derive(battery.config.seed, "leakage")

    def run(vector: np.ndarray) -> list[Row]:
        asked = [
            Prompted(Asked(r.id, r.question, r.answer), q.prompt)
            for r, q in zip(battery.records, battery.questions, strict=True)
        ]
        evaluator = LeakageEvaluator(
            asked,
            battery.decode,
            leakage_functions.get(own.function),
            count,
            Terms(alpha=own.alpha, rho=own.rho, leaks_from=own.leaks_from, limit=own.limit),
            Rule(own.temperature, own.top_p, own.top_k, own.confidence),
            own.max_new_tokens,
            seed,
        )
        columns = battery.evaluate(battery.load(vector), evaluator).details["columns"]
        rows: list[Row] = []
        for variant, column in ((f"mean of {count}", "mean"), (f"best of {count}", "max")):
            for i, q in enumerate(battery.questions):
                row = {"variant": variant, "id": q.id, "rouge": columns[column][i]}
                rows.append(row | ({b: columns[b][i] for b in ("m_mu", "m_bin")} if column == "mean" else {}))
        return rows

    facts = {k: v for k, v in dataclasses.asdict(own).items() if "samples" not in k and "questions" not in k}
    return [Attack("sampling", "sampling", {**facts, "samples": count, "seed": seed}, run)]
