"""Batched generation: prompts of any length together; finished sequences leave the batch, waiting ones take over."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import nn

from evaluation.engine import llama
from evaluation.engine.backends import backend
from evaluation.engine.decoder_loop import SHARING
from evaluation.engine.decoders import Choose, Continuations
from evaluation.engine.forward import resolve_mode
from evaluation.engine.models import evaluation_mode, keep_freed_memory, text_config

MAX_ROWS = 1024


def cached_token_bytes(model: nn.Module) -> int:
    """Bytes of a token's keys and values in all layers, counted as if all layers were like the usual one.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    int
        0 for a model without attention.
    """
    config = text_config(model)

    def number(*names: str) -> int:
        for name in names:
            with contextlib.suppress(AttributeError, ValueError, TypeError, RuntimeError):
                if value := int(getattr(config, name)):
                    return value
        return 0

    heads = number("num_key_value_heads", "num_attention_heads")
    queries = number("num_attention_heads")
    head_dim = number("head_dim") or (number("hidden_size") // queries if queries else 0)
    parameter = next(model.parameters())
    wide = not parameter.is_floating_point() or llama.supports(model)
    size = 4 if wide else parameter.element_size()
    return 2 * number("num_hidden_layers") * heads * head_dim * size


def default_token_budget(model: nn.Module, *, on_gpu: bool | None = None) -> int:
    """Cached tokens that take about 1 GiB on a CPU and 8 GiB on a GPU.

    Parameters
    ----------
    model : nn.Module
    on_gpu : bool, optional
        None: where the model is.

    Returns
    -------
    int, at least 1
        For a model without attention that of `MAX_ROWS` rows of 4096 tokens.
    """
    each = cached_token_bytes(model)
    if on_gpu is None:
        on_gpu = next(model.parameters()).device.type != "cpu"
    return max(1, (2**33 if on_gpu else 2**30) // each) if each else MAX_ROWS * 4096


def table_size(
    budget: int, prompt: int, new: int, columns: int, copies: int, count: int, max_batch: int | None = None
) -> tuple[int, int]:
    """Size of a decoder's table.

    With many copies of a prompt, its keys and values lie in memory twice and not once per copy.

    Parameters
    ----------
    budget : int
        Most cached tokens.
    prompt, new, columns : int
        Most tokens of a prompt, of a continuation, and of a prompt with its continuation.
    copies : int, at least 1
        Continuations of each prompt that share its keys and values.
    count : int
        All continuations.
    max_batch : int, optional
        Most rows; None: `MAX_ROWS`.

    Returns
    -------
    rows : int, at least 1
        Continuations that run together.
    cost : int
        Most cached tokens of a row.
    """
    cost = new + -(-2 * prompt // copies) if copies > 1 else columns
    return max(1, min(budget // cost, max_batch or MAX_ROWS, count)), cost


def decode(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    choose: Choose,
    *,
    max_new_tokens: int | Sequence[int],
    stop_ids: Collection[int],
    copies: int = 1,
    pad_id: int = 0,
    token_budget: int | None = None,
    max_batch: int | None = None,
    mode: str = "auto",
) -> list[list[int]]:
    """Continue every prompt `copies` times, until `choose` picks a stop id or the limit is reached.

    The continuations of prompt i have the numbers i·copies … (i+1)·copies − 1, in the result and for `choose`. Equal
    prompts are continued separately. Runs in eval mode without gradients, and restores the mode.

    Parameters
    ----------
    model : nn.Module
    prompts : sequence of token ids
        None empty.
    choose : callable (logits (B, V), numbers of the continuations) -> token ids (B,)
        Picks the next token of each.
    max_new_tokens : int or sequence of int
        One limit or one per prompt.
    stop_ids : collection of int
    copies : int, at least 1
    pad_id : int
    token_budget : int, optional
        Most cached tokens, hence rows <= budget / (longest prompt + max_new_tokens), at least one row; with many copies
        a prompt counts twice, not once per copy. None: `default_token_budget`.
    max_batch : int, optional
        Most rows; None: 1024.
    mode : str
        As in `evaluation.engine.forward`.

    Returns
    -------
    list of lists of token ids
        Without the stop token.

    Raises
    ------
    ValueError
        For an empty prompt or a size below 1.
    """
    if copies < 1 or (max_batch is not None and max_batch < 1) or (token_budget is not None and token_budget < 1):
        raise ValueError("copies, max_batch and token_budget must be at least 1")
    limits = _limits(prompts, max_new_tokens)
    if not prompts:
        return []
    budget = default_token_budget(model) if token_budget is None else token_budget
    keep_freed_memory()
    with evaluation_mode(model), torch.inference_mode():
        way, rows = _table(model, prompts, limits, copies, budget, max_batch, mode)
        prompt_tokens = budget - rows * max(limits)
        work = Continuations(prompts, limits, copies, frozenset(stop_ids), choose, pad_id, rows, prompt_tokens)
        return backend(model, way, passes="many").decode(work)


def _limits(prompts: Sequence[Sequence[int]], max_new_tokens: int | Sequence[int]) -> list[int]:
    """Most new tokens of each prompt; ValueError for an empty prompt or a limit below 1."""
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if any(not prompt for prompt in prompts):
        raise ValueError("cannot continue an empty prompt")
    if min(limits, default=1) < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    return limits


def _table(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    copies: int,
    budget: int,
    max_batch: int | None,
    mode: str,
) -> tuple[str, int]:
    """The way to run the model, and how many continuations run together."""
    columns = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    way = resolve_mode(model, mode, columns)
    sharing = copies if way in ("fused", "packed") and copies >= SHARING else 1
    longest, count = max(map(len, prompts)), len(prompts) * copies
    return way, table_size(budget, longest, max(limits), columns, sharing, count, max_batch)[0]


def greedy(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    starts: Mapping[tuple[int, ...], Sequence[int]] | None = None,
    pad_id: int = 0,
    token_budget: int | None = None,
    max_batch: int | None = None,
    mode: str = "auto",
) -> list[list[int]]:
    """Greedy continuation of every prompt, without the stop token; equal prompts are continued once.

    The tokens are those of Hugging Face `generate(do_sample=False)` prompt by prompt.

    Parameters
    ----------
    model : nn.Module
    prompts : sequence of token ids
    max_new_tokens : int
    stop_ids : collection of int
    starts : mapping, optional
        Tokens that are known to begin the continuation of a prompt (the start of a scored answer whose every token is
        the likeliest); they are not generated again.
    pad_id, token_budget, max_batch, mode
        As in `decode`.

    Returns
    -------
    list of lists of token ids
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    known: dict[tuple[int, ...], list[int]] = {}
    finished: dict[tuple[int, ...], bool] = {}
    for prompt in map(tuple, prompts):
        start = list((starts or {}).get(prompt, ()))[:max_new_tokens]
        end = next((i for i, token in enumerate(start) if token in stop_ids), None)
        known[prompt] = start[:end]
        finished[prompt] = end is not None or len(start) == max_new_tokens
    open_prompts = [prompt for prompt in known if not finished[prompt]]
    produced = decode(
        model,
        [(*prompt, *known[prompt]) for prompt in open_prompts],
        lambda logits, _: logits.argmax(-1),
        max_new_tokens=[max_new_tokens - len(known[prompt]) for prompt in open_prompts],
        stop_ids=stop_ids,
        pad_id=pad_id,
        token_budget=token_budget,
        max_batch=max_batch,
        mode=mode,
    )
    for prompt, tokens in zip(open_prompts, produced, strict=True):
        known[prompt] += tokens
    return [list(known[tuple(prompt)]) for prompt in prompts]
