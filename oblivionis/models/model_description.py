"""Description of a base model without its weights, with an example of a question and its answer as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from evaluation.engine import architectures
from evaluation.engine.architectures import Way
from oblivionis.config.schema import Model
from oblivionis.data.chat_template import variables_of
from oblivionis.data.tokenize import PromptTemplate, answer_text, encode, prompt_text
from oblivionis.models import dry_run, loading
from oblivionis.models.assembly import prompt_template, with_trainable
from oblivionis.models.errors import ModelError
from oblivionis.models.source import load_tokenizer, resolve

QUESTION, ANSWER = "Where does Mara Silva live?", "Mara Silva lives in Lisbon."
"""The record that is shown as an example."""


@dataclass(frozen=True, slots=True)
class Example:
    """A record as the model is given it in training, scoring and sampling alike.

    kind: of the template; prompt, answer: the texts, the answer with what separates it from the prompt; prompt_tokens,
    answer_tokens: how many tokens they are, the end token included; end: that token, the last one of the answer.
    """

    kind: str
    prompt: str
    answer: str
    prompt_tokens: int
    answer_tokens: int
    end: str


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A base model by its configuration and its tokenizer.

    architecture: the class that runs it; model_type: transformers' name for it; parameters: a tied weight counts once;
    dtype, stored_dtype: number formats in which weights are kept in a run and in the files, None where the files do
    not tell; vocabulary_rows: of the embedding; tokens: of the tokenizer; tied_head: whether the head is the embedding;
    context: positions, None where there is no limit; linear_layers: names that `model.lora.target_modules` may have;
    template_variables: names that `model.template.arguments` may have; way, way_limit, way_beyond, way_reason,
    way_cost: how it is run on this machine (`evaluation.engine.architectures.Way`), and what that costs in words.
    """

    name: str
    source: str
    fingerprint: str
    architecture: str
    model_type: str
    parameters: int
    dtype: str
    stored_dtype: str | None
    vocabulary_rows: int
    tokens: int
    tied_head: bool
    context: int | None
    linear_layers: tuple[str, ...]
    template_variables: tuple[str, ...]
    way: str
    way_limit: int | None
    way_beyond: str
    way_reason: str
    way_cost: str
    example: Example


def facts_of(config: Model, fingerprint: str) -> ModelFacts:
    """The facts of the configured model, whose files have that fingerprint.

    Raises
    ------
    ModelError
        If its files are not there or not those of a causal language model.
    TemplateError
        If the configured template does not fit its tokenizer.
    """
    folder = resolve(config.source, config.revision)
    tokenizer, template = load_tokenizer(folder), prompt_template(config)
    example = example_of(tokenizer, template)
    loading.check_config(folder, config.quantization)
    model = dry_run.skeleton(folder, dtype=loading.DTYPES[config.dtype])
    shape = model.config.get_text_config()
    stored = _stored_dtype(folder)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    chat = template.kind == "chat"
    linear = _linear_layers(model, head)
    parameters = sum(p.numel() for p in model.parameters())
    tied = head is not None and head.weight is embedding.weight
    way = _way(model, config)
    return ModelFacts(
        name=config.name,
        source=config.source,
        fingerprint=fingerprint,
        architecture=type(model).__name__,
        model_type=model.config.model_type,
        parameters=parameters,
        dtype=config.dtype,
        stored_dtype=stored,
        vocabulary_rows=embedding.num_embeddings,
        tokens=len(tokenizer),
        tied_head=tied,
        context=getattr(shape, "max_position_embeddings", None),
        linear_layers=linear,
        template_variables=tuple(sorted(variables_of(tokenizer))) if chat else (),
        way=way.name,
        way_limit=way.limit,
        way_beyond=way.beyond,
        way_reason=way.reason,
        way_cost=architectures.COSTS[way.name],
        example=example,
    )


def _way(model: Any, config: Model) -> Way:
    """How the skeleton is run with its adapters; takes it over. Raises ModelError where it cannot be."""
    try:
        model = with_trainable(model, config, seed=0)
        if config.quantization != "none":
            dry_run.quantize(model, config.quantization, config.double_quantization)
        return architectures.way(model, loading.place_of(config.device).type)
    except ValueError as error:
        raise ModelError(str(error)) from error


def example_of(tokenizer: Any, template: PromptTemplate) -> Example:
    """`QUESTION` and `ANSWER` as a model with that tokenizer is given them. Raises TemplateError."""
    encoded = encode(tokenizer, template, QUESTION, ANSWER)
    prompt = prompt_text(tokenizer, template, QUESTION)
    if template.kind == "qa" and encoded.prompt[0] == tokenizer.bos_token_id:
        prompt = tokenizer.bos_token + prompt
    return Example(
        kind=template.kind,
        prompt=prompt,
        answer=answer_text(tokenizer, template, QUESTION, ANSWER),
        prompt_tokens=len(encoded.prompt),
        answer_tokens=len(encoded.answer),
        end=str(tokenizer.convert_ids_to_tokens(encoded.answer[-1])),
    )


def _linear_layers(model: nn.Module, head: Any) -> tuple[str, ...]:
    from transformers.pytorch_utils import Conv1D

    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in linear))


def _stored_dtype(folder: Path) -> str | None:
    from transformers import AutoConfig

    stored = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).dtype
    return None if stored is None else str(stored).removeprefix("torch.")
