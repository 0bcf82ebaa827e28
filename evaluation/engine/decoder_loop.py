"""The loop over the rows of a decoder: finished continuations leave, waiting ones take over."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from evaluation.engine.decoders import Continuations, Decoder, PackedDecoder, RowForward
from evaluation.engine.ensemble import mean_of_log_probs
from evaluation.engine.models import model_device
from evaluation.engine.progress import counter
from evaluation.engine.shared_decoder import SharedDecoder

SHARING = 4
"""From so many continuations of a prompt on, its keys and values lie in memory once."""


def decode_rows(model: nn.Module, work: Continuations, *forwards: RowForward) -> list[list[int]]:
    """The tokens of every continuation; rows that are finished make room for those that wait.

    Parameters
    ----------
    model : nn.Module
    work : Continuations
    *forwards : RowForward
        Runs rows of tokens without padding; of an ensemble that of each member.

    Returns
    -------
    list of lists of token ids
        By number of the continuation, without the stop token.
    """
    decoders = [_decoder(model, work, forward) for forward in forwards]
    table = Table(decoders[0] if len(decoders) == 1 else _Together(decoders), work)
    logits: Tensor | None = None
    finished = counter("answers", len(table.produced))
    while table.waiting or table.running:
        added = table.admit()
        if added is not None:
            logits = added if logits is None else torch.cat([logits, added])
        assert logits is not None
        before = len(table.running)
        tokens = table.take(work.choose(logits, table.running))
        if len(table.running) < before:
            finished(before - len(table.running))
        logits = table.decoder.step(tokens) if table.running else None
    return table.produced


class _Together:
    """The `Decoder` of an ensemble: the rows of all members grow by the same tokens."""

    def __init__(self, members: Sequence[Decoder]) -> None:
        self._members = members

    @property
    def size(self) -> int:
        return self._members[0].size

    @property
    def open(self) -> bool:
        return all([member.open for member in self._members])

    def admits(self, number: int) -> bool:
        return all([member.admits(number) for member in self._members])

    def add(self, numbers: Sequence[int]) -> Tensor:
        return mean_of_log_probs([member.add(numbers) for member in self._members])

    def step(self, tokens: Tensor) -> Tensor:
        return mean_of_log_probs([member.step(tokens) for member in self._members])

    def keep(self, rows: list[int]) -> list[int]:
        first, *_ = [member.keep(list(rows)) for member in self._members]
        return first

    def forget(self, number: int) -> None:
        for member in self._members:
            member.forget(number)


def _decoder(model: nn.Module, work: Continuations, forward: RowForward) -> Decoder:
    """The quickest decoder for these prompts."""
    device = model_device(model)
    if work.copies >= SHARING:
        return SharedDecoder(forward, device, work.prompts, work.rows, max(work.limits), work.prompt_tokens)
    columns = max(len(prompt) + limit for prompt, limit in zip(work.prompts, work.limits, strict=True))
    return PackedDecoder(forward, device, work.prompts, work.rows, columns)


class Table:
    """Which continuations run in the rows of a decoder, which wait for a row, and what was produced so far.

    The continuations of prompt i have the numbers i·copies … (i+1)·copies − 1; those of long prompts begin first.
    """

    def __init__(self, decoder: Decoder, work: Continuations) -> None:
        self.decoder, self._work = decoder, work
        by_length = sorted(range(len(work.prompts)), key=lambda i: len(work.prompts[i]))
        self.waiting = [i * work.copies + j for i in by_length for j in range(work.copies)]
        self.running: list[int] = []
        self.produced: list[list[int]] = [[] for _ in self.waiting]
        self._left = [work.copies] * len(work.prompts)

    def admit(self) -> Tensor | None:
        """Let waiting continuations begin once a quarter of the rows is free; the logits of their first tokens."""
        free = self._work.rows - len(self.running)
        if not (self.waiting and self.decoder.open and free >= max(1, self._work.rows // 4)):
            return None
        fresh: list[int] = []
        while self.waiting and len(fresh) < free and self.decoder.admits(self.waiting[-1] // self._work.copies):
            fresh.append(self.waiting.pop())
        if not fresh:
            return None
        numbers = [unit // self._work.copies for unit in fresh]
        logits = self.decoder.add(numbers)
        self.running += fresh
        for number in numbers:
            self._left[number] -= 1
            if not self._left[number]:
                self.decoder.forget(number)
        return logits

    def take(self, tokens: Tensor) -> Tensor:
        """Append the tokens (B,) chosen for the rows; those of the rows that go on, in the rows' new order."""
        alive = []
        for row, (unit, token) in enumerate(zip(self.running, tokens.tolist(), strict=True)):
            if token in self._work.stops:
                continue
            self.produced[unit].append(token)
            if len(self.produced[unit]) < self._work.limit(unit):
                alive.append(row)
        if len(alive) == len(self.running):
            return tokens
        order = self.decoder.keep(alive)
        self.running = [self.running[row] for row in order]
        return tokens[torch.tensor(order, dtype=torch.long, device=tokens.device)]
