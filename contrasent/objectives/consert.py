"""ConSERT (Yan et al. 2021, arXiv:2105.11741): views of a sentence made at the embedding layer.

Draws come from torch's generator, on the device of the batch. Special tokens are tokens like
others, as in the authors' code.

Shapes: B examples, S sentences, T tokens end to end, D width of a token state.
"""

from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need, concat
from contrasent.errors import ConfigError
from contrasent.functional import nt_xent
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Share, Start, Terms
from contrasent.objectives.nli_softmax import SBERT, Features, PairClassifier
from contrasent.settings import settings

Augmentation = Literal[
    "feature_cutoff", "token_cutoff", "shuffle", "dropout", "adversarial", "none"
]


@settings
class Config:
    """Settings of the ConSERT objective."""

    first: Augmentation = "feature_cutoff"
    """What makes the first view: features, tokens or single numbers of the token embeddings set to
    0, another order, a step that makes the classifier worse (with classify alone), or nothing."""

    second: Augmentation = "shuffle"
    """What makes the second view."""

    first_rate: Share = 0.2
    """Share of the features, tokens or numbers that the first view lacks."""

    second_rate: Share = 0.2
    """The same of the second view."""

    step: PositiveFloat = 1.0
    """Length of the step that adversarial makes from each token's embedding."""

    temperature: PositiveFloat = 0.1
    """tau of NT-Xent; the cosine is divided by it."""

    weight: PositiveFloat = 0.15
    """alpha, of the contrastive term."""

    classify: bool = False
    """Also tell entailment, neutral and contradiction apart ("joint"): for labelled pairs."""

    features: Features = Field(default_factory=lambda: [*SBERT, "max_square"])
    """What the classifier knows of the embeddings u and v of the first views; see nli_softmax."""

    exclude_duplicates: bool = True
    """Leave sentences of the same text out of the negatives."""


class Consert(Objective):
    """NT-Xent of two edited views of each sentence, and a classifier of pairs if asked for."""

    config_class = Config
    provides_views = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self.views = 2 if config.classify else 1
        self.aligned = not config.classify
        self.needs = frozenset({Need.LABELS} if config.classify else ())
        encoder = start.require_encoder()
        if not {config.first, config.second} <= {"none", "shuffle"}:
            encoder.backbone.require_first_state()
        self._width, self._keeps_first = encoder.backbone.width, encoder.pooler == "cls"
        self.classifier: PairClassifier | None = None
        if config.classify:
            self.classifier = PairClassifier(start.width, config.features)
        elif "adversarial" in (config.first, config.second):
            raise ConfigError(
                "an adversarial view follows the gradient of the classifier, and there is none; "
                "set objective.classify, with labelled pairs, or choose another view"
            )
        self._encoder = (encoder,)

    def prepare(self, batch: Batch) -> Batch:
        """The first views of all sentences, then the second ones; duplicates stay duplicates."""
        texts, config = batch.same_text(), self.config
        edits = (config.first, config.first_rate), (config.second, config.second_rate)
        views = [self._edit(batch, name, rate) for name, rate in edits]
        both = concat(views, 2 * batch.views)
        for name, usual in (("embedding_mask", 1.0), ("embedding_shift", 0.0)):
            changes: list[Tensor | None] = [getattr(view, name) for view in views]
            width = max((it.shape[1] for it in changes if it is not None), default=0)
            plain = torch.full((len(batch.token_ids), 1), usual, device=texts.device)
            rows = [(plain if it is None else it).expand(-1, width) for it in changes if width]
            whole: dict[str, Any] = {name: torch.cat(rows)} if width else {}
            both = replace(both, **whole)
        return replace(both, duplicate_of=torch.cat([texts, texts]), columns=batch.columns)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        first, second = encoded.pooled.chunk(2)
        losses, texts = [], batch.same_text().view(len(encoded.pooled), -1)
        for a, b, text in zip(first, second, texts, strict=False):
            both = torch.cat([text, text])
            same = both == both.unsqueeze(1) if self.config.exclude_duplicates else None
            losses.append(nt_xent(a, b, self.config.temperature, excluded=same))
        terms = {"contrast": self.config.weight * torch.stack(losses).mean()}
        if self.classifier is None:
            return Terms(terms)
        classes = self.classifier(first[0], first[1], batch)
        return Terms({**terms, **classes}, classes.measures)

    def _edit(self, batch: Batch, name: Augmentation, rate: float) -> Batch:
        if name == "none":
            return batch
        if name == "shuffle":
            return shuffle_tokens(batch, keep_first=self._keeps_first)
        if name != "adversarial" or self.classifier is None:
            return replace(batch, embedding_mask=cut_off(batch, name, rate, self._width))
        shape = len(batch.token_ids), self._width
        shift = torch.zeros(shape, device=batch.token_ids.device, requires_grad=True)
        encoded: Encoded = self._encoder[0](replace(batch, embedding_shift=shift))
        losses = self.classifier(*encoded.pooled[:2], batch)
        (gradient,) = torch.autograd.grad(torch.stack(list(losses.values())).sum(), shift)
        return replace(batch, embedding_shift=self.config.step * F.normalize(gradient, dim=-1))


def shuffle_tokens(batch: Batch, *, keep_first: bool) -> Batch:
    """The tokens of each sentence in another order, the first left in place if it is pooled.

    The paper gives tokens other positions: for an embedding layer with positions the same, up to
    the order of states.
    """
    order = torch.argsort(_keys(batch, keep_first=keep_first))
    return replace(batch, token_ids=batch.token_ids[order], duplicate_of=None)


def cut_off(batch: Batch, name: str, rate: float, width: int) -> Tensor:
    """What the states ``(T, D)`` of the embedding layer are multiplied by, some of it 0.

    A token_cutoff takes ``int(rate * n)`` of the n tokens of a sentence, a feature_cutoff
    ``int(rate * D)`` features, and dropout each component with probability ``rate``, unscaled.
    """
    tokens, device = len(batch.token_ids), batch.token_ids.device
    if name == "dropout":
        return (torch.rand(tokens, width, device=device) >= rate).float()
    if name == "feature_cutoff":
        draws = torch.rand(batch.sentences, width, device=device)
        kept = draws.argsort(-1).argsort(-1) >= int(rate * width)
        return kept.float().repeat_interleave(batch.lengths, 0, output_size=tokens)
    order = torch.argsort(_keys(batch))
    sentence = torch.repeat_interleave(batch.lengths, output_size=tokens)
    place = torch.arange(tokens, device=device) - batch.offsets[sentence]
    cut = place < (batch.lengths[sentence] * rate).long()
    return torch.ones(tokens, device=device).index_put((order,), (~cut).float()).unsqueeze(1)


def _keys(batch: Batch, *, keep_first: bool = False) -> Tensor:
    """``(T,)`` numbers that sort tokens by sentence, and at random within each."""
    tokens, device = len(batch.token_ids), batch.token_ids.device
    draws = torch.rand(tokens, dtype=torch.float64, device=device)
    if keep_first:
        draws = (0.5 + draws / 2).index_fill(0, batch.offsets[:-1], 0.0)
    return torch.repeat_interleave(batch.lengths, output_size=tokens) + draws
