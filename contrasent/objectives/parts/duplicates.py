"""Sentences of a batch that cannot be negatives of each other, because they are one text.

Shapes: B examples, C candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contrasent.data.batch import Batch


def duplicates(batch: Batch) -> Tensor:
    """``(B, C)``, where a candidate has the text of the anchor or of the anchor's positive."""
    anchor, *others = batch.same_text().view(batch.views, -1).unbind()
    candidates = torch.cat(others)
    return (candidates == anchor.unsqueeze(1)) | (candidates == others[0].unsqueeze(1))
