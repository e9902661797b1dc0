"""The interface of objectives: embeddings and their batch in, named terms out.

Shapes: B examples, C candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from contrasent.data.batch import Batch, Need
from contrasent.data.examples import Examples
from contrasent.data.spans import Spans
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded


class Terms(dict[str, Tensor]):
    """Named scalar terms, already weighted, whose sum is the loss; ``measures`` are logged."""

    def __init__(
        self, terms: Mapping[str, Tensor], measures: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(terms)
        self.measures = dict(measures or {})


@dataclass(frozen=True, slots=True)
class Start:
    """The setup that an objective is built for: the dimensions of embeddings, and its data.

    The examples of the data have ``data_views`` sentences each. Modules of ``encoder``, as it is
    before the first step, may be copied and not kept.
    """

    width: int
    data_views: int
    encoder: SentenceEncoder | None = None
    batch_size: int | None = None

    def require_encoder(self) -> SentenceEncoder:
        """The encoder; ConfigError if there is none."""
        if self.encoder is None:
            raise ConfigError("this objective reads tokens, so it is built for an encoder")
        return self.encoder

    def require_width(self, width: int) -> None:
        """Raise ConfigError unless embeddings have the ``width`` of token states."""
        if self.width != width:
            raise ConfigError(
                f"this objective puts embeddings of {self.width} dimensions beside token states of "
                f"{width}; set encoder.head to none"
            )


class Objective(nn.Module, ABC):
    """A training objective, made as ``Class(config, start)`` of its settings and a `Start`.

    It may own modules of its own (a head, a discriminator); they are trained with the encoder and
    left out of the saved encoder. It never holds the encoder, so it can be tested on random
    tensors. Training computes matrix products of its modules in ``train.precision``; the formulas
    of :mod:`contrasent.functional` and the heads of :mod:`contrasent.model.heads` stay in fp32.

    Attributes:
        config_class: its settings, a class made by :func:`contrasent.settings.settings`.
        views: how many sentences of each example it needs; data with one sentence per example
            gives it again as every view.
        needs: what it reads beside the embeddings of the views.
        provides_views: :meth:`prepare` adds views to those of the data, or makes them differ.
        aligned: the second view that is embedded is a positive of the first, so that their
            alignment is worth logging.
        max_tokens: the longest sentence that its own transformers take.
        spans: its views are spans of documents, drawn as this says.
        in_parts: what it computes of tokens it computes part by part
            (:mod:`contrasent.data.parts`), and of token states it reads those of the sentences
            ``encoded.own``; so gradient caching and several processes can be had with it.
    """

    config_class: ClassVar[type[Any]]
    views: int
    needs: frozenset[Need] = frozenset()
    provides_views: bool = False
    aligned: bool = True
    max_tokens: int | None = None
    spans: Spans | None = None
    in_parts: bool = False

    @property
    def layers(self) -> tuple[int, ...]:
        """The token states it reads beside the embeddings, by layer."""
        return (-1,) if Need.TOKEN_STATES in self.needs else ()

    def columns(
        self,
        examples: Examples,  # noqa: ARG002 - none here
        show_progress: bool = False,  # noqa: ARG002
    ) -> Mapping[Need, np.ndarray]:
        """``(N, ...)`` each, the numbers of all examples that it computes before the first step."""
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """The batch to encode, where it is not the one that the data gives.

        Views may be added after those of the data. What is drawn comes from torch's generator.
        """
        return batch

    def after_step(self) -> None:
        """Called after every update of the weights, for what follows them."""
        return

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        """Score one batch: weighted scalar terms whose sum is minimised.

        ``encoded.pooled`` is ``(V, B, D)``, view by view, of the tokens in ``batch``. Of several
        processes each has the whole batch and all embeddings, and returns the same terms.
        """

    def negatives(self, examples: int) -> int:  # noqa: ARG002 - none here
        """Of an anchor in a batch of so many examples, duplicates counted; 0 if it has none."""
        return 0

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        """Write what was trained, with ``info``, replacing ``folder``: by default the encoder."""
        encoder.save(folder, info)


def same_texts(batch: Batch) -> Tensor:
    """``(S, S)``, which sentences have the same text."""
    texts = batch.same_text()
    return texts == texts.unsqueeze(1)


def duplicates(batch: Batch) -> Tensor:
    """``(B, C)``, where a candidate has the text of the anchor or of the anchor's positive."""
    anchor, *others = batch.same_text().view(batch.views, -1).unbind()
    candidates = torch.cat(others)
    return (candidates == anchor.unsqueeze(1)) | (candidates == others[0].unsqueeze(1))
