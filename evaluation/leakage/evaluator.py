"""Probabilistic leakage as an evaluator: sampled answers in addition to the greedy one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.engine.sampling import Rule, sample
from evaluation.hook import EvaluationSession, Result
from evaluation.leakage.diversity import diversity
from evaluation.leakage.functions import Asked, LeakageFunction
from evaluation.leakage.summary import Terms, summarise


@dataclass(frozen=True)
class Prompted:
    """A question with its prompt.

    Attributes
    ----------
    asked : Asked
    prompt : tuple of int
        Token ids.
    """

    asked: Asked
    prompt: tuple[int, ...]


@dataclass
class LeakageEvaluator:
    """Samples answers to questions and bounds what they leak (Scholten et al. 2025).

    The metrics are those of `Summary.overall` and, from two samples on, `diversity`: one minus the samples' self-BLEU,
    mean over the questions. The details hold the columns, the question ids and the number of samples. The session's
    token budget is one of forward passes; sampling keeps to `decoding.default_token_budget` instead.

    Attributes
    ----------
    questions : sequence of Prompted
    decode : callable (token ids) -> str
    function : LeakageFunction
        Leakage h of a text.
    samples : int
        Answers sampled per question.
    terms : Terms
        Significance and thresholds.
    rule : Rule
        The sampling distribution.
    max_new_tokens : int
    seed : int
        Equal seeds give equal samples.
    name : str
    """

    questions: Sequence[Prompted]
    decode: Callable[[Sequence[int]], str]
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
        """Sample and summarise; no metrics without questions."""
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
        texts = [self._texts(tokens) for tokens in drawn]
        asked = [q.asked for q in self.questions]
        leakage = np.stack([self.function(t, a) for t, a in zip(texts, asked, strict=True)])
        greedy = np.array([self.function(self._texts([t]), a)[0] for t, a in zip(answers, asked, strict=True)])
        summary = summarise(leakage, greedy, self.terms)
        metrics = dict(summary.overall)
        if self.samples > 1:
            metrics["diversity"] = float(np.mean([diversity(t) for t in texts]))
        columns = {name: column.tolist() for name, column in summary.columns.items()}
        return Result(metrics, {"ids": [a.id for a in asked], "columns": columns, "samples": self.samples})

    def _texts(self, answers: Sequence[Sequence[int]]) -> list[str]:
        """The answers as text."""
        return [self.decode(tokens) for tokens in answers]
