"""Floating-point operations that a batch needs, from the shape of the model and its real tokens.

Letters: S sentences of l tokens each, T the sum of l, D the width of a state, I of the inner layer
of the feed-forward part, K layers. A product of ``(m, k)`` and ``(k, n)`` is ``2 m k n``. Forward,
a layer needs ``6 T D^2`` for query, key and value, ``2 T D^2`` for the output map, ``4 T D I`` for
the feed-forward part, and ``4 D sum(l^2)`` for the scores of attention and for mixing the values.

Where only the first token of each sentence is pooled (``cls``), the last layer needs keys and
values of every token, and all else of one row per sentence:
``4 T D^2 + 4 S D^2 + 4 S D I + 4 D T``.

The backward pass has two products for each one of the forward pass. What is no matrix product is
not counted, nor is padding, nor the loss, which is below a hundredth.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a transformer: D, I and K."""

    width: int
    inner: int
    depth: int

    @classmethod
    def of(cls, folder: Path) -> "Model":
        """Read the shape from a folder's ``config.json``, whichever names it uses."""
        get = json.loads((folder / "config.json").read_text(encoding="utf-8")).get
        width, inner = get("hidden_size", get("dim")), get("intermediate_size", get("hidden_dim"))
        return cls(width, inner, get("num_hidden_layers", get("n_layers")))

    def products(self, rows: int, *, backward: bool = False) -> list[tuple[int, int, int]]:
        """The ``(m, k, n)`` of a layer's matrix products on about ``rows`` tokens.

        With ``backward`` those of the gradients as well.
        """
        width, inner, rows = self.width, self.inner, max(64, rows // 64 * 64)
        maps = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
        forward = [(rows, k, n) for k, n in maps]
        gradients = [shape for m, k, n in forward for shape in ((m, n, k), (k, m, n))]
        return forward + gradients * backward


def forward_flops(model: Model, lengths: Sequence[int], *, first_only: bool) -> int:
    """Operations of the forward pass on sentences of ``lengths`` tokens, special ones included.

    With ``first_only`` only the first token of each sentence is pooled.
    """
    width, inner, tokens = model.width, model.inner, sum(lengths)
    attention = 4 * width * sum(length**2 for length in lengths)
    whole = 8 * tokens * width**2 + 4 * tokens * width * inner + attention
    if not first_only:
        return model.depth * whole
    rows = 4 * len(lengths) * (width**2 + width * inner)
    return (model.depth - 1) * whole + 4 * tokens * width**2 + rows + 4 * width * tokens


def step_flops(model: Model, lengths: Sequence[int], *, first_only: bool) -> int:
    """Operations of a forward and a backward pass; arguments as :func:`forward_flops`."""
    return 3 * forward_flops(model, lengths, first_only=first_only)
