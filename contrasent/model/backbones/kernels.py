"""Kernels of packed tokens: self-attention, dropout and LayerNorm, linear maps on a CPU.

``aten::_flash_attention_forward`` computes attention without padding. It is called here, as
``torch.nn.attention.varlen.varlen_attn`` takes no dropout. Elsewhere tokens are moved to blocks.

Drawing a number per element took a fifth of a training step on a CPU. Here each element takes 15
bits of a number of NumPy's SFC64, and the rate is the asked one to 1 in 65,536.

Shapes: T tokens end to end, R >= T packed rows, D width, S sentences, H heads, N = S * H, L tokens
of the longest sentence, Q queries (L, or 1 where only first tokens are asked for), P parts (query,
key, value), d = D / H numbers per head.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.backends.cuda import SDPAParams, can_use_flash_attention, flash_sdp_enabled
from torch.nn import functional as F
from torch.profiler import record_function

from contrasent.data.batch import Batch
from contrasent.errors import first_line, warn

_SHORT = 64  # tokens of the longest sentence that a kernel of ours attends to
_ALIGNED = 8  # divides the numbers per head: the call that pads them is not the one used here


@dataclass(frozen=True, slots=True)
class Runs:
    """Where the rows of sentence s begin, ``offsets[s]`` int32 ``(S + 1,)``, and the next ones."""

    offsets: Tensor
    longest: int
    causal: bool = False

    @classmethod
    def of(cls, batch: Batch, causal: bool = False) -> "Runs":
        """The tokens of ``batch``."""
        return cls(batch.offsets.to(torch.int32), batch.longest, causal)


def packed_attention_available(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """True if the kernel is there and allowed, and takes ``head_width`` numbers in ``dtype``."""
    if device.type != "cuda" or torch.version.hip or head_width % _ALIGNED:
        return False
    allowed: bool = flash_sdp_enabled()  # type: ignore[no-untyped-call]
    return allowed and _takes(device, dtype, head_width)


@lru_cache
def _takes(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    with torch.inference_mode(mode=False):
        probe = torch.empty(
            (1, 1, _ALIGNED, head_width), dtype=dtype, device=device, requires_grad=True
        )
        # With a gradient and dropout, which some devices lack for wide heads.
        return can_use_flash_attention(SDPAParams(probe, probe, probe, None, 0.1, False, False))


@lru_cache
def fused_kernels(device: torch.device) -> Any:
    """Our kernels if Triton compiles them for ``device``, else None; a warning says why not."""
    if device.type != "cuda" or torch.version.hip:
        return None
    try:
        from contrasent.model.backbones import fused

        row = torch.zeros(1, 16, device=device)
        fused.DropoutNorm.apply(row, row, 0.0, row[0], row[0], 1.0)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - of a compiler, whatever it is
        warn(f"Triton compiles no kernels here, and torch's are slower: {first_line(error)}")
        return None
    return fused


def packed_attention(
    packed: Tensor, heads: int, runs: Runs, rate: float, query: Tensor | None = None
) -> Tensor:
    """As :func:`attention`; a row that is in no run gets an undefined result and gradient."""
    if runs.longest <= _SHORT and (ours := fused_kernels(packed.device)):
        mixed: Tensor = ours.Attention.apply(packed, query, runs, heads, rate)
        return mixed
    rows, of_query = packed.view(len(packed), 3 if query is None else 2, heads, -1), runs
    parts = rows.unbind(1)
    if query is not None:
        firsts = torch.arange(len(runs.offsets), dtype=torch.int32, device=packed.device)
        parts, of_query = (query.view(len(query), heads, -1), *parts), Runs(firsts, 1)
    return _flash(parts, of_query, runs, rate).flatten(1)


def _flash(parts: tuple[Tensor, ...], of_query: Runs, of_key: Runs, rate: float) -> Tensor:
    offsets, longest = (of_query.offsets, of_key.offsets), (of_query.longest, of_key.longest)
    # The last argument: no copy of the mask for debugging.
    call = torch.ops.aten._flash_attention_forward
    mixed: Tensor = call(*parts, *offsets, *longest, rate, of_query.causal, False)[0]
    return mixed


_LANES = 16


@dataclass(frozen=True, slots=True)
class Blocks:
    """Places of a batch's tokens, computed once per forward call.

    ``first (S,)`` are the packed numbers of first tokens, ``positions (T,)`` the places of tokens
    in their ``sentence (T,)``. ``mask (S, L)`` is True where there is a token, None if nothing is
    padded; ``longest`` is L or more. Of the R ``rows`` those from T on reach no other row and get
    a gradient of zero, and stand for the padding. With packed ``runs``, R = T. If it is ``causal``
    a token sees itself and those before it. ``added``, ``(H, L, L)`` or ``(1, L, L)``, is added to
    the scores of every sentence; gradients reach it.
    """

    sentences: int
    longest: int
    heads: int
    first: Tensor
    positions: Tensor
    sentence: Tensor
    mask: Tensor | None
    rows: int
    runs: Runs | None = None
    causal: bool = False
    added: Tensor | None = None
    _there: dict[int, Tensor] = field(default_factory=dict)
    _back: dict[int, Tensor] = field(default_factory=dict)
    _bias: dict[torch.dtype, Tensor | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        batch: Batch,
        heads: int,
        *,
        rounded: bool = False,
        packed: bool = False,
        causal: bool = False,
    ) -> "Blocks":
        """Find the places of ``batch``; if ``packed``, for attention without blocks or padding.

        With ``rounded``, for bf16 on a CPU, R is rounded up by at most a sixteenth, as products are
        compiled anew for each number of rows, and L to a multiple of 16, for torch's softmax.
        """
        lengths, first, tokens = batch.lengths, batch.offsets[:-1], len(batch.token_ids)
        longest = batch.longest
        if rounded:
            longest = -(-longest // _LANES) * _LANES
        sentence = torch.repeat_interleave(lengths, output_size=tokens)
        positions = torch.arange(tokens, device=first.device) - first[sentence]
        mask, rows, runs = None, tokens, Runs.of(batch, causal) if packed else None
        if runs is None and tokens < batch.sentences * longest:
            mask = torch.arange(longest, device=first.device) < lengths.unsqueeze(1)
            rows += 1
        step = 1 << max(0, rows.bit_length() - 5) if rounded else 1
        rows = -(-rows // step) * step
        places = (first, positions, sentence)
        return cls(batch.sentences, longest, heads, *places, mask, rows, runs, causal)

    @classmethod
    def single(cls, tokens: int, heads: int, spare: int) -> "Blocks":
        """One sentence on the CPU with ``spare`` rows, which are padded places of its block."""
        places, rows = torch.arange(tokens), tokens + spare
        mask = torch.arange(rows).unsqueeze(0) < tokens if spare else None
        first = torch.zeros(1, dtype=torch.int64)
        return cls(1, rows, heads, first, places, first.expand(tokens), mask, rows)

    def with_first(self, state: Tensor, first: Tensor) -> Tensor:
        """State 0 ``(T, D)`` with ``(S, D)`` or ``(S, N, D)`` in place of that of first tokens."""
        given = first.reshape(self.sentences, -1, state.shape[-1])
        places = self.first.unsqueeze(1) + torch.arange(given.shape[1], device=state.device)
        return state.index_copy(0, places.flatten(), given.flatten(0, 1).to(state.dtype))

    def spread(self, packed: Tensor, parts: int) -> Tensor:
        """``(R, P * D)`` to ``(P, S * H, L, d)``; padded places are copies of a row from T on."""
        if parts not in self._there:  # for each place of a block its row in ``(R * P * H, d)``
            tokens, device = len(self.positions), self.first.device
            token = torch.full((self.sentences, self.longest), tokens, device=device)
            token[self.sentence, self.positions] = torch.arange(tokens, device=device)
            part = torch.arange(parts, device=device)[:, None, None, None]
            head = torch.arange(self.heads, device=device)[None, None, :, None]
            row = (token[None, :, None, :] * parts + part) * self.heads + head
            self._there[parts] = row.flatten()
        rows = packed.reshape(self.rows * parts * self.heads, -1)
        block = rows.index_select(0, self._there[parts])
        return block.view(parts, self.sentences * self.heads, self.longest, -1)

    def gather(self, block: Tensor) -> Tensor:
        """``(P, S * H, L, d)`` back to ``(R, P * D)``; rows from T on are zero."""
        parts, width = len(block), block.shape[-1]
        if parts not in self._back:  # for each row of ``(T * P * H, d)`` its place in a block
            part = torch.arange(parts, device=block.device)[None, :, None]
            head = torch.arange(self.heads, device=block.device)[None, None, :]
            row = (part * self.sentences + self.sentence[:, None, None]) * self.heads + head
            self._back[parts] = (row * self.longest + self.positions[:, None, None]).flatten()
        back = self._back[parts]
        rows = block.new_empty(self.rows * parts * self.heads, width)
        torch.index_select(block.reshape(-1, width), 0, back, out=rows[: len(back)])
        rows[len(back) :] = 0
        return rows.view(self.rows, -1)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """The bias of the scores: 0 where a token is seen, and minus infinity elsewhere.

        ``(S * H, 1, L)``, or ``(1, L, L)`` if causal; ``(S * H, L, L)`` with what is `added`.
        """
        if dtype in self._bias:
            return self._bias[dtype]
        unseen, bias = None, None
        if self.causal:
            square = (1, self.longest, self.longest)
            unseen = torch.ones(square, dtype=torch.bool, device=self.first.device).triu(1)
        elif self.mask is not None:
            unseen = ~self.mask.repeat_interleave(self.heads, 0).unsqueeze(1)
        if unseen is not None:
            bias = torch.zeros_like(unseen, dtype=dtype).masked_fill(unseen, float("-inf"))
        if self.added is not None:
            added = self.added.to(dtype)
            added = added.repeat(self.sentences, 1, 1) if len(added) > 1 else added
            bias = added if bias is None else added + bias
        self._bias[dtype] = bias
        return bias


def move(x: Tensor, blocks: Blocks, parts: int = 0) -> Tensor:
    """:meth:`Blocks.spread` to so many parts, or :meth:`Blocks.gather` to none, with gradients."""
    moved: Tensor = _Move.apply(x, blocks, parts)  # type: ignore[no-untyped-call]
    return moved


class _Move(Function):
    """To blocks and back; each is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Blocks, parts: int) -> Tensor:
        ctx.blocks, ctx.back = blocks, 0 if parts else len(x)
        return blocks.spread(x, parts) if parts else blocks.gather(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        blocks = ctx.blocks
        back = blocks.spread(gradient, ctx.back) if ctx.back else blocks.gather(gradient)
        return back, None, None


_LONG = 128
"""Above this length weights, ``(N, Q, L)``, are not written out where no gradient needs them."""
_STEPS = 1 << 15
AS_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability ``rate`` and scale the others, as ``F.dropout`` does."""
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped: Tensor = _Dropout.apply(x, rate)  # type: ignore[no-untyped-call]
    return dropped


def keep_mask(x: Tensor, rate: float) -> tuple[Tensor, float]:
    """Draw which elements stay, with all bits set in the mask; and the factor to scale them by."""
    limit = min(round(rate * _STEPS), _STEPS - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    with record_function("dropout mask"):  # which a profile would not see otherwise
        numbers = np.random.SFC64(seed).random_raw((x.numel() + 3) // 4)
    mask = torch.from_numpy(numbers.view(np.int16))[: x.numel()].view(x.shape)
    # The 15 low bits are r, and the sign bit makes that r - 32768; adding the limit leaves it
    # negative if r < 32768 - limit, and the shift copies the sign into all bits.
    mask.bitwise_or_(-_STEPS).add_(limit).bitwise_right_shift_(15)
    return mask, _STEPS / (_STEPS - limit)


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` with zeros where ``mask`` has none of its bits set."""
    integer = AS_INTEGER[x.element_size()]
    return (x.view(integer) & mask.to(integer)).view(x.dtype)


class _Dropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask, ctx.scale = keep_mask(x, rate)
        ctx.save_for_backward(mask)
        return torch.mul(apply_mask(x, mask), ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return apply_mask(gradient.contiguous() * ctx.scale, mask), None


def attention(packed: Tensor, blocks: Blocks, rate: float, query: Tensor | None = None) -> Tensor:
    """``dropout(softmax(q k / sqrt(d))) v`` within each sentence, ``(R, D)``.

    ``packed (R, 3 D)`` has a query, a key and a value in each row; ``rate`` is the dropout of the
    weights. Rows from T on are zero, and so must their gradient be. With ``query (S, D)``, of
    first tokens, ``packed (R, 2 D)`` has a key and a value, and ``(S, D)`` is returned.
    """
    if blocks.runs is not None:
        return packed_attention(packed, blocks.heads, blocks.runs, rate, query)
    block, alone = move(packed, blocks, 3 if query is None else 2), None
    if query is not None:
        alone = query.view(blocks.sentences * blocks.heads, 1, -1)
    bias, mixed = blocks.bias(block.dtype), block
    if _writes_weights(block, blocks, rate):
        mixed = _Attention.apply(alone, block, bias, rate)  # type: ignore[no-untyped-call]
    else:
        q, k, v = (part.unsqueeze(0) for part in _parts(alone, block))
        mask = None if bias is None else bias.unsqueeze(0)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, rate).squeeze(0)
    return move(mixed.unsqueeze(0), blocks) if query is None else mixed.reshape(query.shape)


def _parts(query: Tensor | None, block: Tensor) -> Any:
    return block.unbind(0) if query is None else (query, *block.unbind(0))


def _writes_weights(block: Tensor, blocks: Blocks, rate: float) -> bool:
    """On a CPU torch's kernel is slower for short sentences, and fp32 inside with dropout."""
    # By the rate too, so that a pass without gradients draws the masks of one with them.
    needed = rate > 0 or torch.is_grad_enabled()
    return block.device.type == "cpu" and (needed or blocks.longest <= _LONG)


class _Attention(Function):
    """``(N, Q, d)`` of ``block (P, N, L, d)``: query, key and value, or those without ``query``."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor | None, block: Tensor, bias: Tensor | None, rate: float
    ) -> Tensor:
        q, k, v = _parts(query, block)
        scores = _product(q, k.transpose(1, 2), q.shape[-1] ** -0.5, plus=bias)
        weights = torch.softmax(scores, -1)
        mask, ctx.scale = keep_mask(weights, rate) if rate else (None, 1.0)
        kept = weights if mask is None else apply_mask(weights, mask)
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.is_alone, ctx.shape = query is not None, block.shape
        return _product(kept, v, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors
        of_block, gradient = gradient.new_empty(ctx.shape), gradient.contiguous()
        alone = torch.empty_like(query) if ctx.is_alone else None
        of_query, of_key, of_value = _parts(alone, of_block)
        factor = query.shape[-1] ** -0.5
        kept = weights if mask is None else apply_mask(weights, mask)
        _product(kept.transpose(1, 2), gradient, ctx.scale, out=of_value)
        of_weights = _product(gradient, value.transpose(1, 2), ctx.scale)
        if mask is not None:
            of_weights = apply_mask(of_weights, mask)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        _product(of_scores, key, factor, out=of_query)
        _product(of_scores.transpose(1, 2), query, factor, out=of_key)
        return alone, of_block, of_scores if ctx.needs_input_grad[2] else None, None


def _product(
    a: Tensor, b: Tensor, factor: float, *, plus: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``factor * a b + plus`` of ``(N, ., .)`` matrices."""
    if plus is not None:
        return torch.baddbmm(plus, a, b, alpha=factor)
    if out is None:
        out = a.new_empty(len(a), a.shape[1], b.shape[2])
    return torch.baddbmm(out, a, b, beta=0, alpha=factor, out=out)


_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
"""Of oneDNN, which torch keeps to itself: one without them computes by its public ones."""


def has_products(device: torch.device, dtype: torch.dtype) -> bool:
    """True if oneDNN multiplies ``dtype`` on ``device``, and this torch lets us ask it to."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS):
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class CpuLinear(Function):
    """A linear map by oneDNN, which writes and reads the bias once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return mapped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        across = gradient.t()
        if len(weight) < weight.shape[1]:
            across = across.contiguous()  # a copy of the narrower side is made up for
        return gradient @ weight, across @ x, gradient.sum(0)


def dropout_norm(
    state: Tensor, x: Tensor, rate: float, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """``norm(state + dropout(x))``, ``(R, D)``, in the number formats of ``state`` and of ``x``."""
    kernel: Any = _DropoutNorm
    if ours := fused_kernels(x.device):
        kernel = ours.DropoutNorm
    elif rate == 0 or x.device.type != "cpu" or state.dtype == x.dtype:
        normed = norm(state + dropout(x, rate))
        return normed, normed.to(x.dtype)
    both: tuple[Tensor, Tensor] = kernel.apply(state, x, rate, norm.weight, norm.bias, norm.eps)
    return both


class _DropoutNorm(Function):
    """In one function, its two gradients are added and scaled in fewer passes."""

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, x: Tensor, rate: float, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        mask, ctx.scale = keep_mask(x, rate)
        # Cast first: a sum of two number formats takes longer than both steps.
        kept = apply_mask(x, mask).to(state.dtype)
        total = torch.add(state, kept, alpha=ctx.scale, out=kept)
        normed, mean, rstd = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
        ctx.save_for_backward(total, mean, rstd, weight, bias, mask)
        ctx.set_materialize_grads(False)
        ctx.dtype = x.dtype
        return normed, normed.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_normed: Tensor | None, of_narrow: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        total, mean, rstd, weight, bias, mask = ctx.saved_tensors
        if of_normed is None or of_narrow is None:
            gradient = of_normed if of_narrow is None else of_narrow.to(total.dtype)
        else:
            gradient = of_narrow.to(total.dtype).add_(of_normed)
        if gradient is None:
            return (None,) * 6
        of_total, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(), total, weight.shape, mean, rstd, weight, bias, [True] * 3
        )
        of_x = torch.empty_like(of_total, dtype=ctx.dtype)
        torch.mul(of_total, ctx.scale, out=of_x)
        return of_total, apply_mask(of_x, mask), None, of_weight, of_bias, None
