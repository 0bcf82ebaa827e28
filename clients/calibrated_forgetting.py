"""Calibrated forgetting: estimates how likely a record is to a model that never saw it, and unlearns up to that level.

Two things are known of a record that is to be forgotten: how likely its answer is to the untouched base model, and how
training has since changed the likelihood of records that nobody trains on, the reference records. A line fitted to the
latter, present against base negative log-likelihood, maps the former to an estimate of the record's likelihood had it
never been trained on. A monotone curve fitted to their tokens says how that divides among the answer's tokens, and how
much sharper the model's distributions have become is estimated from the references, too. No oracle is needed and
nothing leaves the client.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.interpolate import CubicHermiteSpline
from scipy.optimize import isotonic_regression
from torch import Tensor, nn

from clients.batch_quantities import BatchQuantities
from clients.distributions import mean_entropy, row_leads, row_statistics
from clients.flat_parameters import FlatParameters
from evaluation.engine.forward import AnswerRows, answer_rows, packed_batch
from evaluation.engine.models import base_model, evaluation_mode
from evaluation.engine.sequences import TokenSequence

LEAST_REFERENCES = 8
"""Fewest reference records that a line is fitted to."""
_SHARPEST = 4.0
_CELLS = 1 << 10
_STRETCHES = 1 << 6
_PER_STRETCH = 2 * math.log(_SHARPEST) / _STRETCHES
_LEAST_NLL = 1e-4
"""Least negative log-likelihood of a token, nats; below it the logit would have no bound."""
_TOKENS = 1024
"""Tokens in one pass without gradients, where that is more than a batch of records."""
_SURELY = 0.9
"""Within this share of the tolerance a record is at its target whatever the rounding."""
KEPT_BYTES = 1 << 26
"""Most bytes of kept predictions: of the references in the base model, of these in the present one, and of the records;
larger ones are computed again."""


@dataclass(frozen=True, slots=True)
class Target:
    """Level up to which each record is forgotten.

    Attributes
    ----------
    nll : tensor (n,)
        Mean negative log-likelihood of each forget record's answer under a model that never saw it, nats per token.
    tolerance : float above 0
        A record no further from it is left alone, nats per token.
    base : array (size,)
        Trainable parameters of the untouched base model.
    sharpness : float
        What its logits are multiplied by for distributions as sharp as the present model's.
    lowered : tuple of n tensors (L_i,), optional
        Then taken off the logits of the true tokens, so that they get their target probability; None: nothing.
    rows : tuple of n AnswerRows, optional
        What predicts each record's answer tokens in the base model; None: computed when needed.
    present : tensor (n,), optional
        `nll` of the model before anything is unlearned; None: computed.
    recited : tuple of n tensors (L_i,), bool, optional
        Recited tokens: of a record that greedy decoding recites, the answer tokens that its target distributions would
        not choose. None: no record is recited.

    Raises
    ------
    ValueError
        If the tolerance is not above 0.
    """

    nll: Tensor
    tolerance: float
    base: np.ndarray
    sharpness: float = 1.0
    lowered: tuple[Tensor, ...] | None = None
    rows: tuple[AnswerRows, ...] | None = None
    present: Tensor | None = None
    recited: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}")


def never_seen_nll(reference_base: np.ndarray, reference_now: np.ndarray, record_base: np.ndarray) -> np.ndarray:
    """Estimate how likely records are to a model that never saw them.

    The least-squares line through the references, present against base, with a slope of at least 0.

    Parameters
    ----------
    reference_base, reference_now : array (m,)
        Mean negative log-likelihoods of records that nobody trains on, under the base model and the present one.
    record_base : array (n,)
        Of the records, under the base model.

    Returns
    -------
    array (n,), at least 0
        Mean negative log-likelihood, nats per token.

    Raises
    ------
    ValueError
        For fewer than `LEAST_REFERENCES` references, or shapes that do not fit.
    """
    if reference_base.shape != reference_now.shape or reference_base.ndim != 1:
        raise ValueError(f"{reference_base.shape} base values do not fit {reference_now.shape} present ones")
    if len(reference_base) < LEAST_REFERENCES:
        raise _too_few(len(reference_base))
    middle = reference_base - reference_base.mean()
    spread = float(middle @ middle)
    slope = max(0.0, float(middle @ reference_now) / spread) if spread > 0 else 0.0
    return np.maximum(reference_now.mean() + slope * (record_base - reference_base.mean()), 0.0)


def never_seen_token_nll(
    reference_base: np.ndarray, reference_now: np.ndarray, record_base: Sequence[np.ndarray], means: np.ndarray
) -> list[np.ndarray]:
    """Divide the estimated means of records among their answer tokens.

    Isotonic regression of present on base values, interpolated, and scaled to each record's mean.

    Parameters
    ----------
    reference_base, reference_now : array (M,)
        Negative log-likelihood of every token of the references.
    record_base : sequence of n arrays (L_i,)
        Of the records' tokens under the base model.
    means : array (n,)
        From `never_seen_nll`.

    Returns
    -------
    list of n arrays (L_i,), at least 0, nats
    """
    known, inverse, counts = np.unique(reference_base, return_inverse=True, return_counts=True)
    fitted = isotonic_regression(np.bincount(inverse, reference_now) / counts, weights=counts).x
    interpolated = [np.interp(values, known, fitted) for values in record_base]
    return [
        values * (mean / values.mean()) if values.mean() > 0 else np.full(values.shape, mean)
        for values, mean in zip(interpolated, means, strict=True)
    ]


@torch.no_grad()
def record_nll(model: nn.Module, sequences: Sequence[TokenSequence], batch_size: int) -> Tensor:
    """Mean negative log-likelihood of each sequence's answer tokens, in evaluation mode.

    Parameters
    ----------
    model : nn.Module
    sequences : sequence of n TokenSequence
    batch_size : int

    Returns
    -------
    tensor (n,), nats per token
    """
    with evaluation_mode(model):
        parts = [
            BatchQuantities(model, sequences[i : i + batch_size], []).forget_nll
            for i in range(0, len(sequences), batch_size)
        ]
    return torch.cat(parts) if parts else torch.zeros(0)


class Estimator:
    """Estimates forgetting targets from one set of records that nobody trains on.

    Values under the base model, of the references and of records whose target is estimated again, are computed once;
    values of the references under the present model once for the same parameters, as clients have them that receive the
    same model in one round.

    Parameters
    ----------
    model : nn.Module
    flat : FlatParameters
    base : array (size,)
        Parameters of the untouched base model.
    references : sequence of TokenSequence
    batch_size : int

    Raises
    ------
    ValueError
        For fewer than `LEAST_REFERENCES` references.
    """

    def __init__(
        self,
        model: nn.Module,
        flat: FlatParameters,
        base: np.ndarray,
        references: Sequence[TokenSequence],
        batch_size: int,
    ) -> None:
        if len(references) < LEAST_REFERENCES:
            raise _too_few(len(references))
        self.references = tuple(references)
        self._model, self._flat, self._base, self._batch_size = model, flat, base, batch_size
        self.kept_before: Tokens | None = None
        self.kept_own: OrderedDict[tuple[TokenSequence, ...], Tokens] = OrderedDict()
        self._now: tuple[bytes, Tokens] | None = None

    @torch.no_grad()
    def target(
        self, records: Sequence[TokenSequence], tolerance: float, recited: Collection[int] = frozenset()
    ) -> Target:
        """Estimate the target of records; the model's parameters are the same afterwards.

        Where each of the records is well within the tolerance, and none is recited, there is nothing to forget, and no
        distribution is made.

        Parameters
        ----------
        records : sequence of n TokenSequence
        tolerance : float above 0
            Nats per token.
        recited : collection of int
            Places of the records that greedy decoding recites.

        Returns
        -------
        Target

        Raises
        ------
        ValueError
            If the references' likelihoods are not finite.
        """
        model, flat, size = self._model, self._flat, self._batch_size
        present = flat.numpy()
        with evaluation_mode(model):
            now = self._present(present)
            present_tokens = Tokens.of(model, records, size)
            before = self.kept_before or self._of_base(self.references, present)
            own = self._own_of_base(tuple(records), present)
        self.kept_before = before if self._keeps(before) else None
        if not np.isfinite(now.means()).all():
            raise ValueError("the model's likelihoods of the reference records are not finite")
        means = never_seen_nll(before.means(), now.means(), own.means())
        nll, current = (torch.from_numpy(values).float() for values in (means, present_tokens.means()))
        if not recited and ((current - nll).abs() <= _SURELY * tolerance).all():
            return Target(nll, tolerance, self._base, present=current)
        sharpness = sharpness_for(before, now.entropy())
        wanted = never_seen_token_nll(np.concatenate(before.nll()), np.concatenate(now.nll()), own.nll(), means)
        lowered = tuple(
            torch.from_numpy(logit(untouched) - logit(target)).float()
            for untouched, target in zip(own.nll(sharpness), wanted, strict=True)
        )
        rows = own.each() if self._keeps(own) else None
        tokens = own.recited(sharpness, lowered, recited) if recited else None
        return Target(nll, tolerance, self._base, sharpness, lowered, rows, current, tokens)

    def _own_of_base(self, records: tuple[TokenSequence, ...], present: np.ndarray) -> Tokens:
        """As `_of_base`; the latest results are kept for later calls, within a memory limit."""
        own = self.kept_own
        tokens = own.pop(records) if records in own else self._of_base(records, present)
        own[records] = tokens
        while own and sum(kept.kept_bytes(self._model) for kept in own.values()) > KEPT_BYTES:
            own.popitem(last=False)
        return tokens

    def _of_base(self, records: tuple[TokenSequence, ...], present: np.ndarray) -> Tokens:
        """Predictions of `records` under the base model; the parameters `present` are restored."""
        self._flat.load(self._base)
        try:
            return Tokens.of(self._model, records, self._batch_size)
        finally:
            self._flat.load(present)

    def _present(self, parameters: np.ndarray) -> Tokens:
        """Predictions of the references under the present parameters."""
        key = hashlib.blake2b(parameters.tobytes()).digest()
        if self._now is not None and self._now[0] == key:
            return self._now[1]
        tokens = Tokens.of(self._model, self.references, self._batch_size)
        self._now = (key, tokens) if self._keeps(tokens) else None
        return tokens

    def _keeps(self, tokens: Tokens) -> bool:
        """Whether predictions are small enough to be kept."""
        return tokens.kept_bytes(self._model) <= KEPT_BYTES


@dataclass(frozen=True, slots=True)
class Tokens:
    """Predictions of the answer tokens of some records, with the statistics computed so far.

    Attributes
    ----------
    rows : AnswerRows
        What predicts the T answer tokens, one record after the other.
    labels : tensor (T,), int
        Their ids.
    lengths : list of int
        How many each record has.
    known : dict
        Log-probabilities (T,) and mean entropy, nats, by sharpness.
    curve : dict
        What `at` gave, by node.
    """

    rows: AnswerRows
    labels: Tensor
    lengths: list[int]
    known: dict[float, tuple[Tensor, float]] = field(default_factory=dict)
    curve: dict[int, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, records: Sequence[TokenSequence], batch_size: int) -> Tokens:
        """Compute the predictions of `records` under `model`."""
        predictions, labels = [], []
        for part in batches(records, batch_size):
            batch = packed_batch(model, part)
            predictions.append(answer_rows(model, batch))
            labels.append(batch.labels)
        rows = AnswerRows(torch.cat([part.values for part in predictions]), predictions[0].head)
        return cls(rows, torch.cat(labels), [len(record.answer) for record in records])

    def kept_bytes(self, model: nn.Module) -> int:
        """Memory of the predictions, with the head where that is not the model's own."""
        values, head = self.rows.values, self.rows.head
        base: Any = base_model(model)
        known = base.get_output_embeddings().weight.data_ptr()
        return values.nbytes + (0 if head is None or head.data_ptr() == known else head.nbytes)

    def each(self) -> tuple[AnswerRows, ...]:
        """The predictions of each record."""
        return tuple(AnswerRows(part, self.rows.head) for part in self.rows.values.split(self.lengths))

    def nll(self, sharpness: float = 1.0) -> list[np.ndarray]:
        """Negative log-likelihoods of each record's tokens, (L_i,) each, nats."""
        log_p, _ = self._statistics(sharpness)
        return [-part.double().cpu().numpy() for part in log_p.split(self.lengths)]

    def means(self) -> np.ndarray:
        """Mean of `nll` over each record's tokens, (n,)."""
        return np.array([part.mean() for part in self.nll()])

    def recited(self, sharpness: float, lowered: Sequence[Tensor], of: Collection[int]) -> tuple[Tensor, ...]:
        """Of the records at the places `of` which answer tokens the sharpened distributions would not choose, once the
        logits of the true tokens are `lowered`; of the others none."""
        leads = row_leads(self.rows.scaled(sharpness), self.labels, torch.cat(list(lowered)).to(self.labels.device))
        others = (leads < 0).cpu().split(self.lengths)
        return tuple(mask & (i in of) for i, mask in enumerate(others))

    def entropy(self) -> float:
        """Mean entropy over all tokens, nats."""
        return self._statistics(1.0)[1]

    def at(self, node: int) -> tuple[float, float]:
        """`entropy` at a node of the search for a sharpness, and its slope over ln sharpness."""
        if node not in self.curve:
            self.curve[node] = mean_entropy(self.rows.scaled(math.exp(_place(node))))
        return self.curve[node]

    def _statistics(self, sharpness: float) -> tuple[Tensor, float]:
        """Log-probabilities and mean entropy at a sharpness."""
        if sharpness not in self.known:
            statistics = row_statistics(self.rows.scaled(sharpness), self.labels)
            assert statistics.entropy is not None
            self.known[sharpness] = statistics.log_p, statistics.entropy.mean().item()
        return self.known[sharpness]


@torch.no_grad()
def kept_predictions(
    model: nn.Module, records: Sequence[TokenSequence], batch_size: int
) -> tuple[AnswerRows, ...] | None:
    """What predicts each record's answer tokens under the model as it is, in evaluation mode.

    Parameters
    ----------
    model : nn.Module
    records : sequence of n TokenSequence
    batch_size : int

    Returns
    -------
    tuple of n AnswerRows, or None where they take more than `KEPT_BYTES`
    """
    if not records:
        return ()
    with evaluation_mode(model):
        first = Tokens.of(model, records[:1], 1)
        ratio = sum(len(record.answer) for record in records) / len(records[0].answer)
        if first.kept_bytes(model) + (ratio - 1) * first.rows.values.nbytes > KEPT_BYTES:
            return None
        return Tokens.of(model, records, batch_size).each()


def batches(records: Sequence[TokenSequence], batch_size: int) -> Iterator[Sequence[TokenSequence]]:
    """Batches of records, in order.

    Parameters
    ----------
    records : sequence of TokenSequence
    batch_size : int, at least 1
        Records in a batch; more where they have at most `_TOKENS` tokens.

    Yields
    ------
    sequence of TokenSequence
    """
    start = 0
    while start < len(records):
        end, tokens = start, 0
        while end < len(records):
            tokens += len(records[end].prompt) + len(records[end].answer)
            if tokens > _TOKENS and end - start >= batch_size:
                break
            end += 1
        yield records[start:end]
        start = end


def sharpness_for(tokens: Tokens, entropy: float) -> float:
    """Factor on the logits, from 1/4 to 4, that gives a mean entropy.

    It is the middle of one of `_CELLS` parts of that range's logarithm, so that rounding seldom changes it. Entropy
    falls as logits grow. Each evaluation computes all logits, so entropy and slope are evaluated only at the ends of
    `_STRETCHES` stretches: tangents lead to the one that contains the solution, or the middle of what is left where one
    got less than half the way, and within it the entropy follows a cubic. Evaluations are kept.

    Parameters
    ----------
    tokens : Tokens
    entropy : float
        Nats.

    Returns
    -------
    float
    """
    low, high, node = 0, _STRETCHES, _STRETCHES // 2
    while high - low > 1:
        width, (value, slope) = high - low, tokens.at(node)
        low, high = (node, high) if value > entropy else (low, node)
        met = node + (entropy - value) / (slope * _PER_STRETCH) if slope < 0 else math.inf
        trusted = math.isfinite(met) and high - low <= width / 2
        node = min(max(math.floor(met), low + 1), high - 1) if trusted else (low + high) // 2
    entropies, slopes = zip(tokens.at(low), tokens.at(high), strict=True)
    curve = CubicHermiteSpline([_place(low), _place(high)], entropies, slopes)
    edges = np.linspace(_place(low), _place(high), _CELLS // _STRETCHES + 1)
    cell = int((curve(edges[1:-1]) > entropy).sum())
    return math.exp((edges[cell] + edges[cell + 1]) / 2)


def _place(node: int) -> float:
    """Logarithm of the factor on the logits at a node; 0 in the middle."""
    return _PER_STRETCH * (node - _STRETCHES // 2)


def logit(nll: np.ndarray) -> np.ndarray:
    """Logit log(p/(1 − p)) of probabilities.

    Parameters
    ----------
    nll : array, any shape
        −log p, nats; at least `_LEAST_NLL` counts.

    Returns
    -------
    array of the same shape
    """
    nll = np.maximum(nll, _LEAST_NLL)
    return -nll - np.log(-np.expm1(-nll))


def _too_few(count: int) -> ValueError:
    """The error for too few reference records."""
    return ValueError(
        f"{count} records that nobody trains on are too few to judge by; expected at least {LEAST_REFERENCES}"
    )
