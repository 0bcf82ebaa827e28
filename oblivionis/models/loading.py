"""Base models from a folder, the Hugging Face hub or the package itself, and LoRA on top of them."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from oblivionis.models.errors import ModelError
from oblivionis.models.shared import share
from oblivionis.models.source import load_tokenizer, resolve

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MODES = ("lora", "full")
QUANTIZATIONS = ("none", "int8", "nf4")

_PADDING = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]", "<|endoftext|>", "<unk>")


class Counts(NamedTuple):
    """Numbers of parameters; a tied weight counts once."""

    total: int
    trainable: int


def load_base(
    source: str,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    quantization: str = "none",
    double_quantization: bool = True,
    attn_implementation: str | None = None,
    device: str = "cpu",
) -> tuple[Any, Any]:
    """A causal language model in evaluation mode and its tokenizer, which has a padding token.

    `source` as in `resolve`; `device` is auto (a GPU when there is one), cpu or cuda. `quantization`: `int8` (LLM.int8,
    Dettmers et al. 2022) or `nf4` (QLoRA, Dettmers et al. 2023) for all linear layers but the head, computed in
    `dtype`. No token is ever added, so that embeddings keep their size. Raises ModelError.
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    place = _device(device)
    options: dict[str, Any] = {"attn_implementation": attn_implementation} if attn_implementation else {}
    if quantization != "none":
        options["quantization_config"] = quantization_config(quantization, double_quantization, dtype)
    folder = resolve(source, revision)
    try:
        tokenizer = load_tokenizer(folder)
        with _no_progress_bars():
            model = load_weights(folder, place, dtype=DTYPES[dtype], **options)
    except Exception as error:
        raise ModelError(f"cannot load the model {source!r} from {folder}: {error}") from error
    tokens, rows = len(tokenizer), model.get_input_embeddings().num_embeddings
    if tokens > rows:
        raise ModelError(f"the tokenizer of {source!r} has {tokens} tokens, the model embeds only {rows}")
    _set_padding(tokenizer)
    return model, tokenizer


def load_weights(folder: Path, place: torch.device, **options: Any) -> Any:
    """The model of a folder in evaluation mode; `options` are transformers'. Code in the folder is never run."""
    from transformers import AutoModelForCausalLM

    # A quantised model cannot be moved: it is loaded where it stays.
    quantized = "quantization_config" in options
    options |= {"device_map": {"": place}} if quantized else {}
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, **options
    )
    if quantized:
        keep_portable(model)
        return model.eval()
    if place.type == "cpu":
        share(model, folder)
    return model.to(place).eval()


def quantization_config(quantization: str, double_quantization: bool, dtype: str) -> Any:
    """What transformers hands to bitsandbytes. Raises ModelError for an unknown name or without bitsandbytes."""
    if quantization not in QUANTIZATIONS:
        raise ModelError(f"unknown quantization {quantization!r}; expected one of {', '.join(QUANTIZATIONS)}")
    require_bitsandbytes(f"model.quantization={quantization}")
    from transformers import BitsAndBytesConfig

    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double_quantization,
        bnb_4bit_compute_dtype=DTYPES[dtype],
    )


def keep_portable(model: nn.Module) -> None:
    """Keep bitsandbytes from repacking 4-bit weights for processors with AVX-512 BF16 in evaluation mode.

    Repacked weights compute in bfloat16 whatever the dtype, lose the gradient when training goes on afterwards, and
    cannot be made of layers of some widths.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def require_bitsandbytes(what: str) -> None:
    """ModelError naming the install command unless bitsandbytes is there; `what` needs it."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(f"{what} needs the package bitsandbytes: pip install 'oblivionis[quantization]'")


def lora_config(*, rank: int, alpha: float, dropout: float, target_modules: Sequence[str]) -> Any:
    """The paper's kind of adapter: low-rank factors on linear layers, no bias, scaled by alpha / rank."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        lora_dropout=dropout,
        target_modules=list(target_modules),
        bias="none",
        task_type="CAUSAL_LM",
    )


def attach_lora(
    model: Any,
    *,
    rank: int = 32,
    alpha: float = 64.0,
    dropout: float = 0.05,
    target_modules: Sequence[str],
    seed: int = 0,
) -> Any:
    """The PeftModel around `model` (changed in place): A uniform in ±1/√in, B zero, both float32.

    A depends on `seed` and the order of the layers only: not on the device, nor on the global random state, which is
    left as it was. Raises ModelError if a name in `target_modules` fits no linear layer.
    """
    from peft import get_peft_model

    _check_targets(model, target_modules)
    config = lora_config(rank=rank, alpha=alpha, dropout=dropout, target_modules=target_modules)
    gpus = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=gpus), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads an attribute that transformers is about to rename
        peft_model = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed % 2**63)
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_A" in name:
                bound = 1 / math.sqrt(parameter[0].numel())
                values = torch.empty(parameter.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
                parameter.data = values.to(parameter.device)
            elif "lora_B" in name:
                parameter.data = torch.zeros_like(parameter, dtype=torch.float32)
    return peft_model


def detach_lora(peft_model: Any) -> Any:
    """The base model within, without its adapters; `peft_model` is of no use from then on."""
    base = peft_model.unload()
    vars(base).pop("peft_config", None)  # some versions of peft leave it: the next adapters would be a second set
    return base


def trainable(model: nn.Module, mode: str = "lora", *, freeze_a: bool = False) -> Counts:
    """Let gradients flow to the adapters only (`lora`) or to all weights (`full`). Raises ModelError without any.

    `freeze_a`: of the adapters only to B (FFA-LoRA, Sun et al. 2024).
    """
    if mode not in MODES:
        raise ModelError(f"unknown mode {mode!r}; expected one of {', '.join(MODES)}")
    for name, parameter in model.named_parameters():
        chosen = mode == "full" or ("lora_" in name and not (freeze_a and "lora_A" in name))
        parameter.requires_grad_(parameter.is_floating_point() and chosen)
    counts = count(model)
    if counts.trainable == 0:
        raise ModelError("the model has no LoRA weights to train; attach them first, or use the mode 'full'")
    return counts


def count(model: nn.Module) -> Counts:
    """How many parameters the model has and how many of them are trained."""
    sizes = [(_numbers(p), p.requires_grad) for p in model.parameters()]
    return Counts(sum(n for n, _ in sizes), sum(n for n, train in sizes if train))


def frozen_lora(model: nn.Module) -> dict[str, np.ndarray]:
    """The LoRA weights that are not trained (see `trainable`), by parameter name, float32."""
    return {
        name: parameter.detach().float().cpu().numpy()
        for name, parameter in model.named_parameters()
        if "lora_" in name and not parameter.requires_grad
    }


def _numbers(parameter: nn.Parameter) -> int:
    """How many weights a parameter stands for: two share a byte in 4 bits."""
    state: Any = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else math.prod(state.shape)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers' bars off the terminal: they would tear the display of a run."""
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled() and not are_progress_bars_disabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _check_targets(model: nn.Module, target_modules: Sequence[str]) -> None:
    from transformers.pytorch_utils import Conv1D

    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    missing = [t for t in target_modules if not any(name == t or name.endswith("." + t) for name in linear)]
    if missing:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise ModelError(
            f"LoRA targets that the model has no linear layer for: {', '.join(missing)}; it has {', '.join(known)}"
        )


def _set_padding(tokenizer: Any) -> None:
    if tokenizer.pad_token_id is not None:
        return
    vocabulary = tokenizer.get_vocab()
    choice = next((token for token in _PADDING if token in vocabulary), tokenizer.eos_token)
    if choice is None:
        raise ModelError(f"the tokenizer {tokenizer.name_or_path} has neither a padding nor an end token")
    tokenizer.pad_token = choice


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device {name!r} asked for, but torch sees no GPU; use model.device=cpu or auto")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"unknown device {name!r}; expected auto, cpu or cuda") from error
