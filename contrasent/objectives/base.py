"""The interface of every objective: embeddings and their batch in, named terms out.

Shapes: B examples, C candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrasent.data.batch import Batch
from contrasent.data.spans import Spans
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded


class Terms(dict[str, Tensor]):
    """Named scalar terms, already weighted; the loss is their sum.

    Attributes:
        measures: scalars that are logged beside the terms, and not minimised.
    """

    def __init__(
        self, terms: Mapping[str, Tensor], measures: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(terms)
        self.measures = dict(measures or {})


@dataclass(frozen=True, slots=True)
class Start:
    """What an objective is built for.

    Attributes:
        width: D, numbers in an embedding.
        data_views: how many sentences each example of the training data has.
        encoder: the encoder before the first step, to copy modules from and not to keep; None
            where no text is encoded.
        precision: of the matrix products of transformers, ``fp32`` or ``bf16``.
        batch_size: examples per step; None where it is not known.
    """

    width: int
    data_views: int
    encoder: SentenceEncoder | None = None
    precision: str = "fp32"
    batch_size: int | None = None

    def require_encoder(self) -> SentenceEncoder:
        """The encoder.

        Raises:
            ConfigError: there is none.
        """
        if self.encoder is None:
            raise ConfigError("this objective reads tokens, so it is built for an encoder")
        return self.encoder


class Objective(nn.Module, ABC):
    """A training objective.

    It may own modules of its own (a head, a discriminator); they are trained with the encoder and
    left out of the saved encoder. It never holds the encoder, so it can be tested on random
    tensors.

    Attributes:
        views: how many sentences of each example it needs; data with one sentence per example
            gives it again as every view.
        layers: the token states it reads beside the embeddings, by layer number.
        reads_tokens: it computes on the tokens themselves, with a transformer of its own say, so
            that its memory grows with the batch.
        max_tokens: the longest sentence that its own transformers take; None if they do not limit
            it.
        following: it needs the sentence after each anchor, in ``batch.following``.
        ordered: it needs to know which sentences of a batch follow each other, from
            ``batch.places``, and so batches of text in its order.
        labelled: it needs the class of each example, in ``batch.labels``.
        spans: its views are spans of documents, drawn as this says; None if they are sentences.
        makes_views: what is encoded has more views than the data gives, made by :meth:`prepare`.
        aligned: the second view that is embedded is a positive of the first, so that their
            alignment is worth logging.
    """

    views: int
    layers: tuple[int, ...] = ()
    reads_tokens: bool = False
    max_tokens: int | None = None
    following: bool = False
    ordered: bool = False
    labelled: bool = False
    spans: Spans | None = None
    makes_views: bool = False
    aligned: bool = True

    def prepare(self, batch: Batch) -> Batch:
        """The batch to encode, where it is not the one that the data gives.

        Views may be added behind those of the data. What is drawn comes from torch's generator.
        """
        return batch

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        """Score one batch.

        Args:
            encoded: ``pooled`` is ``(V, B, D)``, view by view.
            batch: the tokens they came from.

        Returns:
            Weighted scalar terms whose sum is minimised.
        """

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        """Write what the training is for, replacing ``folder``: the encoder, unless told otherwise.

        Args:
            encoder: the trained one.
            folder: where.
            info: kept beside it.
        """
        encoder.save(folder, info)


def duplicates(batch: Batch) -> Tensor:
    """``(B, C)``, where a candidate has the text of the anchor or of the anchor's positive."""
    anchor, *others = batch.same_text().view(batch.views, -1).unbind()
    candidates = torch.cat(others)
    return (candidates == anchor.unsqueeze(1)) | (candidates == others[0].unsqueeze(1))
