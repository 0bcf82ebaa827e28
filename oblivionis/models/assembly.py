"""Base model, trainable parameters, tokenizer and template as one object, the same on the server and every client."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clients.flat_parameters import FlatParameters
from evaluation.engine.ensemble import Ensemble
from oblivionis.config.schema import Model
from oblivionis.data.tokenize import PromptTemplate, stop_ids
from oblivionis.models import adapters, loading, lora
from oblivionis.models.adapters import manifest_hash
from oblivionis.models.peft_adapters import attach_adapter
from strategies.arrays import Mean
from strategies.rules.lora_product import ProductMean


@dataclass(frozen=True, slots=True)
class Assembled:
    """A model ready to train or to evaluate. `flat` is the one vector that travels between server and clients.

    Two models of one `manifest_hash` give a vector the same meaning: it covers what travels and what of LoRA does not.
    `start`: the vector as assembled, with which the model is what the configuration starts from; None where all weights
    are trained, of which no second copy is kept. `merge`: from a global vector to the numbers of the model; None where
    they are its numbers (`oblivionis.models.shard_merges`).
    """

    model: Any
    tokenizer: Any
    template: PromptTemplate
    flat: FlatParameters
    manifest_hash: str
    stop_ids: frozenset[int]
    device: torch.device
    start: np.ndarray | None = None
    merge: Callable[[np.ndarray], np.ndarray] | None = None

    def load(self, vector: np.ndarray) -> None:
        """Make it the model of a global vector. Raises VectorError for one that does not fit."""
        self.put(self.numbers(vector))

    def numbers(self, vector: np.ndarray) -> np.ndarray:
        """The numbers of the model of a global vector, for `put`. Raises VectorError for a vector that does not fit."""
        if self.merge is not None:
            return self.merge(vector)
        adapters.check_vector(vector, self.flat.manifest)
        return vector

    def put(self, numbers: np.ndarray) -> None:
        """Make it the model with these numbers; of an ensemble with those of its members one after the other."""
        if isinstance(self.model, Ensemble):
            self.model.hold(np.split(numbers, numbers.size // self.flat.size))
        else:
            self.flat.load(numbers)


def assemble(config: Model, seed: int) -> Assembled:
    """`load_base` with what `config.mode` trains: new adapters, drawn from `seed`, or those of `config.adapter`."""
    model, tokenizer = load_base(config)
    stops = stop_ids(tokenizer, model, prompt_template(config))
    return _assembled(with_trainable(model, config, seed), tokenizer, config, stops)


def assemble_untrained(config: Model) -> Assembled:
    """`load_base`, of any architecture, with `config.adapter` if there is one, to be evaluated: nothing travels."""
    model, tokenizer = load_base(config)
    if config.adapter is not None:
        model = attach_adapter(model, Path(config.adapter).expanduser())
    model.requires_grad_(False)
    return _assembled(model, tokenizer, config, stop_ids(tokenizer, model, prompt_template(config)))


def _assembled(model: Any, tokenizer: Any, config: Model, stops: frozenset[int]) -> Assembled:
    flat = FlatParameters(model)
    return Assembled(
        model=model,
        tokenizer=tokenizer,
        template=prompt_template(config),
        flat=flat,
        manifest_hash=manifest_hash(flat.manifest, lora.frozen_lora(model) if flat.size else None),
        stop_ids=stops,
        device=next(model.parameters()).device,
        start=flat.numpy() if config.mode == "lora" else None,
    )


def with_trainable(model: Any, config: Model, seed: int) -> Any:
    """`model` with the adapters of `config`, gradients flowing to what is trained only."""
    own = config.lora
    if config.mode == "lora" and config.adapter is not None:
        model = attach_adapter(model, Path(config.adapter).expanduser(), trained=True, dropout=own.dropout)
    elif config.mode == "lora":
        model = lora.attach_lora(
            model,
            rank=own.rank,
            alpha=own.alpha,
            dropout=own.dropout,
            target_modules=own.target_modules,
            modules_to_save=own.modules_to_save,
            target_parameters=own.target_parameters,
            use_rslora=own.use_rslora,
            use_dora=own.use_dora,
            seed=seed,
        )
    lora.trainable(model, config.mode, freeze_a=config.lora.aggregation == "freeze_a")
    return model


def of_rank(config: Model, rank: int) -> Model:
    """`config` with adapters of another rank, whose product B·A is scaled as before: alpha / rank (or √rank) stays."""
    own = config.lora
    if rank == own.rank:
        return config
    part = math.sqrt(rank / own.rank) if own.use_rslora else rank / own.rank
    return dataclasses.replace(config, lora=dataclasses.replace(own, rank=rank, alpha=own.alpha * part))


def refitted(assembled: Assembled, config: Model, seed: int) -> Assembled:
    """The same base model with the adapters of `config` in the place of its own; `assembled` is void from then on."""
    base = lora.detach_lora(assembled.model)
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
