"""Quick-Thoughts (Logeswaran and Lee 2018, arXiv:1803.02893): find the sentences beside one.

Of all sentences of a batch that follow each other in a text, those next to a sentence are to be
told from the others by the dot product of its embedding with theirs, by a second encoder.

Shapes: B sentences, D embedding width.
"""

from dataclasses import replace

from pydantic import PositiveInt

from contrasent.data.batch import Batch, Need, concat
from contrasent.functional import neighbours
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Terms, same_texts
from contrasent.settings import settings


@settings
class Config:
    """Settings of Quick-Thoughts."""

    context: PositiveInt = 1
    """How many sentences before, and how many after, are neighbours, in the same document."""

    own_score: bool = True
    """A sentence's score of itself is 0, as in the authors' code; otherwise it has none."""

    exclude_duplicates: bool = True
    """Leave sentences with the text of the sentence or of a neighbour out of the negatives."""


class QuickThoughts(Objective):
    """Cross-entropy of the neighbours of each sentence among the sentences of the batch."""

    config_class = Config
    views = 1
    needs = frozenset({Need.POSITIONS})
    provides_views = True
    aligned = False

    def prepare(self, batch: Batch) -> Batch:
        """The same sentences as two views, for two encoders."""
        both = concat([batch, batch], views=2)
        return replace(both, duplicate_of=batch.same_text().repeat(2), columns=batch.columns)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        config, positions = self.config, batch.column(Need.POSITIONS)
        distance = (positions.unsqueeze(1) - positions).abs()
        near = (distance > 0) & (distance <= config.context)
        excluded = None
        if config.exclude_duplicates:  # the text of a sentence, or of a neighbour of it
            same = same_texts(batch)[: batch.examples, : batch.examples]
            excluded = same | (near.float() @ same.float() > 0)
        first, second = encoded.pooled
        loss, right = neighbours(first, second, near, own_score=config.own_score, excluded=excluded)
        share = (near.any(1)).float().mean()
        return Terms({"neighbours": loss}, {"neighbour_accuracy": right, "with_neighbour": share})
