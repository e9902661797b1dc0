"""Formulas on tensors. No module here keeps state, reads a config, or knows a model.

In a training step of several processes, each computes its rows of a matrix of all pairs.

Shapes: B anchors, C candidates (C >= B), D embedding width; S sentences, T tokens end to end, M of
them masked.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.distributed import own_rows, total

_ROWS = 1024  # rows of a matrix of all pairs that are in memory at once


def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of every row of ``a (B, D)`` with every row of ``b (C, D)``, as ``(B, C)`` float32.

    Also under autocast: divided by a temperature of 0.05, the rounding of bf16 would be 0.1.
    """
    with torch.autocast(a.device.type, enabled=False):
        return F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).T


def dot_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Dot product of every row of ``a (B, D)`` with every row of ``b (C, D)``, likewise."""
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float().T


_SIMILARITIES = {"cosine": cosine_matrix, "dot": dot_matrix}


def info_nce(
    anchor: Tensor,
    candidates: Tensor,
    temperature: float,
    *,
    similarity: Literal["cosine", "dot"] = "cosine",
    own_weight: float = 1.0,
    excluded: Tensor | None = None,
    further: Tensor | None = None,
) -> Tensor:
    r"""Mean cross-entropy of picking each anchor's own positive among all candidates.

    .. math:: -\frac1B \sum_i \log \frac{e^{\mathrm{sim}(h_i, c_i) / \tau}}
        {\sum_j \alpha^{[j > B,\ j \equiv i \bmod B]}\, e^{\mathrm{sim}(h_i, c_j) / \tau}}

    in nats, with sim the cosine or the dot product and tau the ``temperature`` (Gao et al. 2021,
    SimCSE): eq. 1 and 4 with ``candidates (C, D)`` = the B positives of ``anchor (B, D)``, eq. 5
    with the hard negatives appended to them, block by block of B rows, eq. 8 with ``own_weight`` =
    alpha, of an anchor's own hard negatives. ``excluded (B, C)`` bool are candidates left out of
    the sum of an anchor; its positive stays. ``further (B, K)`` are logits of K more candidates of
    each anchor, such as cosines over tau.
    """
    examples, count = len(anchor), len(candidates)
    logits = _SIMILARITIES[similarity](own_rows(anchor), candidates) / temperature
    target = own_rows(torch.arange(examples, device=anchor.device))
    if own_weight != 1.0 and count > examples:
        own = torch.arange(count, device=anchor.device) % examples == target.unsqueeze(1)
        own[:, :examples] = False
        logits = logits + math.log(own_weight) * own
    if excluded is not None:
        positive = torch.arange(count, device=anchor.device) == target.unsqueeze(1)
        logits = logits.masked_fill(own_rows(excluded) & ~positive, float("-inf"))
    if further is not None:
        logits = torch.cat([logits, own_rows(further)], dim=1)
    return total(F.cross_entropy(logits, target, reduction="sum")) / examples


def nt_xent(
    first: Tensor, second: Tensor, temperature: float, *, excluded: Tensor | None = None
) -> Tensor:
    r"""Mean cross-entropy of picking the other view of each row among all other rows.

    .. math:: -\frac1{2B} \sum_i \log \frac{e^{\cos(r_i, r_{i'}) / \tau}}
        {\sum_{j \neq i} e^{\cos(r_i, r_j) / \tau}}

    over the 2B rows r of both views ``(B, D)``, with i' the other view of i (Chen et al. 2020,
    SimCLR, eq. 1; Yan et al. 2021, ConSERT), in nats. ``excluded (2B, 2B)`` bool are rows left out
    of the sum of a row; its other view stays.
    """
    rows = torch.cat([first, second])
    numbers = torch.arange(len(rows), device=rows.device)
    other = numbers.roll(len(first))
    left_out = numbers == numbers.unsqueeze(1)
    if excluded is not None:
        left_out = left_out | (excluded & (numbers != other.unsqueeze(1)))
    logits = cosine_matrix(own_rows(rows), rows) / temperature
    logits = logits.masked_fill(own_rows(left_out), float("-inf"))
    return total(F.cross_entropy(logits, own_rows(other), reduction="sum")) / len(rows)


def self_guided(
    embeddings: Tensor, guides: Tensor, temperature: float, *, excluded: Tensor | None = None
) -> Tensor:
    r"""Mean cross-entropy of each layer's guide of a sentence against those of other sentences.

    .. math:: -\frac1{BL} \sum_{i,k} \log \frac{e^{\cos(c_i, h_{ik}) / \tau}}
        {e^{\cos(c_i, h_{ik}) / \tau} + \sum_{m \neq i} \sum_n e^{\cos(c_i, h_{mn}) / \tau}}

    with c the ``embeddings (B, D)`` and h the ``guides (L, B, D)`` of L layers, in nats (Kim et al.
    2021, SG-OPT, the objective of several guides). ``excluded (B, B)`` bool are sentences m left
    out of the sum of a sentence.
    """
    layers, examples = guides.shape[:2]
    numbers = own_rows(torch.arange(examples, device=embeddings.device))
    scores = cosine_matrix(own_rows(embeddings), guides.flatten(0, 1)) / temperature
    scores = scores.view(len(numbers), layers, examples)
    positive = scores.gather(2, numbers.view(-1, 1, 1).expand(-1, layers, 1)).squeeze(2).T
    left_out = torch.eye(examples, dtype=torch.bool, device=embeddings.device)
    if excluded is not None:
        left_out = left_out | excluded
    left_out = own_rows(left_out).unsqueeze(1)
    others = scores.masked_fill(left_out, float("-inf")).flatten(1).logsumexp(1)
    return total((torch.logaddexp(positive, others) - positive).sum()) / (examples * layers)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    r"""Mean Jensen-Shannon divergence, in nats, of the softmax of rows (Liu et al. 2023, RankCSE).

    .. math:: \frac12 KL(P_i \| M_i) + \frac12 KL(Q_i \| M_i), \quad M_i = (P_i + Q_i) / 2

    ``first`` and ``second``, ``(B, C)``, are the logits of P and Q.
    """
    p, q = first.log_softmax(1), second.log_softmax(1)
    m = torch.logaddexp(p, q) - math.log(2)
    halves = (F.kl_div(m, it, reduction="batchmean", log_target=True) for it in (p, q))
    return torch.stack(list(halves)).mean()


def list_net(student: Tensor, teacher: Tensor) -> Tensor:
    r"""Mean cross-entropy of the student's top-one probabilities (Cao et al. 2007, ListNet).

    .. math:: -\frac1B \sum_i \sum_{j \neq i} \mathrm{softmax}(T_i)_j \log \mathrm{softmax}(S_i)_j

    S and T, the scores ``(B, B)`` of ``student`` and ``teacher``, are already over a temperature;
    those on the diagonal are left out.
    """
    wanted = _off_diagonal(teacher).softmax(1)
    return -(wanted * _off_diagonal(student).log_softmax(1)).sum(1).mean()


def list_mle(student: Tensor, teacher: Tensor) -> Tensor:
    r"""Mean negative log-likelihood of the teacher's order (Xia et al. 2008, ListMLE).

    .. math:: -\frac1B \sum_i \log \prod_k \frac{e^{S_{i \pi(k)}}}{\sum_{m \geq k} e^{S_{i \pi(m)}}}

    with pi the candidates from the teacher's highest score to its lowest; ties stay in order.
    Shapes and the diagonal as in :func:`list_net`.
    """
    order = _off_diagonal(teacher).argsort(dim=1, descending=True, stable=True)
    scores = _off_diagonal(student).gather(1, order)
    return (scores.flip(1).logcumsumexp(1).flip(1) - scores).sum(1).mean()


def _off_diagonal(square: Tensor) -> Tensor:
    count = len(square)
    return square.flatten()[1:].view(count - 1, count + 1)[:, :-1].reshape(count, count - 1)


def contrastive_tension(
    first: Tensor, second: Tensor, same: Tensor, *, reduction: Literal["mean", "sum"] = "mean"
) -> tuple[Tensor, Tensor]:
    r"""Binary cross-entropy of the dot products of pairs (Carlsson et al. 2021).

    .. math:: -\log \sigma(u \cdot v) \text{ for one sentence twice, else }
        -\log(1 - \sigma(u \cdot v))

    of the rows ``(P, D)`` of two encoders. ``same (P,)`` int64 is 1 for a pair of one sentence, 0
    for two, -1 for a pair left out. Returns the loss in nats, the ``mean`` or the ``sum`` over the
    pairs, and the share of pairs that the sign of the dot product gets right.
    """
    with torch.autocast(first.device.type, enabled=False):
        logits = (first.float() * second.float()).sum(-1)
    kept = same >= 0
    wanted = same.clamp(min=0).float()
    losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none") * kept
    right = ((logits.detach() > 0) == (same > 0)) & kept
    total = losses.sum() if reduction == "sum" else losses.sum() / kept.sum()
    return total, right.sum() / kept.sum()


def neighbours(
    first: Tensor,
    second: Tensor,
    near: Tensor,
    *,
    own_score: bool = True,
    excluded: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Cross-entropy of finding the neighbours of a sentence in a batch (Quick-Thoughts).

    .. math:: -\sum_{j \in N(i)} \frac1{|N(i)|} \log
        \frac{e^{u_i \cdot v_j}}{1 + \sum_{k \neq i} e^{u_i \cdot v_k}}

    Logeswaran and Lee 2018, section 3, with a target of equal shares and the 1 of their code, which
    makes a sentence's score of itself 0; the mean over the sentences that have a neighbour.

    u and v are rows ``(B, D)`` of two encoders, N is ``near (B, B)`` bool, false on the diagonal.
    Without ``own_score`` a sentence is no candidate for itself; ``excluded (B, B)`` bool are
    candidates left out of the sum, neighbours stay. Returns the loss in nats, 0 where no sentence
    has a neighbour, and the share of those that have one whose highest score is of a neighbour.
    """
    itself = torch.eye(len(first), dtype=torch.bool, device=first.device)
    scores = dot_matrix(first, second).masked_fill(itself, 0.0 if own_score else float("-inf"))
    if excluded is not None:
        scores = scores.masked_fill(excluded & ~near & ~itself, float("-inf"))
    counts = near.sum(1)
    likely = scores.log_softmax(1).masked_fill(~near, 0.0).sum(1) / counts.clamp(min=1)
    with_neighbours = (counts > 0).sum().clamp(min=1)
    right = near.gather(1, scores.detach().argmax(1, keepdim=True)).sum()
    return -likely.sum() / with_neighbours, right / with_neighbours


def corrective_lm(
    logits: Tensor, targets: Tensor, copy_logits: Tensor, edited: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Recover the original tokens, by copying or anew (COCO-LM, Meng et al. 2021, section 3.2).

    .. math:: p(x_t) = 1[\tilde x_t = x_t]\, c_t + (1 - c_t) \, \mathrm{softmax}(logits_t)_{x_t}

    with c, the sigmoid of ``copy_logits (T,)``, the probability of copying; the gradient comes from
    the second term only. ``logits (M, vocabulary)`` and the original ids ``targets (M,)`` are those
    of the M masked places ``chosen (T,)``; ``edited (T,)`` says where a token is not the original.

    Returns the mean of -log p over the masked places, 0 if there are none; and the mean over all
    tokens of the binary cross-entropy of copying where nothing was edited. Both in nats.
    """
    copying = F.binary_cross_entropy_with_logits(copy_logits.float(), (~edited).float())
    score = copy_logits.detach()[chosen].float()
    copied, anew = F.logsigmoid(score), F.logsigmoid(-score)
    anew = anew - F.cross_entropy(logits.float(), targets, reduction="none")
    likelihood = torch.where(edited[chosen], anew, torch.logaddexp(copied, anew))
    return -likelihood.sum() / max(len(targets), 1), copying


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
