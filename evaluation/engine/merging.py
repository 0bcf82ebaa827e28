"""A model with its adapter added to its own weights."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn

from evaluation.engine.models import base_model


@torch.no_grad()
def merged(model: nn.Module) -> nn.Module:
    """Add a peft adapter to the weights that it belongs to.

    A weight that several modules share, such as a head tied to the embedding, is copied first for the module that the
    adapter changes, so that the others stay as they are; the configuration then says that head and embedding are not
    tied, and the saved folder gives the same model back.

    Parameters
    ----------
    model : nn.Module
        A PeftModel, changed for good, or a model without adapters.

    Returns
    -------
    nn.Module
        The model without its adapter, all its weights in the number format of the base model.
    """
    merge = getattr(model, "merge_and_unload", None)
    if not callable(merge):
        return model
    _untie(model)
    _as_before(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied heads
        plain: Any = merge()
    vars(plain).pop("peft_config", None)
    embedding, head = plain.get_input_embeddings(), plain.get_output_embeddings()
    if head is not None and head.weight is not embedding.weight:
        for config in {id(c): c for c in (plain.config, plain.config.get_text_config())}.values():
            config.tie_word_embeddings = False
    return plain


def _untie(model: nn.Module) -> None:
    """Give every layer that an adapter changes weights of its own."""
    users: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            layer: Any = module.get_base_layer()
            for name, parameter in layer._parameters.items():
                if parameter is not None and users[id(parameter)] > 1:
                    layer._parameters[name] = nn.Parameter(parameter.clone(), requires_grad=False)


def _as_before(model: nn.Module) -> None:
    """Give modules that were trained as a whole, in float32, the number format of those whose place they take."""
    for module in base_model(model).modules():
        if isinstance(module, ModulesToSaveWrapper):
            formats = {p.dtype for p in module.original_module.parameters() if p.is_floating_point()}
            for saved in module.modules_to_save.values():
                saved._forward_hooks.clear()
                saved._forward_pre_hooks.clear()
                if len(formats) == 1:
                    saved.to(formats.pop())
