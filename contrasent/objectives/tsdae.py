"""TSDAE (Wang et al. 2021, arXiv:2104.06979): sentences rebuilt from embeddings of damaged ones.

The encoder embeds what is left of a sentence, and a decoder, which is dropped after training,
predicts each token of the whole one from those before it and from that embedding. A softmax over
this single key is 1, so cross-attention adds the same linear map of the embedding to every token.

Shapes: S sentences, T tokens end to end, V tokens of the vocabulary, D width.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import record_function

from contrasent.data.batch import Batch, Need, sums_by_parts
from contrasent.model.backbones.packed_bert import SentenceAddition
from contrasent.model.heads import init_linear
from contrasent.model.masked_lm import MaskedLm
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Start, Terms
from contrasent.settings import settings


@settings
class Config:
    """Settings of TSDAE."""

    deletion_rate: Annotated[float, Field(ge=0, lt=1)] = 0.6
    """Share of the words to delete before a sentence is embedded; one word always stays."""

    tie: bool = True
    """True if encoder and decoder are one transformer; otherwise the decoder starts as a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedBatch(Batch):
    """Sentences with words deleted."""

    whole: Batch  # the same sentences before that


class CrossAttention(nn.Module):
    """Attention to one vector for each sentence: the map of its value, and of what comes out."""

    def __init__(self, vector_width: int, width: int, eps: float) -> None:
        super().__init__()
        self.value = nn.Linear(vector_width, width)
        self.output = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps)
        init_linear(self)

    def forward(self, vectors: Tensor) -> SentenceAddition:
        """What the tokens of each of S sentences get, of ``(S, D)``."""
        return SentenceAddition(self.output(self.value(vectors)), self.norm)


class Tsdae(Objective):
    """Mean cross-entropy of the tokens of whole sentences, given embeddings of damaged ones."""

    config_class = Config
    in_parts = True
    views = 1
    needs = frozenset({Need.TOKENS})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        encoder, backbone = start.require_packed_bert()
        self.decoder = None if config.tie else copy.deepcopy(backbone)
        self._backbone = (self.decoder or backbone,)
        self.head = MaskedLm.load(encoder.name, new_head=True).share(self._backbone[0]).head
        eps = self.head.norm.eps
        self.cross_attention = nn.ModuleList(
            CrossAttention(start.width, backbone.width, eps) for _ in range(backbone.depth)
        )
        tokenizer = encoder.tokenizer
        begins = torch.from_numpy(tokenizer.begins_word())
        special = torch.zeros_like(begins)
        special[list(tokenizer.special_ids.every)] = True
        self._begins_word = nn.Buffer(begins, persistent=False)
        self._special = nn.Buffer(special, persistent=False)

    def prepare(self, batch: Batch) -> Batch:
        """``batch`` with words deleted. The host waits for the new number of tokens."""
        special = self._special[batch.token_ids]
        begins = self._begins_word[batch.token_ids]
        kept = kept_words(batch, begins, special, self.config.deletion_rate) | special
        ends = F.pad(kept.cumsum(0), (1, 0))[batch.offsets]
        return DamagedBatch(batch.token_ids[kept], ends, batch.views, whole=batch)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        (backbone,), whole = self._backbone, cast(DamagedBatch, batch).whole

        def sums(sentences: Batch, embeddings: Tensor) -> Tensor:
            # All tokens but the last of each of S sentences, and (T - S,) the next ones.
            ids, count, device = sentences.token_ids, sentences.sentences, embeddings.device
            lengths, tokens = sentences.lengths - 1, len(ids) - count
            places = torch.arange(tokens, device=device)
            places += torch.repeat_interleave(lengths, output_size=tokens)
            offsets = sentences.offsets - torch.arange(count + 1, device=device)
            given = Batch(ids[places], offsets, longest=max(sentences.longest - 1, 1))
            with record_function("decoder"):
                additions = [attend(embeddings) for attend in self.cross_attention]
                logits = self.head(backbone.last_states(given, additions=additions))
            return F.cross_entropy(logits.float(), ids[places + 1], reduction="sum").unsqueeze(0)

        (summed,) = sums_by_parts(sums, whole, rows=[encoded.pooled[0]])
        return Terms({"reconstruction": summed / max(len(whole.token_ids) - whole.sentences, 1)})


def kept_words(batch: Batch, begins: Tensor, special: Tensor, rate: float) -> Tensor:
    """Which tokens are of words that stay, each with probability 1 - ``rate``, at least one.

    ``(T,)`` bool, false for ``special`` tokens. ``begins (T,)`` says which tokens begin a word.
    """
    tokens, device = len(special), special.device
    begins = begins | special | F.pad(special[:-1], (1, 0), value=True)
    begins[batch.offsets[:-1]] = True
    draws = torch.rand(tokens, device=device)[begins.cumsum(0) - 1]
    draws = draws.masked_fill(special, -1.0)
    sentence = torch.repeat_interleave(batch.lengths, output_size=tokens)
    largest = draws.new_full((batch.sentences,), -1.0).scatter_reduce(0, sentence, draws, "amax")
    return ~special & ((draws >= rate) | (draws == largest[sentence]))
