"""Batched generation: prompts of any length together, finished sequences leave the batch, waiting ones take over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from evaluation.engine import llama
from evaluation.engine.decoders import Decoder, PackedDecoder, PaddedDecoder
from evaluation.engine.forward import resolve_mode
from evaluation.engine.models import evaluation_mode, keep_freed_memory, text_config
from evaluation.engine.shared_decoder import SharedDecoder
from evaluation.engine.watch import counter

Choose = Callable[[Tensor, list[int]], Tensor]
"""Logits (B, V) of the next token and the number of the continuation of each row -> chosen token ids (B,)."""

MAX_ROWS = 1024
SHARING = 4


def cached_token_bytes(model: nn.Module) -> int:
    """Bytes of a token's keys and values in all layers; 0 for a model without attention."""
    config = text_config(model)
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
    if heads is None:
        return 0
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameter = next(model.parameters())
    wide = not parameter.is_floating_point() or llama.supports(model)
    size = 4 if wide else parameter.element_size()
    return 2 * config.num_hidden_layers * heads * head_dim * size


def default_token_budget(model: nn.Module, *, on_gpu: bool | None = None) -> int:
    """Cached tokens that take about 1 GiB on a CPU and 8 GiB elsewhere; any number for a model without attention.

    on_gpu: None asks where the model is.
    """
    each = cached_token_bytes(model)
    if on_gpu is None:
        on_gpu = next(model.parameters()).device.type != "cpu"
    return max(1, (2**33 if on_gpu else 2**30) // each) if each else MAX_ROWS * 4096


def table_size(
    budget: int, prompt: int, new: int, columns: int, copies: int, count: int, max_batch: int | None = None
) -> tuple[int, int]:
    """Rows that run together, and the cached tokens that each costs at most.

    `count` continuations of up to `new` tokens of prompts of up to `prompt` tokens, together at most `columns`; with
    many `copies` of a prompt its keys and values lie in memory twice, not once per copy.
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
    """Continue every prompt `copies` times, until `choose` picks a stop id (not returned) or max_new_tokens are there.

    The continuations of prompt i have the numbers i·copies … (i+1)·copies − 1, in the result and for `choose`.
    max_new_tokens: one limit or one per prompt;
    token_budget: cached tokens at most, hence rows <= budget / (longest prompt + max_new_tokens), at least one row;
    with many copies a prompt counts twice, not once per copy; max_batch: rows at most (1024). mode as in
    `evaluation.engine.forward`. Equal prompts are continued separately. Runs in eval mode without gradients and
    restores the mode. Raises ValueError for an empty prompt or a size below 1.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if any(not prompt for prompt in prompts):
        raise ValueError("cannot continue an empty prompt")
    if min(limits, default=1) < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if copies < 1 or (max_batch is not None and max_batch < 1) or (token_budget is not None and token_budget < 1):
        raise ValueError("copies, max_batch and token_budget must be at least 1")
    if not prompts:
        return []
    budget = default_token_budget(model) if token_budget is None else token_budget
    keep_freed_memory()
    with evaluation_mode(model), torch.inference_mode():
        decoder, rows = _decoder(model, prompts, limits, copies, budget, max_batch, mode, pad_id)
        table = _Table(decoder, rows, prompts, limits, copies, frozenset(stop_ids))
        logits: Tensor | None = None
        finished = counter("answers", len(table.produced))
        while table.waiting or table.running:
            added = table.admit()
            if added is not None:
                logits = added if logits is None else torch.cat([logits, added])
            assert logits is not None
            before = len(table.running)
            tokens = table.take(choose(logits, table.running))
            if len(table.running) < before:
                finished(before - len(table.running))
            logits = decoder.step(tokens) if table.running else None
    return table.produced


def _decoder(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    copies: int,
    budget: int,
    max_batch: int | None,
    mode: str,
    pad_id: int,
) -> tuple[Decoder, int]:
    """The quickest decoder that these prompts and this model allow, and the number of its rows."""
    longest, most = max(map(len, prompts)), max(limits)
    columns = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    way = resolve_mode(model, mode, columns)
    sharing = way != "padded" and copies >= SHARING
    count = len(prompts) * copies
    rows, _ = table_size(budget, longest, most, columns, copies if sharing else 1, count, max_batch)
    if sharing:
        return SharedDecoder(model, prompts, rows, most, way, budget - rows * most), rows
    if way != "padded":
        return PackedDecoder(model, prompts, rows, columns, way), rows
    return PaddedDecoder(model, prompts, pad_id), rows


class _Table:
    """Which continuations run in the rows of a decoder, which wait for a row, and what was produced so far.

    The continuations of prompt i have the numbers i·copies … (i+1)·copies − 1; those of long prompts begin first.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: int,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        copies: int,
        stops: frozenset[int],
    ) -> None:
        self._decoder, self._rows, self._limits, self._copies, self._stops = decoder, rows, limits, copies, stops
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        self.waiting = [i * copies + j for i in by_length for j in range(copies)]
        self.running: list[int] = []
        self.produced: list[list[int]] = [[] for _ in self.waiting]
        self._left = [copies] * len(prompts)

    def admit(self) -> Tensor | None:
        """Let waiting continuations begin once a quarter of the rows is free; the logits of their first tokens."""
        free = self._rows - len(self.running)
        if not (self.waiting and self._decoder.open and (free >= max(1, self._rows // 4) or not self.running)):
            return None
        fresh: list[int] = []
        while self.waiting and len(fresh) < free and self._decoder.admits(self.waiting[-1] // self._copies):
            fresh.append(self.waiting.pop())
        if not fresh:
            return None
        numbers = [unit // self._copies for unit in fresh]
        logits = self._decoder.add(numbers)
        self.running += fresh
        for number in numbers:
            self._left[number] -= 1
            if not self._left[number]:
                self._decoder.forget(number)
        return logits

    def take(self, tokens: Tensor) -> Tensor:
        """Append the tokens (B,) chosen for the rows; those of the rows that go on, in the rows' new order."""
        alive = []
        for row, (unit, token) in enumerate(zip(self.running, tokens.tolist(), strict=True)):
            if token in self._stops:
                continue
            self.produced[unit].append(token)
            if len(self.produced[unit]) < self._limits[unit // self._copies]:
                alive.append(row)
        if len(alive) == len(self.running):
            return tokens
        order = self._decoder.keep(alive)
        self.running = [self.running[row] for row in order]
        return tokens[torch.tensor(order, dtype=torch.long, device=tokens.device)]


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

    The tokens are those of Hugging Face `generate(do_sample=False)` prompt by prompt. starts: tokens that are known to
    begin the continuation of a prompt (the start of a scored answer whose every token is the likeliest); they are not
    generated again. Other arguments as in `decode`.
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
