"""The memory of a forward and backward pass without weights: the pass itself runs, on tensors that hold no numbers.

torch's fake tensors know shapes, types and storages and go through the same operations and the same autograd graph as
real ones. So what a pass keeps and what it needs for a moment follow from the code that runs later, for any
architecture and for every way of running it, and are not guessed from a formula.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clients.distributions import row_statistics
from clients.optimisation import checkpointing
from evaluation.engine import architectures, forward, kernels
from evaluation.engine.backends.fused import fused_workers
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.llama import FusedLlama
from evaluation.engine.models import base_model
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence
from oblivionis.models.errors import ModelError, one_line
from oblivionis.models.parameter_roles import role

HEAP_BYTES, HEAP_FACTOR = 1 << 25, 2
"""Blocks up to this size come from glibc's heap, which grows to about so many times what lives in it (measured)."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes that a pass takes at most: in blocks that are given back as soon as they are free, and in the heap."""

    passing: int
    heap: int

    @property
    def total(self) -> int:
        return self.passing + self.heap


_BLOCK, _NESTED_BLOCK, _FLOAT = 64, 256, 4
_OWN_FORWARD = ("padded", "plain")
_NF4_TABLE, _NESTED_TABLE = 16 * _FLOAT, 256 * _FLOAT + _FLOAT


def skeleton(folder: Path, *, dtype: torch.dtype, eager: bool = False) -> Any:
    """The model of a folder on the meta device: its layers and shapes, no weights. Raises ModelError."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config.return_dict = True
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config,
                dtype=dtype,
                attn_implementation="eager" if eager else None,
                trust_remote_code=False,
            )
    except Exception as error:
        raise ModelError(f"cannot read the model's shape from {folder}: {one_line(error)}") from error


def quantized_bytes(shape: tuple[int, int], quantization: str, double: bool) -> int:
    """Bytes of a linear layer's weight (out, in) as bitsandbytes keeps it, its scales and tables included."""
    out, numbers = shape[0], shape[0] * shape[1]
    if quantization == "int8":
        return numbers + _FLOAT * out
    blocks = -(-numbers // _BLOCK)
    scales = blocks + _FLOAT * -(-blocks // _NESTED_BLOCK) + _NESTED_TABLE if double else _FLOAT * blocks
    return -(-numbers // 2) + scales + _NF4_TABLE


def quantize(model: nn.Module, quantization: str, double: bool) -> None:
    """Put layers that are as large and cost as much memory as bitsandbytes' in place of those that it replaces.

    That is all linear layers but the head and the adapters' factors. `model` is a skeleton, changed in place.
    """
    base: Any = base_model(model)
    head = base.get_output_embeddings()
    kept = set(head.modules()) if head is not None else set()
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module not in kept and role(f"{name}.weight") is None:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, _Quantized(module, quantization, double))


def stored_bytes(model: nn.Module) -> int:
    """Bytes of the frozen weights; a tied one counts once."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if not p.requires_grad)


class DryRun:
    """Measures passes of a skeleton whose trainable parameters have `requires_grad`; takes the skeleton over.

    `on_gpu`: as a GPU runs it, that is by the model's own forward pass and, in half precision, under autocast; else
    the peaks allow for what the C library's heap wastes.
    """

    def __init__(self, model: nn.Module, *, on_gpu: bool, dtype: torch.dtype) -> None:
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._model, self._on_gpu = model, on_gpu
        self._half = dtype if on_gpu and dtype != torch.float32 else None
        with self._fake:
            _materialise(model)

    def training(
        self,
        records: int,
        length: int,
        answer: int | None = None,
        *,
        gradient_checkpointing: bool = False,
        distributions: bool = False,
    ) -> Peak:
        """The peak beyond parameters and gradients of an update's forward and backward pass.

        For `records` records of `length` tokens, the last `answer` of which are the answer; None: all but one.
        `distributions`: the loss asks for entropies, or for divergences from the model as received.
        """
        read = _distributions if distributions else _log_probs
        batch = _batch(records, length, length - 1 if answer is None else answer)
        self._model.train()
        with ExitStack() as stack:
            stack.enter_context(torch.autocast("cpu", self._half or torch.bfloat16, enabled=self._half is not None))
            if gradient_checkpointing:
                stack.enter_context(checkpointing(self._model))
            stack.enter_context(fused_lora(self._model))
            return self._live(lambda mode, _: read(self._model, batch, mode).sum().backward(), length).peak

    def scoring(self, sequences: int, length: int, answer: int, *, threads: int = 1) -> Peak:
        """The peak beyond the parameters when answers of `answer` tokens are scored, by up to so many threads."""
        batch = _batch(sequences, length, answer)
        self._model.eval()

        workers = 1

        def work(mode: str, live: Live) -> None:
            nonlocal workers
            if mode == "fused":
                workers = min(threads, fused_workers(self._model))
                fused = FusedLlama(self._model)
                live.mark()
                states = fused.states(batch.input_ids, batch.position_ids, batch.layout, batch.keep)
                for rows in states.split(kernels.HEAD_ROWS):
                    (rows @ fused.head.T).exp_()
            else:
                _logits(self._model, batch, mode).float()

        with torch.no_grad(), fused_lora(self._model):
            live = self._live(work, length)
        peak, marked = live.peak, live.marked
        return Peak(
            marked.passing + workers * (peak.passing - marked.passing),
            marked.heap + workers * (peak.heap - marked.heap),
        )

    def _live(self, work: Callable[[str, Live], object], length: int) -> Live:
        """What `work` took in the way in which the model would run sequences of `length` tokens."""
        with self._fake:
            way = architectures.way(self._model, "cuda" if self._on_gpu else "cpu").of(length)
        live = Live(self._model, heap=not self._on_gpu)
        with self._fake, _without_masks(), kernels.few_pieces(), live:
            work(way, live)
        return live


class Live(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, as long as they live.

    heap: blocks up to `HEAP_BYTES` lie in the C library's heap, which is never given back and grows to `HEAP_FACTOR`
    times what lives in it, while larger ones are given back when they are freed; else (on a GPU) all blocks are alike.
    """

    def __init__(self, model: nn.Module, heap: bool) -> None:
        super().__init__()
        self._limit = HEAP_BYTES if heap else 0
        self._now, self._most, self.marked = [0, 0], [0, 0], Peak(0, 0)
        kept = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
        self._known = weakref.WeakKeyDictionary({tensor.untyped_storage(): True for tensor in kept})

    @property
    def peak(self) -> Peak:
        """The most that was taken so far."""
        return Peak(self._most[0], HEAP_FACTOR * self._most[1])

    def mark(self) -> None:
        """Remember what is taken now."""
        self.marked = Peak(self._now[0], HEAP_FACTOR * self._now[1])

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._known:
                self._known[storage] = True
                size = storage.nbytes()
                kind = int(size <= self._limit)
                self._now[kind] += size
                self._most[kind] = max(self._most[kind], self._now[kind])
                weakref.finalize(storage, self._freed, kind, size)
        return result

    def _freed(self, kind: int, size: int) -> None:
        self._now[kind] -= size


class _Quantized(nn.Module):
    """A stand-in for bitsandbytes' layers: the weight's bytes, and a weight of full size for the time of a product."""

    def __init__(self, linear: nn.Linear, quantization: str, double: bool) -> None:
        super().__init__()
        self.shape = (linear.out_features, linear.in_features)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        size = quantized_bytes(self.shape, quantization, double)
        self.weight = nn.Parameter(torch.empty(size, dtype=torch.uint8, device="meta"), requires_grad=False)
        self.bias = linear.bias
        self.dtype, self.keeps_input = linear.weight.dtype, quantization == "int8"

    def forward(self, x: Tensor) -> Tensor:
        y: Any = _Dequantized.apply(x, self.shape, self.dtype, self.keeps_input)
        return y if self.bias is None else y + self.bias


class _Dequantized(torch.autograd.Function):
    """x·Wᵀ, where W exists only within the forward pass and again within the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, int], dtype: torch.dtype, keeps_input: bool) -> Tensor:
        ctx.shape, ctx.dtype = shape, dtype
        if keeps_input:
            ctx.save_for_backward(x)
        return (x.to(dtype) @ x.new_empty(shape, dtype=dtype).T).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grads[0]
        return (grad.to(ctx.dtype) @ grad.new_empty(ctx.shape, dtype=ctx.dtype)).to(grad.dtype), None, None, None


def _materialise(model: nn.Module) -> None:
    """Fake CPU tensors instead of meta ones; trainable parameters become float32 and get a gradient."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    trained = tensor.requires_grad
                    fake = torch.empty(tensor.shape, dtype=torch.float32 if trained else tensor.dtype)
                    if isinstance(tensor, nn.Parameter):
                        fake = nn.Parameter(fake, requires_grad=trained)
                        fake.grad = torch.empty_like(fake) if trained else None
                    made[id(tensor)] = fake
                tensors[name] = made[id(tensor)]


def _batch(sequences: int, length: int, answer: int) -> PackedBatch:
    return PackedBatch.build([TokenSequence((0,) * (length - answer), (0,) * answer)] * sequences)


def _log_probs(model: nn.Module, batch: PackedBatch, mode: str) -> Tensor:
    if mode in _OWN_FORWARD:
        return _cross_entropy(_logits(model, batch, mode), batch)
    return forward.token_log_probs(model, batch, mode=mode)


def _distributions(model: nn.Module, batch: PackedBatch, mode: str) -> Tensor:
    with torch.no_grad():
        reference = _rows(model, batch, mode)
    found = row_statistics(_rows(model, batch, mode), batch.labels, reference)
    return torch.cat([x for x in found if x is not None])


def _rows(model: nn.Module, batch: PackedBatch, mode: str) -> forward.AnswerRows:
    if mode in _OWN_FORWARD:
        return forward.AnswerRows(_logits(model, batch, mode), None)
    return forward.answer_rows(model, batch, mode=mode)


def _cross_entropy(logits: Tensor, batch: PackedBatch) -> Tensor:
    return -nn.functional.cross_entropy(logits.float(), batch.labels, reduction="none")


def _logits(model: nn.Module, batch: PackedBatch, mode: str) -> Tensor:
    """As `forward.kept_logits`, which reads numbers where the model's own forward pass gets batches."""
    if mode not in _OWN_FORWARD:
        return forward.kept_logits(model, batch, mode=mode)
    size = batch.layout.size
    answer = batch.labels.numel() // size
    logits = model(input_ids=batch.input_ids.view(size, -1), use_cache=False).logits
    return logits[:, -answer:].flatten(0, 1)


@contextmanager
def _without_masks() -> Iterator[None]:
    """Leave no fake mask in the memory of the kernels, nor what transformers and torch say of it on the terminal."""
    kernels.forget_masks()
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.disabled = before
            kernels.forget_masks()
