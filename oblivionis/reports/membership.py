"""Membership inference and MUSE in words: rows, explanations and sentences for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from evaluation.metrics.membership import ATTACKS, compared
from evaluation.metrics.muse import privleak
from oblivionis.runs.directory import RunDirectory

GROUP = "Forget, membership"
ROWS = {
    "loss": "AUC, loss",
    "zlib": "AUC, zlib",
    "min_k_20": "AUC, Min-20 %",
    "min_k_40": "AUC, Min-40 %",
    "min_k_plus_plus": "AUC, Min-K++ 20 %",
    "reference": "AUC, reference",
}
MUSE_ROWS = {
    "muse_verbmem": ("Forget, MUSE", "VerbMem (NVM)"),
    "muse_knowmem_forget": ("Forget, MUSE", "KnowMem (NKM)"),
    "muse_privleak": ("Forget, MUSE", "PrivLeak"),
    "muse_knowmem_retain": ("Retain, MUSE", "KnowMem (UP)"),
}
SETS = {"verbmem": "Forget", "knowmem_forget": "Forget", "knowmem_retain": "Retain"}
"""Sets of MUSE whose answers are shown, and of what they are."""
LEGEND = (
    "Membership: probability that an attack scores a forget record above a holdout record, which nobody trained on "
    "(0.5: chance). The goal is the retrained model's value, not 0.5."
)
MUSE_LEGEND = (
    "MUSE: VerbMem and KnowMem on forget: the nearer the retrained model the better; KnowMem on retain: the higher the "
    "better. PrivLeak (percent): 0 as the retrained model, negative: the texts are still remembered, positive: avoided."
)
_AUC = "Membership inference: probability that the attack scores a forget record above a holdout record. Score: "
GLOSSARY = {
    "AUC, loss": f"{_AUC}mean log-probability of the tokens (Yeom et al. 2018).",
    "AUC, zlib": f"{_AUC}the same over the bytes of the text compressed by zlib (Carlini et al. 2021).",
    "AUC, Min-20 %": f"{_AUC}mean of the 20 % lowest token log-probabilities (Min-K%, Shi et al. 2023).",
    "AUC, Min-40 %": f"{_AUC}mean of the 40 % lowest token log-probabilities.",
    "AUC, Min-K++ 20 %": f"{_AUC}mean of the 20 % lowest token log-probabilities, each normalised by mean and standard "
    "deviation over the vocabulary (Zhang et al. 2024).",
    "AUC, reference": f"{_AUC}mean log-probability less that under the base model before any training.",
    "VerbMem (NVM)": "MUSE: ROUGE-L F1 (no stemming) between the greedy continuation of the beginning of a forget text "
    "and how that goes on. 0 to 1.",
    "KnowMem (NKM)": "MUSE: ROUGE-L recall of answers to questions about forget texts, after a few examples. 0 to 1.",
    "KnowMem (UP)": "MUSE: the same about retain texts, the utility that is preserved. 0 to 1.",
    "PrivLeak": "MUSE: relative difference in percent between the AUCs of the Min-40 % attack on this model and on the "
    "retrained one, with MUSE's sign. 0: like the retrained model; down to −100: still remembered; above 0: avoided.",
}


def rows(metrics: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str, list[float | None]]]:
    """(group, measure, one value per model) as in `report.rows`."""
    found: list[tuple[str, str, list[float | None]]] = [
        (group, name, [m.get(key) for m in metrics.values()]) for key, (group, name) in MUSE_ROWS.items()
    ]
    return found + [
        (GROUP, name, [m.get(f"membership_auc_{key}") for m in metrics.values()]) for key, name in ROWS.items()
    ]


def legends(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """How to read the rows that there are."""
    names = {key for m in metrics.values() for key in m}
    muse = [MUSE_LEGEND] if any(key.startswith("muse_") for key in names) else []
    return muse + ([LEGEND] if any(key.startswith("membership_auc_") for key in names) else [])


def complete(run: RunDirectory, metrics: Mapping[str, MutableMapping[str, float]], confidence: float) -> None:
    """Add to each stage's metrics what it could not know without the retrained model: differences of AUCs, PrivLeak.

    From the logs; for the retrained model itself the PrivLeak is 0.
    """
    oracle = run.evaluation_log("retrain") if "retrain" in metrics else None
    if oracle is None:
        return
    for stage, found in metrics.items():
        log = run.evaluation_log(stage) or {}
        for name in ATTACKS:
            groups = log.get("membership", {}).get(name)
            if stage != "retrain" and groups and f"membership_auc_{name}_p" not in found:
                values = compared(name, groups, oracle.get("membership", {}).get(name), confidence)
                found.update({f"membership_{key}": value for key, value in values.items()})
        auc, retrained = (x.get("muse", {}).get("auc") for x in (log, oracle))
        leak = None if auc is None or retrained is None else privleak(auc, retrained)
        if leak is not None:
            found.setdefault("muse_privleak", leak)


def sentences(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The unlearned model's AUC beside the retrained one's, by the attack that tells the two models apart best.

    Bonferroni's level: 5 % divided by the number of attacks.
    """
    found = metrics.get("unlearn", {})
    oracle = metrics.get("retrain", {})
    names = {name: f"membership_auc_{name}" for name in ATTACKS}
    known = [name for name, key in names.items() if f"{key}_p" in found and key in oracle]
    if not known:
        return []
    key = min((names[name] for name in known), key=lambda k: found[f"{k}_p"])
    p, level, difference = found[f"{key}_p"], 0.05 / len(known), found[f"{key}_difference"]
    words = "not to be told from the retrained model"
    if p <= level:
        words = "under-unlearned: still recognised" if difference > 0 else "over-unlearned: recognised by avoidance"
    return [
        f"Membership, {ROWS[key.removeprefix('membership_auc_')]}: unlearned {_with_interval(found, key)}, retrained "
        f"{_with_interval(oracle, key)}, difference {difference:+.3f} (DeLong p = {p:.2g}, the least of {len(known)} "
        f"attacks, for which it takes {level:.2g}): {words}."
    ]


def _with_interval(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.3f} [{metrics[f'{key}_low']:.3f}, {metrics[f'{key}_high']:.3f}]"
