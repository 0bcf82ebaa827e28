"""Likelihoods of (prompt, answer) sequences, each distinct sequence scored once.

All natural logarithms; every likelihood is over the answer tokens only (EOS included where the answer carries it),
teacher-forced on the true prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from evaluation.engine.forward import Scorer
from evaluation.engine.models import evaluation_mode, keep_freed_memory, model_device, side_by_side, vocabulary_size
from evaluation.engine.packing import PackedBatch
from evaluation.engine.progress import counter
from evaluation.engine.sequences import Scores, TokenSequence

POOLINGS = ("all", "last", "mean")


def batches(sequences: Sequence[TokenSequence], token_budget: int) -> Iterator[list[int]]:
    """Batches of sequences: those with one prompt together, similar lengths together.

    Parameters
    ----------
    sequences : sequence of TokenSequence
    token_budget : int
        Most distinct tokens of a batch (a prompt counts once); a longer sequence is a batch of its own.

    Yields
    ------
    list of int
        Indices of the sequences.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, s in enumerate(sequences):
        groups.setdefault(s.prompt, []).append(i)
    for group in groups.values():
        group.sort(key=lambda i: len(sequences[i].answer), reverse=True)

    def longest(group: list[int]) -> int:
        return len(sequences[group[0]].prompt) + len(sequences[group[0]].answer)

    batch: list[int] = []
    used = 0
    for group in sorted(groups.values(), key=longest, reverse=True):
        prompt: tuple[int, ...] | None = None
        for i in group:
            s = sequences[i]
            cost = len(s.answer) + (len(s.prompt) if s.prompt != prompt else 0)
            if batch and used + cost > token_budget:
                yield batch
                batch, used, cost = [], 0, len(s.answer) + len(s.prompt)
            batch.append(i)
            used += cost
            prompt = s.prompt
    if batch:
        yield batch


def ordered_batches(sequences: Sequence[TokenSequence], token_budget: int) -> Iterator[list[int]]:
    """Batches of consecutive sequences, in the order given.

    Parameters
    ----------
    sequences : sequence of TokenSequence
    token_budget : int
        As in `batches`, but a prompt counts only where the sequence before in the batch does not begin with it.

    Yields
    ------
    list of int
        Indices of the sequences.
    """
    batch: list[int] = []
    used = 0
    before: tuple[int, ...] = ()
    for i, s in enumerate(sequences):
        shared = before[: len(s.prompt)] == s.prompt
        cost = len(s.answer) + (0 if shared else len(s.prompt))
        if batch and used + cost > token_budget:
            yield batch
            batch, used, cost = [], 0, len(s.answer) + len(s.prompt)
        batch.append(i)
        used += cost
        before = s.prompt + s.answer
    if batch:
        yield batch


def default_token_budget(model: nn.Module) -> int:
    """Tokens per batch such that the float32 logits take about 128 MiB on a CPU and 512 MiB on a GPU.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    int
        256 to 4096 on a CPU, to 32768 on a GPU.
    """
    logits = 2**25 if model_device(model).type == "cpu" else 2**27
    return min(max(logits // vocabulary_size(model), 256), 4096 if logits == 2**25 else 32768)


def score(
    model: nn.Module,
    sequences: Sequence[TokenSequence],
    *,
    token_budget: int | None = None,
    hidden: str | None = None,
    layer: int | None = None,
    only: Collection[TokenSequence] | None = None,
    moments: Collection[TokenSequence] = (),
    ordered: bool = False,
    mode: str = "auto",
) -> Scores:
    """Score every distinct sequence once; equal prefixes within a batch (such as the prompt) are computed once.

    Runs in eval mode without gradients, and restores the mode.

    Parameters
    ----------
    model : nn.Module
    sequences : sequence of S TokenSequence
        At least one; prompts and answers are not empty.
    token_budget : int, at least 1, optional
        Bounds the memory of a batch; None: `default_token_budget`.
    hidden : {"all", "last", "mean"}, optional
        Hidden states of each sequence. "all": (num_tokens + 1, d) at the last prompt token and every answer token
        (state j predicts answer token j); "last": (d,) at the last answer token; "mean": (d,), over all answer tokens.
    layer : int, optional
        States that leave this decoder layer, from 0 or, negative, from the last; None: those that enter the
        language-model head, after the last norm.
    only : collection of TokenSequence, optional
        Sequences whose states are wanted; None: all.
    moments : collection of TokenSequence
        Sequences whose `Scores.moments` are wanted.
    ordered : bool
        Batches are of consecutive sequences, which should share beginnings, and not of one prompt.
    mode : str
        As in `evaluation.engine.forward`.

    Returns
    -------
    Scores

    Raises
    ------
    ValueError
        For an empty list, prompt or answer, an unknown `hidden`, `layer` or `mode`, or a budget below 1.
    """
    budget = default_token_budget(model) if token_budget is None else token_budget
    if budget < 1:
        raise ValueError(f"token_budget must be at least 1, got {budget}")
    distinct, places = _distinct(sequences)
    table = ScoreTable(distinct, hidden, only, moments)
    keep_freed_memory()
    with evaluation_mode(model), torch.inference_mode():
        parts = (ordered_batches if ordered else batches)(table.sequences, budget)
        _score_all(Scorer(model, mode, layer), parts, table, model_device(model))
    return table.scores().take(places)


def _distinct(sequences: Sequence[TokenSequence]) -> tuple[list[TokenSequence], list[int]]:
    """The distinct sequences, and the place of every sequence among them."""
    numbers: dict[TokenSequence, int] = {}
    places = [numbers.setdefault(TokenSequence(tuple(s[0]), tuple(s[1])), len(numbers)) for s in sequences]
    if not places:
        raise ValueError("no sequences to score")
    return list(numbers), places


def _score_all(scorer: Scorer, parts: Iterable[list[int]], table: ScoreTable, device: torch.device) -> None:
    """Score batches of sequences side by side, and count them."""
    scored = counter("likelihoods", len(table.sequences))

    def work(indices: list[int]) -> None:
        table.add(scorer, indices, device)
        scored(len(indices))

    side_by_side(work, parts, scorer.workers)


class ScoreTable:
    """Likelihoods and states of distinct sequences; arguments as of `score`. Each thread fills in its sequences."""

    def __init__(
        self,
        sequences: Sequence[TokenSequence],
        hidden: str | None,
        only: Collection[TokenSequence] | None,
        moments: Collection[TokenSequence],
    ) -> None:
        if hidden is not None and hidden not in POOLINGS:
            raise ValueError(f"unknown hidden {hidden!r}, expected None or one of {', '.join(POOLINGS)}")
        self.sequences, self._hidden, self._with_moments = sequences, hidden, set(moments)
        self._wanted = [hidden is not None and (only is None or s in only) for s in sequences]
        count = len(sequences)
        self.log_probs: list[np.ndarray] = [np.empty(0, np.float32)] * count
        self._correct: list[np.ndarray] = [np.empty(0, bool)] * count
        self._states: list[np.ndarray] = [np.empty(0, np.float32)] * count
        self._moments: list[np.ndarray] = [np.empty((0, 2), np.float32)] * count

    @torch.inference_mode()
    def add(self, scorer: Scorer, indices: list[int], device: torch.device) -> None:
        """Score the sequences at these indices in one batch."""
        last = [self._wanted[i] for i in indices]
        batch = PackedBatch.build([self.sequences[i] for i in indices], device, share=True, last=last)
        spread = any(self.sequences[i] in self._with_moments for i in indices)
        logp, hits, state, moments = scorer(batch, states=any(last), moments=spread)
        if self._hidden is not None and state is not None:
            kept = [i for i in indices if self._wanted[i]]
            for i, pooled in zip(kept, _pooled(state, batch, last, self._hidden), strict=True):
                self._states[i] = pooled
        lengths = batch.answer_lengths.tolist()
        for i, values, hit in zip(indices, logp.cpu().split(lengths), hits.cpu().split(lengths), strict=True):
            self.log_probs[i], self._correct[i] = values.numpy(), hit.numpy()
        if moments is not None:
            for i, part in zip(indices, moments.cpu().split(lengths), strict=True):
                if self.sequences[i] in self._with_moments:
                    self._moments[i] = part.numpy()

    def scores(self) -> Scores:
        """Scores of all sequences, after each was added."""
        total = np.array([-x.sum(dtype=np.float64) for x in self.log_probs])
        count = np.array([x.size for x in self.log_probs], dtype=np.int64)
        states = None if self._hidden is None else tuple(self._states)
        moments = tuple(self._moments) if self._with_moments else None
        return Scores(total, total / count, count, tuple(self.log_probs), tuple(self._correct), states, moments)


def _pooled(state: Tensor, batch: PackedBatch, last: Sequence[bool], pooling: str) -> list[np.ndarray]:
    """States (K, d) -> what `score` documents for `hidden`, per sequence that was packed with its `last` token."""
    sizes = [length + whole for length, whole in zip(batch.answer_lengths.tolist(), last, strict=True)]
    places = batch.state_rows.split(sizes)
    rows = [state[part].float() for part, whole in zip(places, last, strict=True) if whole]
    if pooling == "all":
        return [part.cpu().numpy() for part in rows]
    if pooling == "last":
        return list(torch.stack([part[-1] for part in rows]).cpu().numpy())
    return list(torch.stack([part[1:].mean(0) for part in rows]).cpu().numpy())
