"""Many continuations of each prompt, which runs once and whose keys and values lie in memory once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evaluation.engine.decoders import PackedDecoder, RowForward, Step, prefill_parts
from evaluation.engine.packing import CausalLayout, row_layout


class SharedDecoder(PackedDecoder):
    """Many continuations of each prompt: a prompt runs once, and its keys and values lie in memory once.

    The table holds the tokens of the continuations only. A row attends to its prompt together with all other rows of
    that prompt, in one matrix product.
    """

    def __init__(
        self,
        forward: RowForward,
        device: torch.device,
        prompts: Sequence[Sequence[int]],
        rows: int,
        columns: int,
        prompt_tokens: int | None = None,
    ) -> None:
        """prompt_tokens: how many tokens of prompts may be in memory, None for any number; one prompt always may."""
        super().__init__(forward, device, prompts, rows, columns)
        self.prompt_tokens = prompt_tokens
        self.admitted: set[int] = set()
        self.numbers: list[int] = []
        self.first_logits: dict[int, Tensor] = {}
        self.prefixes: dict[int, dict[nn.Module, tuple[Tensor, Tensor]]] = {}
        self.plan: _Crowds | None = None

    def admits(self, number: int) -> bool:
        alive = self.prefixes.keys() | self.admitted
        if number in alive or not alive or self.prompt_tokens is None:
            fits = True
        else:
            # Once as they are and once stacked.
            fits = 2 * sum(len(self.prompts[i]) for i in (*alive, number)) <= self.prompt_tokens
        if fits:
            self.admitted.add(number)
        return fits

    def add(self, numbers: Sequence[int]) -> Tensor:
        self.admitted.clear()
        fresh = [i for i in dict.fromkeys(numbers) if i not in self.first_logits]
        for part in prefill_parts(fresh, self.prompts):
            layout, ids, positions, places = row_layout([self.prompts[i] for i in part], share=True, device=self.device)
            rows = [torch.tensor(row, device=self.device) for row in places]
            self.prefixes |= {i: {} for i in part}
            capture = _Capture(layout, [(self.prefixes[i], row) for i, row in zip(part, rows, strict=True)])
            logits = self.forward(ids, positions, capture, torch.stack([row[-1] for row in rows]))
            self.first_logits |= dict(zip(part, logits, strict=True))
        for table in self.tables.values():
            for x in table:
                x[self.size : self.size + len(numbers), :, : self.finite] = 0
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
    into: Sequence[tuple[dict[nn.Module, tuple[Tensor, Tensor]], Tensor]]

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
    """Which running rows belong to which prompt, arranged for few matrix products; kept until a row comes or goes.

    alone: whether all belong to one prompt, where nothing need be arranged.
    """

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
        self.alone = len(distinct) == 1
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


class _SharedStep(Step):
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
        if self.plan.alone:
            (keys, _), rows = prefixes[0], len(query)
            found = torch.bmm(_by_prompt(query, 1), keys[0].transpose(1, 2))
            return found.view(query.shape[1], rows, query.shape[2], -1).transpose(0, 1)
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
        if self.plan.alone:
            found = torch.bmm(_by_prompt(weights, 1), prefixes[0][1][0])
            out += found.view(out.shape[1], len(out), *out.shape[2:]).transpose(0, 1)
            return
        for crowd, (_, values) in zip(self.plan.crowds, prefixes, strict=True):
            together = _by_prompt(weights[crowd.members, ..., : crowd.longest], len(crowd.numbers))
            found = torch.bmm(together, values.flatten(0, 1))
            found = found.view(len(crowd.numbers), out.shape[1], -1, out.shape[2], out.shape[3])
            out[crowd.rows] += found.transpose(1, 2).flatten(0, 1)[crowd.places]


def _by_prompt(x: Tensor, prompts: int) -> Tensor:
    """(S·w, H_kv, g, D) -> (S·H_kv, w·g, D)."""
    heads, dim = x.shape[1], x.shape[-1]
    return x.unflatten(0, (prompts, -1)).transpose(1, 2).reshape(prompts * heads, -1, dim)
