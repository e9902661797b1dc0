"""The token that a masked-LM head finds most probable, or draws, at each state.

The product with the vocabulary is as large as a forward pass through a small transformer, so its
weights are cast and laid out once, for a head that never changes, and the logits are used up in
pieces that fit the cache of a processor: the whole matrix is never there.

Shapes: N states, D width, E width before the decoder, C rows of a piece, V token ids, V' >= V.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.model.backbones.inference import Map
from contrasent.model.backbones.linear import has_products
from contrasent.model.masked_lm import MlmHead

_GROUPS = 32
_COLUMNS = _GROUPS * 16
_ROWS = {"cpu": 128}
_ROWS_OF_ACCELERATORS = 4096
_INTEGERS = {2: torch.int16, 4: torch.int32}


class Predictor:
    """A masked-LM head without gradients, in one number format, on one device."""

    def __init__(self, head: MlmHead, dtype: torch.dtype, vocabulary: int) -> None:
        """Lay the weights out; they are copied.

        Args:
            head: what predicts.
            dtype: of the products.
            vocabulary: V; ids from there on, which pad the rows of some decoders, are never
                predicted.
        """
        self._dtype = dtype
        self._device = head.decoder.weight.device
        self._rows = _ROWS.get(self._device.type, _ROWS_OF_ACCELERATORS)
        self._activation, self._norm = head.activation, head.norm
        dense, decoder = head.dense, head.decoder
        weight, bias = decoder.weight[:vocabulary], decoder.bias
        spare = -vocabulary % _COLUMNS
        offset = weight.new_zeros(vocabulary) if bias is None else bias[:vocabulary]
        self._dense = self._linear(dense.weight, dense.bias)
        self._decoder = self._linear(
            F.pad(weight, (0, 0, 0, spare)), F.pad(offset, (0, spare), value=float("-inf"))
        )

    def most_probable(self, states: Tensor) -> Tensor:
        """``(N,)`` int64, the token with the largest logit at each of ``(N, D)`` states."""
        pieces = torch.split(self._transformed(states), self._rows)
        return torch.cat([argmax(self._decoder(piece)) for piece in pieces])

    def drawn(self, states: Tensor) -> Tensor:
        """``(N,)`` int64, a token drawn at each state from the softmax of its logits.

        One number of torch's generator decides a token: the first whose probability, summed up
        from the first id on, exceeds it.
        """
        pieces = torch.split(self._transformed(states), self._rows)
        numbers = torch.split(torch.rand(len(states), 1, device=self._device), self._rows)
        found = []
        for piece, number in zip(pieces, numbers, strict=True):
            summed = torch.softmax(self._decoder(piece).float(), -1).cumsum(-1)
            # Rounding may leave the last sum at a little less than 1.
            found.append(torch.searchsorted(summed, number * summed[:, -1:], right=True))
        return torch.cat(found).squeeze(1)

    def _transformed(self, states: Tensor) -> Tensor:
        """``(N, E)`` in the number format of the products."""
        inner = self._activation(self._dense(states.to(self._dtype)))
        normed: Tensor = self._norm(inner.to(self._norm.weight.dtype))
        return normed.to(self._dtype)

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        weight = weight.detach().to(self._dtype)
        bias = None if bias is None else bias.detach().to(self._dtype)
        if has_products(self._device, self._dtype):
            zeros = weight.new_zeros(len(weight))
            return Map.of(weight, zeros if bias is None else bias, self._rows)
        return _plain(weight, bias)


def argmax(logits: Tensor) -> Tensor:
    """``(C,)`` int64, the column with the largest number in each row.

    On a CPU in steps that its vector units can take, a sixth of the time of ``Tensor.argmax``.
    The bits of two numbers of which one is positive compare as integers do; a row that has no
    positive number is left to torch. Of equal numbers any may be named.

    Args:
        logits: ``(C, V')``.
    """
    rows, columns = logits.shape
    if logits.device.type != "cpu" or columns % _GROUPS:
        return logits.argmax(-1)
    bits = logits.view(_INTEGERS[logits.element_size()]).view(rows, _GROUPS, -1)
    column = bits.amax(1).argmax(-1)
    there = column[:, None, None].expand(-1, _GROUPS, 1)
    candidates = logits.view(rows, _GROUPS, -1).gather(2, there).squeeze(2)
    largest, group = candidates.max(-1)
    if not bool((largest > 0).all()):
        return logits.argmax(-1)
    return group * bits.shape[2] + column


def _plain(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return lambda x: F.linear(x, weight, bias)
