"""Representations of records as plain arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Embedded:
    """Representations of forget and retain records under one model.

    Attributes
    ----------
    forget_ids, retain_ids : tuple of n, m str
        Unique within each.
    forget, retain : array (n, d), array (m, d), float32
        A row per id.

    Raises
    ------
    ValueError
        Where ids and rows do not fit together.
    """

    forget_ids: tuple[str, ...]
    forget: np.ndarray
    retain_ids: tuple[str, ...]
    retain: np.ndarray

    def __post_init__(self) -> None:
        for name, ids, rows in (("forget", self.forget_ids, self.forget), ("retain", self.retain_ids, self.retain)):
            if rows.ndim != 2 or len(rows) != len(ids) or len(set(ids)) != len(ids):
                raise ValueError(f"{len(set(ids))} {name} records, but representations of shape {rows.shape}")

    def covers(self, forget_ids: Iterable[str], retain_ids: Iterable[str]) -> bool:
        """Whether all these records are represented."""
        return set(forget_ids) <= set(self.forget_ids) and set(retain_ids) <= set(self.retain_ids)

    def take(self, forget_ids: Sequence[str], retain_ids: Sequence[str]) -> Embedded:
        """Representations of these records, in this order; KeyError for a record that is not there."""
        forget = {name: i for i, name in enumerate(self.forget_ids)}
        retain = {name: i for i, name in enumerate(self.retain_ids)}
        return Embedded(
            tuple(forget_ids),
            self.forget[[forget[name] for name in forget_ids]],
            tuple(retain_ids),
            self.retain[[retain[name] for name in retain_ids]],
        )
