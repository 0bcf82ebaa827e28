"""Strength of a model's association of a person with a fact: calibrated scores, ranks, strengths (WikiMem, section 5).

Arrays hold NLLs, each the sum of -log p over *all* tokens of a filled sentence (natural logarithm), with the candidate
values in their last dimension, C, and usually the templates in the one before, T. Nothing here needs a model or a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

WEIGHT = 1.0
"""a of WikiMem, section 5: the weight of the calibration by look-alike names."""


def calibrated_scores(
    nll: np.ndarray, variant_nll: np.ndarray, generic_nll: np.ndarray | None = None, *, weight: float = WEIGHT
) -> np.ndarray:
    """s(h, v) = [NLL(h0, v) − NLL(h, v)] − a · mean over the look-alikes h~ of [NLL(h0, v) − NLL(h~, v)].

    Parameters
    ----------
    nll : array (..., C)
        With the subject h, nats.
    variant_nll : array (..., S, C), S >= 1
        With each look-alike h~.
    generic_nll : array (..., C), optional
        With the generic subject h0; not needed at weight 1, where its terms cancel.
    weight : float
        a.

    Returns
    -------
    array (..., C), float64, nats

    Raises
    ------
    ValueError
        For shapes that do not fit, a value that is not finite, or a missing array.
    """
    nll, variant_nll = _finite("nll", nll), _finite("variant_nll", variant_nll)
    if variant_nll.ndim != nll.ndim + 1 or variant_nll.shape[:-2] + variant_nll.shape[-1:] != nll.shape:
        raise ValueError(f"variant_nll has shape {variant_nll.shape}; expected (..., S, C) beside nll {nll.shape}")
    if not variant_nll.shape[-2]:
        raise ValueError("variant_nll has no look-alike; expected at least one")
    similar = variant_nll.mean(axis=-2)
    if weight == 1:
        return similar - nll
    if generic_nll is None:
        raise ValueError(f"weight is {weight}: generic_nll is needed for every weight but 1")
    generic = _finite("generic_nll", generic_nll)
    if generic.shape != nll.shape:
        raise ValueError(f"generic_nll has shape {generic.shape}; expected that of nll, {nll.shape}")
    return (generic - nll) - weight * (generic - similar)


def memorized(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether a ground truth has rank 1: its score lies strictly above that of every counterfactual.

    A tie with a counterfactual is no rank 1; ground truths may tie with each other.

    Parameters
    ----------
    scores : array (..., C)
    truth : array (C,), bool
        Which candidates are ground truths.

    Returns
    -------
    array (...), bool

    Raises
    ------
    ValueError
        Without a ground truth or without a counterfactual, or for a score that is not finite.
    """
    scores, truth = _comparable(scores, truth)
    return _lead(scores, truth) > 0


def memorization_strength(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Memorisation strength z* = (D* − mean D) / std D.

    D_i is the score of candidate i less the best score of any other candidate, over all candidates (std: of the
    population); D* is the best score of a ground truth less the best of a counterfactual.

    Parameters
    ----------
    scores, truth
        As in `memorized`.

    Returns
    -------
    array (...), float64
        Positive; NaN where nothing is memorised.

    Raises
    ------
    ValueError
        As `memorized`.
    """
    scores, truth = _comparable(scores, truth)
    best_two = np.sort(scores, axis=-1)[..., -2:]
    second, best = best_two[..., :1], best_two[..., 1:]
    is_best = np.arange(scores.shape[-1]) == scores.argmax(axis=-1)[..., None]
    margins = scores - np.where(is_best, second, best)
    lead = _lead(scores, truth)
    with np.errstate(divide="ignore", invalid="ignore"):
        strength = (lead - margins.mean(axis=-1)) / margins.std(axis=-1)
    return np.where(lead > 0, strength, np.nan)


@dataclass(frozen=True)
class PairScore:
    """Result for a subject and a property.

    Attributes
    ----------
    subject : str
        A name or another text that identifies the person.
    property : str
        An id.
    memorized : array (T,), bool
        Per template.
    strength : array (T,)
        z* per template, NaN where not memorised.
    cohort : str, optional
        The group under which the subject is reported.
    """

    subject: str
    property: str
    memorized: np.ndarray
    strength: np.ndarray
    cohort: str | None = None


def score_pair(subject: str, prop: str, scores: np.ndarray, truth: np.ndarray, cohort: str | None = None) -> PairScore:
    """Ranks and strengths of a subject and a property.

    Parameters
    ----------
    subject, prop : str
    scores : array (T, C), T >= 1
        Calibrated scores.
    truth : array (C,), bool
    cohort : str, optional

    Returns
    -------
    PairScore

    Raises
    ------
    ValueError
        As `memorized`, and for scores of another shape.
    """
    if np.ndim(scores) != 2 or not np.shape(scores)[0]:
        raise ValueError(f"scores of {subject}, {prop} have shape {np.shape(scores)}; expected (T, C) with T >= 1")
    return PairScore(subject, prop, memorized(scores, truth), memorization_strength(scores, truth), cohort)


@dataclass(frozen=True)
class Summary:
    """Figures over pairs of subject and property.

    Attributes
    ----------
    pairs, subjects : int
        How many there are.
    strict_rate : float in [0, 1]
        Share of templates with rank 1, averaged over pairs (WikiMem's M).
    lenient_rate, unanimous_rate : float in [0, 1]
        Share of pairs with rank 1 in any template; in all templates.
    mean_strength : float or None
        Mean z* over all memorised templates; None when there is none.
    unmemorized_subjects : int
        Subjects without any memorised template (WikiMem's H with M = 0).
    """

    pairs: int
    subjects: int
    strict_rate: float
    lenient_rate: float
    unanimous_rate: float
    mean_strength: float | None
    unmemorized_subjects: int


def summarize(pairs: Sequence[PairScore]) -> Summary:
    """Summarise pairs of subject and property.

    Parameters
    ----------
    pairs : sequence of PairScore

    Returns
    -------
    Summary

    Raises
    ------
    ValueError
        Without pairs.
    """
    if not pairs:
        raise ValueError("no pairs of subject and property to summarise")
    strengths = np.concatenate([pair.strength[pair.memorized] for pair in pairs])
    subjects = {pair.subject for pair in pairs}
    known = {pair.subject for pair in pairs if pair.memorized.any()}
    return Summary(
        pairs=len(pairs),
        subjects=len(subjects),
        strict_rate=float(np.mean([pair.memorized.mean() for pair in pairs])),
        lenient_rate=float(np.mean([pair.memorized.any() for pair in pairs])),
        unanimous_rate=float(np.mean([pair.memorized.all() for pair in pairs])),
        mean_strength=float(strengths.mean()) if strengths.size else None,
        unmemorized_subjects=len(subjects - known),
    )


def by_property(pairs: Iterable[PairScore]) -> dict[str, Summary]:
    """Summary per property, in the order in which the properties first occur.

    Parameters
    ----------
    pairs : iterable of PairScore

    Returns
    -------
    dict of Summary
    """
    return _grouped((pair.property, pair) for pair in pairs)


def by_cohort(pairs: Iterable[PairScore]) -> dict[str, Summary]:
    """Summary per cohort, in the order in which the cohorts first occur.

    Parameters
    ----------
    pairs : iterable of PairScore
        Those without a cohort are left out.

    Returns
    -------
    dict of Summary
    """
    return _grouped((pair.cohort, pair) for pair in pairs if pair.cohort is not None)


def _grouped(keyed: Iterable[tuple[str, PairScore]]) -> dict[str, Summary]:
    """A summary of each group of pairs."""
    groups: dict[str, list[PairScore]] = {}
    for key, pair in keyed:
        groups.setdefault(key, []).append(pair)
    return {key: summarize(group) for key, group in groups.items()}


def _lead(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The best score of a ground truth less the best of a counterfactual, (...)."""
    return scores[..., truth].max(axis=-1) - scores[..., ~truth].max(axis=-1)


def _comparable(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and truth as arrays, checked."""
    scores, truth = _finite("scores", scores), np.asarray(truth)
    if truth.dtype != bool or truth.shape != scores.shape[-1:]:
        raise ValueError(f"truth is {truth.dtype} {truth.shape}; expected bool {scores.shape[-1:]}")
    if not truth.any() or truth.all():
        raise ValueError(f"{truth.sum()} of {truth.size} candidates are true; expected at least one true and one not")
    return scores, truth


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    """The values as float64; ValueError unless all are finite."""
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has values that are not finite")
    return array
