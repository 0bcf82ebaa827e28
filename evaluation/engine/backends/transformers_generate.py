"""Continuations by transformers' own `generate`, whose every token the caller chooses."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from evaluation.engine.architectures import is_known
from evaluation.engine.decoders import Continuations
from evaluation.engine.models import base_model, model_device
from evaluation.engine.progress import counter


def parameters(model: nn.Module) -> frozenset[str]:
    """Names of the arguments of the model's own forward pass.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    frozenset of str
    """
    return frozenset(inspect.signature(base_model(model).forward).parameters)


def generate(model: nn.Module, work: Continuations, *, together: bool) -> list[list[int]]:
    """The tokens of every continuation, with the model's own cache where that is right.

    Parameters
    ----------
    model : nn.Module
    work : Continuations
    together : bool
        Whether prompts of different lengths are continued in one batch, left-padded with a mask; else only prompts of
        one length are, without padding.

    Returns
    -------
    list of lists of token ids
        By number of the continuation, without the stop token.
    """
    produced: list[list[int]] = [[] for _ in range(len(work.prompts) * work.copies)]
    finished = counter("answers", len(produced))
    base: Any = base_model(model)
    with plain_settings(base, use_cache=is_known(model)):
        for units in batches(work, together):
            settle_frequencies(model)
            _generate(base, work, units, produced)
            finished(len(units))
    return produced


def settle_frequencies(model: nn.Module) -> None:
    """Let rotary frequencies that grow with the longest sequence seen so far ("dynamic") begin anew.

    transformers keeps them between calls and takes them back at the first sequence within the trained length: here one
    token. So a sequence's numbers do not depend on those that came before it.

    Parameters
    ----------
    model : nn.Module
    """
    base: Any = base_model(model)
    if not any("dynamic" in str(getattr(module, "rope_type", "")) for module in base.modules()):
        return
    with torch.no_grad():
        base(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model_device(model)), use_cache=False)


def batches(work: Continuations, together: bool) -> Iterator[list[int]]:
    """The continuations that run in one batch, the longest prompts first.

    Parameters
    ----------
    work : Continuations
    together : bool
        As in `generate`.

    Yields
    ------
    list of int
        Numbers of continuations.
    """
    units = [i * work.copies + j for i in range(len(work.prompts)) for j in range(work.copies)]
    units.sort(key=lambda unit: -len(work.prompts[unit // work.copies]))
    part: list[int] = []
    for unit in units:
        alike = not part or together or len(work.prompt(part[0])) == len(work.prompt(unit))
        if part and not (alike and len(part) < work.rows):
            yield part
            part = []
        part.append(unit)
    if part:
        yield part


def _generate(base: Any, work: Continuations, units: Sequence[int], produced: list[list[int]]) -> None:
    """Continue these in one batch, into `produced`."""
    prompts = [work.prompt(unit) for unit in units]
    longest, device = max(map(len, prompts)), model_device(base)
    ids = torch.tensor([[work.pad_id] * (longest - len(p)) + list(p) for p in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    chosen = _Chosen(work, units, produced, device)
    base.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=max(work.limit(unit) for unit in units),
        logits_processor=LogitsProcessorList([chosen]),
        stopping_criteria=StoppingCriteriaList([_AllEnded(chosen)]),
    )


class _Chosen(LogitsProcessor):
    """Leaves of the next token's logits only the one that the caller chooses, and records it.

    ended (B,): rows whose continuation is complete; `generate` continues them, but the further tokens are not read.
    """

    def __init__(
        self, work: Continuations, units: Sequence[int], produced: list[list[int]], device: torch.device
    ) -> None:
        self._work, self._units, self._produced = work, units, produced
        self.ended = torch.zeros(len(units), dtype=torch.bool, device=device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = (~self.ended).nonzero().squeeze(1)
        units = [self._units[row] for row in rows.tolist()]
        tokens = self._work.choose(scores[rows], units)
        only = torch.full_like(scores, -torch.inf)
        only[:, self._work.pad_id] = 0
        only[rows] = -torch.inf
        only[rows, tokens] = 0
        for row, unit, token in zip(rows.tolist(), units, tokens.tolist(), strict=True):
            if token not in self._work.stops:
                self._produced[unit].append(token)
            complete = token in self._work.stops or len(self._produced[unit]) == self._work.limit(unit)
            self.ended[row] = complete
        return only


class _AllEnded(StoppingCriteria):
    """Says which rows are complete."""

    def __init__(self, chosen: _Chosen) -> None:
        self._chosen = chosen

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return self._chosen.ended


@contextmanager
def plain_settings(base: Any, *, use_cache: bool) -> Iterator[None]:
    """Context without the model's own generation settings (penalties, suppressed tokens, a length).

    Parameters
    ----------
    base : PreTrainedModel
    use_cache : bool
    """
    kept = base.generation_config
    base.generation_config = GenerationConfig(do_sample=False, use_cache=use_cache, pad_token_id=0)
    try:
        yield
    finally:
        base.generation_config = kept
