"""MUSE: what a model of plain texts still recites, what it still knows, and whom it betrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluation.metrics.catalogue import Group, Metric
from evaluation.metrics.rouge import left_out
from oblivionis.measures.base import Measure, StageMetrics

if TYPE_CHECKING:
    from evaluation.hook import Evaluator
    from oblivionis.measures.context import Context
    from oblivionis.measures.muse.prompts import Prompts
    from oblivionis.runs.directory import RunDirectory

_FORGET, _RETAIN = Group("Forget, MUSE", 40), Group("Retain, MUSE", 41)


class Muse(Measure):
    """VerbMem, KnowMem and PrivLeak of a model of plain texts."""

    order = 60
    needs = ("prepared",)
    metrics = (
        Metric(
            "verbmem",
            "VerbMem (NVM)",
            "oracle",
            None,
            "MUSE: ROUGE-L F1 (no stemming) between the greedy continuation of the beginning of a forget text and how "
            "that goes on. 0 to 1.",
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
    legend = (
        "MUSE: VerbMem and KnowMem on forget: the nearer the retrained model the better; KnowMem on retain: the higher "
        "the better. PrivLeak (percent): 0 as the retrained model, negative: the texts are still remembered, positive: "
        "avoided."
    )

    def prepare(self, context: Context) -> Prompts | None:
        """What is continued and asked; None for a corpus of questions. Raises RunError where it does not fit."""
        from oblivionis.measures.muse.prompts import Prompts

        return Prompts.of(context.corpus, context.assembled, context.config)

    def warnings(self, context: Context) -> list[str]:
        """Which of its metrics are left out, because ROUGE cannot read the true texts."""

        texts: Prompts | None = context.prepared
        if texts is None:
            return []
        items = {"verbmem": texts.passages, **{f"knowmem_{name}": of for name, of in texts.knowledge.items()}}
        titles = {metric.key: metric.label for metric in self.metrics}
        truths = {titles[name]: [item.truth for item in of] for name, of in items.items()}
        return left_out(truths, context.config.evaluation.rouge)

    def build(self, context: Context) -> list[Evaluator]:
        """The items of the profile; PrivLeak, on the records of membership inference, in the full one only."""
        from evaluation.metrics.muse import MuseEvaluator
        from oblivionis.measures.questions import spread

        texts: Prompts = context.prepared
        settings, profile = context.config.evaluation.muse, context.profile()
        groups = context.prepared_of.get("membership") if context.full else None
        return [
            MuseEvaluator(
                spread(texts.passages, profile.questions),
                {name: spread(items, profile.questions) for name, items in texts.knowledge.items()},
                texts.decode,
                groups.members if groups else (),
                groups.others if groups else (),
                (context.oracle or {}).get(self.name, {}).get("auc"),
                settings.continuation,
                settings.answer,
                context.config.evaluation.rouge,
            )
        ]

    def complete(self, run: RunDirectory, metrics: StageMetrics, convention: str, confidence: float) -> None:
        """PrivLeak by the AUCs in the logs; that of the retrained model itself is 0."""
        retrained = _auc(run, "retrain") if "retrain" in metrics else None
        if retrained is None:
            return
        for stage, found in metrics.items():
            auc = None if "muse_privleak" in found else _auc(run, stage)
            if auc is not None:
                from evaluation.metrics.muse import privleak

                leak = privleak(auc, retrained)
                found.update({} if leak is None else {"muse_privleak": leak})


def _auc(run: RunDirectory, stage: str) -> float | None:
    """The AUC of the Min-40 % attack on the model of a stage; None where its log has none."""
    return (run.evaluation_log(stage) or {}).get("muse", {}).get("auc")
