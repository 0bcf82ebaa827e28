"""Base model, trainable parameters, tokenizer and template as one object, the same on the server and every client."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from clients.flat import FlatParameters
from oblivionis.config.schema import Model
from oblivionis.data.tokenize import PromptTemplate, stop_ids
from oblivionis.models import adapters, loading
from oblivionis.models.adapters import manifest_hash
from strategies.arrays import Mean
from strategies.lora_product import ProductMean


@dataclass(frozen=True, slots=True)
class Assembled:
    """A model ready to train or to evaluate. `flat` is the one vector that travels between server and clients.

    `manifest_hash` tells whether a vector means the same elsewhere: it covers what travels and what of LoRA does not.
    """

    model: Any
    tokenizer: Any
    template: PromptTemplate
    flat: FlatParameters
    manifest_hash: str
    stop_ids: frozenset[int]
    device: torch.device


def assemble(config: Model, seed: int) -> Assembled:
    """`load_base` with what `config.mode` trains. LoRA's A is drawn from `seed`, B is zero."""
    model, tokenizer = load_base(config)
    stops = stop_ids(tokenizer, model, prompt_template(config))
    return _assembled(with_trainable(model, config, seed), tokenizer, config, stops)


def assemble_untrained(config: Model) -> Assembled:
    """`load_base`, of any architecture, to be evaluated as it is: its smallest parameter stands for what travels."""
    model, tokenizer = load_base(config)
    least = min((p for p in model.parameters() if p.is_floating_point()), key=lambda p: p.numel())
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is least)
    return _assembled(model, tokenizer, config, stop_ids(tokenizer, model, prompt_template(config)))


def _assembled(model: Any, tokenizer: Any, config: Model, stops: frozenset[int]) -> Assembled:
    flat = FlatParameters(model)
    return Assembled(
        model=model,
        tokenizer=tokenizer,
        template=prompt_template(config),
        flat=flat,
        manifest_hash=manifest_hash(flat.manifest, loading.frozen_lora(model)),
        stop_ids=stops,
        device=next(model.parameters()).device,
    )


def with_trainable(model: Any, config: Model, seed: int) -> Any:
    """`model` with the adapters of `config`, gradients flowing to what is trained only."""
    if config.mode == "lora":
        lora = config.lora
        model = loading.attach_lora(
            model,
            rank=lora.rank,
            alpha=lora.alpha,
            dropout=lora.dropout,
            target_modules=list(lora.target_modules),
            seed=seed,
        )
    loading.trainable(model, config.mode, freeze_a=config.lora.aggregation == "freeze_a")
    return model


def of_rank(config: Model, rank: int) -> Model:
    """`config` with adapters of another rank, whose product B·A is scaled as before: alpha / rank stays."""
    lora = config.lora
    if rank == lora.rank:
        return config
    return dataclasses.replace(config, lora=dataclasses.replace(lora, rank=rank, alpha=lora.alpha * rank / lora.rank))


def refitted(assembled: Assembled, config: Model, seed: int) -> Assembled:
    """The same base model with the adapters of `config` in the place of its own; `assembled` is void from then on."""
    base = loading.detach_lora(assembled.model)
    return _assembled(with_trainable(base, config, seed), assembled.tokenizer, config, assembled.stop_ids)


def load_base(config: Model) -> tuple[Any, Any]:
    """The configured base model, quantised where so configured, and its tokenizer. Raises ModelError.

    `config.matmul_precision` becomes that of the whole process.
    """
    torch.set_float32_matmul_precision(config.matmul_precision)
    return loading.load_base(
        config.source,
        revision=config.revision,
        dtype=config.dtype,
        quantization=config.quantization,
        double_quantization=config.double_quantization,
        attn_implementation=config.attn_implementation,
        device=config.device,
    )


def prompt_template(config: Model) -> PromptTemplate:
    """The configured template, checked."""
    return PromptTemplate(**dataclasses.asdict(config.template))


def averaging(config: Model, manifest: adapters.Manifest) -> Mean | None:
    """How the server averages models of that manifest; None: number by number. Raises ModelError."""
    if config.lora.aggregation != "product":
        return None
    return ProductMean(adapters.size(manifest), adapters.lora_pairs(manifest))
