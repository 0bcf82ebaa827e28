"""Operations of a Llama with hand-written gradients: fewer passes over memory than their autograd compositions.

Each equals the plain formula in its docstring up to rounding, with its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_HEAD_ROWS = 256
_GROUP = 8


class RMSNorm(torch.autograd.Function):
    """w · x / sqrt(mean(x²) + eps) over the last dimension of x (N, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rstd = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        unit = x * rstd
        ctx.save_for_backward(unit, rstd, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        unit, rstd, weight = ctx.saved_tensors
        (grad,) = grads
        grad_weight = (grad * unit).sum(0) if ctx.needs_input_grad[1] else None
        grad = grad * weight
        projection = (grad * unit).mean(-1, keepdim=True)
        return grad.addcmul_(unit, projection, value=-1).mul_(rstd), grad_weight, None


class SwiGLU(torch.autograd.Function):
    """silu(g) · u for the halves g, u of x (N, 2h) -> (N, h)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        active = F.silu(gate)
        ctx.save_for_backward(x, active)
        return active * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x, active = ctx.saved_tensors
        gate, up = x.chunk(2, -1)
        grad = torch.empty_like(x)
        grad_gate, grad_up = grad.chunk(2, -1)
        torch.mul(grads[0], active, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grads[0] * up, gate, grad_input=grad_gate)
        return grad


@dataclass(frozen=True)
class Groups:
    """Sequences of a row sorted by length into groups, each padded to its own longest.

    shapes: (size, length) of each group; gather (P,): row token at each padded place (0 at pads); scatter (N,): padded
    place of each row token; pads: the places that hold none.
    """

    shapes: tuple[tuple[int, int], ...]
    gather: Tensor
    scatter: Tensor
    pads: Tensor

    @classmethod
    def build(cls, lengths: list[int]) -> Groups:
        """Groups for sequences of these lengths that lie one after the other in the row."""
        starts = torch.tensor([0, *lengths]).cumsum(0)
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        shapes, gathers, reals = [], [], []
        for first in range(0, len(order), _GROUP):
            members = torch.tensor(order[first : first + _GROUP])
            sizes = torch.tensor([lengths[i] for i in members])
            columns = torch.arange(int(sizes[-1]))
            real = columns < sizes[:, None]
            shapes.append((len(members), columns.numel()))
            gathers.append(((starts[members][:, None] + columns) * real).flatten())
            reals.append(real.flatten())
        gather, real = torch.cat(gathers), torch.cat(reals)
        scatter = torch.empty(int(starts[-1]), dtype=torch.long)
        places = real.nonzero().squeeze(1)
        scatter[gather[places]] = places
        return cls(tuple(shapes), gather, scatter, (~real).nonzero().squeeze(1))

    @property
    def slices(self) -> list[slice]:
        """Where each group lies among the padded places."""
        ends = torch.tensor([0, *(size * length for size, length in self.shapes)]).cumsum(0).tolist()
        return [slice(a, b) for a, b in pairwise(ends)]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
    """Rotary embedding of x (N, H, D) in place; cos, sin (N, 1, D/2)."""
    first, second = x.chunk(2, -1)
    before = first.clone()
    sign = 1.0 if inverse else -1.0
    first.mul_(cos).addcmul_(second, sin, value=sign)
    second.mul_(cos).addcmul_(before, sin, value=-sign)


class RotaryAttention(torch.autograd.Function):
    """Causal attention within each sequence of a row, after rotary embedding of queries and keys.

    qkv (N, (H + 2·H_kv)·D): queries, keys and values of the row, used as scratch; cos, sin (N, 1, D/2); heads
    (H, H_kv, D). Returns (N, H·D).
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, groups: Groups, heads: tuple[int, int, int], scale: float
    ) -> Tensor:
        num_q, num_kv, dim = heads
        _rotate(qkv.view(-1, num_q + 2 * num_kv, dim)[:, : num_q + num_kv], cos, sin, inverse=False)
        padded = qkv.index_select(0, groups.gather).view(-1, num_q + 2 * num_kv, dim)
        out = padded.new_empty(padded.shape[0], num_q, dim)
        graphs = []
        differentiate = ctx.needs_input_grad[0]
        for part, shape in zip(groups.slices, groups.shapes, strict=True):
            leaves = [
                x.transpose(1, 2).detach().requires_grad_(differentiate)
                for x in padded[part].view(*shape, -1, dim).split((num_q, num_kv, num_kv), dim=2)
            ]
            with torch.set_grad_enabled(differentiate):
                q, k, v = leaves
                result = F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=scale, enable_gqa=num_q != num_kv
                )
            out[part].view(*shape, num_q, dim).copy_(result.detach().transpose(1, 2))
            graphs.append((leaves, result))
        ctx.graphs = graphs if differentiate else None
        ctx.groups, ctx.heads = groups, heads
        ctx.save_for_backward(cos, sin)
        return out.view(-1, num_q * dim).index_select(0, groups.scatter)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        groups: Groups = ctx.groups
        num_q, num_kv, dim = ctx.heads
        outer = grads[0].index_select(0, groups.gather).index_fill_(0, groups.pads, 0.0)
        inner = outer.new_empty(outer.shape[0], num_q + 2 * num_kv, dim)
        for part, shape, (leaves, result) in zip(groups.slices, groups.shapes, ctx.graphs, strict=True):
            upstream = outer[part].view(*shape, num_q, dim).transpose(1, 2)
            targets = inner[part].view(*shape, -1, dim).split((num_q, num_kv, num_kv), dim=2)
            for target, grad in zip(targets, torch.autograd.grad(result, leaves, upstream), strict=True):
                target.copy_(grad.transpose(1, 2))
        ctx.graphs = None
        grad = inner.view(inner.shape[0], -1).index_select(0, groups.scatter)
        cos, sin = ctx.saved_tensors
        _rotate(grad.view(-1, num_q + 2 * num_kv, dim)[:, : num_q + num_kv], cos, sin, inverse=True)
        return grad, None, None, None, None, None


class FrozenHead(torch.autograd.Function):
    """log softmax(h·Wᵀ)[label] for h (M, d), frozen W (V, d) and labels (M,) -> (M,).

    Works through the rows in pieces and keeps no logits: the gradient of each row is its upstream gradient times
    W[label] − softmax(h·Wᵀ)·W, which the forward pass computes while the probabilities are at hand.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        logp = h.new_empty(h.shape[0])
        direction = torch.empty_like(h) if ctx.needs_input_grad[0] else None
        for start in range(0, h.shape[0], _HEAD_ROWS):
            rows = slice(start, start + _HEAD_ROWS)
            target = labels[rows]
            logits = h[rows] @ weight.T
            logits.sub_(logits.amax(-1, keepdim=True))
            chosen = logits.gather(1, target[:, None])
            total = logits.exp_().sum(-1, keepdim=True)
            logp[rows] = (chosen - total.log()).squeeze(1)
            if direction is not None:
                torch.sub(weight[target], (logits @ weight).div_(total), out=direction[rows])
        ctx.save_for_backward(direction)
        return logp

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (direction,) = ctx.saved_tensors
        return direction * grads[0][:, None], None, None
