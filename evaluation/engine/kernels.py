"""Operations of a Llama with hand-written gradients: fewer passes over memory than their autograd compositions.

Each equals the plain formula in its docstring up to rounding, with its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evaluation.engine.half_precision_weights import times_transposed
from evaluation.engine.packing import CausalLayout

HEAD_ROWS = 512
SMALL_SCORES = 1 << 17
WASTE = 1.3
PIECE = 256


class RMSNorm(torch.autograd.Function):
    """w · x / sqrt(mean(x²) + eps) over the last dimension of x (N, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        unit, rstd = _unit(x, eps)
        ctx.save_for_backward(unit, rstd, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        unit, rstd, weight = ctx.saved_tensors
        (grad,) = grads
        grad_weight = (grad * unit).sum(0) if ctx.needs_input_grad[1] else None
        return _unit_backward(grad * weight, unit, rstd), grad_weight, None


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


class FeedForward(torch.autograd.Function):
    """x + swiglu(rmsnorm(x)·W_guᵀ)·W_dᵀ for x (N, d), norm weight (d,), W_gu (2h, d) and W_d (d, h).

    Works through the rows in pieces that stay in the cache, forward and backward, and keeps x and x·W_guᵀ only.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, eps: float, gate_up: Tensor, down: Tensor) -> Tensor:
        differentiate = any(ctx.needs_input_grad)
        out = torch.empty_like(x)
        hidden = x.new_empty(x.shape[0], gate_up.shape[0]) if differentiate else None
        for rows in _pieces(x.shape[0]):
            part = x[rows]
            normed = _unit(part, eps)[0].mul_(norm)
            both = torch.mm(normed, gate_up.T, out=None if hidden is None else hidden[rows])
            gate, up = both.chunk(2, -1)
            torch.addmm(part, F.silu(gate).mul_(up), down.T, out=out[rows])
        if differentiate:
            ctx.eps = eps
            ctx.save_for_backward(x, norm, gate_up, down, hidden)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, Tensor | None, Tensor | None]:
        x, norm, gate_up, down, hidden = ctx.saved_tensors
        (grad,) = grads
        need_x, need_norm, _, need_gate_up, need_down = ctx.needs_input_grad
        grad_x = torch.empty_like(x) if need_x else None
        grad_norm = torch.zeros_like(norm) if need_norm else None
        grad_gate_up = torch.zeros_like(gate_up) if need_gate_up else None
        grad_down = torch.zeros_like(down) if need_down else None
        for rows in _pieces(x.shape[0]):
            g = grad[rows]
            gate, up = hidden[rows].chunk(2, -1)
            sigmoid = gate.sigmoid()
            active = gate * sigmoid
            inner = torch.mm(g, down)
            if grad_down is not None:
                grad_down.addmm_(g.T, active * up)
            both = torch.empty_like(hidden[rows])
            grad_gate, grad_up = both.chunk(2, -1)
            torch.mul(inner, active, out=grad_up)
            # silu' = sigmoid + silu·(1 - sigmoid)
            slope = torch.addcmul(sigmoid, active, sigmoid, value=-1).add_(active)
            torch.mul(inner.mul_(up), slope, out=grad_gate)
            unit, rstd = _unit(x[rows], ctx.eps)
            if grad_gate_up is not None:
                grad_gate_up.addmm_(both.T, unit * norm)
            if grad_x is None and grad_norm is None:
                continue
            normed = torch.mm(both, gate_up)
            if grad_norm is not None:
                grad_norm += (normed * unit).sum(0)
            if grad_x is not None:
                torch.add(g, _unit_backward(normed.mul_(norm), unit, rstd), out=grad_x[rows])
        return grad_x, grad_norm, None, grad_gate_up, grad_down


_few_pieces = False


@contextmanager
def few_pieces() -> Iterator[None]:
    """Context in which passes leave out the pieces between the second and the last, which take the same memory.

    For tensors that hold no numbers: results are wrong otherwise.
    """
    global _few_pieces
    _few_pieces = True
    try:
        yield
    finally:
        _few_pieces = False


def _pieces(count: int) -> Iterator[slice]:
    size = PIECE * torch.get_num_threads()
    starts = range(0, count, size)
    chosen = [*starts[:2], *starts[2:][-1:]] if _few_pieces else starts
    return (slice(start, start + size) for start in chosen)


def _unit(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x²) + eps) over the last dimension, and the factor (N, 1)."""
    rstd = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return x * rstd, rstd


def _unit_backward(grad: Tensor, unit: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of x, in place of that of `_unit(x)`."""
    projection = (grad * unit).mean(-1, keepdim=True)
    return grad.addcmul_(unit, projection, value=-1).mul_(rstd)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotary embedding (Su et al. 2021) of queries or keys, in place.

    Parameters
    ----------
    x : tensor (N, H, D)
    cos, sin : tensor (N, 1, D/2)
    inverse : bool
        Rotate back.

    Returns
    -------
    tensor (N, H, D)
        x.
    """
    first, second = x.chunk(2, -1)
    before = first.clone()
    sign = 1.0 if inverse else -1.0
    first.mul_(cos).addcmul_(second, sin, value=sign)
    second.mul_(cos).addcmul_(before, sin, value=-sign)
    return x


@cache
def _future(size: int, dtype: torch.dtype) -> Tensor:
    """(size, size), -inf where the column lies after the row."""
    with torch.inference_mode(False):
        return torch.full((size, size), float("-inf"), dtype=dtype).triu_(1)


def forget_masks() -> None:
    """Drop the masks that are kept for the next pass: after a pass on tensors that are none, say."""
    _future.cache_clear()


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences that attend together, padded to `prefix` shared tokens and `queries` own ones.

    Attributes
    ----------
    size : int
        How many sequences.
    prefix, queries : int
    rows : tuple of 4 int
        Where the group's queries, keys and values begin in the gathered rows, and where they end.
    out : int
        Where the group's results begin among all results.
    hidden : tensor (size, 1, 1, prefix + queries), optional
        -inf at padded prefix tokens.
    before : tensor (size·prefix,), int
        The token of the row at each of the prefixes' places; any token where padded.
    """

    size: int
    prefix: int
    queries: int
    rows: tuple[int, int, int, int]
    out: int
    hidden: Tensor | None
    before: Tensor

    @property
    def keys(self) -> int:
        """Tokens that the last query sees, padding included."""
        return self.prefix + self.queries


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """How the heads of a packed row are gathered into groups of similar sequences, and how the results come back.

    Rows hold D numbers each.

    Attributes
    ----------
    groups : tuple of Group
    gather : tensor, int
        For each row of all groups its row in the (N, H + 2·H_kv, D) tensor of queries, keys and values.
    scatter : tensor (N·H,), int
        For each token and head its row in the groups' results.
    origin : tensor (N·3H,), int
        The gathered row of each token's queries, keys and values (of its own sequence), keys and values repeated for
        each query head.
    """

    groups: tuple[Group, ...]
    gather: Tensor
    scatter: Tensor
    origin: Tensor

    @classmethod
    def of(cls, layout: CausalLayout, heads: tuple[int, int, int]) -> AttentionPlan:
        """The plan for this layout, made once for all layers."""
        key = heads[:2]
        if key not in layout.plans:
            layout.plans[key] = cls._build(layout, *key)
        return layout.plans[key]

    @classmethod
    def _build(cls, layout: CausalLayout, num_q: int, num_kv: int) -> AttentionPlan:
        spans = [
            (stop - start, last - first - (stop - start), start, first) for start, stop, first, last in layout.spans
        ]
        total = layout.scatter.numel()
        every = num_q + 2 * num_kv
        head = np.arange(num_q)[:, None]
        of_key, of_value = num_q + head // (num_q // num_kv), num_q + num_kv + head // (num_q // num_kv)
        places = layout.keys.numpy() if layout.shared else np.arange(total)
        groups, gathers = [], []
        origin = np.empty((3, total, num_q), np.int64)
        scatter = np.empty((total, num_q), np.int64)
        begin = out = 0
        for members in _similar(spans, num_q):
            size, queries = len(members), max(m[0] for m in members)
            prefix = max(m[1] for m in members)
            keys = prefix + queries
            ends = np.cumsum([begin] + [size * num_q * n for n in (queries, keys, keys)]).tolist()
            query_at, key_at = np.zeros((size, 1, queries), np.int64), np.zeros((size, 1, keys), np.int64)
            hidden = np.zeros((size, 1, 1, keys), np.float32)
            for i, (own, seen, start, first) in enumerate(members):
                query_at[i, 0, :own] = np.arange(start, start + own)
                key_at[i, 0, prefix - seen : prefix + own] = places[first : first + seen + own]
                hidden[i, ..., : prefix - seen] = -np.inf
                token, row = np.arange(own)[:, None], i * num_q + head.T
                scatter[start : start + own] = out + row * queries + token
                origin[0, start : start + own] = ends[0] + row * queries + token
                for j in (1, 2):
                    origin[j, start : start + own] = ends[j] + row * keys + prefix + token
            gathers += [(query_at * every + head), (key_at * every + of_key), (key_at * every + of_value)]
            padded = torch.from_numpy(hidden) if prefix > min(m[1] for m in members) else None
            before = torch.from_numpy(key_at[:, 0, :prefix].ravel())
            groups.append(Group(size, prefix, queries, tuple(ends), out, padded, before))
            begin, out = ends[-1], out + size * num_q * queries
        gather = np.concatenate([x.ravel() for x in gathers])
        return cls(
            tuple(groups),
            torch.from_numpy(gather),
            torch.from_numpy(scatter.ravel()),
            torch.from_numpy(origin.transpose(1, 0, 2).ravel()),
        )


def _similar(spans: list[tuple[int, int, int, int]], heads: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """Spans (own tokens, tokens before, ...) in groups whose scores fit the cache and waste little on padding."""
    group: list[tuple[int, int, int, int]] = []
    queries = prefix = exact = 0
    for span in sorted(spans, reverse=True):
        own, before = span[:2]
        wider = max(prefix, before)
        area = (len(group) + 1) * max(queries, own) * (wider + max(queries, own))
        needed = exact + own * (own + before)
        if group and (heads * area > SMALL_SCORES or area > WASTE * needed):
            yield group
            group, wider, needed, queries = [], before, own * (own + before), 0
        group.append(span)
        queries, prefix, exact = max(queries, own), wider, needed
    yield group


def _gathered(buffer: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """The group's part of the gathered rows (R, D): queries (G·H, n, D), keys and values (G·H, m, D)."""
    a, b, c, d = group.rows
    dim = buffer.shape[1]
    n, m = group.queries, group.keys
    return buffer[a:b].view(-1, n, dim), buffer[b:c].view(-1, m, dim), buffer[c:d].view(-1, m, dim)


def _result(buffer: Tensor, group: Group, num_q: int) -> Tensor:
    """The group's part (G·H, n, D) of the results."""
    rows = group.size * num_q * group.queries
    return buffer[group.out : group.out + rows].view(-1, group.queries, buffer.shape[1])


def _is_small(query: Tensor, key: Tensor) -> bool:
    """Whether the scores fit the cache; else torch's blockwise attention is better."""
    return query.shape[0] * query.shape[1] * key.shape[1] <= SMALL_SCORES


def _causal_mask(group: Group, dtype: torch.dtype) -> Tensor:
    """(n, m), added to the scores of the last n of m tokens."""
    size = max(64, 1 << (group.keys - 1).bit_length())
    return _future(size, dtype)[group.prefix : group.keys, : group.keys]


def _weights(query: Tensor, key: Tensor, group: Group, scale: float) -> Tensor:
    """Attention weights (G·H, n, m)."""
    scores = torch.baddbmm(_causal_mask(group, query.dtype), query, key.transpose(1, 2), alpha=scale)
    if group.hidden is not None:
        scores.view(group.size, -1, *scores.shape[1:]).add_(group.hidden)
    return scores.softmax(-1)


def _blockwise(query: Tensor, key: Tensor, value: Tensor, group: Group, scale: float) -> Tensor:
    """Attention of a group whose scores do not fit the cache: of one sequence, without padding (`_similar`)."""
    q, k, v = (x.view(group.size, -1, *x.shape[1:]) for x in (query, key, value))
    mask = _causal_mask(group, query.dtype) if group.prefix else None
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale).flatten(0, 1)


def _add_prefixes(grad: Tensor, inner: Tensor, plan: AttentionPlan, num_kv: int) -> None:
    """Add to the gradient (N, 2·H_kv, D) of keys and values what comes from sequences for which they are prefixes."""
    if not any(group.prefix for group in plan.groups):
        return
    dim = grad.shape[-1]
    more = grad.new_zeros(grad.shape[0], 2 * num_kv * dim)
    for group in plan.groups:
        parts = []
        for part in _gathered(inner, group)[1:]:
            heads = part.view(group.size, num_kv, -1, group.keys, dim)[:, :, :, : group.prefix].sum(2)
            parts.append(heads.transpose(1, 2).reshape(-1, num_kv * dim))
        more.index_add_(0, group.before, torch.cat(parts, 1))
    grad += more.view_as(grad)


class RotaryAttention(torch.autograd.Function):
    """Causal attention within each sequence of a row, after rotary embedding of queries and keys.

    qkv (N, (H + 2·H_kv)·D): queries, keys and values of the row, used as scratch; cos, sin (N, 1, D/2); layout: where
    the sequences lie; heads (H, H_kv, D). Returns (N, H·D). Tokens that sequences share get the sum of their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, layout: CausalLayout, heads: tuple[int, int, int], scale: float
    ) -> Tensor:
        num_q, num_kv, dim = heads
        differentiate = ctx.needs_input_grad[0]
        plan = AttentionPlan.of(layout, heads)
        rotate_(qkv.view(-1, num_q + 2 * num_kv, dim)[:, : num_q + num_kv], cos, sin)
        gathered = qkv.view(-1, dim).index_select(0, plan.gather)
        results = gathered.new_empty(sum(g.size * g.queries for g in plan.groups) * num_q, dim)
        weights: list[Tensor | None] = []
        for group in plan.groups:
            query, key, value = _gathered(gathered, group)
            out = _result(results, group, num_q)
            p = None
            if _is_small(query, key):
                p = _weights(query, key, group, scale)
                torch.bmm(p, value, out=out)
            else:
                out.copy_(_blockwise(query, key, value, group, scale))
            weights.append(p if differentiate else None)
        if differentiate:
            ctx.weights, ctx.plan, ctx.heads, ctx.scale = weights, plan, heads, scale
            ctx.save_for_backward(gathered, cos, sin)
        return results.index_select(0, plan.scatter).view(-1, num_q * dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        gathered, cos, sin = ctx.saved_tensors
        plan: AttentionPlan = ctx.plan
        num_q, num_kv, dim = ctx.heads
        upstream = torch.zeros(sum(g.size * g.queries for g in plan.groups) * num_q, dim, dtype=gathered.dtype)
        upstream.index_copy_(0, plan.scatter, grads[0].reshape(-1, dim))
        inner = torch.empty_like(gathered)
        for p, group in zip(ctx.weights, plan.groups, strict=True):
            query, key, value = _gathered(gathered, group)
            d_query, d_key, d_value = _gathered(inner, group)
            g = _result(upstream, group, num_q)
            if p is None:
                leaves = [x.detach().requires_grad_() for x in (query, key, value)]
                with torch.enable_grad():
                    result = _blockwise(leaves[0], leaves[1], leaves[2], group, ctx.scale)
                for target, found in zip(
                    (d_query, d_key, d_value), torch.autograd.grad(result, leaves, g), strict=True
                ):
                    target.copy_(found)
                continue
            torch.bmm(p.transpose(1, 2), g, out=d_value)
            d_scores = torch.ops.aten._softmax_backward_data(torch.bmm(g, value.transpose(1, 2)), p, -1, p.dtype)
            d_scores.mul_(ctx.scale)
            torch.bmm(d_scores, key, out=d_query)
            torch.bmm(d_scores.transpose(1, 2), query, out=d_key)
        ctx.weights = None
        grad = inner.index_select(0, plan.origin).view(-1, 3 * num_q, dim)
        if num_kv < num_q:
            d_query, repeated = grad.split((num_q, 2 * num_q), 1)
            summed = repeated.view(-1, 2 * num_kv, num_q // num_kv, dim).sum(2)
            grad = torch.cat([d_query, summed], 1)
        _add_prefixes(grad[:, num_q:], inner, plan, num_kv)
        rotate_(grad[:, : num_q + num_kv], cos, sin, inverse=True)
        return grad.view(grad.shape[0], -1), None, None, None, None, None


class FrozenHead(torch.autograd.Function):
    """log softmax(h·Wᵀ)[label] for h (M, d), frozen W (V, d) and labels (M,) -> (M,).

    Works through the rows in pieces and keeps no logits: the gradient of each row is its upstream gradient times
    W[label] − softmax(h·Wᵀ)·W, which the forward pass computes while the probabilities are at hand. With `half`, W in
    bfloat16, it is (e_label − softmax(h·Wᵀ))·half, so that rounding is relative to the gradient, however near to 1 the
    label's probability; the value is float32's either way.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, labels: Tensor, half: Tensor | None = None) -> Tensor:
        logp = h.new_empty(h.shape[0])
        direction = torch.empty_like(h) if ctx.needs_input_grad[0] else None
        for start in range(0, h.shape[0], HEAD_ROWS):
            rows = slice(start, start + HEAD_ROWS)
            target = labels[rows]
            logits = h[rows] @ weight.T
            logits.sub_(logits.amax(-1, keepdim=True))
            chosen = logits.gather(1, target[:, None])
            total = logits.exp_().sum(-1, keepdim=True)
            logp[rows] = (chosen - total.log()).squeeze(1)
            if direction is not None and half is None:
                torch.sub(weight[target], (logits @ weight).div_(total), out=direction[rows])
            elif direction is not None and half is not None:
                # The label's own entry is minus the sum of all others, not its probability less 1: no cancellation.
                logits.scatter_(1, target[:, None], 0.0)
                logits.scatter_(1, target[:, None], -logits.sum(-1, keepdim=True))
                torch.div(times_transposed(logits, half), -total, out=direction[rows])
        ctx.save_for_backward(direction)
        return logp

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (direction,) = ctx.saved_tensors
        return direction * grads[0][:, None], None, None, None
