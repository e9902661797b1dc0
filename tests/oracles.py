"""Each formula once more, in loops over single numbers that a reader can check against the paper.

Numbers are torch scalars, so that autograd gives the gradient of the formula as it is written.
"""

import torch


def cosine(u, v):
    return (u * v).sum() / ((u * u).sum().sqrt() * (v * v).sum().sqrt())


def info_nce(anchor, candidates, temperature, own_weight=1.0, excluded=None):
    """SimCSE eq. 1 (positives only), eq. 5 (hard negatives after them), eq. 8 (own_weight)."""
    count = len(anchor)
    total = 0.0
    for i in range(count):
        denominator = 0.0
        for j in range(len(candidates)):
            if excluded is not None and excluded[i][j] and j != i:
                continue
            own_hard_negative = j >= count and (j - i) % count == 0
            weight = own_weight if own_hard_negative else 1.0
            denominator = denominator + weight * torch.exp(
                cosine(anchor[i], candidates[j]) / temperature
            )
        numerator = torch.exp(cosine(anchor[i], candidates[i]) / temperature)
        total = total - torch.log(numerator / denominator)
    return total / count


def alignment(anchor, positive):
    """Wang and Isola 2020: mean squared distance of the unit vectors of a pair."""
    total = 0.0
    for u, v in zip(anchor, positive, strict=True):
        unit_u, unit_v = u / (u * u).sum().sqrt(), v / (v * v).sum().sqrt()
        total = total + ((unit_u - unit_v) ** 2).sum()
    return total / len(anchor)


def uniformity(embeddings):
    """Wang and Isola 2020: log of the mean of exp(-2 squared distance) over pairs of two rows."""
    total, pairs = 0.0, 0
    for i in range(len(embeddings)):
        for j in range(i):
            u, v = embeddings[i], embeddings[j]
            difference = u / (u * u).sum().sqrt() - v / (v * v).sum().sqrt()
            total = total + torch.exp(-2.0 * (difference**2).sum())
            pairs += 1
    return torch.log(total / pairs)
