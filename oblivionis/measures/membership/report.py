"""Membership inference and MUSE beside the retrained model: numbers that a stage could not know, and sentences."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from oblivionis.measures import registry
from oblivionis.runs.directory import RunDirectory, named_metrics

LEVEL = 0.05
"""Of all tests together, that the unlearned model is no other than the retrained one."""
_AUC = "membership_auc_"


def complete(run: RunDirectory, metrics: Mapping[str, MutableMapping[str, float]], confidence: float) -> None:
    """Add to each stage's metrics what it could not know without the retrained model: differences of AUCs, PrivLeak.

    From the logs; for the retrained model itself the PrivLeak is 0.
    """
    oracle = run.evaluation_log("retrain") if "retrain" in metrics else None
    if oracle is None:
        return
    for stage, found in metrics.items():
        log = run.evaluation_log(stage) or {}
        if stage != "retrain":
            _compare(log.get("membership", {}), oracle.get("membership", {}), found, confidence)
        auc, retrained = (x.get("muse", {}).get("auc") for x in (log, oracle))
        if auc is not None and retrained is not None and "muse_privleak" not in found:
            from evaluation.metrics.muse import privleak

            leak = privleak(auc, retrained)
            found.update({} if leak is None else {"muse_privleak": leak})


def _compare(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], metrics: MutableMapping[str, float], confidence: float
) -> None:
    """Add the differences of AUCs that `metrics` lacks; ours, theirs: scores of two models by attack."""
    lacking = [name for name in ours if ours[name] and f"membership_auc_{name}_p" not in metrics]
    if not lacking:
        return
    from evaluation.metrics.membership import compared

    for name in lacking:
        metrics.update(named_metrics("membership", compared(name, ours[name], theirs.get(name), confidence)))


def p_values(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """By attack's AUC, the metric: the p-value of its difference between the unlearned and the retrained model."""
    found, oracle = metrics.get("unlearn", {}), metrics.get("retrain", {})
    return {key: found[f"{key}_p"] for key in registry.catalogue() if f"{key}_p" in found and key in oracle}


def sentences(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The unlearned model's AUC beside the retrained one's, by the attack that tells the two models apart best.

    Bonferroni's level: `LEVEL` divided by the number of attacks. Where both models were attacked and no difference was
    tested, a line says that the records are too few.
    """
    found = metrics.get("unlearn", {})
    oracle = metrics.get("retrain", {})
    known = p_values(metrics)
    if not known:
        from evaluation.metrics.membership import LEAST_RECORDS

        attacked = any(name in found and name in oracle for name in registry.catalogue() if name.startswith(_AUC))
        text = (
            "Membership: too few records to test the difference from the retrained model (it takes "
            f"{LEAST_RECORDS} to be forgotten and {LEAST_RECORDS} of the holdout, with scores of both models)."
        )
        return [text] if attacked else []
    key = min(known, key=known.__getitem__)
    p, level, difference = known[key], LEVEL / len(known), found[f"{key}_difference"]
    words = "not to be told from the retrained model"
    if p <= level:
        words = "under-unlearned: still recognised" if difference > 0 else "over-unlearned: recognised by avoidance"
    return [
        f"Membership, {registry.catalogue()[key].title}: unlearned {_with_interval(found, key)}, retrained "
        f"{_with_interval(oracle, key)}, difference {difference:+.3f} (DeLong p = {p:.2g}, the least of {len(known)} "
        f"attacks, for which it takes {level:.2g}): {words}."
    ]


def _with_interval(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.3f} [{metrics[f'{key}_low']:.3f}, {metrics[f'{key}_high']:.3f}]"
