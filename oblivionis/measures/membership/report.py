"""What membership inference says of the unlearned model compared with the retrained one, in words."""

from __future__ import annotations

from collections.abc import Mapping

from oblivionis.measures import registry

LEVEL = 0.05
"""Of all tests together, that the unlearned model is no other than the retrained one."""
_AUC = "membership_auc_"


def p_values(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """By attack's AUC, the metric: the p-value of its difference between the unlearned and the retrained model."""
    ours, oracle = metrics.get("unlearn", {}), metrics.get("retrain", {})
    return {key: ours[f"{key}_p"] for key in registry.catalogue() if f"{key}_p" in ours and key in oracle}


def sentences(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The unlearned model's AUC compared with the retrained one's, by the attack that tells the two models apart best.

    Bonferroni's level: `LEVEL` divided by the number of attacks. Where both models were attacked and no difference was
    tested, a line says that the records are too few.
    """
    unlearned = metrics.get("unlearn", {})
    oracle = metrics.get("retrain", {})
    tested = p_values(metrics)
    if not tested:
        from evaluation.metrics.membership import LEAST_RECORDS

        attacked = any(name in unlearned and name in oracle for name in registry.catalogue() if name.startswith(_AUC))
        text = (
            "Membership: too few records to test the difference from the retrained model (it takes "
            f"{LEAST_RECORDS} to be forgotten and {LEAST_RECORDS} of the holdout, with scores of both models)."
        )
        return [text] if attacked else []
    key = min(tested, key=tested.__getitem__)
    p, level, difference = tested[key], LEVEL / len(tested), unlearned[f"{key}_difference"]
    words = "not to be told from the retrained model"
    if p <= level:
        words = "under-unlearned: still recognised" if difference > 0 else "over-unlearned: recognised by avoidance"
    return [
        f"Membership, {registry.catalogue()[key].title}: unlearned {_with_interval(unlearned, key)}, retrained "
        f"{_with_interval(oracle, key)}, difference {difference:+.3f} (DeLong p = {p:.2g}, the least of {len(tested)} "
        f"attacks, for which it takes {level:.2g}): {words}."
    ]


def _with_interval(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.3f} [{metrics[f'{key}_low']:.3f}, {metrics[f'{key}_high']:.3f}]"
