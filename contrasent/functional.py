"""Formulas on tensors. No module here keeps state, reads a config, or knows a model.

Shapes: B anchors, C candidates (C >= B), D embedding width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_ROWS = 1024
"""Rows of a matrix of all pairs that are in memory at once."""


def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of every row of ``a (B, D)`` with every row of ``b (C, D)``, as ``(B, C)`` float32.

    Also under autocast: divided by a temperature of 0.05, the rounding of bf16 would be 0.1.
    """
    with torch.autocast(a.device.type, enabled=False):
        return F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).T


def info_nce(
    anchor: Tensor,
    candidates: Tensor,
    temperature: float,
    *,
    own_weight: float = 1.0,
    excluded: Tensor | None = None,
) -> Tensor:
    r"""Mean cross-entropy of picking each anchor's own positive among all candidates.

    .. math:: -\frac1B \sum_i \log \frac{e^{\cos(h_i, c_i) / \tau}}
        {\sum_j \alpha^{[j > B,\ j \equiv i \bmod B]}\, e^{\cos(h_i, c_j) / \tau}}

    Gao et al. 2021 (SimCSE): eq. 1 and 4 with ``candidates`` = the B positives, eq. 5 with the
    hard negatives appended to them, block by block of B rows, eq. 8 with ``own_weight`` = alpha.

    Args:
        anchor: ``(B, D)``.
        candidates: ``(C, D)``, C a multiple of B; row ``k * B + i`` belongs to anchor ``i``, and
            row ``i`` is its positive.
        temperature: tau > 0; the cosine is divided by it.
        own_weight: alpha > 0, the factor of anchor ``i``'s own hard negatives in the sum.
        excluded: ``(B, C)`` bool, candidates left out of the sum of an anchor; its positive stays.

    Returns:
        A scalar, in nats.
    """
    examples, count = len(anchor), len(candidates)
    logits = cosine_matrix(anchor, candidates) / temperature
    target = torch.arange(examples, device=anchor.device)
    if own_weight != 1.0 and count > examples:
        own = torch.arange(count, device=anchor.device) % examples == target.unsqueeze(1)
        own[:, :examples] = False
        logits = logits + math.log(own_weight) * own
    if excluded is not None:
        positive = torch.arange(count, device=anchor.device) == target.unsqueeze(1)
        logits = logits.masked_fill(excluded & ~positive, float("-inf"))
    return F.cross_entropy(logits, target)


def alignment(anchor: Tensor, positive: Tensor) -> Tensor:
    """Mean squared distance of the unit vectors of ``anchor (B, D)`` and ``positive (B, D)``.

    Wang and Isola 2020; SimCSE eq. 2. Lower is closer; between 0 and 4.
    """
    a, b = F.normalize(anchor.float(), dim=-1), F.normalize(positive.float(), dim=-1)
    return (a - b).square().sum(-1).mean()


def uniformity(embeddings: Tensor) -> Tensor:
    """Log of the mean Gaussian potential (t = 2) over all pairs of distinct rows of ``(B, D)``.

    Wang and Isola 2020; SimCSE eq. 3. Lower is more even; between -8 and 0. B must be at least 2.
    """
    unit = F.normalize(embeddings.float(), dim=-1)
    count, total = len(unit), unit.new_zeros(())
    with torch.autocast(unit.device.type, enabled=False):
        for start in range(0, count, _ROWS):
            # |u - v|^2 = 2 - 2 cos; a row is left out of its own sum.
            cosines = (unit[start : start + _ROWS] @ unit.T).clamp(max=1)
            cosines.diagonal(start).fill_(float("-inf"))
            total = total + (4 * cosines - 4).exp().sum()
    return (total / (count * (count - 1))).log()
