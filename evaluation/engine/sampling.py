"""Random continuations of prompts: temperature, top-k, top-p and adaptive temperature scaling, reproducibly seeded."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from evaluation.engine.decoding import decode

_LIKELIEST = 64
NUMBERS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Rule:
    """Sampling distribution of the next token.

    Attributes
    ----------
    temperature : float, at least 0
        Of the softmax; 0 takes the likeliest token.
    top_k : int, optional
        Only the k likeliest tokens; None: all.
    top_p : float in (0, 1]
        Of those the fewest whose probabilities reach top_p.
    confidence : float in [0, 1], optional
        Adaptive temperature scaling (Scholten et al. 2025, section 5): once the mean probability of the likeliest token
        over the tokens so far exceeds this, the rest of that continuation is greedy; None: never.

    Raises
    ------
    ValueError
        For a value out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and not negative, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1 or None, got {self.top_k}")
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence must lie in [0, 1] or be None, got {self.confidence}")


def sample(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    samples: int,
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    rule: Rule | None = None,
    seed: int = 0,
    questions: Sequence[int] | None = None,
    first: int = 0,
    pad_id: int = 0,
    token_budget: int | None = None,
    max_batch: int | None = None,
    mode: str = "auto",
) -> list[list[list[int]]]:
    """Sample random continuations of each prompt, without the stop token.

    A continuation depends on (seed, question, sample) and not on the rest of the batch, up to the rounding of logits.

    Parameters
    ----------
    model : nn.Module
    prompts : sequence of token ids
    samples : int, at least 1
        Continuations of each prompt.
    max_new_tokens, stop_ids
        As in `decoding.decode`.
    rule : Rule, optional
    seed : int
    questions : sequence of int, optional
        Numbers that stand for the prompts; default 0, 1, …
    first : int, at least 0
        Number of the first sample: calls with first=0, samples=a and first=a, samples=b give what samples=a + b does.
    pad_id, token_budget, max_batch, mode
        As in `decoding.decode`.

    Returns
    -------
    list of lists of token ids, by prompt and sample

    Raises
    ------
    ValueError
        For a value out of range.
    """
    chooser = Chooser(rule or Rule(), seed, _question_numbers(len(prompts), questions), samples, first)
    produced = decode(
        model,
        prompts,
        chooser,
        copies=samples,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        pad_id=pad_id,
        token_budget=token_budget,
        max_batch=max_batch,
        mode=mode,
    )
    return [produced[i * samples : (i + 1) * samples] for i in range(len(prompts))]


def _question_numbers(prompts: int, questions: Sequence[int] | None) -> np.ndarray:
    """The number that stands for each prompt."""
    numbers = np.arange(prompts) if questions is None else np.asarray(questions)
    if numbers.shape != (prompts,):
        raise ValueError(f"{prompts} prompts but {len(numbers)} question numbers")
    return numbers


class Chooser:
    """Samples the next token of each running continuation, and keeps the history that the rule needs."""

    def __init__(self, rule: Rule, seed: int, questions: np.ndarray, samples: int, first: int) -> None:
        if samples < 1 or first < 0:
            raise ValueError(f"samples must be at least 1 and first at least 0, got {samples} and {first}")
        self.rule, self.seed, self.questions, self.samples, self.first = rule, seed, questions, samples, first
        self.steps = np.zeros(len(questions) * samples, np.int32)
        self.confidences = np.zeros(len(self.steps) if rule.confidence is not None else 0)
        self.certain = np.zeros(len(self.confidences), bool)

    def __call__(self, logits: Tensor, units: list[int]) -> Tensor:
        unit = np.asarray(units)
        step = self.steps[unit]
        self.steps[unit] += 1
        question, number = self.questions[unit // self.samples], self.first + unit % self.samples
        chance = torch.from_numpy(uniforms(self.seed, question, number, step)).to(logits.device)
        tokens = draw(logits, chance, self.rule)
        if self.rule.confidence is None:
            return tokens
        with np.errstate(invalid="ignore"):
            self.certain[unit] |= self.confidences[unit] / step > self.rule.confidence
        best, likeliest = logits.float().max(-1)
        self.confidences[unit] += (best - logits.float().logsumexp(-1)).exp().cpu().numpy()
        return torch.where(torch.from_numpy(self.certain[unit]).to(logits.device), likeliest, tokens)


def draw(logits: Tensor, chance: Tensor, rule: Rule) -> Tensor:
    """Sample tokens by inversion: those that uniform numbers pick from the distributions of logits.

    The distribution is the one that transformers' temperature, top-k and top-p processors leave, in that order, but for
    ties at the last place (top-k takes k tokens here, all equal ones there; top-p the reverse). The tokens are ordered
    by falling probability, or by their ids where there are many.

    Parameters
    ----------
    logits : tensor (B, V)
    chance : tensor (B,), in [0, 1)
    rule : Rule

    Returns
    -------
    tensor (B,), int
        Token ids.

    Raises
    ------
    ValueError
        For logits that are not finite.
    """
    size = logits.shape[-1]
    if len(logits) > (rows := max(1, NUMBERS_AT_ONCE // size)):
        parts = zip(logits.split(rows), chance.split(rows), strict=True)
        return torch.cat([draw(some, chances, rule) for some, chances in parts])
    if rule.temperature == 0:
        _check_finite(logits.amax(-1))
        return logits.argmax(-1)
    scaled = logits.float() if rule.temperature == 1 else logits.float() / rule.temperature
    if rule.top_k is None and rule.top_p == 1:
        _check_finite(scaled.amax(-1))
        cumulative = scaled.softmax(-1).cumsum(-1, dtype=torch.float64)
        target = (chance * cumulative[:, -1])[:, None]
        return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=size - 1)
    if rule.top_k is not None:
        return _draw_likeliest(scaled, chance, rule.top_p, min(rule.top_k, size), whole=False)
    return _draw_likeliest(scaled.log_softmax(-1), chance, rule.top_p, min(_LIKELIEST, size), whole=True)


def _check_finite(largest: Tensor) -> None:
    if not torch.isfinite(largest).all():
        raise ValueError("the model's logits are not finite")


def _draw_likeliest(scaled: Tensor, chance: Tensor, top_p: float, count: int, *, whole: bool) -> Tensor:
    """As `draw`, looking at the `count` likeliest tokens of each row, and at all where they do not reach top_p.

    whole: `scaled` are logarithms of the probabilities; otherwise there are no more tokens than these.
    """
    values, ids = scaled.topk(count)
    _check_finite(values[:, 0])
    probability = (values.double() if whole else values.double().log_softmax(-1)).exp_()
    cumulative = probability.cumsum(-1)
    kept = cumulative - probability < top_p
    mass = torch.where(kept, probability, 0.0).sum(-1)
    place = (cumulative <= (chance * mass)[:, None]).sum(-1).clamp_(max=count - 1)
    place = torch.minimum(place, kept.sum(-1) - 1)
    tokens = ids.gather(1, place[:, None]).squeeze(1)
    if whole and count < scaled.shape[-1]:
        short = (cumulative[:, -1] < top_p).nonzero().squeeze(1)
        if short.numel():
            tokens[short] = draw_nucleus(scaled[short].exp_(), chance[short], top_p)
    return tokens


def draw_nucleus(probability: Tensor, chance: Tensor, top_p: float) -> Tensor:
    """As `draw`, for probabilities and any number of tokens within top_p: they are sorted, their ids are not.

    Parameters
    ----------
    probability : tensor (B, V), float32
    chance : tensor (B,), in [0, 1)
    top_p : float in (0, 1]

    Returns
    -------
    tensor (B,), int
        Token ids.
    """
    if probability.device.type == "cpu":
        rows = zip(probability.numpy(), chance.numpy(), strict=True)
        return torch.tensor([_draw_from_nucleus(row, number, top_p) for row, number in rows])
    return draw_all_at_once(probability, chance, top_p)


def draw_all_at_once(probability: Tensor, chance: Tensor, top_p: float) -> Tensor:
    """As `draw_nucleus`, with one sort of all rows at once.

    Parameters
    ----------
    probability : tensor (B, V), float32
    chance : tensor (B,), in [0, 1)
    top_p : float in (0, 1]

    Returns
    -------
    tensor (B,), int
        Token ids.
    """
    falling = probability.sort(-1, descending=True).values
    exact = falling.double()
    kept = exact.cumsum(-1) - exact < top_p
    least = falling.gather(1, kept.sum(-1, keepdim=True) - 1)
    cumulative = torch.where(probability >= least, probability, 0.0).cumsum(-1, dtype=torch.float64)
    mass = cumulative[:, -1:]
    found = torch.searchsorted(cumulative, chance[:, None] * mass, right=True)
    last = (cumulative < mass).sum(-1, keepdim=True)
    return torch.minimum(found, last).squeeze(1)


def _draw_from_nucleus(probability: np.ndarray, chance: float, top_p: float) -> int:
    """`draw_nucleus` for one row (V,).

    It considers only tokens of at least (1 − top_p) / V: the others together have less than 1 − top_p, so that these
    reach top_p without them.
    """
    ids = np.flatnonzero(probability >= (1 - top_p) / len(probability))
    likely = probability[ids]
    falling = np.sort(likely)[::-1].astype(np.float64)
    kept = np.searchsorted(falling.cumsum() - falling, top_p, side="left")
    inside = likely >= falling[kept - 1]
    cumulative = likely[inside].cumsum(dtype=np.float64)
    place = np.searchsorted(cumulative, chance * cumulative[-1], side="right")
    return int(ids[inside][min(place, len(cumulative) - 1)])


def uniforms(seed: int, question: np.ndarray, sample: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Counter-based uniform random numbers: each depends on its (seed, question, sample, step) alone.

    Each argument is mixed in by the finaliser of SplitMix64 (Steele, Lea & Flood 2014).

    Parameters
    ----------
    seed : int, at least 0
    question, sample, step : arrays of integers, at least 0
        Of one shape.

    Returns
    -------
    array of that shape, float64, in [0, 1)
    """
    state = np.full(np.shape(question), seed % 2**64, np.uint64)
    with np.errstate(over="ignore"):
        for part in (question, sample, step):
            state += (np.asarray(part).astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
