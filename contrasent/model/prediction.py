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

        Two numbers of torch's generator decide a token; see :func:`draw`.
        """
        pieces = torch.split(self._transformed(states), self._rows)
        numbers = torch.split(torch.rand(len(states), 2, device=self._device), self._rows)
        found = [draw(self._decoder(p), n) for p, n in zip(pieces, numbers, strict=True)]
        return torch.cat(found)

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


def draw(logits: Tensor, numbers: Tensor) -> Tensor:
    """``(C,)`` int64, a column drawn in each row from the softmax of its logits.

    First a group of columns is drawn by its probability, then one of its columns: to sum up all
    probabilities one after the other takes longer than the product that gives the logits. They
    are rounded as the logits are, which changes none of them by more than a 256th in bf16.

    Args:
        logits: ``(C, V')``, V' a multiple of 32.
        numbers: ``(C, 2)`` float32, drawn evenly from [0, 1).
    """
    probabilities = torch.softmax(logits, -1).view(len(logits), _GROUPS, -1)
    # The columns of a group stand V' / 32 apart, so that vector units add whole groups at once.
    column = _exceeding(probabilities.sum(1), numbers[:, :1])
    there = column.unsqueeze(1).expand(-1, _GROUPS, 1)
    group = _exceeding(probabilities.gather(2, there).squeeze(2), numbers[:, 1:])
    return (group * probabilities.shape[2] + column).squeeze(1)


def _exceeding(weights: Tensor, shares: Tensor) -> Tensor:
    """``(C, 1)``, where the weights of a row, summed up, exceed that share of their total."""
    summed = weights.float().cumsum(-1)
    return torch.searchsorted(summed, shares * summed[:, -1:], right=True)


def _plain(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return lambda x: F.linear(x, weight, bias)
