"""Membership inference: can one tell the forgotten records from records that no model was trained on?"""

from __future__ import annotations

import numpy as np

from evaluation.engine.fused_lora import fused_lora
from evaluation.metrics.membership import MembershipEvaluator
from oblivionis import seeds
from oblivionis.audits.attack_questions import Attack, Battery, Row
from oblivionis.measures.membership.groups import Groups

LABEL = "membership"
ORDER = 7


def make(battery: Battery) -> list[Attack]:
    """Every score of `evaluation.membership` for forget and holdout records."""
    groups = Groups.of(battery.corpus, battery.assembled, battery.config)
    seed = seeds.derive(battery.config.seed, "membership")

    def run(vector: np.ndarray) -> list[Row]:
        assembled = battery.load(battery.base)
        with fused_lora(assembled.model):
            reference = groups.reference(battery.session(assembled))
        battery.load(vector)
        evaluator = MembershipEvaluator(groups.members, groups.others, reference=reference, resamples=1, seed=seed)
        details = battery.evaluate(assembled, evaluator).details
        return [
            {"variant": name, "id": i, "group": group, "score": score}
            for name, found in details.items()
            for group, scores in found.items()
            for i, score in scores.items()
        ]

    unavailable = "" if groups.others else "these data have no holdout records, which no model was trained on"
    facts = {group: [c.id for c in getattr(groups, group)] for group in ("members", "others")}
    return [Attack("membership", "membership", facts, run, unavailable, by_group=True)]
