"""Randomly initialised Llamas of the paper's shapes, and records as long as TOFU's: time and memory need no more."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from benchmarks.gpu.options import Options
from clients import losses
from clients.calibrated_forgetting import Target, record_nll
from clients.flat_parameters import FlatParameters
from clients.training import TrainSettings
from evaluation.engine.sequences import TokenSequence
from oblivionis.config import compose as configuration
from oblivionis.config.schema import Config
from oblivionis.models import loading, lora

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}
TOFU_RECORDS, TOFU_FORGET = 4000, 400
PROMPTS, ANSWERS = (50, 80), (20, 90)
"""Tokens of TOFU's questions in the chat template and of its answers, shortest and longest drawn."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A shape in the paper's setting (section 4.1, Table 5): its configuration, and what a client holds.

    records: of a client; forget: those of them that it wants forgotten; clients: that train in a round.
    """

    shape: dict[str, Any]
    config: Config
    records: int
    forget: int
    clients: int
    tiny: bool

    @classmethod
    def of(cls, experiment: str, shape: dict[str, Any], options: Options) -> Setting:
        """As `conf/<experiment>.yaml` has it; `options.tiny` makes all of it small."""
        config = configuration.compose(experiment)
        clients = config.federation.clients
        taking_part = config.federation.per_round
        if options.tiny:
            return cls({**TINY, "tie_word_embeddings": shape["tie_word_embeddings"]}, config, 8, 3, 2, True)
        return cls(shape, config, TOFU_RECORDS // clients, TOFU_FORGET // clients, taking_part, False)

    def sequences(self, count: int, seed: int) -> list[TokenSequence]:
        """Random records: prompt and answer of evenly drawn lengths."""
        draw = random.Random(seed)
        prompts, answers = ((3, 8), (2, 9)) if self.tiny else (PROMPTS, ANSWERS)

        def tokens(bounds: tuple[int, int]) -> tuple[int, ...]:
            return tuple(draw.randrange(3, self.shape["vocab_size"]) for _ in range(draw.randint(*bounds)))

        return [TokenSequence(tokens(prompts), tokens(answers)) for _ in range(count)]

    def training(self, **changes: Any) -> TrainSettings:
        """The paper's training of a client, with `changes`."""
        training = self.config.training
        names = {field.name for field in dataclasses.fields(TrainSettings)} - {"epochs", "betas", "eps"}
        values = {name: getattr(training, name) for name in names}
        if self.tiny:
            values["batch_size"] = 4
        epochs = 1 if self.tiny else self.config.federation.local_epochs
        return TrainSettings(**{**values, "epochs": epochs, **changes})

    def adapted(self, base: Any, *, dropout: float | None = None) -> tuple[Any, FlatParameters]:
        """`base` with the paper's adapters, and their vector."""
        settings = self.config.model.lora
        model = lora.attach_lora(
            base,
            rank=settings.rank,
            alpha=settings.alpha,
            dropout=settings.dropout if dropout is None else dropout,
            target_modules=settings.target_modules,
        )
        lora.trainable(model)
        return model, FlatParameters(model)


def random_base(shape: dict[str, Any], quantization: str, device: str, dtype: str = "bfloat16") -> Any:
    """A Llama of that shape with normal weights (deviation 0.02), quantised as `model.quantization` would.

    Weights are drawn on the device once per shape of a matrix, so that a base of any size takes no disk and little
    memory while it is quantised; unquantised layers get copies, and take the memory that they would.
    """
    logging.disable_progress_bar()
    config = LlamaConfig(**shape, max_position_embeddings=8192, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    place, kind = torch.device(device), loading.DTYPES[dtype]
    with torch.device("meta"):
        names = {name: tuple(value.shape) for name, value in LlamaForCausalLM(config).state_dict().items()}
    if config.tie_word_embeddings:
        del names["lm_head.weight"]
    generator = torch.Generator(place).manual_seed(0)
    drawn: dict[tuple[int, ...], torch.Tensor] = {}
    for size in names.values():
        if size not in drawn:
            drawn[size] = (
                torch.ones(size, dtype=kind, device=place)
                if len(size) == 1
                else torch.empty(size, dtype=kind, device=place).normal_(0.0, 0.02, generator=generator)
            )
    weights = {name: drawn[size] for name, size in names.items()}
    options = {}
    if quantization != "none":
        options["quantization_config"] = loading.quantization_config(quantization, True, dtype)
    model: Any = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=weights, dtype=kind, device_map={"": place}, **options
    )
    loading.keep_portable(model)
    _separate(model)
    return model.eval()


def _separate(model: Any) -> None:
    """Give parameters that share memory, but are not one parameter, memory of their own."""
    seen: set[int] = set()
    for parameter in model.parameters():
        if parameter.data_ptr() in seen:
            parameter.data = parameter.data.clone()
        seen.add(parameter.data_ptr())


def target(method: str, model: nn.Module, flat: FlatParameters, forget: Sequence[TokenSequence]) -> Target | None:
    """A nat per token from where the records are, for a method that forgets up to a target; None for the others."""
    if "forget_target_nll" not in losses.get(method).names:
        return None
    return Target(record_nll(model, forget, len(forget)) + 1.0, 0.1, flat.numpy())


def other_answers(forget: Sequence[TokenSequence], others: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """To the question of each forget record the answer of one of the `others`, of which there are as many or more."""
    return [[TokenSequence(r.prompt, o.answer)] for r, o in zip(forget, others[: len(forget)], strict=True)]
