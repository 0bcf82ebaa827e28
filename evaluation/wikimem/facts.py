"""Facts about people, and the values that compete with the true ones (WikiMem, sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

COUNTERFACTUALS = 100
SAME_MEANING = 0.75
"""Cosine above which a counterfactual counts as the ground truth that it resembles (WikiMem, footnote 7)."""

Embed = Callable[[Sequence[str]], np.ndarray]
"""Texts to sentence embeddings, (n,) -> (n, width)."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a person: the true values of one property.

    Attributes
    ----------
    subject : str
        The person's name.
    property : str
        An id such as P19.
    values : tuple of str
        All known true values, at least one.
    cohort : str, optional
        The group under which the subject is reported (such as well-known).
    """

    subject: str
    property: str
    values: tuple[str, ...]
    cohort: str | None = None


def candidates(truths: Sequence[str], counterfactuals: Sequence[str], count: int = COUNTERFACTUALS) -> tuple[str, ...]:
    """Candidate values: the distinct ground truths, then the first distinct counterfactuals that are none of them.

    Letter case does not tell two values apart.

    Parameters
    ----------
    truths, counterfactuals : sequence of str
    count : int
        At most so many counterfactuals.

    Returns
    -------
    tuple of str

    Raises
    ------
    ValueError
        Without a ground truth or without a counterfactual.
    """
    right, wrong = _distinct(truths), _distinct(counterfactuals)
    others = [value for key, value in wrong.items() if key not in right][:count]
    if not right or not others:
        raise ValueError(f"{len(right)} true and {len(others)} other values; expected at least one of each to compare")
    return (*right.values(), *others)


def true_values(
    candidates: Sequence[str], truths: Sequence[str], embed: Embed | None = None, threshold: float = SAME_MEANING
) -> np.ndarray:
    """Which candidates count as ground truths.

    Parameters
    ----------
    candidates, truths : sequence of str
        A candidate counts if it equals a ground truth but for letter case.
    embed : Embed, optional
        A candidate also counts if its embedding is similar to that of a ground truth ("English" and "British English").
    threshold : float
        Cosine above which embeddings are similar.

    Returns
    -------
    array (n,), bool

    Raises
    ------
    ValueError
        When no candidate is a ground truth.
    """
    right = _distinct(truths)
    mask = np.array([value.casefold() in right for value in candidates], dtype=bool)
    if not mask.any():
        raise ValueError(f"none of the {len(candidates)} candidates is a ground truth ({', '.join(truths)})")
    if embed is not None:
        vectors = np.asarray(embed(list(candidates)), np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = vectors / np.where(lengths == 0, 1, lengths)
        mask |= (unit @ unit[mask].T > threshold).any(axis=1)
    return mask


def _distinct(values: Sequence[str]) -> dict[str, str]:
    """Values in their order by their case-folded form; of equal ones the first."""
    found: dict[str, str] = {}
    for value in values:
        found.setdefault(value.casefold(), value)
    return found
