"""DeCLUTR (Giorgi et al. 2021, arXiv:2006.03659): spans of one document against those of others.

Shapes: B documents, A anchors of each, P positives of each anchor, N = A * B, D embedding width.
"""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from contrasent.data.batch import Batch, Need
from contrasent.data.documents import Spans
from contrasent.functional import nt_xent
from contrasent.model.masked_lm import MaskedLm
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Share, Start, Terms
from contrasent.objectives.mlm import HiddenTokens
from contrasent.settings import settings


@settings
class Config:
    """Settings of DeCLUTR."""

    anchors: PositiveInt = 2
    """A, spans of each document that do not overlap, and are negatives of each other too."""

    positives: PositiveInt = 2
    """P, spans that touch or overlap each anchor, whose mean is its positive."""

    min_words: PositiveInt = 32
    """Words of the shortest span."""

    max_words: PositiveInt = 512
    """Words of the longest span; documents with fewer than 2 * anchors * max_words are left out."""

    temperature: PositiveFloat = 0.05
    """tau of NT-Xent; the cosine is divided by it."""

    mlm_weight: NonNegativeFloat = 1.0
    """Of masked language modelling on the anchors, embedded with hidden tokens; 0 leaves it out."""

    mask_rate: Share = 0.15
    """Share of the tokens of an anchor to predict: 80 % masked, 10 % random, 10 % kept."""


class Declutr(Objective):
    """NT-Xent of anchors and the means of their positives, and masked language modelling."""

    config_class = Config
    in_parts = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self.spans = Spans(config.anchors, config.positives, config.min_words, config.max_words)
        self.views, self.aligned = self.spans.views, config.anchors == 1
        self.tokens: HiddenTokens | None = None
        if config.mlm_weight:
            self.needs = frozenset({Need.TOKEN_STATES, Need.TOKENS})
            encoder = start.require_encoder()
            # A decoder that is tied is tied to the encoder's matrix.
            masked_lm = MaskedLm.load(encoder.name).share(encoder.backbone)
            self.tokens = HiddenTokens(start, config.mask_rate, masked_lm.head)

    def prepare(self, batch: Batch) -> Batch:
        """``batch``, with tokens of its anchors hidden if they are to be predicted."""
        return batch if self.tokens is None else self.tokens.hide(batch, self.config.anchors)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        anchors, positives = encoded.pooled.tensor_split([self.config.anchors])
        # (A * P, B, D) -> (A, P, B, D) -> the mean of each anchor's own positives
        means = positives.reshape(self.config.anchors, -1, *anchors.shape[1:]).mean(1)
        loss = nt_xent(anchors.flatten(0, 1), means.flatten(0, 1), self.config.temperature)
        if self.tokens is None:
            return Terms({"contrast": loss})
        mlm = self.tokens(encoded, batch)
        return Terms({"contrast": loss, "mlm": self.config.mlm_weight * mlm["mlm"]}, mlm.measures)
