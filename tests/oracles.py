"""Each formula once more, in loops over single numbers that a reader can check against the paper.

Numbers are torch scalars, so that autograd gives the gradient of the formula as it is written.
"""

import torch


def cosine(u, v):
    return (u * v).sum() / ((u * u).sum().sqrt() * (v * v).sum().sqrt())


def dot(u, v):
    return (u * v).sum()


def info_nce(anchor, candidates, temperature, own_weight=1.0, excluded=None, similarity=cosine):
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
                similarity(anchor[i], candidates[j]) / temperature
            )
        numerator = torch.exp(similarity(anchor[i], candidates[i]) / temperature)
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


def replaced_token_loss(logits, edited, lengths, reduction="mean", padding="ignored"):
    """DiffCSE section 3: - log D for each token, D the probability of what is true."""
    total, token = 0.0, 0
    for length in lengths:
        for _ in range(length):
            right = 1 if edited[token] else 0
            total = total - torch.log(probability(logits[token], right))
            token += 1
    if reduction == "sum":
        return total
    return total / (len(lengths) * max(lengths) if padding == "as_reference" else token)


def probability(logits, target):
    """Softmax, of one row."""
    return torch.exp(logits[target]) / sum(torch.exp(logit) for logit in logits)


def masked_cross_entropy(logits, targets):
    total = 0.0
    for row, target in zip(logits, targets, strict=True):
        total = total - torch.log(probability(row, target))
    return total / len(targets)


def corrective_lm(logits, targets, copy_logits, edited, chosen):
    """COCO-LM, section 3.2: the sum of the loss of the language model and of that of copying."""
    recovery, copying, masked = 0.0, 0.0, 0
    for t in range(len(copy_logits)):
        copy = 1 / (1 + torch.exp(-copy_logits[t]))
        copying = copying - torch.log(1 - copy if edited[t] else copy)
        if chosen[t]:
            copy = copy.detach()
            likely = (1 - copy) * probability(logits[masked], targets[masked])
            recovery = recovery - torch.log(likely if edited[t] else copy + likely)
            masked += 1
    return recovery / masked, copying / len(copy_logits)


def batch_norm_head(rows, first, scale, shift, second):
    """DiffCSE Appendix A, number by number: each column minus its mean, over its deviation."""

    def normalised(columns):
        found = []
        for column in columns.T:
            mean = sum(column) / len(column)
            variance = sum((x - mean) ** 2 for x in column) / len(column)
            found.append(torch.stack([(x - mean) / torch.sqrt(variance + 1e-5) for x in column]))
        return torch.stack(found, dim=1)

    def linear(rows, weight):
        return torch.stack([torch.stack([dot(row, unit) for unit in weight]) for row in rows])

    hidden = normalised(linear(rows, first)) * scale + shift
    return normalised(linear(hidden * (hidden > 0), second))
