"""IS-BERT (Zhang et al. 2020, arXiv:2009.12061): mutual information of tokens and their sentence.

Token states, seen through convolutions of several widths, are to have much mutual information with
the mean of those of their sentence, and little with the means of others.

Shapes: T tokens end to end, S sentences, D width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need
from contrasent.distributed import total
from contrasent.errors import ConfigError
from contrasent.functional import dot_matrix
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Start, Terms, same_texts
from contrasent.settings import settings


def jensen_shannon(
    tokens: Tensor,
    sentences: Tensor,
    lengths: Tensor,
    *,
    excluded: Tensor | None = None,
    local: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Minus the Jensen-Shannon estimate of the mutual information of tokens and sentences.

    .. math:: \frac1{|N|} \sum_{(t, s) \in N} (\mathrm{sp}(c_t \cdot e_s) - \log 2)
        - \frac1T \sum_t (\log 2 - \mathrm{sp}(-c_t \cdot e_{s(t)}))

    with sp(x) = log(1 + e^x), c the ``tokens (T, D)``, e the ``sentences (S, D)``, s(t) the one of
    token t, by ``lengths (S,)``, and N the tokens with all others but the ``excluded (S, S)``: the
    estimator of Zhang et al. 2020 (IS-BERT), with the means of their code, and its shift by log 2,
    with which tokens that say nothing of their sentence give 0. In a process of several, the tokens
    are those of the ``local`` sentences. Returns the loss in nats, and the share of tokens with no
    higher score than their own sentence's.
    """
    numbers = torch.arange(len(sentences), device=tokens.device)
    here = numbers if local is None else local
    owner = torch.repeat_interleave(here, lengths[here], output_size=len(tokens))
    scores = dot_matrix(tokens, sentences)
    others = owner.unsqueeze(1) != numbers
    if excluded is not None:
        others = others & ~excluded[owner]
    own_scores = scores.gather(1, owner.unsqueeze(1))
    highest = (scores.detach() <= own_scores.detach()).all(1)
    apart = ((F.softplus(scores) - math.log(2)) * others).sum()
    together = (math.log(2) - F.softplus(-own_scores)).sum()
    count = apart.new_full((), len(tokens))
    sums = torch.stack([apart, together, others.sum().float(), highest.sum().float(), count])
    apart, together, pairs, right, count = total(sums)
    return apart / pairs.clamp(min=1) - together / count, (right / count).detach()


@settings
class Config:
    """Settings of IS-BERT."""

    exclude_duplicates: bool = True
    """Leave sentences of the same text out of the negatives."""


class IsBert(Objective):
    """The Jensen-Shannon estimate of the mutual information of tokens and sentences."""

    config_class = Config
    in_parts = True
    views = 1
    needs = frozenset({Need.TOKEN_STATES})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        encoder = start.require_encoder()
        local = encoder.convolutions or encoder.backbone
        if encoder.head is not None or start.width != local.width:
            raise ConfigError(
                f"IS-BERT compares embeddings of {start.width} dimensions with token states of "
                f"{local.width}, and nothing may stand between them; set encoder.head to none"
            )

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        tokens = encoded.states[-1] if encoded.convolved is None else encoded.convolved
        sentences = encoded.pooled.flatten(0, 1)
        excluded = same_texts(batch) if self.config.exclude_duplicates else None
        loss, accuracy = jensen_shannon(
            tokens, sentences, batch.lengths, excluded=excluded, local=encoded.own
        )
        return Terms({"information": loss}, {"token_accuracy": accuracy})
