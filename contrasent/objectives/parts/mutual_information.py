"""Mutual information of what a token says and what its sentence says.

Shapes: T tokens end to end, S sentences, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.functional import dot_matrix


def jensen_shannon(
    tokens: Tensor, sentences: Tensor, lengths: Tensor, *, excluded: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Minus the Jensen-Shannon estimate of the mutual information of tokens and sentences.

    .. math:: \frac1{|N|} \sum_{(t, s) \in N} (\mathrm{sp}(c_t \cdot e_s) - \log 2)
        - \frac1T \sum_t (\log 2 - \mathrm{sp}(-c_t \cdot e_{s(t)}))

    with sp(x) = log(1 + e^x), s(t) the sentence of token t, and N the tokens with all other
    sentences: the estimator of Zhang et al. 2020 (IS-BERT), with the means of their code, and its
    shift by log 2, with which tokens that say nothing of their sentence give 0.

    Args:
        tokens: ``(T, D)``, c.
        sentences: ``(S, D)``, e.
        lengths: ``(S,)`` int64, tokens of each sentence.
        excluded: ``(S, S)`` bool, for the tokens of a sentence other ones that are not in N.

    Returns:
        The loss in nats; and the share of tokens with no higher score than their own sentence's.
    """
    numbers = torch.arange(len(sentences), device=tokens.device)
    owner = torch.repeat_interleave(numbers, lengths, output_size=len(tokens))
    scores = dot_matrix(tokens, sentences)
    others = owner.unsqueeze(1) != numbers
    if excluded is not None:
        others = others & ~excluded[owner]
    apart = ((F.softplus(scores) - math.log(2)) * others).sum() / others.sum().clamp(min=1)
    own = scores.gather(1, owner.unsqueeze(1))
    together = (math.log(2) - F.softplus(-own)).mean()
    found = (scores.detach() <= own.detach()).all(1).float().mean()
    return apart - together, found
