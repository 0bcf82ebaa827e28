"""LoRA on a base model, as peft does it: which layers, which initial values, and what of it is trained."""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from evaluation.engine.models import decoder_layers
from oblivionis.config.schema import ALL_LINEAR, LLAMA_MODULES
from oblivionis.models.errors import ModelError, one_line
from oblivionis.models.parameter_roles import Role, role

MODES = ("lora", "full")
ADAPTER = "default"
"""peft's name of the one adapter of a model."""

_REFUSED: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"), ("out_proj", "conv1d")
)
"""By architecture: linear layers whose weights its kernels read past the module, so that peft adapts none of them."""

log = logging.getLogger("oblivionis")


class Counts(NamedTuple):
    """Numbers of parameters; a tied weight counts once."""

    total: int
    trainable: int


def lora_config(
    *,
    rank: int,
    alpha: float,
    dropout: float,
    target_modules: Sequence[str] | str,
    modules_to_save: Sequence[str] | None = None,
    target_parameters: Sequence[str] | None = None,
    use_rslora: bool = False,
    use_dora: bool = False,
) -> Any:
    """peft's LoraConfig of an adapter without biases.

    Parameters
    ----------
    rank, alpha, dropout
        The update B·A has this rank and is multiplied by alpha / rank, or alpha / √rank with `use_rslora`; an input of
        it is dropped with probability `dropout`.
    target_modules : sequence of str, or str
        Names of layers, or a regular expression.
    modules_to_save : sequence of str or None
        Names of modules that are trained as a whole.
    target_parameters : sequence of str or None
        Names of parameters, such as a mixture's stacked experts, that get an update of their own.
    use_rslora, use_dora : bool
        Kalajdzievski 2023; Liu et al. 2024.

    Returns
    -------
    peft.LoraConfig
    """
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        lora_dropout=dropout,
        target_modules=target_modules if isinstance(target_modules, str) else list(target_modules),
        modules_to_save=list(modules_to_save) if modules_to_save else None,
        target_parameters=list(target_parameters) if target_parameters else None,
        use_rslora=use_rslora,
        use_dora=use_dora,
        bias="none",
        task_type="CAUSAL_LM",
    )


def attach_lora(
    model: Any,
    *,
    rank: int = 32,
    alpha: float = 64.0,
    dropout: float = 0.05,
    target_modules: Sequence[str] | None,
    modules_to_save: Sequence[str] | None = None,
    target_parameters: Sequence[str] | None = None,
    use_rslora: bool = False,
    use_dora: bool = False,
    seed: int = 0,
) -> Any:
    """Put fresh adapters on a model, which computes what it did before.

    A is uniform in ±1/√in and B zero; of an embedding A is zero and B normal. All are float32, and depend on `seed` and
    the order of the layers only: not on the device, nor on the global random state, which is left as it was.

    Parameters
    ----------
    model : transformers model
        Changed in place.
    target_modules : sequence of str or None
        Names of linear layers and embeddings; `all-linear` among them stands for all linear layers but the head. None:
        what `default_targets` says. An empty list goes with `target_parameters` or `modules_to_save`.
    rank, alpha, dropout, modules_to_save, target_parameters, use_rslora, use_dora
        As in `lora_config`.

    Returns
    -------
    peft.PeftModel

    Raises
    ------
    ModelError
        For a name that fits nothing in the model, and for what peft cannot do; it names the key.
    """
    config = lora_config(
        rank=rank,
        alpha=alpha,
        dropout=dropout,
        target_modules=_targets(model, target_modules),
        modules_to_save=modules_to_save,
        target_parameters=target_parameters,
        use_rslora=use_rslora,
        use_dora=use_dora,
    )
    _check_names(model, config)
    peft_model = wrapped(model, config)
    _draw(peft_model, seed)
    return peft_model


def wrapped(model: Any, config: Any, key: str = "model.lora") -> Any:
    """A PeftModel around `model` (changed in place) with what `config` describes, in float32.

    Parameters
    ----------
    model : transformers model
    config : peft.PeftConfig
    key : str
        What is named where it cannot be done.

    Returns
    -------
    peft.PeftModel
        Its factors have peft's values; the global random state is as before.

    Raises
    ------
    ModelError
        For what peft cannot do, and for a module to save whose weights are kept as integers.
    """
    from peft import get_peft_model

    _check_saved(model, config)
    gpus = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=gpus), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are about to change, and of tied heads, which `merging` unties
        try:
            peft_model = get_peft_model(model, config)
        except (ValueError, TypeError, NotImplementedError, AttributeError, RuntimeError) as error:
            raise ModelError(f"{key}: {one_line(error)}") from error
    for name, parameter in peft_model.named_parameters():
        if role(name) is not None or ADAPTER in name.split("."):
            parameter.data = parameter.data.float()
    _bridge(peft_model)
    return peft_model


def _draw(peft_model: Any, seed: int) -> None:
    """Initial values of the factors, in the order of the parameters, then of the magnitudes that follow from them."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            values = torch.empty(parameter.shape, dtype=torch.float32)
            match role(name):
                case Role.A:
                    bound = 1 / math.sqrt(parameter[0].numel())
                    parameter.data = values.uniform_(-bound, bound, generator=generator).to(parameter.device)
                case Role.EMBEDDING_B:
                    parameter.data = values.normal_(generator=generator).to(parameter.device)
                case Role.B | Role.EMBEDDING_A:
                    parameter.data = torch.zeros_like(parameter, dtype=torch.float32)
    _measure(peft_model)


@torch.no_grad()
def _measure(peft_model: Any) -> None:
    """DoRA's magnitudes anew, of the float32 factors: a norm in half precision would not give the base model back."""
    for module in peft_model.modules():
        if (variant := getattr(module, "lora_variant", {}).get(ADAPTER)) is not None:
            variant.init(module, adapter_name=ADAPTER, config=peft_model.peft_config[ADAPTER])
            layer = module.lora_magnitude_vector[ADAPTER].train(module.training)
            layer.weight.data = layer.weight.data.float()


def _bridge(peft_model: Any) -> None:
    """Let copies that are trained in float32 take and give the number format of the frozen model around them."""
    from peft.utils import ModulesToSaveWrapper

    for module in peft_model.modules():
        if not isinstance(module, ModulesToSaveWrapper):
            continue
        around = next((p.dtype for p in module.original_module.parameters() if p.is_floating_point()), torch.float32)
        if around != torch.float32:
            saved = module.modules_to_save[ADAPTER]
            saved.register_forward_pre_hook(lambda _, given: _cast(given, torch.float32))
            saved.register_forward_hook(lambda _, __, result, around=around: _cast(result, around))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Tensors of numbers in another format, also inside of a tuple."""
    if isinstance(value, tuple):
        return tuple(_cast(each, dtype) for each in value)
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def detach_lora(peft_model: Any) -> Any:
    """The base model within, without its adapters; `peft_model` is of no use from then on."""
    base = peft_model.unload()
    vars(base).pop("peft_config", None)  # some versions of peft leave it: the next adapters would be a second set
    return base


def trainable(model: nn.Module, mode: str = "lora", *, freeze_a: bool = False) -> Counts:
    """Let gradients flow to the adapters only (`lora`) or to all weights (`full`).

    Parameters
    ----------
    model : nn.Module
    mode : {"lora", "full"}
    freeze_a : bool
        Of the adapters' factors only to B (FFA-LoRA, Sun et al. 2024).

    Returns
    -------
    Counts

    Raises
    ------
    ModelError
        Where there is nothing to train, and for an embedding whose A would be frozen, which is zero.
    """
    if mode not in MODES:
        raise ModelError(f"unknown mode {mode!r}; expected one of {', '.join(MODES)}")
    for name, parameter in model.named_parameters():
        what = role(name)
        if freeze_a and what is Role.EMBEDDING_A:
            raise ModelError(
                f"model.lora.aggregation: freeze_a would keep the A of {name.partition('.lora_')[0]}, an embedding, at "
                "zero; set factors, or leave it out of model.lora.target_modules"
            )
        chosen = mode == "full" or (what is not None and not (freeze_a and what is Role.A))
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
        if role(name) is not None and not parameter.requires_grad
    }


def default_targets(model: Any) -> list[str]:
    """The layers that get an adapter if the configuration names none.

    Parameters
    ----------
    model : transformers model

    Returns
    -------
    list of str
        Of a Llama all seven linear layers of a block, as in the paper; of other architectures those in peft's own
        table; of one that peft does not know all linear layers of the decoder's blocks, which is logged.
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TABLE

    kind = getattr(model.config, "model_type", "")
    if kind == "llama":
        return list(LLAMA_MODULES)
    known, layers = TABLE.get(kind), [name for name, _ in _layers(model)]
    if isinstance(known, str) and (found := [name for name in layers if re.fullmatch(known, name)]):
        return found
    if isinstance(known, list) and not _unfit(known, layers):
        return list(known)
    try:
        blocks = f"{decoder_layers(model)[0]}."
    except ValueError:
        blocks = ""
    found = [
        n for n in all_linear(model) if n.startswith(blocks) and n.rpartition(".")[2] not in _REFUSED.get(kind, ())
    ]
    kinds = ", ".join(sorted({name.rpartition(".")[2] for name in found}))
    log.warning("peft names no LoRA targets for %s: all linear layers of its decoder get adapters (%s)", kind, kinds)
    return found


def all_linear(model: Any) -> list[str]:
    """The full names of all linear layers but the language-model head, as peft's `all-linear` means them.

    A layer whose class does something else with the product, as some routers do, is none.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    plain = [
        (n, m) for n, m in _layers(model) if type(m) in (nn.Linear, Conv1D) or "bitsandbytes" in type(m).__module__
    ]
    return [name for name, module in plain if module is not head]


def _targets(model: Any, given: Sequence[str] | None) -> list[str]:
    if given is None:
        return default_targets(model)
    if ALL_LINEAR not in given:
        return list(given)
    return [*all_linear(model), *(name for name in given if name != ALL_LINEAR)]


def _check_names(model: nn.Module, config: Any) -> None:
    """Every name must fit something: peft is content where one of several does."""
    layers = [name for name, _ in _layers(model)]
    if missing := sorted(_unfit(config.target_modules, layers)):
        known = sorted({name.rpartition(".")[2] for name in layers})
        raise ModelError(
            f"model.lora.target_modules: the model has no linear layer for: {', '.join(missing)}; "
            f"it has {', '.join(known)}"
        )
    modules = [name for name, _ in model.named_modules() if name]
    if missing := _unfit(config.modules_to_save or (), modules):
        raise ModelError(f"model.lora.modules_to_save: the model has no module {', '.join(missing)}")
    parameters = [name for name, _ in model.named_parameters()]
    if missing := _unfit(config.target_parameters or (), parameters):
        raise ModelError(f"model.lora.target_parameters: the model has no parameter {', '.join(missing)}")


def _check_saved(model: nn.Module, config: Any) -> None:
    """ModelError for a module to save whose weights are no numbers that can be trained."""
    saved = tuple(getattr(config, "modules_to_save", None) or ())
    for name, module in model.named_modules():
        whole = all(p.is_floating_point() for p in module.parameters())
        if not whole and any(f".{name}".endswith(f".{each}") for each in saved):
            raise ModelError(f"model.lora.modules_to_save: {name} is kept as integers (model.quantization)")


def _unfit(given: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those of `given` that are no name, nor the end of one."""
    return [g for g in given if not any(name == g or name.endswith(f".{g}") for name in names)]


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers that can be adapted, with their names."""
    from transformers.pytorch_utils import Conv1D

    kinds = (nn.Linear, Conv1D, nn.Embedding)
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kinds))


def _numbers(parameter: nn.Parameter) -> int:
    """How many weights a parameter stands for: two share a byte in 4 bits."""
    state: Any = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else math.prod(state.shape)
