"""Probabilistic leakage as an evaluator of the hook: sampled answers instead of the greedy one alone."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from evaluation.hook import EvaluationSession, Result
from evaluation.leakage.functions import Asked, LeakageFunction
from evaluation.leakage.summary import Terms, summarise
from evaluation.sampling import Rule, sample


@dataclass(frozen=True)
class Prompted:
    """A question with the token ids of its prompt."""

    asked: Asked
    prompt: tuple[int, ...]


@dataclass
class LeakageEvaluator:
    """Samples answers to questions and bounds what they leak (Scholten et al. 2025).

    questions: those to ask; decode: token ids to text; function: leakage h of a text; samples: answers sampled per
    question; terms: significance and thresholds; rule: the sampling distribution; seed: equal seeds draw equal chances.
    The metrics are those of `Summary.overall`, the details hold the columns and the question ids. The session's token
    budget is one of forward passes; sampling keeps to `decoding.default_token_budget` instead.
    """

    questions: Seq[Prompted]
    decode: Callable[[Seq[int]], str]
    function: LeakageFunction
    samples: int
    terms: Terms
    rule: Rule
    max_new_tokens: int
    seed: int = 0
    name: str = "leakage"

    def request(self, session: EvaluationSession) -> None:
        """Announce the greedy answers."""
        session.request(prompts=[q.prompt for q in self.questions], max_new_tokens=self.max_new_tokens)

    def evaluate(self, session: EvaluationSession) -> Result:
        """Sample and summarise."""
        prompts = [q.prompt for q in self.questions]
        if not prompts:
            return Result({})
        answers = session.greedy(prompts, self.max_new_tokens)
        drawn = sample(
            session.model,
            prompts,
            self.samples,
            max_new_tokens=self.max_new_tokens,
            stop_ids=session.stop_ids,
            rule=self.rule,
            seed=self.seed,
            pad_id=session.pad_id,
            mode=session.mode,
        )
        leakage = np.stack([self._leakage(q, tokens) for q, tokens in zip(self.questions, drawn, strict=True)])
        greedy = np.array([self._leakage(q, [tokens])[0] for q, tokens in zip(self.questions, answers, strict=True)])
        summary = summarise(leakage, greedy, self.terms)
        columns = {name: column.tolist() for name, column in summary.columns.items()}
        return Result(dict(summary.overall), {"ids": [q.asked.id for q in self.questions], "columns": columns})

    def _leakage(self, question: Prompted, answers: Seq[Seq[int]]) -> np.ndarray:
        return self.function([self.decode(tokens) for tokens in answers], question.asked)
