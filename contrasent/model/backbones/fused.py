"""Kernels for a GPU, in Triton: attention within short sentences, and the norm after a residual.

Torch's attention works on tiles of 128 tokens where a sentence has some 25, and took a third of a
training step. Here one program has a head of a sentence whole, forward and backward. The residual
is dropped out, added, normalised and cast in one pass over memory, where torch makes five.

Shapes: as in :mod:`contrasent.model.backbones.kernels`.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from triton import language as tl

_ROWS = 4  # that a program normalises at once, a warp each
_PROGRAMS = 1056  # of a backward pass, among which its rows are shared out


def _seed(rate: float, beside: Tensor) -> Tensor:
    # On the device, where a graph draws another one at each replay.
    seed = torch.empty((), dtype=torch.int32, device=beside.device)
    return seed.random_() if rate else seed


@triton.jit
def _weigh(query, key, rows, length, factor, CAUSAL: tl.constexpr):
    # The attention weights (L, L) of a sentence.
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * factor
    seen = rows[None, :] < length
    if CAUSAL:
        seen = seen & (rows[None, :] <= rows[:, None])
    scores = tl.where(seen, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _keep(rows, seed, rate, SIZE: tl.constexpr):
    # By what dropout multiplies each of these weights.
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    places = (program * SIZE + rows)[:, None] * SIZE + rows[None, :]
    return tl.where(tl.rand(seed, places) >= rate, 1 / (1 - rate), 0.0)


@triton.jit
def _place(offsets, step, width, rows, ALONE: tl.constexpr, WIDTH: tl.constexpr):
    # Where the numbers of this program's head and sentence are, and which of them there are.
    sentence, columns = tl.program_id(0), tl.arange(0, WIDTH)
    start = tl.load(offsets + sentence)
    length = tl.load(offsets + sentence + 1) - start
    if ALONE:
        start, length = sentence, 1
    at = (start + rows)[:, None].to(tl.int64) * step + tl.program_id(1) * width + columns[None, :]
    return at, (rows[:, None] < length) & (columns[None, :] < width), length


@triton.jit
def _attend(query, key, value, mixed, offsets, of_query, of_key, width, factor, seed, rate,
            ALONE: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr, SIZE: tl.constexpr,
            WIDTH: tl.constexpr):  # fmt: skip
    rows = tl.arange(0, SIZE)
    at_query, asked, _ = _place(offsets, of_query, width, rows, ALONE, WIDTH)
    at_key, inside, length = _place(offsets, of_key, width, rows, False, WIDTH)
    q = tl.load(query + at_query, mask=asked, other=0.0)
    k = tl.load(key + at_key, mask=inside, other=0.0)
    v = tl.load(value + at_key, mask=inside, other=0.0)
    weights = _weigh(q, k, rows, length, factor, CAUSAL)
    if DROPS:
        weights *= _keep(rows, tl.load(seed), rate, SIZE)
    out = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    at, _, _ = _place(offsets, tl.num_programs(1) * width, width, rows, ALONE, WIDTH)
    tl.store(mixed + at, out.to(v.dtype), mask=asked)


@triton.jit
def _attend_back(query, key, value, gradient, d_query, d_key, d_value, offsets, of_query, of_key,
                 width, factor, seed, rate, ALONE: tl.constexpr, CAUSAL: tl.constexpr,
                 DROPS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    rows = tl.arange(0, SIZE)
    at_query, asked, _ = _place(offsets, of_query, width, rows, ALONE, WIDTH)
    at_key, inside, length = _place(offsets, of_key, width, rows, False, WIDTH)
    at, _, _ = _place(offsets, tl.num_programs(1) * width, width, rows, ALONE, WIDTH)
    q = tl.load(query + at_query, mask=asked, other=0.0)
    k = tl.load(key + at_key, mask=inside, other=0.0)
    v = tl.load(value + at_key, mask=inside, other=0.0)
    g = tl.load(gradient + at, mask=asked, other=0.0)
    weights = _weigh(q, k, rows, length, factor, CAUSAL)
    of_weights = tl.dot(g, tl.trans(v), input_precision="ieee")
    kept = weights
    if DROPS:
        keep = _keep(rows, tl.load(seed), rate, SIZE)
        kept, of_weights = weights * keep, of_weights * keep
    out = tl.dot(tl.trans(kept.to(g.dtype)), g, input_precision="ieee")
    tl.store(d_value + at_key, out.to(v.dtype), mask=inside)
    of_scores = weights * (of_weights - tl.sum(of_weights * weights, 1)[:, None]) * factor
    of_scores = of_scores.to(q.dtype)
    out = tl.dot(of_scores, k, input_precision="ieee")
    tl.store(d_query + at_query, out.to(q.dtype), mask=asked)
    out = tl.dot(tl.trans(of_scores), q, input_precision="ieee")
    tl.store(d_key + at_key, out.to(k.dtype), mask=inside)


class Attention(Function):
    """As :func:`contrasent.model.backbones.kernels.packed_attention`."""

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, query: Tensor | None, runs: Any, heads: int, rate: float
    ) -> Tensor:
        packed = packed.contiguous()
        query = query if query is None else query.contiguous()
        width = packed.shape[1] // (3 if query is None else 2) // heads
        size, columns = (max(16, triton.next_power_of_2(it)) for it in (runs.longest, width))
        ctx.options = {"ALONE": query is not None, "CAUSAL": runs.causal, "DROPS": rate > 0}
        ctx.options |= {"SIZE": size, "WIDTH": columns, "num_warps": max(1, size // 16)}
        ctx.grid = len(runs.offsets) - 1, heads
        ctx.numbers = width, width**-0.5, _seed(rate, packed), rate
        ctx.save_for_backward(packed, query, runs.offsets)
        parts, steps = _parts(packed, query, heads * width)
        mixed = packed.new_empty(len(packed if query is None else query), heads * width)
        _attend[ctx.grid](*parts, mixed, runs.offsets, *steps, *ctx.numbers, **ctx.options)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        packed, query, offsets = ctx.saved_tensors
        of_packed = torch.empty_like(packed)
        of_query = query if query is None else torch.empty_like(query)
        width = ctx.grid[1] * ctx.numbers[0]
        parts, steps = _parts(packed, query, width)
        given = (*parts, gradient.contiguous(), *_parts(of_packed, of_query, width)[0], offsets)
        _attend_back[ctx.grid](*given, *steps, *ctx.numbers, **ctx.options)
        return of_packed, of_query, None, None, None


def _parts(
    packed: Tensor, query: Tensor | None, width: int
) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    # Query, key and value, and how far apart the rows of the first and of the others are.
    parts, step = packed.split(width, 1), packed.shape[1]
    return (parts, (step, step)) if query is None else ((query, *parts), (width, step))


@triton.jit
def _rows(first, count, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    # The numbers of some rows, what there is of them, and where.
    rows, columns = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows[:, None] < count) & (columns[None, :] < width)
    return rows, inside, rows[:, None].to(tl.int64) * width + columns[None, :]


@triton.jit(do_not_specialize=["count"])
def _normalise(state, x, weight, bias, normed, narrow, total, moments, seed, rate, count, width,
               eps, BOTH: tl.constexpr, DROPS: tl.constexpr, SAVES: tl.constexpr,
               ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    rows, inside, at = _rows(tl.program_id(0) * ROWS, count, width, ROWS, WIDTH)
    columns = tl.arange(0, WIDTH)
    factor = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        added = tl.where(tl.rand(tl.load(seed), at.to(tl.int32)) >= rate, added / (1 - rate), 0.0)
    values = tl.load(state + at, mask=inside, other=0.0).to(tl.float32) + added
    mean = tl.sum(values, 1) / width
    centred = tl.where(inside, values - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    out = centred * scale[:, None] * factor[None, :] + shift[None, :]
    tl.store(narrow + at, out.to(narrow.dtype.element_ty), mask=inside)
    if BOTH:
        tl.store(normed + at, out.to(normed.dtype.element_ty), mask=inside)
    if SAVES:
        tl.store(total + at, values, mask=inside)
        tl.store(moments + 2 * rows, mean, mask=rows < count)
        tl.store(moments + 2 * rows + 1, scale, mask=rows < count)


@triton.jit(do_not_specialize=["count"])
def _normalise_back(of_normed, of_narrow, total, moments, weight, of_state, of_x, sums, seed, rate,
                    count, width, WIDE: tl.constexpr, NARROW: tl.constexpr, DROPS: tl.constexpr,
                    ROWS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    columns = tl.arange(0, WIDTH)
    factor = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    of_weight = tl.zeros((ROWS, WIDTH), tl.float32)
    of_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(tl.program_id(0) * ROWS, count, tl.num_programs(0) * ROWS):
        rows, inside, at = _rows(first, count, width, ROWS, WIDTH)
        gradient = tl.zeros((ROWS, WIDTH), tl.float32)
        if WIDE:
            gradient += tl.load(of_normed + at, mask=inside, other=0.0).to(tl.float32)
        if NARROW:
            gradient += tl.load(of_narrow + at, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(moments + 2 * rows, mask=rows < count, other=0.0)
        scale = tl.load(moments + 2 * rows + 1, mask=rows < count, other=0.0)
        unit = tl.load(total + at, mask=inside, other=0.0) - mean[:, None]
        unit = tl.where(inside, unit * scale[:, None], 0.0)
        of_weight += gradient * unit
        of_bias += gradient
        gradient *= factor[None, :]
        along = tl.sum(gradient * unit, 1) / width
        out = gradient - (tl.sum(gradient, 1) / width)[:, None] - unit * along[:, None]
        out *= scale[:, None]
        tl.store(of_state + at, out.to(of_state.dtype.element_ty), mask=inside)
        if DROPS:
            out = tl.where(tl.rand(tl.load(seed), at.to(tl.int32)) >= rate, out / (1 - rate), 0.0)
        tl.store(of_x + at, out.to(of_x.dtype.element_ty), mask=inside)
    place = 2 * tl.program_id(0) * width + columns
    tl.store(sums + place, tl.sum(of_weight, 0), mask=columns < width)
    tl.store(sums + place + width, tl.sum(of_bias, 0), mask=columns < width)


class DropoutNorm(Function):
    """As :func:`contrasent.model.backbones.kernels.dropout_norm`, of a norm's parts."""

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, x: Tensor, rate: float, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        state, x = state.contiguous(), x.contiguous()
        (rows, width), both, saves = x.shape, state.dtype != x.dtype, any(ctx.needs_input_grad)
        narrow = torch.empty_like(x)
        normed = torch.empty_like(state) if both else narrow
        total = torch.empty_like(x, dtype=torch.float32) if saves else narrow
        moments = total.new_empty(rows, 2)
        ctx.options = {"DROPS": rate > 0, "ROWS": _ROWS, "WIDTH": triton.next_power_of_2(width)}
        ctx.numbers, ctx.dtypes = (_seed(rate, x), rate, rows, width), (state.dtype, x.dtype)
        given = (state, x, weight, bias, normed, narrow, total, moments, *ctx.numbers, eps)
        _normalise[(-(-rows // _ROWS),)](*given, BOTH=both, SAVES=saves, **ctx.options)
        ctx.save_for_backward(total, moments, weight)
        ctx.set_materialize_grads(False)
        return (normed, narrow) if both else (normed, normed.view_as(normed))

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_normed: Tensor | None, of_narrow: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        total, moments, weight = ctx.saved_tensors
        programs = min(_PROGRAMS, -(-len(total) // _ROWS))
        of_state, of_x = (torch.empty_like(total, dtype=dtype) for dtype in ctx.dtypes)
        sums = total.new_empty(programs, 2, total.shape[1])
        gradients = [total if it is None else it.contiguous() for it in (of_normed, of_narrow)]
        given = (*gradients, total, moments, weight, of_state, of_x, sums)
        used = {"WIDE": of_normed is not None, "NARROW": of_narrow is not None}
        _normalise_back[(programs,)](*given, *ctx.numbers, **used, **ctx.options)
        of_weight, of_bias = sums.sum(0)
        return of_state, of_x, None, of_weight, of_bias, None
