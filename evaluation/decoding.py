"""Batched generation: prompts of any length side by side, finished sequences leave the batch, waiting ones take over.

Three decoders share one loop. `PackedDecoder` puts one new token of every running sequence into one row and keeps keys
and values left-aligned in a preallocated table, so nothing is padded, concatenated or moved as sequences grow.
`SharedDecoder` does so for many continuations of each prompt, whose keys and values exist once. `PaddedDecoder` (for
models without packing) left-pads a batch and uses the model's own cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.forward import resolve_mode, row_forward
from evaluation.models import base_model, evaluation_mode, keep_freed_memory, model_device, text_config
from evaluation.packing import CausalLayout, attend_causal, row_layout

Choose = Callable[[Tensor, list[int]], Tensor]
"""Logits (B, V) of the next token and the number of the continuation of each row -> chosen token ids (B,)."""

PREFILL_TOKENS = 4096
MAX_ROWS = 1024
CPU_BLOCK = 128
SHARING = 4


class Decoder(Protocol):
    """Rows of running sequences. Rows are numbered 0..size-1; new ones are added at the end."""

    size: int

    @property
    def open(self) -> bool:
        """Whether prompts can be added now."""
        ...

    def add(self, numbers: Seq[int]) -> Tensor:
        """Append a row for each of the prompts with these numbers -> logits (rows, V) of their first new token."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token (size,) to each row -> logits (size, V) of the next."""
        ...

    def keep(self, rows: list[int]) -> list[int]:
        """Drop all other rows; returns the kept old row numbers in their new order."""
        ...

    def forget(self, number: int) -> None:
        """No row of this prompt will be added any more."""
        ...


class PackedDecoder:
    """Left-aligned table of keys and values per attention layer, filled by the packing attention function."""

    def __init__(self, model: nn.Module, prompts: Seq[Seq[int]], rows: int, columns: int, mode: str = "packed") -> None:
        self.prompts, self.rows, self.columns = prompts, rows, columns
        self.forward = row_forward(model, mode)
        self.size = self.finite = 0
        self.lengths: list[int] = []
        self.device = model_device(model)
        self.tables: dict[nn.Module, list[Tensor]] = {}

    @property
    def open(self) -> bool:
        return self.size < self.rows

    def table(self, module: nn.Module, key: Tensor, value: Tensor) -> list[Tensor]:
        """Keys and values (rows, H_kv, columns, D) of this layer.

        Of the running rows, each row's own up to its length, and anything finite in the first `finite` columns.
        """
        if module not in self.tables:
            self.tables[module] = [x.new_empty(self.rows, x.shape[1], self.columns, x.shape[-1]) for x in (key, value)]
        return self.tables[module]

    def add(self, numbers: Seq[int]) -> Tensor:
        return torch.cat([self._prefill([self.prompts[i] for i in part]) for part in _parts(numbers, self.prompts)])

    def _prefill(self, prompts: Seq[Seq[int]]) -> Tensor:
        layout, ids, positions, places = row_layout(prompts, share=True, device=self.device)
        keep = torch.tensor([row[-1] for row in places], device=self.device)
        logits = self.forward(ids, positions, _Prefill(self, layout), keep)
        self.size += len(prompts)
        self.finite = max(self.finite, layout.max_length)
        self.lengths += [len(prompt) for prompt in prompts]
        return logits

    def forget(self, number: int) -> None:
        """Nothing is kept of a prompt but its rows."""

    def step(self, tokens: Tensor) -> Tensor:
        lengths = torch.tensor(self.lengths, device=self.device)
        return self._step(tokens, lengths, _Step(self, lengths))

    def _step(self, tokens: Tensor, positions: Tensor, layout: _Step) -> Tensor:
        keep = torch.arange(self.size, device=self.device)
        logits = self.forward(tokens, positions, layout, keep)
        self.lengths = [length + 1 for length in self.lengths]
        self.finite = max(self.finite, layout.width)
        return logits

    def keep(self, rows: list[int]) -> list[int]:
        stay = {row for row in rows if row < len(rows)}
        movers = [row for row in rows if row >= len(rows)]
        holes = [row for row in range(len(rows)) if row not in stay]
        if holes:
            source, target = (torch.tensor(x, device=self.device) for x in (movers, holes))
            width = max(self.lengths[row] for row in movers)
            for table in self.tables.values():
                for x in table:
                    x[target, :, :width] = x[source, :, :width]
        order = list(range(len(rows)))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        self.lengths = [self.lengths[row] for row in order]
        self.size = len(order)
        return order


@dataclass(frozen=True)
class _Prefill:
    """Prompts attend causally; their keys and values go to the rows after the running ones."""

    decoder: PackedDecoder
    causal: CausalLayout

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        layout, start, finite = self.causal, self.decoder.size, self.decoder.finite
        keys, values = layout.pad(key), layout.pad(value)
        for table, new in zip(self.decoder.table(module, key, value), (keys, values), strict=True):
            table[:start, :, finite : layout.max_length] = 0
            table[start : start + layout.size, :, : layout.max_length] = new
            table[start : start + layout.size, :, layout.max_length : finite] = 0
        return layout.unpad(attend_causal(layout.pad(query), keys, values, scale, dropout))


class _Step:
    """One new token per row attends to its row's keys and values, the new ones included."""

    def __init__(self, decoder: PackedDecoder, lengths: Tensor) -> None:
        self.decoder, self.lengths = decoder, lengths
        self.rows = torch.arange(decoder.size, device=lengths.device)
        self.width = max(decoder.lengths) + 1
        self.beyond = torch.arange(self.width, device=lengths.device) > lengths[:, None]
        self.mask: Tensor | None = None
        # Rows near each other are of similar length: each block reads no further than its longest.
        size = CPU_BLOCK if lengths.device.type == "cpu" else decoder.size
        starts = range(0, decoder.size, size)
        self.blocks = [(slice(a, a + size), max(decoder.lengths[a : a + size]) + 1) for a in starts]

    def extend(self, module: nn.Module, key: Tensor, value: Tensor) -> tuple[list[Tensor], Tensor]:
        """The layer's keys and values with the new ones (R, H_kv, D) in, and the mask (R, 1, 1, width) to add."""
        tables = self.decoder.table(module, key, value)
        for table, new in zip(tables, (key, value), strict=True):
            table[: self.decoder.size, :, self.decoder.finite : self.width] = 0
            table[self.rows, :, self.lengths] = new
        if self.mask is None:
            mask = torch.zeros(self.beyond.shape, dtype=key.dtype, device=key.device)
            self.mask = mask.masked_fill_(self.beyond, float("-inf"))[:, None, None]
        return tables, self.mask

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        (keys, values), mask = self.extend(module, key, value)
        size, heads, head_dim = query.shape
        # Query heads that share a key head become queries of that head.
        grouped = query.reshape(size, keys.shape[1], heads // keys.shape[1], head_dim)
        attend = _attend_few if query.device.type == "cpu" else F.scaled_dot_product_attention
        attended = [
            attend(
                grouped[rows],
                keys[:size][rows, :, :width],
                values[:size][rows, :, :width],
                attn_mask=mask[rows, ..., :width],
                dropout_p=dropout,
                scale=scale,
            )
            for rows, width in self.blocks
        ]
        return torch.cat(attended).reshape(size, heads, values.shape[-1])


def _attend_few(
    query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, dropout_p: float, scale: float | None
) -> Tensor:
    """`scaled_dot_product_attention` for very few queries (R, H, n, D) of each row, where its blocks are too large."""
    flat_query, flat_key, flat_value = (x.flatten(0, 1) for x in (query, key, value))
    scores = torch.bmm(flat_query, flat_key.transpose(1, 2)).mul_(query.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.view(*query.shape[:3], -1).add_(attn_mask).softmax(-1)
    return torch.bmm(F.dropout(weights, dropout_p).flatten(0, 1), flat_value).view(*query.shape[:3], -1)


class SharedDecoder(PackedDecoder):
    """Many continuations of each prompt: a prompt runs once, and its keys and values lie in memory once.

    The table holds the tokens of the continuations only. A row attends to its prompt together with all other rows of
    that prompt, in one matrix product.
    """

    def __init__(self, model: nn.Module, prompts: Seq[Seq[int]], rows: int, columns: int, mode: str = "packed") -> None:
        super().__init__(model, prompts, rows, columns, mode)
        self.numbers: list[int] = []
        self.first_logits: dict[int, Tensor] = {}
        self.prefixes: dict[int, dict[nn.Module, tuple[Tensor, Tensor]]] = {}
        self.plan: _Crowds | None = None

    def add(self, numbers: Seq[int]) -> Tensor:
        fresh = [i for i in dict.fromkeys(numbers) if i not in self.first_logits]
        for part in _parts(fresh, self.prompts):
            layout, ids, positions, places = row_layout([self.prompts[i] for i in part], share=True, device=self.device)
            rows = [torch.tensor(row, device=self.device) for row in places]
            self.prefixes |= {i: {} for i in part}
            capture = _Capture(layout, [(self.prefixes[i], row) for i, row in zip(part, rows, strict=True)])
            logits = self.forward(ids, positions, capture, torch.stack([row[-1] for row in rows]))
            self.first_logits |= dict(zip(part, logits, strict=True))
        self.size += len(numbers)
        self.lengths += [0] * len(numbers)
        self.numbers += numbers
        self.plan = None
        distinct = list(dict.fromkeys(numbers))
        which = torch.tensor([distinct.index(i) for i in numbers], device=self.device)
        return torch.stack([self.first_logits[i] for i in distinct])[which]

    def forget(self, number: int) -> None:
        del self.first_logits[number]

    def keep(self, rows: list[int]) -> list[int]:
        order = super().keep(rows)
        self.numbers = [self.numbers[row] for row in order]
        needed = self.first_logits.keys() | set(self.numbers)
        for gone in self.prefixes.keys() - needed:
            del self.prefixes[gone]
        self.plan = None
        return order

    def step(self, tokens: Tensor) -> Tensor:
        if self.plan is None:
            self.plan = _Crowds(self)
        lengths = torch.tensor(self.lengths, device=self.device)
        return self._step(tokens, lengths + self.plan.prompt_lengths, _SharedStep(self, lengths, self.plan))


@dataclass(frozen=True)
class _Capture:
    """Prompts attend causally; each one's keys and values (H_kv, P, D) are kept by layer."""

    causal: CausalLayout
    into: Seq[tuple[dict[nn.Module, tuple[Tensor, Tensor]], Tensor]]

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        for kept, rows in self.into:
            kept[module] = (key[rows].transpose(0, 1).contiguous(), value[rows].transpose(0, 1).contiguous())
        return self.causal.attend(module, query, key, value, scale=scale, dropout=dropout)


@dataclass(frozen=True)
class _Crowd:
    """Prompts with similarly many rows: row numbers (S, w), padded, the flat places of the real ones among them."""

    numbers: list[int]
    members: Tensor
    rows: Tensor
    places: Tensor
    longest: int
    hidden: Tensor | None


class _Crowds:
    """Which running rows belong to which prompt, arranged for few matrix products; kept until a row comes or goes."""

    def __init__(self, decoder: SharedDecoder) -> None:
        self.decoder = decoder
        device = decoder.device
        prompts = decoder.prompts
        numbers = np.array(decoder.numbers)
        order = np.argsort(numbers, kind="stable")
        distinct, starts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
        lengths = np.array([len(prompts[i]) for i in distinct])
        self.longest = int(lengths.max())
        self.prompt_lengths = torch.from_numpy(np.repeat(lengths, counts)[np.argsort(order, kind="stable")]).to(device)
        classes: dict[int, list[int]] = {}
        for j, count in enumerate(counts.tolist()):
            classes.setdefault((count - 1).bit_length(), []).append(j)
        self.crowds: list[_Crowd] = []
        self.stacked: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
        for chosen in classes.values():
            width, longest = int(counts[chosen].max()), int(lengths[chosen].max())
            members, places, rows = np.zeros((len(chosen), width), np.int64), [], []
            for i, j in enumerate(chosen):
                own = order[starts[j] : starts[j] + counts[j]]
                members[i, : len(own)] = own
                rows.append(own)
                places.append(i * width + np.arange(len(own)))
            hidden = None
            if lengths[chosen].min() < longest:
                beyond = torch.from_numpy(np.arange(longest) >= lengths[chosen, None]).to(device)
                hidden = torch.zeros(beyond.shape, device=device).masked_fill_(beyond, float("-inf"))
                hidden = hidden[:, None, None, None]
            self.crowds.append(
                _Crowd(
                    distinct[chosen].tolist(),
                    torch.from_numpy(members.ravel()).to(device),
                    torch.from_numpy(np.concatenate(rows)).to(device),
                    torch.from_numpy(np.concatenate(places)).to(device),
                    longest,
                    hidden,
                )
            )

    def tables(self, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """Per crowd the keys and values (S, H_kv, P, D) of its prompts; zeros where a prompt is shorter."""
        if module not in self.stacked:
            self.stacked[module] = [self._stack(module, crowd) for crowd in self.crowds]
        return self.stacked[module]

    def _stack(self, module: nn.Module, crowd: _Crowd) -> tuple[Tensor, Tensor]:
        kept = [self.decoder.prefixes[i][module] for i in crowd.numbers]
        if len(kept) == 1:
            return kept[0][0][None], kept[0][1][None]
        keys, values = (
            torch.stack([F.pad(pair[j], (0, 0, 0, crowd.longest - pair[j].shape[1])) for pair in kept]) for j in (0, 1)
        )
        return keys, values


class _SharedStep(_Step):
    """One new token per row attends to its prompt and to its row's keys and values, the new ones included."""

    def __init__(self, decoder: SharedDecoder, lengths: Tensor, plan: _Crowds) -> None:
        super().__init__(decoder, lengths)
        self.plan = plan

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float
    ) -> Tensor:
        (keys, values), mask = self.extend(module, key, value)
        size, heads, dim = query.shape
        shared = keys.shape[1]
        few = heads // shared
        grouped = query.reshape(size, shared, few, dim) * (dim**-0.5 if scale is None else scale)
        prefixes = self.plan.tables(module)
        scores = self._prompt_scores(grouped, prefixes)
        out = query.new_empty(size * shared, few, values.shape[-1])
        for rows, width in self.blocks:
            flat = slice(rows.start * shared, min(rows.stop, size) * shared)
            own_keys, own_values = (x[:size][rows, :, :width].flatten(0, 1) for x in (keys, values))
            own = torch.bmm(grouped[rows].flatten(0, 1), own_keys.transpose(1, 2))
            own.view(-1, shared, few, width).add_(mask[rows, ..., :width])
            weights = torch.cat([scores[rows].flatten(0, 1), own], -1).softmax(-1)
            weights = F.dropout(weights, dropout)
            scores[rows] = weights[..., : self.plan.longest].view(-1, shared, few, self.plan.longest)
            torch.bmm(weights[..., self.plan.longest :], own_values, out=out[flat])
        self._add_prompt_values(out.view(size, shared, few, -1), scores, prefixes)
        return out.view(size, heads, -1)

    def _prompt_scores(self, query: Tensor, prefixes: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Scores (R, H_kv, g, P) of the rows on their prompts, -inf beyond a prompt's end."""
        scores = query.new_full((*query.shape[:3], self.plan.longest), float("-inf"))
        for crowd, (keys, _) in zip(self.plan.crowds, prefixes, strict=True):
            together = _by_prompt(query[crowd.members], len(crowd.numbers))
            found = torch.bmm(together, keys.flatten(0, 1).transpose(1, 2))
            found = found.view(len(crowd.numbers), query.shape[1], -1, query.shape[2], crowd.longest)
            if crowd.hidden is not None:
                found.add_(crowd.hidden)
            scores[crowd.rows, ..., : crowd.longest] = found.transpose(1, 2).flatten(0, 1)[crowd.places]
        return scores

    def _add_prompt_values(self, out: Tensor, weights: Tensor, prefixes: list[tuple[Tensor, Tensor]]) -> None:
        """Add to out (R, H_kv, g, D) the prompts' values by their weights (R, H_kv, g, P)."""
        for crowd, (_, values) in zip(self.plan.crowds, prefixes, strict=True):
            together = _by_prompt(weights[crowd.members, ..., : crowd.longest], len(crowd.numbers))
            found = torch.bmm(together, values.flatten(0, 1))
            found = found.view(len(crowd.numbers), out.shape[1], -1, out.shape[2], out.shape[3])
            out[crowd.rows] += found.transpose(1, 2).flatten(0, 1)[crowd.places]


def _by_prompt(x: Tensor, prompts: int) -> Tensor:
    """(S·w, H_kv, g, D) -> (S·H_kv, w·g, D)."""
    heads, few, dim = x.shape[1:]
    return x.view(prompts, -1, heads, few, dim).transpose(1, 2).reshape(prompts * heads, -1, dim)


class PaddedDecoder:
    """Left-padded batch and the model's own cache; without a cache the whole batch is computed at every step."""

    def __init__(self, model: nn.Module, prompts: Seq[Seq[int]], pad_id: int) -> None:
        self.model, self.prompts, self.pad_id = model, prompts, pad_id
        self.size = 0
        self.cache: Any = None
        parameters = inspect.signature(base_model(model).forward).parameters
        self.positions = "position_ids" in parameters
        self.ids = self.mask = torch.empty(0, 0, dtype=torch.long, device=model_device(model))

    @property
    def open(self) -> bool:
        return self.size == 0

    def forget(self, number: int) -> None:
        """Nothing is kept of a prompt but its rows."""

    def add(self, numbers: Seq[int]) -> Tensor:
        prompts = [self.prompts[i] for i in numbers]
        longest, device = max(len(p) for p in prompts), model_device(self.model)
        self.size, self.cache = len(prompts), None
        self.ids = torch.tensor([[self.pad_id] * (longest - len(p)) + list(p) for p in prompts], device=device)
        self.mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        return self._forward()

    def step(self, tokens: Tensor) -> Tensor:
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        self.mask = torch.cat([self.mask, self.mask.new_ones(self.size, 1)], dim=1)
        return self._forward()

    def _forward(self) -> Tensor:
        new = slice(None) if self.cache is None else slice(-1, None)
        extra: dict[str, Any] = {} if self.cache is None else {"past_key_values": self.cache}
        if self.positions:
            extra["position_ids"] = (self.mask.cumsum(1) - 1).clamp_min(0)[:, new]
        output = self.model(input_ids=self.ids[:, new], attention_mask=self.mask, use_cache=True, **extra)
        self.cache = getattr(output, "past_key_values", None)
        return output.logits[:, -1]

    def keep(self, rows: list[int]) -> list[int]:
        index = torch.tensor(rows, dtype=torch.long, device=self.ids.device)
        self.ids, self.mask, self.size = self.ids[index], self.mask[index], len(rows)
        if self.cache is not None and rows:
            self.cache.batch_select_indices(index)
        return list(rows)


def default_token_budget(model: nn.Module) -> int:
    """Cached tokens that take about 1 GiB on a CPU and 8 GiB elsewhere."""
    config = text_config(model)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameter = next(model.parameters())
    size = 4 if not parameter.is_floating_point() else parameter.element_size()
    memory = 2**30 if parameter.device.type == "cpu" else 2**33
    return max(1, memory // (2 * config.num_hidden_layers * heads * head_dim * size))


def decode(
    model: nn.Module,
    prompts: Seq[Seq[int]],
    choose: Choose,
    *,
    max_new_tokens: int | Seq[int],
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
    token_budget: cached tokens at most, hence rows <= budget / (longest prompt + max_new_tokens), at least one; with
    several copies a prompt counts once; max_batch: rows at most (1024). mode as in `evaluation.forward`. Equal prompts
    are continued separately. Runs in eval mode without gradients and restores the mode. Raises ValueError for an empty
    prompt or a size below 1.
    """
    if any(not prompt for prompt in prompts):
        raise ValueError("cannot continue an empty prompt")
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if min(limits, default=1) < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    if copies < 1 or (max_batch is not None and max_batch < 1) or (token_budget is not None and token_budget < 1):
        raise ValueError("copies, max_batch and token_budget must be at least 1")
    if not prompts:
        return []
    stops = frozenset(stop_ids)
    budget = default_token_budget(model) if token_budget is None else token_budget
    longest = max(map(len, prompts))
    columns = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
    waiting = [
        i * copies + j for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i])) for j in range(copies)
    ]
    left = [copies] * len(prompts)
    produced: list[list[int]] = [[] for _ in waiting]
    running: list[int] = []
    keep_freed_memory()
    with evaluation_mode(model), torch.inference_mode():
        way = resolve_mode(model, mode, columns, shared=True)
        sharing = way != "padded" and copies >= SHARING
        cost = max(limits) + -(-longest // copies) if sharing else columns
        rows = max(1, min(budget // cost, max_batch or MAX_ROWS, len(produced)))
        decoder: Decoder
        if sharing:
            decoder = SharedDecoder(model, prompts, rows, max(limits), way)
        elif way != "padded":
            decoder = PackedDecoder(model, prompts, rows, columns, way)
        else:
            decoder = PaddedDecoder(model, prompts, pad_id)
        logits: Tensor | None = None
        while waiting or running:
            free = rows - len(running)
            if waiting and decoder.open and (free >= max(1, rows // 4) or not running):
                fresh = [waiting.pop() for _ in range(min(free, len(waiting)))]
                numbers = [unit // copies for unit in fresh]
                added = decoder.add(numbers)
                logits = added if logits is None else torch.cat([logits, added])
                running += fresh
                for number in numbers:
                    left[number] -= 1
                    if not left[number]:
                        decoder.forget(number)
            assert logits is not None
            tokens = choose(logits, running)
            alive = []
            for row, (unit, token) in enumerate(zip(running, tokens.tolist(), strict=True)):
                if token in stops:
                    continue
                produced[unit].append(token)
                if len(produced[unit]) < limits[unit // copies]:
                    alive.append(row)
            if len(alive) < len(running):
                order = decoder.keep(alive)
                running = [running[row] for row in order]
                tokens = tokens[torch.tensor(order, dtype=torch.long, device=tokens.device)]
            logits = decoder.step(tokens) if running else None
    return produced


def _parts(numbers: Seq[int], prompts: Seq[Seq[int]]) -> list[list[int]]:
    """The prompts to add, in groups of bounded prefill size."""
    parts: list[list[int]] = []
    used = PREFILL_TOKENS
    for i in numbers:
        if used + len(prompts[i]) > PREFILL_TOKENS:
            parts.append([])
            used = 0
        parts[-1].append(i)
        used += len(prompts[i])
    return parts


def greedy(
    model: nn.Module,
    prompts: Seq[Seq[int]],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    starts: Mapping[tuple[int, ...], Seq[int]] | None = None,
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
