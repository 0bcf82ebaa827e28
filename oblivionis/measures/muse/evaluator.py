"""MUSE: what a model of plain texts still recites, what it still knows, and whom it betrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluation.metrics.catalogue import Group, Metric

if TYPE_CHECKING:
    from evaluation.hook import Evaluator
    from oblivionis.measures.context import Context
    from oblivionis.measures.muse.prompts import Muse

ORDER = 60
_FORGET, _RETAIN = Group("Forget, MUSE", 40), Group("Retain, MUSE", 41)
METRICS: tuple[Metric, ...] = (
    Metric(
        "verbmem",
        "VerbMem (NVM)",
        "oracle",
        None,
        "MUSE: ROUGE-L F1 (no stemming) between the greedy continuation of the beginning of a forget text and how that "
        "goes on. 0 to 1.",
        _FORGET,
        headline=True,
    ),
    Metric(
        "knowmem_forget",
        "KnowMem (NKM)",
        "oracle",
        None,
        "MUSE: ROUGE-L recall of answers to questions about forget texts, after a few examples. 0 to 1.",
        _FORGET,
        headline=True,
    ),
    Metric(
        "privleak",
        "PrivLeak",
        "oracle",
        None,
        "MUSE: relative difference in percent between the AUCs of the Min-40 % attack on this model and on the "
        "retrained one, with MUSE's sign. 0: like the retrained model; down to −100: still remembered; above 0: "
        "avoided.",
        _FORGET,
        needs_oracle=True,
    ),
    Metric(
        "knowmem_retain",
        "KnowMem (UP)",
        "higher",
        None,
        "MUSE: the same about retain texts, the utility that is preserved. 0 to 1.",
        _RETAIN,
        headline=True,
    ),
)
LEGEND = (
    "MUSE: VerbMem and KnowMem on forget: the nearer the retrained model the better; KnowMem on retain: the higher the "
    "better. PrivLeak (percent): 0 as the retrained model, negative: the texts are still remembered, positive: avoided."
)


def prepare(context: Context) -> Muse | None:
    """What is continued and asked; None for a corpus of questions. Raises RunError where it does not fit."""
    from oblivionis.measures.muse.prompts import Muse

    return Muse.of(context.corpus, context.assembled, context.config)


def lacks(context: Context) -> list[str]:
    """Which of its metrics are left out, because ROUGE cannot read the true texts."""
    from evaluation.metrics.rouge import left_out

    texts: Muse | None = context.prepared
    if texts is None:
        return []
    items = {"verbmem": texts.passages, **{f"knowmem_{name}": of for name, of in texts.knowledge.items()}}
    titles = {metric.key: metric.label for metric in METRICS}
    truths = {titles[name]: [item.truth for item in of] for name, of in items.items()}
    return left_out(truths, context.config.evaluation.rouge)


def build(context: Context) -> list[Evaluator]:
    """The items of the profile; PrivLeak, on the records of membership inference, in the full one only."""
    from oblivionis.measures.membership.groups import Groups

    texts: Muse | None = context.prepared
    if texts is None:
        return []
    groups = context.prepared_of.get("membership") or Groups((), ())
    return [texts.evaluator(context.config, groups, context.full, context.oracle)]
