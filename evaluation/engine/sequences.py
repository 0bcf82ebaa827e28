"""What a model reads and what it says of it, as plain values: nothing here needs a model or its libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class TokenSequence(NamedTuple):
    """One (prompt, answer) pair of token ids; both non-empty, the answer ends with EOS if the record is complete."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Scores:
    """Answer likelihoods of S sequences, in the order they were given.

    sum_nll, mean_nll (S,) float64, nats, >= 0; num_tokens (S,) answer tokens; log_probs, correct: per sequence one
    array (num_tokens,) of log-probabilities (float32) and of whether the teacher-forced argmax is the token;
    hidden: what `score` was asked for, per sequence one float32 array (empty where no states were wanted), or None;
    moments: per sequence mean and standard deviation (num_tokens, 2) of the log-probabilities under the distribution
    that predicts each answer token (empty where not wanted), or None.
    """

    sum_nll: np.ndarray
    mean_nll: np.ndarray
    num_tokens: np.ndarray
    log_probs: tuple[np.ndarray, ...]
    correct: tuple[np.ndarray, ...]
    hidden: tuple[np.ndarray, ...] | None = None
    moments: tuple[np.ndarray, ...] | None = None

    def __len__(self) -> int:
        return len(self.log_probs)

    def take(self, indices: Sequence[int]) -> Scores:
        """The scores of the sequences at these indices."""
        index = np.asarray(indices, dtype=np.int64)
        return Scores(
            self.sum_nll[index],
            self.mean_nll[index],
            self.num_tokens[index],
            tuple(self.log_probs[i] for i in indices),
            tuple(self.correct[i] for i in indices),
            None if self.hidden is None else tuple(self.hidden[i] for i in indices),
            None if self.moments is None else tuple(self.moments[i] for i in indices),
        )
