"""Properties of any causal language model that evaluators and clients need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")


def base_model(model: nn.Module) -> nn.Module:
    """The Hugging Face model inside a PEFT wrapper, or the model itself.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    nn.Module
    """
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model  # type: ignore[return-value]


def text_config(model: nn.Module) -> Any:
    """The configuration of the language model, also where it is a part of a larger model.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    PreTrainedConfig
    """
    config: Any = base_model(model).config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def is_quantized(model: nn.Module) -> bool:
    """Whether weights are stored as integers (bitsandbytes' 8-bit and 4-bit layers).

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    bool
    """
    return any(not parameter.is_floating_point() for parameter in model.parameters())


def vocabulary_size(model: nn.Module) -> int:
    """Number of logits per position.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    int
    """
    return int(text_config(model).vocab_size)


def decoder_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The list of decoder layers.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    name : str
        Of the list in `base_model(model)`.
    layers : nn.ModuleList

    Raises
    ------
    ValueError
        If there is no such list.
    """
    count = text_config(model).num_hidden_layers
    for name, module in base_model(model).named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name, module
    raise ValueError(f"{type(base_model(model)).__name__} has no list of {count} decoder layers")


def layer_index(model: nn.Module, layer: int) -> int:
    """Number of a decoder layer from 0.

    Parameters
    ----------
    model : nn.Module
    layer : int
        From 0 or, negative, from the last.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If there is no such layer.
    """
    count = len(decoder_layers(model)[1])
    if not -count <= layer < count:
        raise ValueError(f"the model has decoder layers 0 to {count - 1}, also -{count} to -1, not {layer}")
    return layer % count


def model_device(model: nn.Module) -> torch.device:
    """Device of the model's first parameter: where token ids go.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    torch.device
    """
    return next(model.parameters()).device


def each_module(model: nn.Module) -> Iterator[nn.Module]:
    """The model and all modules below it; a shared one comes once per place.

    `Module.modules` passes each one up through a generator for every level above it: four times as slow, which counts
    before every pass over a small model.

    Parameters
    ----------
    model : nn.Module

    Yields
    ------
    nn.Module
    """
    left: list[nn.Module | None] = [model]
    while left:
        if (module := left.pop()) is not None:
            yield module
            left.extend(module._modules.values())


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context in evaluation mode; every module's own train or eval flag is restored afterwards.

    Parameters
    ----------
    model : nn.Module
    """
    flags = [(module, module.training) for module in each_module(model)]
    if any(training for _, training in flags):
        model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            if module.training != training:
                module.training = training


def side_by_side(work: Callable[[T], object], items: Iterable[T], workers: int) -> None:
    """Run work(item) for all items in parallel, by threads that share torch's threads among them.

    The first error of an item is raised after the running ones have ended; the items that wait are then left out.

    Parameters
    ----------
    work : callable (item)
    items : iterable
    workers : int
        Most threads.
    """
    threads = torch.get_num_threads()
    workers = min(workers, threads)
    if workers < 2:
        for item in items:
            work(item)
        return
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
            try:
                for _ in pool.map(work, items):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C waits for what is running, and for no more
                raise
    finally:
        # Some of the limits that a worker sets for itself hold for the whole process.
        torch.set_num_threads(threads)


@cache
def keep_freed_memory(limit: int = 1 << 28) -> bool:
    """Let the process keep freed memory for the next update instead of giving it back.

    On the CPU an update (or a scored batch) frees and takes again the same blocks of megabytes. By default glibc gives
    such blocks back to the kernel, which must clear each page anew: 6 to 11 % of the processor time of training a small
    model went into that. Other C libraries have no such switch and stay as they are.

    Parameters
    ----------
    limit : int
        Most bytes.

    Returns
    -------
    bool
        Whether the process does.
    """
    trim_threshold, mmap_threshold, largest_mmap_threshold = -1, -3, 1 << 25
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(mmap_threshold, largest_mmap_threshold) and mallopt(trim_threshold, limit))
