"""Membership inference: can records that were to be forgotten be distinguished from records that nobody trained on?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluation.metrics.catalogue import Group, Metric
from oblivionis import seeds
from oblivionis.measures.base import Measure, StageMetrics
from oblivionis.runs.directory import RunDirectory, named_metrics

if TYPE_CHECKING:
    from evaluation.hook import EvaluationSession, Evaluator
    from oblivionis.measures.context import Context
    from oblivionis.measures.membership.groups import Groups

_GROUP = Group("Forget, membership", 50)
_AUC = "Membership inference: probability that the attack scores a forget record above a holdout record. Score: "
_ATTACKS = {
    "loss": ("AUC, loss", "mean log-probability of the tokens (Yeom et al. 2018)."),
    "zlib": ("AUC, zlib", "the same over the bytes of the text compressed by zlib (Carlini et al. 2021)."),
    "min_k_20": (
        "AUC, Min-20 %",
        "mean of the 20 % lowest token log-probabilities (Min-K%, Shi et al. 2023).",
    ),
    "min_k_40": ("AUC, Min-40 %", "mean of the 40 % lowest token log-probabilities."),
    "min_k_plus_plus": (
        "AUC, Min-K++ 20 %",
        "mean of the 20 % lowest token log-probabilities, each normalised by mean and standard deviation over the "
        "vocabulary (Zhang et al. 2024).",
    ),
    "reference": ("AUC, reference", "mean log-probability less that under the base model before any training."),
}
_ENDS = {"low": "lower end", "high": "upper end"}


def _of_attack(name: str, label: str, score: str) -> list[Metric]:
    """The AUC of an attack with its interval, and how far it is from the retrained model's."""
    head, less = f"auc_{name}", f"{label} less the retrained model's"
    interval = "of the interval with the confidence `evaluation.membership.confidence`."
    return [
        Metric(head, label, "oracle", None, _AUC + score, _GROUP),
        *(
            Metric(f"{head}_{e}", f"{label}, {words}", None, None, f"The {words} {interval}")
            for e, words in _ENDS.items()
        ),
        Metric(
            *(f"{head}_difference", less, "oracle", None),
            "Difference of the two models' AUCs on the same records (DeLong et al. 1988). 0: like the retrained model.",
            needs_oracle=True,
        ),
        *(
            Metric(
                *(f"{head}_difference_{end}", f"{less}, {words}", None, None, f"The {words} {interval}"),
                needs_oracle=True,
            )
            for end, words in _ENDS.items()
        ),
        Metric(
            *(f"{head}_p", f"{label}, p", "higher", None),
            "Two-sided p-value for no difference between the two models' AUCs (DeLong et al. 1988).",
            needs_oracle=True,
        ),
    ]


class Membership(Measure):
    """AUCs of membership inference, compared with the retrained model's."""

    order = 50
    needs = ("prepared",)
    metrics = tuple(metric for name, (label, score) in _ATTACKS.items() for metric in _of_attack(name, label, score))
    legend = (
        "Membership: probability that an attack scores a forget record above a holdout record, which nobody trained on "
        "(0.5: chance). The goal is the retrained model's value, not 0.5."
    )

    def prepare(self, context: Context) -> Groups | None:
        """Whose membership is asked; None where the data have no holdout."""
        from oblivionis.measures.membership.groups import Groups

        found = Groups.of(context.corpus, context.assembled, context.config)
        return found if found.others else None

    def measure_base(self, context: Context, session: EvaluationSession) -> dict[str, float] | None:
        """What the attack `reference` compares with; None where it is not wanted."""
        settings = context.config.evaluation.membership
        groups: Groups | None = context.prepared
        wanted = settings.enabled and "reference" in settings.attacks
        return groups.reference(session) if wanted and groups is not None else None

    def build(self, context: Context) -> list[Evaluator]:
        """At a stage's end, after rounds where that is wanted; nothing where it is switched off or has no records."""
        settings, groups = context.config.evaluation.membership, context.prepared
        if not settings.enabled or not (context.full or settings.after_rounds) or not groups.members:
            return []
        from evaluation.metrics.membership import MembershipEvaluator

        return [
            MembershipEvaluator(
                groups.members,
                groups.others,
                settings.attacks,
                context.reference,
                (context.oracle or {}).get(self.name),
                settings.bootstrap,
                settings.confidence,
                seeds.derive(context.config.seed, "membership"),
            )
        ]

    def complete(self, run: RunDirectory, metrics: StageMetrics, convention: str, confidence: float) -> None:
        """Differences from the retrained model's AUCs, with intervals, by the scores in the logs."""
        oracle = (run.evaluation_log("retrain") or {}).get(self.name, {}) if "retrain" in metrics else {}
        for stage, found in metrics.items() if oracle else ():
            scores = (run.evaluation_log(stage) or {}).get(self.name, {}) if stage != "retrain" else {}
            for attack in (a for a in scores if scores[a] and f"membership_auc_{a}_p" not in found):
                from evaluation.metrics.membership import compared

                differences = compared(attack, scores[attack], oracle.get(attack), confidence)
                found.update(named_metrics(self.name, differences))
