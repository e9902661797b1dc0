"""Each formula once more, in loops over single numbers that a reader can check against the paper.

Numbers are torch scalars, so that autograd gives the gradient of the formula as it is written.
"""

import math

import pytest
import torch

from contrasent.search.words import words


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


def nt_xent(first, second, temperature, excluded=None):
    """Chen et al. 2020, eq. 1, over both views; ConSERT's too."""
    rows = [*first, *second]
    count, total = len(rows), 0.0
    for i in range(count):
        other = (i + count // 2) % count
        denominator = 0.0
        for j in range(count):
            left_out = excluded is not None and excluded[i][j] and j != other
            if j != i and not left_out:
                denominator = denominator + torch.exp(cosine(rows[i], rows[j]) / temperature)
        numerator = torch.exp(cosine(rows[i], rows[other]) / temperature)
        total = total - torch.log(numerator / denominator)
    return total / count


def mixed_contrast(first, second, temperature, share):
    """MixCSE: all mixtures are candidates; those of an own positive count e^0."""
    count, total = len(first), 0.0

    def weight(u, v, own):
        return torch.exp((torch.zeros(()) if own else cosine(u, v)) / temperature)

    def mixed(rows, i):
        return (share * rows[i] + (1 - share) * rows[(i + 1) % count]).detach()

    for i in range(count):
        rest = sum(weight(first[i], second[j], own=False) for j in range(count))
        for j in range(count):
            rest = rest + weight(first[i], mixed(second, j), own=(j + 1) % count == i)
            rest = rest + weight(mixed(first, i), second[j], own=(i + 1) % count == j)
        total = total - torch.log(weight(first[i], second[i], own=False) / rest)
    return total / count


def list_net(student, teacher):
    """ListNet (Cao et al. 2007): cross-entropy of the softmaxes over the other sentences."""
    total = 0.0
    for i in range(len(student)):
        others = [j for j in range(len(student)) if j != i]
        wanted, found = ([torch.exp(it[i][j]) for j in others] for it in (teacher, student))
        for p, q in zip(wanted, found, strict=True):
            total = total - p / sum(wanted) * torch.log(q / sum(found))
    return total / len(student)


def list_mle(student, teacher):
    """ListMLE (Xia et al. 2008): minus log of the probability of the teacher's order."""
    total = 0.0
    for i in range(len(student)):
        order = [j for j in torch.argsort(teacher[i], descending=True).tolist() if j != i]
        for k, j in enumerate(order):
            rest = sum(torch.exp(student[i][m]) for m in order[k:])
            total = total - torch.log(torch.exp(student[i][j]) / rest)
    return total / len(student)


def self_guided(own, guides, temperature, excluded=None):
    """Kim et al. 2021: own (B, D), guides by layer and sentence."""
    layers, count, total = len(guides), len(own), 0.0
    for i in range(count):
        others = 0.0
        for m in range(count):
            if m == i or (excluded is not None and excluded[i][m]):
                continue
            for n in range(layers):
                others = others + torch.exp(cosine(own[i], guides[n][m]) / temperature)
        for k in range(layers):
            near = torch.exp(cosine(own[i], guides[k][i]) / temperature)
            total = total - torch.log(near / (near + others))
    return total / (layers * count)


def contrastive_tension(first, second, same, reduction):
    """Carlsson et al. 2021: minus log of the probability that a pair is what it is."""
    total, pairs, right = 0.0, 0, 0
    for u, v, label in zip(first, second, same, strict=True):
        if label < 0:
            continue
        likely = 1 / (1 + torch.exp(-dot(u, v)))
        total = total - torch.log(likely if label else 1 - likely)
        pairs += 1
        right += int((dot(u, v) > 0) == bool(label))
    return (total if reduction == "sum" else total / pairs), right / pairs


def distillation(student, teacher, loss):
    """The mean over sentences of 1 - cosine, or over all numbers of the squared difference."""
    total = 0.0
    for u, v in zip(student, teacher, strict=True):
        if loss == "cosine":
            total = total + 1 - cosine(u, v)
        else:
            total = total + sum((a - b) ** 2 for a, b in zip(u, v, strict=True)) / len(u)
    return total / len(student)


def neighbours(first, second, near, own_score, excluded=None):
    """Quick-Thoughts: minus log of the probability of each neighbour, and how many are found."""
    total, counted, right = 0.0, 0, 0
    for i, u in enumerate(first):
        beside = [j for j in range(len(second)) if near[i][j]]
        if not beside:
            continue
        scores = {
            k: 0 * dot(u, v) if k == i else dot(u, v)
            for k, v in enumerate(second)
            if (k != i or own_score) and not (excluded and excluded[i][k] and k not in [*beside, i])
        }
        whole = sum(torch.exp(score) for score in scores.values())
        share = sum(torch.log(torch.exp(scores[j]) / whole) for j in beside) / len(beside)
        total, counted = total - share, counted + 1
        right += max(scores, key=lambda k: scores[k].item()) in beside
    return total / counted, right / counted


def jensen_shannon(tokens, sentences, lengths, excluded=None):
    """IS-BERT: the mean over tokens with other sentences, minus that over tokens with their own."""
    owner = [s for s, length in enumerate(lengths) for _ in range(length)]
    apart, together, others, right = 0.0, 0.0, 0, 0
    for c, s in zip(tokens, owner, strict=True):
        scores = [dot(c, e) for e in sentences]
        together = together + math.log(2) - torch.log(1 + torch.exp(-scores[s]))
        right += all(score <= scores[s] for score in scores)
        for other, score in enumerate(scores):
            if other != s and not (excluded and excluded[s][other]):
                apart = apart + torch.log(1 + torch.exp(score)) - math.log(2)
                others += 1
    return apart / max(others, 1) - together / len(owner), right / len(owner)


def pair_classes(u, v, labels, weight, bias, features):
    """SBERT section 3, number by number: softmax(W [features] + b), minus log of the label's."""
    of = {
        "u": lambda a, _: a,
        "v": lambda _, b: b,
        "difference": lambda a, b: a - b if a > b else b - a,
        "product": lambda a, b: a * b,
        "max_square": lambda a, b: a * a if a > b else b * b,
    }
    total = 0.0
    for x, y, label in zip(u, v, labels, strict=True):
        known = torch.stack([of[f](a, b) for f in features for a, b in zip(x, y, strict=True)])
        logits = [dot(row, known) + shift for row, shift in zip(weight, bias, strict=True)]
        total = total - torch.log(probability(logits, label))
    return total / len(labels)


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


def compare(formula, loop, *tensors):
    """The formula's values and gradients in float32 against the loop's in float64."""
    single = [t.clone().requires_grad_() for t in tensors]
    double = [t.double().requires_grad_() for t in tensors]
    found, expected = (
        values if isinstance(values, tuple) else (values,)
        for values in (formula(*single), loop(*double))
    )
    for value, wanted in zip(found, expected, strict=True):
        number = torch.as_tensor(wanted).item()
        assert torch.as_tensor(value).item() == pytest.approx(number, rel=1e-5, abs=1e-6)
    losses = [[it for it in of if getattr(it, "requires_grad", False)] for of in (found, expected)]
    assert len(losses[0]) == len(losses[1])
    gradients = torch.autograd.grad(sum(losses[0]), single)
    for got, wanted in zip(gradients, torch.autograd.grad(sum(losses[1]), double), strict=True):
        assert wanted.abs().max() > 1e-6
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-6)


def equal_gradients(ours, expected, given, rtol=1e-4, atol=1e-6):
    """The gradients of two values, each by the same tensors or by those of its own."""
    first, second = given if isinstance(given, tuple) else (given, given)
    a = torch.autograd.grad(ours, first, retain_graph=True)
    b = torch.autograd.grad(expected, second, retain_graph=True)
    for got, wanted in zip(a, b, strict=True):
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)


def letters(text):
    """The letters and digits of a text, lower."""
    return "".join(it for it in text.lower() if it.isalnum())


def bm25(texts, query):
    """Robertson and Zaragoza's sum, with Lucene's weight of a word."""
    known = [words(text) for text in texts]
    length = sum(max(1, len(it)) for it in known) / len(texts)  # an empty text counts as one word
    scores = []
    for text in known:
        score = 0.0
        for word in words(query):
            having = sum(word in other for other in known)
            often = text.count(word)
            weight = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            score += weight * often / (often + 1.5 * (0.25 + 0.75 * max(1, len(text)) / length))
        scores.append(score)
    return scores


def standardised(row):
    """Each number minus the mean, over the deviation; zeros where all are equal."""
    mean = sum(row) / len(row)
    spread = math.sqrt(sum((it - mean) ** 2 for it in row) / len(row))
    return [(it - mean) / spread if spread > 1e-9 else 0.0 for it in row]


def inverse_flow(flow, rows):
    """The embeddings that ``flow`` maps to ``rows``."""
    done, rest = [], rows
    for _ in range(flow.levels - 1):
        second, rest = rest.tensor_split([rest.shape[1] // 2], dim=1)
        done.append(second)
    for level in reversed(range(flow.levels)):
        for step in reversed(flow.steps[level]):
            first, second = rest.chunk(2, dim=1)
            shift = step.coupling(torch.cat([first, 0 * second], dim=1)).chunk(2, dim=1)[1]
            coupled = torch.cat([first, second - shift], dim=1)
            rest = coupled.flip(1) * torch.exp(-3 * step.norm.log_scale) - step.norm.shift
        if level:
            rest = torch.cat([rest, done.pop()], dim=1)
    return rest
