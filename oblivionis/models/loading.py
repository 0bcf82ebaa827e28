"""Base models from a folder, the Hugging Face hub or the package itself."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evaluation.engine.models import is_quantized, text_config
from oblivionis.data.tokenize import limit_tokens
from oblivionis.models.errors import ModelError, one_line, some
from oblivionis.models.lora import attach_lora as attach_lora  # both were here, and stay for a release
from oblivionis.models.lora import trainable as trainable
from oblivionis.models.shared_weights import share
from oblivionis.models.source import load_tokenizer, read_config, resolve

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUANTIZATIONS = ("none", "int8", "nf4")

_OTHER_HEADS = re.compile(r"For\w*Classification|ForMaskedLM|ForQuestionAnswering|RewardModel|(?<!LMHead)(?<!LM)Model$")
_POSITIONS = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings?|positions_embed|pos_encoding)(\.|$)")
"""Tables of learned positions, by the names that architectures give them."""
_PADDING = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]", "<|endoftext|>", "<unk>")


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
    `dtype`. No token is ever added, so that embeddings keep their size: the tokenizer may have more tokens than these,
    which `oblivionis.data.tokenize` refuses where a record has one. Raises ModelError.
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    place = place_of(device)
    options: dict[str, Any] = {"attn_implementation": attn_implementation} if attn_implementation else {}
    if quantization != "none":
        options["quantization_config"] = quantization_config(quantization, double_quantization, dtype)
    folder = resolve(source, revision)
    check_config(folder, quantization)
    try:
        tokenizer = load_tokenizer(folder)
        with _quietly():
            model = load_weights(folder, place, dtype=DTYPES[dtype], **options)
        rows = model.get_input_embeddings().weight.shape[0]
        _check_causal(model)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"cannot load the model {source!r} from {folder}: {one_line(error)}") from error
    limit_tokens(tokenizer, rows=rows if len(tokenizer) > rows else None, positions=_learned_positions(model))
    if len(tokenizer) > rows:
        _guard_rows(model, tokenizer, rows)
    _set_padding(tokenizer, rows)
    return model, tokenizer


def check_config(folder: Path, quantization: str) -> None:
    """What a folder's config.json says of its weights must be what they are used for.

    Parameters
    ----------
    folder : Path
        Of a model.
    quantization : str
        As configured: one of `QUANTIZATIONS`.

    Raises
    ------
    ModelError
        For a checkpoint that was trained for something else than to continue texts, and for weights that are stored
        in 8 or 4 bits where another `quantization` is configured, or in a format that cannot be used.
    """
    described = read_config(folder)
    for name in described.get("architectures") or ():
        if _OTHER_HEADS.search(name):
            raise ModelError(f"{folder / 'config.json'}: architectures: {name} is no causal language model")
    stored = described.get("quantization_config") or {}
    method = stored.get("quant_method") or ("bitsandbytes" if "load_in_4bit" in stored else None)
    if not stored:
        return
    kind = "int8" if stored.get("load_in_8bit") else stored.get("bnb_4bit_quant_type", "fp4")
    if method != "bitsandbytes" or kind not in QUANTIZATIONS:
        found = kind if method == "bitsandbytes" else method
        raise ModelError(f"{folder / 'config.json'}: quantization_config: {found}; expected bitsandbytes' int8 or nf4")
    if kind != quantization:
        raise ModelError(f"the weights in {folder} are kept as {kind} (its config.json); set model.quantization={kind}")


def _check_causal(model: Any) -> None:
    """ModelError for a model that cannot be read from left to right, or not at all: two tokens are tried.

    Not of a Llama, which the fused way knows, nor of weights in 8 bits, which bitsandbytes repacks at the first pass.
    """
    from evaluation.engine import llama
    from evaluation.engine.architectures import refusal
    from evaluation.engine.backends.plain import reads_ahead

    if (wrong := refusal(model)) is not None:
        raise ModelError(wrong)
    if not (llama.supports(model) or is_quantized(model)) and reads_ahead(model):
        kind = model.config.model_type
        raise ModelError(f"{kind} is no causal language model: what it says of a token depends on later ones")


def _learned_positions(model: Any) -> int | None:
    """How many positions a model knows that learned them one by one; None for others."""
    names = (name for name, _ in (*model.named_parameters(), *model.named_buffers()))
    learned = any(_POSITIONS.search(name) for name in names)
    return getattr(text_config(model), "max_position_embeddings", None) if learned else None


def _guard_rows(model: Any, tokenizer: Any, rows: int) -> None:
    """Name the token without a row, whoever asks for it: records are checked when they are encoded, prompts are not."""

    def check(_: Any, given: tuple[Any, ...]) -> None:
        if given and torch.is_tensor(given[0]) and given[0].numel() and int(given[0].max()) >= rows:
            token = int(given[0].max())
            text = tokenizer.convert_ids_to_tokens(token)
            raise ModelError(f"token {token} ({text!r}) occurs, and the model embeds only the first {rows}")

    model.get_input_embeddings().register_forward_pre_hook(check)


def load_weights(folder: Path, place: torch.device, **options: Any) -> Any:
    """The model of a folder in evaluation mode; `options` are transformers'. Code in the folder is never run.

    Raises ModelError where tensors of the model are missing in the folder, or the folder has further ones.
    """
    from transformers import AutoModelForCausalLM

    # A quantised model cannot be moved: it is loaded where it stays.
    quantized = "quantization_config" in options
    options |= {"device_map": {"": place}} if quantized else {}
    if quantized and read_config(folder).get("quantization_config"):
        del options["quantization_config"]  # they are kept so already
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **options,
    )
    model, found = loaded
    _check_tensors(model, folder, found)
    model.config.return_dict = True
    if quantized:
        keep_portable(model)
        for module in model.modules():
            if hasattr(module, "compute_dtype"):
                module.compute_dtype = options["dtype"]
        return model.eval()
    if place.type == "cpu":
        share(model, folder)
    return model.to(place).eval()


def _check_tensors(model: Any, folder: Path, found: Mapping[str, Any]) -> None:
    """ModelError for weights that would be drawn at random, or left out where the model has a place for them.

    found: transformers' loading info. Parts other than the language model, such as a vision tower or another head, may
    be left out, and so may buffers that are computed.
    """
    if missing := sorted(found["missing_keys"]):
        raise ModelError(f"{folder} lacks {some(missing)}")
    if wrong := sorted(found["mismatched_keys"]):
        name, stored, expected = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        shapes = f"shape {tuple(stored)}, and config.json says {tuple(expected)}"
        raise ModelError(f"{folder}: {name} has {shapes}{more}")
    modules = {name for name, _ in model.named_modules()}
    containers = {"", model.base_model_prefix}
    beyond = [k for k in sorted(found["unexpected_keys"]) if _nearest(k, modules) not in containers and _counts(k)]
    if beyond:
        raise ModelError(f"{folder}: the model that config.json describes has no place for {some(beyond)}")


def _nearest(name: str, modules: Collection[str]) -> str:
    """The innermost module of a model that a tensor's name lies in."""
    while name not in modules:
        name = name.rpartition(".")[0]
    return name


def _counts(name: str) -> bool:
    """Whether a tensor is a weight, and no buffer that older files still hold."""
    return not name.endswith(("inv_freq", "masked_bias", ".attn.bias", ".attention.bias", "position_ids"))


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

    Repacked weights compute in bfloat16 at any dtype, lose the gradient when training goes on afterwards, and
    cannot be made of layers of some widths.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def require_bitsandbytes(what: str) -> None:
    """ModelError naming the install command unless bitsandbytes is there; `what` needs it."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(f"{what} needs the package bitsandbytes: pip install 'oblivionis[quantization]'")


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers' bars off the terminal, and its tables of missing tensors, which `_check_tensors` names."""
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled() and not are_progress_bars_disabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _set_padding(tokenizer: Any, rows: int) -> None:
    """A padding token among those that the model embeds."""
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id < rows:
        return
    vocabulary = tokenizer.get_vocab()
    choices = (*_PADDING, tokenizer.eos_token, tokenizer.bos_token)
    choice = next((token for token in choices if vocabulary.get(token, rows) < rows), None)
    if choice is None:
        raise ModelError(f"the tokenizer {tokenizer.name_or_path} has neither a padding nor an end token")
    tokenizer.pad_token = choice


def place_of(name: str) -> torch.device:
    """The device that `model.device` names: auto is a GPU where there is one. Raises ModelError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device {name!r} asked for, but torch sees no GPU; use model.device=cpu or auto")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"unknown device {name!r}; expected auto, cpu or cuda") from error
