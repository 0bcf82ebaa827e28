"""Models of any origin, and rows of questions, as the functions of this room take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import nn
from transformers import PreTrainedTokenizerBase

from evaluation.engine.models import text_config
from evaluation.metrics.tofu import Question
from oblivionis.config.adapter_folder import is_adapter
from oblivionis.data.errors import raise_if_any
from oblivionis.data.own_records import to_record
from oblivionis.data.records import Record
from oblivionis.data.tokenize import PromptTemplate
from oblivionis.measures.questions import tokenised
from oblivionis.models.errors import ModelError
from oblivionis.models.loading import load_base
from oblivionis.models.peft_adapters import attach_adapter
from oblivionis.models.source import base_of
from oblivionis.row_files import Row

ModelLike: TypeAlias = str | Path | tuple[nn.Module, PreTrainedTokenizerBase]
"""A model folder, a name on the Hugging Face hub, `embedded` (the tiny Llama that ships), or (model, tokenizer)."""
Rows: TypeAlias = Sequence[Mapping[str, Any]]
"""Questions as TOFU's files have them: `question` and `answer`, and what may be there besides, `paraphrased_answer`,
`perturbed_answer` (a list), `id`, `subject`."""


def load_model(
    source: str | Path,
    *,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    revision: str | None = None,
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """A causal language model in evaluation mode, and its tokenizer, which has a padding token.

    Parameters
    ----------
    source : str or Path
        As `ModelLike`; safetensors only, and no code in a folder is run. A folder with a peft adapter gives its base
        model with the adapter on it.
    dtype : {"float32", "bfloat16", "float16"}
        Of the weights.
    device : {"auto", "cpu", "cuda"}
        `auto` takes a GPU when there is one.
    revision : str, optional
        A commit, tag or branch on the hub.

    Returns
    -------
    model : nn.Module
    tokenizer : PreTrainedTokenizerBase

    Raises
    ------
    ModelError
        For what is no such model, or an adapter that does not fit its base model.
    """
    folder = Path(source).expanduser()
    if not is_adapter(folder):
        return load_base(str(source), dtype=dtype, device=device, revision=revision)
    model, tokenizer = load_base(base_of(folder), dtype=dtype, device=device, revision=revision)
    return attach_adapter(model, folder), tokenizer


def loaded(model: ModelLike) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Model and tokenizer of any `ModelLike`.

    Parameters
    ----------
    model : ModelLike

    Returns
    -------
    model : nn.Module
    tokenizer : PreTrainedTokenizerBase

    Raises
    ------
    ModelError
        For what is no model.
    """
    if isinstance(model, str | Path):
        return load_model(model)
    if not (isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], nn.Module)):
        given = type(model).__name__
        raise ModelError(f"expected a model folder, a name on the hub or (model, tokenizer), got {given}")
    return model


def records_of(rows: Rows, name: str) -> list[Record]:
    """The rows as records.

    Parameters
    ----------
    rows : Rows
    name : str
        Of the rows, in messages.

    Returns
    -------
    list of Record

    Raises
    ------
    DataError
        With every faulty row, by `name` and number from 0; also without rows.
    """
    problems: list[str] = []
    records: list[Record] = []
    if isinstance(rows, str | Mapping) or not rows:
        problems.append(f"{name}: expected a list of at least one question")
        rows = []
    for number, row in enumerate(rows):
        where = f"{name}[{number}]"
        if not isinstance(row, Mapping):
            problems.append(f"{where}: expected a mapping with question and answer, found {type(row).__name__}")
        elif (record := to_record(Row(where, row), problems)) is not None:
            records.append(record)
    raise_if_any("questions", problems)
    return records


def questions_of(
    rows: Rows,
    name: str,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    template: PromptTemplate,
    max_length: int | None,
    on_overflow: str,
) -> list[Question]:
    """The rows as token ids.

    Parameters
    ----------
    rows : Rows
    name : str
        Of the rows, in messages.
    model : nn.Module
    tokenizer : PreTrainedTokenizerBase
    template : PromptTemplate
    max_length : int, optional
        Most tokens of prompt and answer; None: as many as the model has positions.
    on_overflow : {"error", "truncate"}
        What becomes of longer ones.

    Returns
    -------
    list of Question

    Raises
    ------
    DataError
        With every faulty row.
    """
    limit = getattr(text_config(model), "max_position_embeddings", None) if max_length is None else max_length
    return tokenised(records_of(rows, name), tokenizer, template, max_length=limit, on_overflow=on_overflow)
