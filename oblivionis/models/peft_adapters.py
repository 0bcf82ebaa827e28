"""Adapters that others made with peft: which of them a model can carry here, and how they are put on it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from oblivionis.config.adapter_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter
from oblivionis.models.errors import ModelError, one_line, some
from oblivionis.models.lora import ADAPTER, wrapped
from oblivionis.models.parameter_roles import role

KINDS = ("LORA", "IA3", "LOHA", "LOKR", "OFT", "VERA")
"""Kinds of adapters that change layers token by token, so that any way of reading the model reads them, too."""
_FREE = {
    *("r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "fan_in_fan_out", "bias", "lora_bias"),
    *("use_rslora", "use_dora", "modules_to_save", "target_parameters", "layers_to_transform", "layers_pattern"),
    *("rank_pattern", "alpha_pattern", "trainable_token_indices", "ensure_weight_tying", "runtime_config"),
    *("init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
}
"""What may be set in a LoRA adapter that is measured."""
_ABOUT = {
    *("peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping"),
    *("peft_version", "megatron_core"),
}
"""Settings that describe the folder, for every kind of adapter."""
_UNTRAINED = ("bias", "lora_bias", "trainable_token_indices", "ensure_weight_tying")
"""What of a LoRA adapter this program would neither train nor send."""


def check_adapter(described: Mapping[str, Any], *, trained: bool) -> None:
    """Refuse an adapter that would be read or trained wrongly.

    Parameters
    ----------
    described : mapping
        As `read_adapter` gives it.
    trained : bool
        Whether it is to be trained on, and not only measured.

    Raises
    ------
    ModelError
        Naming the key of adapter_config.json.
    """
    kind, task = described.get("peft_type"), described.get("task_type")
    kinds = KINDS[:1] if trained else KINDS
    if kind not in kinds:
        does = "a run can start from" if trained else "can be measured"
        raise ModelError(f"{ADAPTER_CONFIG}: peft_type is {kind!r}; adapters that {does} are {', '.join(kinds)}")
    if task not in (None, "CAUSAL_LM"):
        raise ModelError(f"{ADAPTER_CONFIG}: task_type is {task!r}; expected CAUSAL_LM")
    defaults = _defaults(str(kind))
    for key, value in described.items():
        if key in _ABOUT or value in (None, False, [], {}) or value == defaults.get(key):
            continue
        if key not in defaults:
            raise ModelError(f"{ADAPTER_CONFIG}: {key} is {value!r}, which the installed peft does not know")
        if kind == "LORA" and key not in _FREE:
            raise ModelError(f"{ADAPTER_CONFIG}: {key} is {value!r}, which is not supported; expected {defaults[key]}")
        if trained and key in _UNTRAINED:
            raise ModelError(
                f"{ADAPTER_CONFIG}: {key} is {value!r}, which would not be trained; expected {defaults[key]}"
            )
        if trained and key == "init_lora_weights" and isinstance(value, str) and value not in ("gaussian", "eva"):
            raise ModelError(
                f"{ADAPTER_CONFIG}: init_lora_weights is {value!r}, which changes the base weights; convert the "
                "adapter first (peft's path_initial_model_for_weight_conversion)"
            )


def attach_adapter(model: Any, folder: Path, *, trained: bool = False, dropout: float | None = None) -> Any:
    """Put the adapter of a folder on a model.

    Parameters
    ----------
    model : transformers model
        Changed in place. On the meta device it gets the adapter's layers, no numbers.
    folder : Path
        With adapter_config.json and adapter_model.safetensors.
    trained : bool
        Whether it is to be trained on.
    dropout : float or None
        In training; None: the adapter's own.

    Returns
    -------
    peft.PeftModel
        In evaluation mode, all that the adapter brings in float32.

    Raises
    ------
    ModelError
        For an adapter of a kind that cannot be used, of another model, or without all of its tensors.
    """
    described = read_adapter(folder)
    check_adapter(described, trained=trained)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{folder} holds no {ADAPTER_WEIGHTS}; only safetensors weights can be used")
    config = _config(described, folder)
    if dropout is not None and hasattr(config, "lora_dropout"):
        config.lora_dropout = dropout
    peft_model = wrapped(model, config, key=str(folder))
    if any(p.device.type == "meta" for p in model.parameters()):
        return peft_model
    _load(peft_model, folder, trained=trained)
    peft_model.requires_grad_(False)
    return peft_model.eval()


def _load(peft_model: Any, folder: Path, *, trained: bool) -> None:
    """The tensors of a folder, all of them and no others."""
    from peft.utils import load_peft_weights

    device = str(next(peft_model.parameters()).device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = set(load_peft_weights(str(folder), device="cpu"))
            result = peft_model.load_adapter(str(folder), ADAPTER, torch_device=device)
    except (RuntimeError, ValueError, KeyError, OSError, TypeError, SafetensorError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"{folder} does not fit the model: {lines[min(1, len(lines) - 1)]}") from error
    own = peft_model.peft_config[ADAPTER].modules_to_save or ()
    base = sorted(k for k in given if role(k) is None and not any(f".{name}." in k for name in own))
    if trained and getattr(peft_model.peft_config[ADAPTER], "peft_type", None) == "LORA" and base:
        raise ModelError(
            f"{folder / ADAPTER_WEIGHTS} holds base weights ({some(base)}), which would neither be trained nor sent; "
            "name them in modules_to_save, or merge the adapter first"
        )
    if not given or result.missing_keys:
        missing = sorted(result.missing_keys) or ["all tensors"]
        raise ModelError(f"{folder / ADAPTER_WEIGHTS} lacks {some(missing)}")
    if beyond := sorted(result.unexpected_keys):
        raise ModelError(f"{folder / ADAPTER_WEIGHTS}: the model has no place for {some(beyond)}")


def _config(described: Mapping[str, Any], folder: Path) -> Any:
    from peft import PeftConfig

    try:
        config: Any = PeftConfig.from_peft_type(**described)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"{folder / ADAPTER_CONFIG}: {one_line(error)}") from error
    config.inference_mode = False
    return config


def _defaults(kind: str) -> dict[str, Any]:
    """The keys of a kind of adapter in the installed peft, with their defaults."""
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PeftType

    fields = dataclasses.fields(PEFT_TYPE_TO_CONFIG_MAPPING[PeftType[kind]])  # type: ignore[arg-type]
    known = {f.name: None if f.default is dataclasses.MISSING else f.default for f in fields}
    return known | {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
