"""The TOFU metrics of any model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from evaluation.engine.fused_lora import fused_lora
from evaluation.hook import EvaluationError, EvaluationSession, Hook
from evaluation.metrics.tofu import SECTIONS, Profile, TofuEvaluator
from oblivionis.api.models import ModelLike, Rows, loaded, questions_of
from oblivionis.config.problems import did_you_mean
from oblivionis.data.errors import DataError
from oblivionis.data.tokenize import PromptTemplate, stop_ids
from oblivionis.models.errors import ModelError


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate_model`.

    Attributes
    ----------
    metrics : mapping of float
        By name. Of each question set `<set>_prob`, `<set>_rouge` (ROUGE-L recall of the greedy answers),
        `<set>_truth_ratio`, `<set>_extraction_strength` and `<set>_exact_memorization`, all in [0, 1]; of all sets but
        forget `model_utility` in [0, 1]; with an oracle `forget_quality`, a p-value, and `forget_ks`. A metric is
        absent where the rows do not have its data. The equations stand in the paper index.
    log : mapping
        Question by question, in the shape that the TOFU authors publish: section, column, number, value. The column
        `generated_text` holds the prompt, what was generated, and the true answer.
    truth_ratios : array (n,), at least 0
        Of the forget questions, for another model's forget quality; empty without perturbed answers.
    truth_ratio : {"geometric", "arithmetic"}
        Which convention they follow.
    notes : mapping of str
        By metric, why one is left out, or how its value is to be read: the paper's ROUGE reads Latin letters and digits
        alone.
    """

    metrics: Mapping[str, float]
    log: Mapping[str, Mapping[str, Mapping[str, Any]]]
    truth_ratios: np.ndarray
    truth_ratio: str
    notes: Mapping[str, str] = field(default_factory=dict)


def evaluate_model(
    model: ModelLike,
    questions: Mapping[str, Rows],
    *,
    template: PromptTemplate | None = None,
    oracle: Evaluation | None = None,
    truth_ratio: Literal["geometric", "arithmetic"] = "geometric",
    rouge: Literal["paper", "any_script"] = "paper",
    max_new_tokens: int = 200,
    max_length: int | None = None,
    on_overflow: Literal["error", "truncate"] = "error",
) -> Evaluation:
    """The TOFU metrics (Maini et al. 2024; Oblivionis eqs. 10 to 18) of a model, however it was trained.

    Parameters
    ----------
    model : ModelLike
    questions : mapping of Rows
        Some of the sets `forget`, `retain`, `real_authors`, `world_facts`. The truth ratio needs `perturbed_answer`; it
        takes `paraphrased_answer` for the right answer where it is there.
    template : PromptTemplate, optional
        As in training; None: "Question: …", new line, "Answer:". `PromptTemplate("chat")` is the tokenizer's own.
    oracle : Evaluation, optional
        Of the retrained model, with the same forget questions.
    truth_ratio : {"geometric", "arithmetic"}
        Mean over the perturbed answers; geometric in the published tables.
    rouge : {"paper", "any_script"}
        A word is a run of a-z and 0-9, as in the published tables, or a word of any script.
    max_new_tokens : int
        Longest greedy answer; 0: none are made, and there is no ROUGE.
    max_length : int, optional
        Most tokens of prompt and answer; None: as many as the model has positions.
    on_overflow : {"error", "truncate"}
        What becomes of longer ones.

    Returns
    -------
    Evaluation
        With the numbers of `oblivionis evaluate`.

    Raises
    ------
    ModelError
        For what is no model, or gives no finite numbers.
    DataError
        For unknown sets and faulty rows (all at once).
    ValueError
        For an oracle that does not fit, and other values out of range.
    """
    _check_sets(questions)
    ratios = _ratios_of(oracle, truth_ratio)
    network, tokenizer = loaded(model)
    style = template or PromptTemplate()
    asked = {
        name: questions_of(rows, name, network, tokenizer, style, max_length, on_overflow)
        for name, rows in questions.items()
    }
    profile = Profile(max_new_tokens=max_new_tokens)
    evaluator = TofuEvaluator(asked, partial(_text, tokenizer), truth_ratio, ratios, profile, rouge)
    return _evaluated(network, tokenizer, style, evaluator)


def _check_sets(names: Collection[str]) -> None:
    """Raise DataError for an unknown question set, or none at all."""
    for name in names:
        if name not in SECTIONS:
            hint = did_you_mean(name, SECTIONS) or f"expected some of {', '.join(SECTIONS)}"
            raise DataError(f"unknown question set {name!r}; {hint}")
    if not names:
        raise DataError(f"no questions; expected some of the sets {', '.join(SECTIONS)}")


def _ratios_of(oracle: Evaluation | None, truth_ratio: str) -> list[float] | None:
    """The truth ratios of an oracle; ValueError where they are of another convention, or there are none."""
    if oracle is None:
        return None
    if oracle.truth_ratio != truth_ratio or not oracle.truth_ratios.size:
        raise ValueError(
            f"the oracle needs {truth_ratio} truth ratios of forget questions: evaluate the retrained model with the "
            f"same questions and truth_ratio={truth_ratio!r}"
        )
    return oracle.truth_ratios.tolist()


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of token ids, without special tokens."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def _evaluated(
    network: nn.Module, tokenizer: PreTrainedTokenizerBase, style: PromptTemplate, evaluator: TofuEvaluator
) -> Evaluation:
    """What an evaluator finds of a model; ModelError where it cannot be evaluated."""
    pad_id: Any = tokenizer.pad_token_id
    session = EvaluationSession(network, stop_ids=stop_ids(tokenizer, network, style), pad_id=pad_id or 0)
    try:
        with fused_lora(network):
            result = Hook([evaluator], strict=True).run(session).results[evaluator.name]
    except EvaluationError as error:
        raise ModelError(f"the model cannot be evaluated: {error.__cause__}") from error
    details = result.details
    ratios = np.asarray(details["forget_truth_ratios"])
    return Evaluation(result.metrics, details["log"], ratios, evaluator.convention, result.notes)
