"""The view ``mlm``: a sentence of which a masked language model has replaced tokens.

Gao et al. 2021, Table 1, "MLM k%: use BERT-base to replace k% of words". The tokens are chosen as
for masked language modelling, all of them are hidden, and each is drawn from what the generator
predicts there: its most probable token is the original one too often to make a view. It is done
on the device, anew for every batch, before the objective prepares it.

Shapes: B examples, V views of each, T tokens end to end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from contrasent.data.batch import Batch
from contrasent.data.tokenizer import Tokenizer
from contrasent.data.views import share_of
from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.generator import Generator
from contrasent.model.masked_lm import mask_tokens, require_mask_token
from contrasent.settings import ViewSettings


@dataclass(frozen=True, slots=True)
class MlmView:
    """Gives batches of which each example is one sentence V times the tokens of the generator.

    Attributes:
        generator: what replaces tokens.
        tokenizer: the encoder's.
        share: of the tokens that are replaced.
        both: the anchors are edited too.
    """

    generator: Generator
    tokenizer: Tokenizer
    share: float
    both: bool

    @classmethod
    def of(cls, settings: ViewSettings, encoder: SentenceEncoder) -> MlmView | None:
        """The view that ``settings`` ask for; None if that is another.

        Raises:
            ConfigError: the generator cannot be loaded, has no head or another vocabulary; the
                tokenizer has no mask token.
        """
        share = share_of(settings)
        if settings.name != "mlm" or share is None:
            return None
        require_mask_token(encoder.tokenizer.special_ids)
        name = settings.generator or encoder.name
        try:
            generator = Generator.load(name, encoder.tokenizer)
        except CheckpointError as error:
            raise ConfigError(f"view.name mlm needs a masked language model: {error}") from error
        both = settings.sides == "both"
        return cls(generator, encoder.tokenizer, share, both)

    def __call__(self, batch: Batch) -> Batch:
        """``batch`` with tokens replaced, in the precision of the context."""
        # The views are the same sentences still, so each has as many tokens.
        tokens = 0 if self.both else len(batch.token_ids) // batch.views
        first = 0 if self.both else batch.examples
        offsets = batch.offsets[first:]
        edited = Batch(batch.token_ids[tokens:], offsets - offsets[0], 1, batch.longest)
        special_ids, vocabulary = self.tokenizer.special_ids, self.tokenizer.vocabulary
        masked = mask_tokens(edited, self.share, special_ids, vocabulary, always_mask=True)
        written = self.generator.fill(edited, masked, pick="sample")
        token_ids = torch.cat([batch.token_ids[:tokens], written])
        return replace(batch, token_ids=token_ids, duplicate_of=None)
