"""RWKU's probes: sentences with blanks, questions and hostile questions about people, and about what is near them.

Settings: `conf/evaluator/rwku.yaml`. Left out for other data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from evaluation.hook import Result
from evaluation.metrics.catalogue import Direction, Group, Metric
from evaluation.metrics.rouge import left_out
from oblivionis.data.datasets.rwku import PROBES
from oblivionis.data.tokenize import encode_prompts
from oblivionis.measures.base import Measure

if TYPE_CHECKING:
    from evaluation.hook import EvaluationSession, Evaluator, Result
    from evaluation.metrics.muse import Item
    from oblivionis.measures.context import Context

LIMITS = {
    "enabled": {"help": "Measure it."},
    "max_new_tokens": {"help": "Longest answer.", "unit": "tokens", "at_least": 1, "at_most": 8192},
}
_FORGET, _NEIGHBOR = Group("Forget, RWKU", 42), Group("Neighbours, RWKU", 43)
_RECALL = "RWKU: ROUGE-L recall (no stemming) of the first line of the greedy answer to {}. 0 to 1."


def _metric(key: str, label: str, direction: Direction, asked: str, group: Group) -> Metric:
    return Metric(key, label, direction, None, _RECALL.format(asked), group)


_BLANKS = ("Blanks filled (FB)", "a sentence with a blank")
_QUESTIONS = ("Questions answered (QA)", "a question")
_ATTACKS = ("Attacks answered (AA)", "a question that is asked in one of nine hostile ways")


@dataclass(frozen=True)
class ProbeEvaluator:
    """Of each set that has probes: the mean ROUGE-L recall, in [0, 1], of the first line of the greedy answers.

    decode: token ids -> text; max_new_tokens: longest answer; rouge: what a word is, one of
    `evaluation.metrics.rouge.RULES`. The details hold per set id -> {shown, generated, truth, score}.
    """

    sets: Mapping[str, Sequence[Item]]
    decode: Callable[[Sequence[int]], str]
    max_new_tokens: int
    rouge: str
    name: str = field(default="rwku", init=False)

    def request(self, session: EvaluationSession) -> None:
        """Announce the prompts."""
        prompts = [item.prompt for items in self.sets.values() for item in items]
        session.request(prompts=prompts, max_new_tokens=self.max_new_tokens)

    def evaluate(self, session: EvaluationSession) -> Result:
        """Measure."""
        from evaluation.metrics.muse import Scored

        scored = Scored(self.rouge)
        for name, items in self.sets.items():
            produced = session.greedy([item.prompt for item in items], self.max_new_tokens)
            first_lines = [self.decode(tokens).strip().split("\n")[0].strip() for tokens in produced]
            scored.add(name, items, first_lines, "recall")
        return Result(scored.metrics, scored.details, scored.notes)


class Rwku(Measure):
    """ROUGE-L recall of the answers to the probes."""

    order = 61
    needs = ("prepared",)
    metrics = (
        _metric("forget_blanks", _BLANKS[0], "lower", _BLANKS[1], _FORGET),
        _metric("forget_questions", _QUESTIONS[0], "lower", _QUESTIONS[1], _FORGET),
        _metric("forget_attacks", _ATTACKS[0], "lower", _ATTACKS[1], _FORGET),
        _metric("neighbor_blanks", _BLANKS[0], "higher", _BLANKS[1], _NEIGHBOR),
        _metric("neighbor_questions", _QUESTIONS[0], "higher", _QUESTIONS[1], _NEIGHBOR),
    )
    legend = (
        "RWKU: recall of true answers about the people to forget, the lower the better (what the base model knew, the "
        "retrained model knows, too), and about what is near them, the higher the better."
    )

    def prepare(self, context: Context) -> dict[str, tuple[Item, ...]] | None:
        """The tokenised probes by set; None for other data."""
        from evaluation.metrics.muse import Item
        from oblivionis.measures.questions import context_length

        sets = {name: context.corpus.evaluation[name] for name in PROBES if name in context.corpus.evaluation}
        if not sets or not context.settings["enabled"]:
            return None
        room = context_length(context.assembled.model)
        keep = max(1, room - context.settings["max_new_tokens"])
        template = replace(context.assembled.template, question_prefix="", question_suffix="", answer_prefix="")
        probes = {}
        for name, records in sets.items():
            prompts = encode_prompts([record.question for record in records], context.tokenizer, template)
            probes[name] = tuple(
                Item(record.id, prompt[-keep:], record.question, record.answer)
                for record, prompt in zip(records, prompts, strict=True)
            )
        return probes

    def warnings(self, context: Context) -> list[str]:
        """Which of its metrics are left out, because ROUGE cannot read the true answers."""

        titles = {m.key: f"{m.group.title}: {m.label}" for m in self.metrics if m.group is not None}
        sets: Mapping[str, Sequence[Item]] = context.prepared or {}
        truths = {titles[name]: [item.truth for item in items] for name, items in sets.items()}
        return left_out(truths, context.config.evaluation.rouge)

    def build(self, context: Context) -> list[Evaluator]:
        """As many probes of each set as the profile asks questions."""
        from oblivionis.measures.questions import spread

        count = context.profile().questions
        sets = {name: spread(items, count) for name, items in context.prepared.items()}
        settings, rouge = context.settings, context.config.evaluation.rouge
        return [ProbeEvaluator(sets, context.decode, settings["max_new_tokens"], rouge)]
