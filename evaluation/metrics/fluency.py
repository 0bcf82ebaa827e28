"""Fluency: whether greedy answers are language, or unlearning left gibberish.

The judge is the untouched base model: an answer whose tokens it finds very unlikely is not language to it, whether the
answer is right or wrong. It also finds some true answers unlikely (made-up names), hence a threshold taken from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluation.engine.sequences import TokenSequence
from evaluation.hook import EvaluationSession, Result
from evaluation.metrics.tofu import Question

Answers = Mapping[str, Sequence[tuple[int, ...]]]
"""Group of questions -> the tokens of an answer to each, without an end token; none for an empty answer."""


@dataclass(frozen=True)
class FluencyEvaluator:
    """Fluency of the greedy answers to each group of questions: <group>_nll, <group>_gibberish and <group>_endless.

    nll: mean negative log-likelihood under the base model, nats per token (>= 0), given the prompt and without the end
    token; mean over the answers, those without any token left out. gibberish: share of all answers, in [0, 1], whose
    nll lies above `threshold`, the `quantile` of the nll of the true answers of all groups (nats per token; by linear
    interpolation); an empty answer does not. So 1 − quantile of the true answers are gibberish themselves. endless:
    share of all answers, in [0, 1], without an end token within `max_new_tokens`. The details hold per group `ids`,
    `nll` (None for an empty answer) and `endless`.

    Attributes
    ----------
    questions : mapping of sequences of Question
        By group; groups without any are left out.
    as_base : callable () -> context manager
        Makes the session's model the base model within the context.
    max_new_tokens : int, at least 1
    quantile : float in [0, 1]

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    questions: Mapping[str, Sequence[Question]]
    as_base: Callable[[], AbstractContextManager[None]]
    max_new_tokens: int
    quantile: float = 0.95
    name: str = field(default="fluency", init=False)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or not 0 <= self.quantile <= 1:
            raise ValueError(
                f"expected max_new_tokens >= 1 and a quantile in [0, 1], got {self.max_new_tokens} and {self.quantile}"
            )

    def request(self, session: EvaluationSession) -> None:
        """Announce the greedy answers."""
        for questions in self._asked().values():
            session.request(prompts=[q.prompt for q in questions], max_new_tokens=self.max_new_tokens)

    def evaluate(self, session: EvaluationSession) -> Result:
        """Measure; no metrics without questions."""
        asked = self._asked()
        if not asked:
            return Result({})
        limit = self.max_new_tokens
        given = {
            group: [tuple(tokens) for tokens in session.greedy([q.prompt for q in questions], limit)]
            for group, questions in asked.items()
        }
        true = {group: [without_end(q.answer, session) for q in questions] for group, questions in asked.items()}
        with self.as_base():
            said, known = _judged(session.fresh(), asked, given, true)
        threshold = float(np.quantile([x for values in known.values() for x in values if x is not None], self.quantile))
        metrics: dict[str, float] = {"threshold": threshold}
        details: dict[str, Any] = {}
        for group, questions in asked.items():
            endless = [len(tokens) == limit for tokens in given[group]]
            values = [x for x in said[group] if x is not None]
            metrics |= {f"{group}_nll": float(np.mean(values))} if values else {}
            metrics[f"{group}_gibberish"] = sum(x > threshold for x in values) / len(questions)
            metrics[f"{group}_endless"] = sum(endless) / len(questions)
            details[group] = {"ids": [q.id for q in questions], "nll": said[group], "endless": endless}
        return Result(metrics, details)

    def _asked(self) -> dict[str, Sequence[Question]]:
        """The groups that have questions."""
        return {group: questions for group, questions in self.questions.items() if questions}


def without_end(answer: tuple[int, ...], session: EvaluationSession) -> tuple[int, ...]:
    """The answer without its end token.

    Parameters
    ----------
    answer : tuple of int
        Token ids.
    session : EvaluationSession
        Gives the end tokens.

    Returns
    -------
    tuple of int
    """
    return answer[:-1] if answer and answer[-1] in session.stop_ids else answer


def _judged(
    session: EvaluationSession, asked: Mapping[str, Sequence[Question]], *answers: Answers
) -> list[dict[str, list[float | None]]]:
    """Mean NLL of each answer in the model of `session`, None for an empty one; all in one pass."""
    sequences = [
        [[TokenSequence(q.prompt, a) for q, a in zip(asked[g], each[g], strict=True)] for g in asked]
        for each in answers
    ]
    session.request(sequences=[s for each in sequences for group in each for s in group if s.answer])
    return [{g: _mean_nll(session, group) for g, group in zip(asked, each, strict=True)} for each in sequences]


def _mean_nll(session: EvaluationSession, sequences: Sequence[TokenSequence]) -> list[float | None]:
    """Mean NLL of each sequence, None for one without an answer."""
    spoken = [s for s in sequences if s.answer]
    found = iter(session.scores(spoken).mean_nll.tolist() if spoken else [])
    return [next(found) if s.answer else None for s in sequences]
