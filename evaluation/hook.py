"""Evaluation of a model after a round: evaluators that read from one shared table of likelihoods and generations.

The engine is imported when a model is read: evaluators can be listed, and their results shown, without it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from evaluation.engine.progress import part
from evaluation.engine.sequences import Scores, TokenSequence

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """Result of one evaluator.

    Attributes
    ----------
    metrics : mapping of float
        Finite numbers by name; an undefined metric is left out.
    details : mapping
        Plain values to keep with the metrics.
    notes : mapping of str
        By the name of a metric, why it is left out, or how its value is to be read.

    Raises
    ------
    ValueError
        For a metric that is not finite.
    """

    metrics: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.metrics.items():
            if not math.isfinite(value):
                raise ValueError(f"metric {name} is {value}")


_Kind = tuple[str, int | None]
"""Kind of hidden states: pooling and layer."""


class EvaluationSession:
    """One model state under evaluation: each distinct sequence is scored once, each prompt continued once.

    Announce what will be read with `request`; the first read then computes everything announced in one pass. A sequence
    is scored again only for hidden states or moments that were not announced before it was scored, or for a second kind
    of states. The model must not change during a session.

    Parameters
    ----------
    model : nn.Module
    stop_ids : collection of int
        Tokens that end a generation.
    pad_id : int
    token_budget : int, optional
        Tokens per forward pass; None: chosen for the model.
    mode : str
        Backend of the engine, as in `likelihood.score`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        stop_ids: Collection[int],
        pad_id: int = 0,
        token_budget: int | None = None,
        mode: str = "auto",
    ) -> None:
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.pad_id, self.token_budget, self.mode = pad_id, token_budget, mode
        self.scored: dict[TokenSequence, tuple[Scores, int]] = {}
        self._states: dict[_Kind, dict[TokenSequence, tuple[Scores, int]]] = {}
        self.continued: dict[tuple[int, ...], tuple[int, list[int]]] = {}
        self._sequences: dict[_Kind | None, dict[TokenSequence, None]] = {}
        self._prompts: dict[tuple[int, ...], int] = {}
        self._moments: set[TokenSequence] = set()

    def fresh(self) -> EvaluationSession:
        """An empty session of the same model, which may be in another state now."""
        return EvaluationSession(
            self.model, stop_ids=self.stop_ids, pad_id=self.pad_id, token_budget=self.token_budget, mode=self.mode
        )

    def request(
        self,
        *,
        sequences: Sequence[TokenSequence] = (),
        hidden: str | None = None,
        layer: int | None = None,
        moments: bool = False,
        prompts: Sequence[Sequence[int]] = (),
        max_new_tokens: int = 0,
    ) -> None:
        """Announce what will be read.

        Parameters
        ----------
        sequences : sequence of TokenSequence
            Those whose `scores` will be read.
        hidden : str, optional
            Pooling of hidden states ("all", "last" or "mean"); None: no states.
        layer : int, optional
            Decoder layer of the states; None: what enters the language-model head.
        moments : bool
            The scores with `Scores.moments`.
        prompts : sequence of token ids
            Those whose `greedy` continuations will be read.
        max_new_tokens : int
            At least 1 where there are prompts.

        Raises
        ------
        ValueError
            For prompts without `max_new_tokens`.
        """
        if prompts and max_new_tokens < 1:
            raise ValueError("a request for continuations needs max_new_tokens >= 1")
        self._sequences.setdefault(_kind(hidden, layer), {}).update(dict.fromkeys(sequences))
        if moments:
            self._moments.update(sequences)
        for prompt in prompts:
            key = tuple(prompt)
            self._prompts[key] = max(max_new_tokens, self._prompts.get(key, 0))

    def forget_requests(self) -> None:
        """Drop what was announced and not yet computed."""
        self._sequences.clear()
        self._prompts.clear()
        self._moments.clear()

    def compute(self) -> None:
        """Score and continue everything that was announced and is not yet known."""
        from evaluation.engine.decoding import greedy

        plain = self._sequences.pop(None, {})
        for kind, sequences in list(self._sequences.items()):
            assert kind is not None
            known = self._states.setdefault(kind, {})
            wanted = {s: None for s in sequences if s not in known}
            if wanted:
                # All in one pass, where answers share their prompt with others whether states are wanted or not.
                known.update(self._score({**wanted, **plain}, kind, wanted))
            del self._sequences[kind]
        self._score(plain, None, ())
        starts = self._known_starts() if self._prompts else {}
        limits: dict[int, list[tuple[int, ...]]] = {}
        for prompt, limit in self._prompts.items():
            if self.continued.get(prompt, (0, []))[0] < limit:
                limits.setdefault(limit, []).append(prompt)
        for limit, prompts in limits.items():
            produced = greedy(
                self.model,
                prompts,
                max_new_tokens=limit,
                stop_ids=self.stop_ids,
                starts=starts,
                pad_id=self.pad_id,
                mode=self.mode,
            )
            self.continued.update({p: (limit, tokens) for p, tokens in zip(prompts, produced, strict=True)})
        self._prompts.clear()

    def _score(
        self, sequences: Collection[TokenSequence], kind: _Kind | None, wanted: Collection[TokenSequence]
    ) -> dict[TokenSequence, tuple[Scores, int]]:
        """Score the `wanted` sequences with states, and unknown ones of the others; returns the wanted ones."""
        from evaluation.engine.likelihood import score

        new = [s for s in sequences if s in wanted or not self._knows(s)]
        if not new:
            return {}
        hidden, layer = kind or (None, None)
        scores = score(
            self.model,
            new,
            token_budget=self.token_budget,
            hidden=hidden,
            layer=layer,
            only=wanted,
            moments=self._moments.intersection(new),
            mode=self.mode,
        )
        found = {s: (scores, i) for i, s in enumerate(new)}
        self.scored.update(found)
        return {s: found[s] for s in wanted}

    def _knows(self, sequence: TokenSequence) -> bool:
        """Whether the sequence is scored, with moments if it was announced so."""
        if sequence not in self.scored:
            return False
        scores, i = self.scored[sequence]
        return sequence not in self._moments or (scores.moments is not None and len(scores.moments[i]) > 0)

    def _known_starts(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Known beginnings of greedy continuations: as far as a scored answer is the argmax at every token."""
        starts: dict[tuple[int, ...], tuple[int, ...]] = {}
        for sequence, (scores, i) in self.scored.items():
            misses = np.flatnonzero(~scores.correct[i])
            start = sequence.answer[: int(misses[0])] if misses.size else sequence.answer
            if len(start) > len(starts.get(sequence.prompt, ())):
                starts[sequence.prompt] = start
        return starts

    def scores(
        self,
        sequences: Sequence[TokenSequence],
        hidden: str | None = None,
        layer: int | None = None,
        *,
        moments: bool = False,
    ) -> Scores:
        """Likelihoods of sequences (`likelihood.score`), each distinct one computed once per session.

        Parameters
        ----------
        sequences : sequence of TokenSequence
            At least one.
        hidden, layer
            As in `request`.
        moments : bool
            With `Scores.moments`; not together with `hidden`.

        Returns
        -------
        Scores
            In the order of `sequences`.

        Raises
        ------
        ValueError
            For no sequences, or for hidden states and moments together.
        """
        if moments and hidden is not None:
            raise ValueError("ask for hidden states and for moments one after the other")
        self.request(sequences=sequences, hidden=hidden, layer=layer, moments=moments)
        self.compute()
        kind = _kind(hidden, layer)
        known = self.scored if kind is None else self._states.get(kind, {})
        return _joined([known[s] for s in sequences], hidden is not None, moments)

    def greedy(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        """Greedy continuations.

        Parameters
        ----------
        prompts : sequence of token ids
        max_new_tokens : int, at least 1

        Returns
        -------
        list of lists of token ids
            Without the stop token; a longer known continuation is truncated.
        """
        self.request(prompts=prompts, max_new_tokens=max_new_tokens)
        self.compute()
        return [self.continued[tuple(prompt)][1][:max_new_tokens] for prompt in prompts]


def _kind(hidden: str | None, layer: int | None) -> _Kind | None:
    """The kind of hidden states, None for none."""
    return None if hidden is None else (hidden, layer)


def _joined(found: Sequence[tuple[Scores, int]], hidden: bool, moments: bool) -> Scores:
    """The scores of several sequences as one object."""
    if not found:
        raise ValueError("no sequences to score")
    return Scores(
        np.array([scores.sum_nll[i] for scores, i in found]),
        np.array([scores.mean_nll[i] for scores, i in found]),
        np.array([scores.num_tokens[i] for scores, i in found]),
        tuple(scores.log_probs[i] for scores, i in found),
        tuple(scores.correct[i] for scores, i in found),
        tuple(scores.hidden[i] for scores, i in found if scores.hidden is not None) if hidden else None,
        tuple(scores.moments[i] for scores, i in found if scores.moments is not None) if moments else None,
    )


class Evaluator(Protocol):
    """Something that measures the model of a session."""

    @property
    def name(self) -> str:
        """Unique among the evaluators of a hook."""
        ...

    def evaluate(self, session: EvaluationSession) -> Result:
        """Measure the session's model; raises an error if that is impossible."""
        ...


@runtime_checkable
class Requesting(Protocol):
    """An evaluator that announces what it will read, so that all evaluators share one pass."""

    def request(self, session: EvaluationSession) -> None:
        """Announce with `session.request` what `evaluate` will read."""
        ...


class EvaluationError(RuntimeError):
    """An evaluator failed in a strict hook."""


@dataclass(frozen=True)
class Report:
    """Results of all evaluators.

    Attributes
    ----------
    results : mapping of Result
        By evaluator name.
    seconds : mapping of float
        By evaluator name.
    shared_seconds : float
        Of the pass that evaluators share.
    failed : mapping of str
        Error messages of evaluators that failed and have no result.
    """

    results: Mapping[str, Result]
    seconds: Mapping[str, float]
    shared_seconds: float
    failed: Mapping[str, str]

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics by "evaluator/metric"."""
        return {f"{name}/{key}": value for name, r in self.results.items() for key, value in r.metrics.items()}


class Hook:
    """Runs evaluators on a model in evaluation mode without gradients; the model's train and eval flags are restored.

    Parameters
    ----------
    evaluators : sequence of Evaluator
    strict : bool
        Raise EvaluationError at the first evaluator that fails, instead of reporting it.

    Raises
    ------
    ValueError
        For two evaluators of one name.
    """

    def __init__(self, evaluators: Sequence[Evaluator], *, strict: bool = False) -> None:
        names = [evaluator.name for evaluator in evaluators]
        if len(set(names)) < len(names):
            raise ValueError(f"evaluator names must differ, got {names}")
        self.evaluators, self.strict = tuple(evaluators), strict

    def run(self, session: EvaluationSession) -> Report:
        """Evaluate the session's model with every evaluator.

        Returns
        -------
        Report

        Raises
        ------
        EvaluationError
            In a strict hook, when an evaluator fails.
        """
        import torch

        from evaluation.engine.models import evaluation_mode

        results: dict[str, Result] = {}
        seconds: dict[str, float] = {}
        failed: dict[str, str] = {}
        with evaluation_mode(session.model), torch.inference_mode():
            start = time.perf_counter()
            self._share(session, failed)
            shared = time.perf_counter() - start
            for evaluator in self.evaluators:
                if evaluator.name in failed:
                    continue
                start = time.perf_counter()
                try:
                    with part(evaluator.name):
                        results[evaluator.name] = evaluator.evaluate(session)
                except Exception as error:
                    self._fail(evaluator.name, error, failed)
                    session.forget_requests()
                seconds[evaluator.name] = time.perf_counter() - start
        return Report(results, seconds, shared, failed)

    def _share(self, session: EvaluationSession, failed: dict[str, str]) -> None:
        """Let evaluators announce what they read, and compute it in one pass."""
        for evaluator in self.evaluators:
            if isinstance(evaluator, Requesting):
                try:
                    evaluator.request(session)
                except Exception as error:
                    self._fail(evaluator.name, error, failed)
        try:
            session.compute()
        except Exception as error:
            # Each evaluator then computes what it needs, and only the one with the bad request fails.
            logger.warning("the shared evaluation pass failed, evaluators run one by one: %s", error)
            session.forget_requests()

    def _fail(self, name: str, error: Exception, failed: dict[str, str]) -> None:
        """Report a failed evaluator, or raise in a strict hook."""
        if self.strict:
            raise EvaluationError(f"evaluator {name} failed: {error}") from error
        logger.error("evaluator %s failed: %s: %s", name, type(error).__name__, error)
        failed[name] = f"{type(error).__name__}: {error}"
