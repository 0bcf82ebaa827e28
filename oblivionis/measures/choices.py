"""Multiple choice: how many questions of WMDP, MMLU or a file of one's own does the model answer rightly?

Settings: `conf/evaluator/choices.yaml`. The prompt is that of the harness's tasks `wmdp` and `mmlu` without examples:
the field, the question, its answers by letters. The letter that is likeliest to follow is the model's answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.engine.sequences import TokenSequence
from evaluation.hook import Result
from evaluation.metrics.catalogue import Group, Metric
from oblivionis.data import multiple_choice
from oblivionis.data.multiple_choice import LETTERS
from oblivionis.data.tokenize import encode_pairs
from oblivionis.measures.base import Measure

if TYPE_CHECKING:
    from evaluation.hook import EvaluationSession, Evaluator, Result
    from oblivionis.data.records import Choice
    from oblivionis.measures.context import Context

LIMITS = {
    "enabled": {"help": "Measure it."},
    "file": {
        "help": "Multiple-choice questions of your own, in the shape of MMLU (`.json`, `.jsonl` or `.parquet` with "
        "`question`, `choices`, `answer`); null: none.",
        "type": "str",
    },
}
_SETS = {"forget": ("Forget", "lower", 44), "utility": ("Utility", "higher", 45), "file": ("Own file", None, 46)}


@dataclass(frozen=True)
class Asked:
    """A question with the letters of its answers as token ids; the one at `answer` is true."""

    id: str
    prompt: tuple[int, ...]
    letters: tuple[tuple[int, ...], ...]
    answer: int

    @property
    def sequences(self) -> list[TokenSequence]:
        return [TokenSequence(self.prompt, letter) for letter in self.letters]


@dataclass(frozen=True)
class ChoiceEvaluator:
    """Of each set that has questions: the share, in [0, 1], whose likeliest letter is the true one.

    Of letters that are equally likely the first counts as the answer. The details hold per set id -> the place of the
    answer that the model chose.
    """

    sets: Mapping[str, Sequence[Asked]]
    name: str = field(default="choices", init=False)

    def request(self, session: EvaluationSession) -> None:
        """Announce every question with every letter."""
        session.request(sequences=[s for asked in self.sets.values() for item in asked for s in item.sequences])

    def evaluate(self, session: EvaluationSession) -> Result:
        """Measure."""

        metrics: dict[str, float] = {}
        details: dict[str, Any] = {}
        for name, asked in self.sets.items():
            losses = iter(session.scores([s for item in asked for s in item.sequences]).sum_nll.tolist())
            chosen = []
            for item in asked:
                own = [next(losses) for _ in item.letters]
                chosen.append(own.index(min(own)))
            metrics[name] = sum(c == item.answer for c, item in zip(chosen, asked, strict=True)) / len(asked)
            details[name] = {item.id: c for c, item in zip(chosen, asked, strict=True)}
        return Result(metrics, details)


def prompt(choice: Choice) -> str:
    """The field, the question, and its answers behind their letters."""

    head = (
        f"The following are multiple choice questions (with answers){f' about {choice.about}' if choice.about else ''}."
    )
    answers = "".join(f"{letter}. {text}\n" for letter, text in zip(LETTERS, choice.choices, strict=False))
    return f"{head}\n\n{choice.question}\n{answers}Answer:"


def _encoded(asked: Sequence[Choice], context: Context) -> tuple[Asked, ...]:
    """Tokenise questions; a prompt that does not fit into the context loses its beginning, as in the harness."""
    from oblivionis.measures.questions import context_length

    room = context_length(context.assembled.model)
    template = replace(context.assembled.template, question_prefix="", question_suffix="", answer_prefix="")
    pairs = [(prompt(choice), letter) for choice in asked for letter in LETTERS[: len(choice.choices)]]
    encoded = iter(encode_pairs(pairs, context.tokenizer, template))
    items = []
    for choice in asked:
        pairs_of_choice = [next(encoded) for _ in choice.choices]
        # Without the end token: the letter alone is scored.
        letters = tuple(pair.answer[:-1] for pair in pairs_of_choice)
        start = pairs_of_choice[0].prompt[-(room - max(map(len, letters))) :]
        items.append(Asked(choice.id, start, letters, choice.answer))
    return tuple(items)


class Choices(Measure):
    """Accuracy of the letter that is likeliest to follow a question and its answers."""

    order = 62
    needs = ("prepared",)
    metrics = tuple(
        Metric(
            name,
            "Accuracy",
            direction,
            None,
            "Share of multiple-choice questions whose true answer's letter is likeliest to follow the prompt "
            "(Hendrycks et al. 2021, Li et al. 2024), without examples. 0 to 1; chance: one over the number of "
            "answers, 0.25 with four.",
            Group(f"{title}, multiple choice", place),
        )
        for name, (title, direction, place) in _SETS.items()
    )
    legend = (
        "Multiple choice: what the base model knew before anybody trained it, the retrained model knows, too; on "
        "forget rows the lower the better, down to chance."
    )

    def prepare(self, context: Context) -> dict[str, tuple[Asked, ...]] | None:
        """The tokenised questions by set; None without any. Raises DataError for a faulty file."""

        settings = context.settings
        sets = dict(context.corpus.choices)
        if settings["file"] is not None:
            sets["file"] = multiple_choice.load(Path(settings["file"]).expanduser())
        if not settings["enabled"] or not sets:
            return None
        return {name: _encoded(asked, context) for name, asked in sets.items()}

    def build(self, context: Context) -> list[Evaluator]:
        """As many questions of each set as the profile asks."""
        from oblivionis.measures.questions import spread

        count = context.profile().questions
        return [ChoiceEvaluator({name: spread(asked, count) for name, asked in context.prepared.items()})]
