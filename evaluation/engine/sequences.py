"""Token sequences and their likelihoods as plain values, without a model or its libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class TokenSequence(NamedTuple):
    """A prompt and an answer as token ids.

    Attributes
    ----------
    prompt : tuple of int
        Not empty.
    answer : tuple of int
        Not empty; ends with EOS if the record is complete.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Scores:
    """Answer likelihoods of S sequences, in the order they were given.

    Attributes
    ----------
    sum_nll, mean_nll : array (S,), float64, at least 0
        Negative log-likelihood of the answer, summed and averaged over its tokens, nats.
    num_tokens : array (S,)
        Answer tokens.
    log_probs, correct : tuple of S arrays (num_tokens,)
        Log-probabilities (float32), and whether the teacher-forced argmax is the token.
    hidden : tuple of S float32 arrays, optional
        Hidden states as requested from `score`; an empty array where none were wanted.
    moments : tuple of S arrays (num_tokens, 2), optional
        Mean and standard deviation of the log-probabilities under the distribution that predicts each answer token;
        empty where not wanted.
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
        """Scores of the sequences at these indices."""
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
