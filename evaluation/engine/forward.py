"""Forward passes of causal language models: logits, states and likelihoods of answer tokens.

Each function takes a `mode`: "auto" (the quickest way that is right for the model, `evaluation.engine.architectures`),
or the name of a way, all of which give the same numbers up to rounding (`evaluation.engine.backends`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from evaluation.engine import architectures, llama
from evaluation.engine.architectures import MODES
from evaluation.engine.backends import AnswerRows, Backend, backend
from evaluation.engine.models import base_model, decoder_layers, each_module, layer_index, model_device
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence
from evaluation.engine.token_statistics import read_answers


def resolve_mode(model: nn.Module, mode: str, max_length: int) -> str:
    """The way to run sequences of at most so many tokens.

    Parameters
    ----------
    model : nn.Module
    mode : {"auto", "fused", "packed", "padded", "plain"}
    max_length : int
        Tokens of the longest sequence.

    Returns
    -------
    {"fused", "packed", "padded", "plain"}

    Raises
    ------
    ValueError
        For an unknown mode, for "fused" where it does not apply, and with "auto" where no way is right.
    """
    if mode not in MODES:
        raise ValueError(f"unknown packing mode {mode!r}, expected one of {', '.join(MODES)}")
    if mode == "fused" and not llama.supports(model):
        raise ValueError("mode fused needs a float32 Llama on the CPU without hooks, dropout or checkpointing")
    return architectures.way(model).of(max_length) if mode == "auto" else mode


def kept_logits(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """Logits at the row places `batch.keep`.

    Parameters
    ----------
    model : nn.Module
    batch : PackedBatch
    mode : str

    Returns
    -------
    tensor (K, V), in the model's dtype, differentiable
    """
    return _backend(model, batch, mode, passes="many").logits(batch)


def kept_logits_and_states(
    model: nn.Module, batch: PackedBatch, *, mode: str = "auto", layer: int | None = None
) -> tuple[Tensor, Tensor]:
    """`kept_logits` and, from the same pass, the hidden states at the same places.

    Parameters
    ----------
    model : nn.Module
    batch : PackedBatch
    mode : str
    layer : int, optional
        States that leave this decoder layer, from 0 or, negative, from the last; None: those that enter the
        language-model head.

    Returns
    -------
    logits : tensor (K, V)
    states : tensor (K, d)

    Raises
    ------
    ValueError
        If there is no such layer.
    """
    layer = None if layer is None else layer_index(model, layer)
    return _backend(model, batch, mode, passes="many").logits_and_states(batch, layer)


def answer_logits(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """Logits that predict each answer token, in the order of `batch.labels`.

    Parameters
    ----------
    model : nn.Module
    batch : PackedBatch
    mode : str

    Returns
    -------
    tensor (M, V), in the model's dtype, differentiable
    """
    logits = kept_logits(model, batch, mode=mode)
    return logits if batch.direct else logits[batch.rows]


def answer_rows(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> AnswerRows:
    """`answer_logits`, but without the logits where these can be made later, a few rows at a time.

    Parameters
    ----------
    model : nn.Module
    batch : PackedBatch
    mode : str

    Returns
    -------
    AnswerRows, differentiable
    """
    return _backend(model, batch, mode).answer_rows(batch)


def layer_states(model: nn.Module, batch: PackedBatch, layer: int, *, mode: str = "auto") -> Tensor:
    """Hidden states that leave a decoder layer, at each of the N row tokens.

    Parameters
    ----------
    model : nn.Module
    batch : PackedBatch
    layer : int
        From 0.
    mode : str

    Returns
    -------
    tensor (N, d), differentiable

    Raises
    ------
    ValueError
        If there is no such layer.
    """
    layers = len(decoder_layers(model)[1])
    if not 0 <= layer < layers:
        raise ValueError(f"the model has layers 0 to {layers - 1}, not {layer}")
    return _backend(model, batch, mode).layer_states(batch, layer)


def packed_batch(model: nn.Module, sequences: Sequence[TokenSequence]) -> PackedBatch:
    """The sequences in one row on the model's device.

    On a CPU without dropout, tokens with which several sequences begin alike (a chat template's first words, a
    question) are computed once where that pays. On a GPU they never are: the gradients of a shared token would be added
    up in another order each time.

    Parameters
    ----------
    model : nn.Module
    sequences : sequence of TokenSequence

    Returns
    -------
    PackedBatch

    Raises
    ------
    ValueError
        For an empty list, prompt or answer.
    """
    device = model_device(model)
    alone = device.type != "cpu" or _drops(model)
    return PackedBatch.build(sequences, device, share=False if alone else None)


def _drops(model: nn.Module) -> bool:
    base = base_model(model)
    inside = bool(getattr(base.config, "attention_dropout", 0.0)) and base.training
    return inside or any(isinstance(m, nn.Dropout) and m.p > 0 and m.training for m in each_module(model))


def token_log_probs(model: nn.Module, batch: PackedBatch, *, mode: str = "auto") -> Tensor:
    """log p(answer token | everything before it).

    Parameters
    ----------
    model : nn.Module
    batch : PackedBatch
    mode : str

    Returns
    -------
    tensor (M,), float32, in (-inf, 0], differentiable
        Nats.
    """
    return _backend(model, batch, mode).token_log_probs(batch)


class Scorer:
    """Likelihoods of answer tokens for many batches, without gradients; the weights must stay as they are meanwhile.

    Parameters
    ----------
    model : nn.Module
    mode : str
    layer : int, optional
        Which states there are, as in `kept_logits_and_states`.

    Attributes
    ----------
    workers : int
        How many batches may be scored at once, each by a thread of its own (`side_by_side`).

    Raises
    ------
    ValueError
        If there is no such layer, or the mode does not apply.
    """

    def __init__(self, model: nn.Module, mode: str = "auto", layer: int | None = None) -> None:
        self._layer = None if layer is None else layer_index(model, layer)
        short = resolve_mode(model, mode, 1)
        self._way = architectures.way(model) if mode == "auto" else architectures.Way(short, None, short, "")
        self._backends = {name: backend(model, name, passes="many") for name in {short, self._way.beyond}}
        self.workers = self._backends[short].workers

    def __call__(
        self, batch: PackedBatch, *, states: bool = False, moments: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Likelihoods of a batch's answer tokens, and what else is requested.

        Parameters
        ----------
        batch : PackedBatch
        states : bool
            Also the states.
        moments : bool
            Also the moments of `read_answers`.

        Returns
        -------
        log_probs : tensor (M,), float32
        correct : tensor (M,), bool
            Whether each token is the likeliest.
        states : tensor (K, d) or None
        moments : tensor (M, 2) or None
        """
        way = self._backends[self._way.of(batch.longest)]
        pieces, kept = way.pieces(batch, states=states, layer=self._layer)
        logp, hits, spread = read_answers(pieces, batch, moments=moments)
        return logp, hits, kept, spread


def _backend(model: nn.Module, batch: PackedBatch, mode: str, *, passes: str = "one") -> Backend:
    return backend(model, resolve_mode(model, mode, batch.longest), passes=passes)
