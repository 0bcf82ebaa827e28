"""RULER: do a model's representations still hold forgotten records? Its two lenses, and statistics over runs.

Representations are arrays (records, dim), from `representations` or from any network: the activation right before the
task head, a row per record.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.likelihood import score
from evaluation.ruler.evaluator import POOLINGS
from evaluation.ruler.lenses import (
    Array,
    PercentileRank,
    calibration_gap,
    cosine,
    oracle_similarity,
    percentile_rank,
    representation_shift,
)
from evaluation.ruler.rank_significance import RankTest, rank_test
from evaluation.ruler.statistics import (
    MixedModel,
    NoiseBand,
    PairTest,
    SignedRank,
    mixed_model,
    noise_band,
    post_hoc,
    signed_rank,
    threshold_attack,
)
from oblivionis.api.models import ModelLike, Rows, loaded, questions_of
from oblivionis.data.tokenize import PromptTemplate

__all__ = [
    "Array",
    "MixedModel",
    "NoiseBand",
    "PairTest",
    "PercentileRank",
    "RankTest",
    "SignedRank",
    "calibration_gap",
    "cosine",
    "mixed_model",
    "noise_band",
    "oracle_similarity",
    "percentile_rank",
    "post_hoc",
    "rank_test",
    "representation_shift",
    "representations",
    "signed_rank",
    "threshold_attack",
]


def representations(
    model: ModelLike,
    records: Rows,
    *,
    pooling: Literal["last", "mean"] = "last",
    layer: int | None = None,
    template: PromptTemplate | None = None,
    max_length: int | None = None,
    on_overflow: Literal["error", "truncate"] = "error",
) -> np.ndarray:
    """A language model's representations of records, as the lenses take them (RULER, section 3).

    Parameters
    ----------
    model : ModelLike
    records : Rows
        Rows with `question` and `answer`.
    pooling : {"last", "mean"}
        The state of the last answer token, or the mean over the answer tokens.
    layer : int, optional
        States that leave this decoder layer, from 0 or, negative, from the last; None: those that enter the
        language-model head.
    template, max_length, on_overflow
        As in `evaluate_model`.

    Returns
    -------
    array (records, dim), float32

    Raises
    ------
    ModelError
        For what is no model.
    DataError
        For faulty rows (all at once).
    ValueError
        For another pooling, or a layer that the model does not have.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"unknown pooling {pooling!r}, expected {' or '.join(POOLINGS)}")
    network, tokenizer = loaded(model)
    style = template or PromptTemplate()
    asked = questions_of(records, "records", network, tokenizer, style, max_length, on_overflow)
    with fused_lora(network):
        states = score(network, [question.sequences()[0] for question in asked], hidden=pooling, layer=layer).hidden
    assert states is not None
    return np.stack(states)
