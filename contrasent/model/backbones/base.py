"""The interface of every backbone: packed tokens in, the states of some layers out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from contrasent.data.batch import Batch
from contrasent.model.precision import resolve_precision, torch_precisions

UNBOUNDED = 1_000_000
"""The longest sentence of a backbone that sets no limit."""


class Backbone(nn.Module, ABC):
    """A pretrained transformer, held as the ``transformers`` model it was loaded as.

    Attributes:
        kind: the architecture, in words.
        engine: what computes it; see :mod:`contrasent.model.engines.base`.
        model: the ``transformers`` model; its parameters are the backbone's, under its names.
        width: D, dimensions of a token state.
        depth: K, transformer layers; states are numbered 0 (embedding layer) to K.
        max_tokens: the longest sentence it has positions for, special tokens included.
        checkpoint_layers: while training, keep what goes into each layer only, and compute the
            layer once more for its gradient, with the same dropout.
    """

    kind: ClassVar[str] = "a transformer"
    engine: ClassVar[str] = "torch"
    model: PreTrainedModel
    width: int
    depth: int
    max_tokens: int
    checkpoint_layers: bool = False

    @abstractmethod
    def forward(
        self,
        batch: Batch,
        layers: Sequence[int] = (-1,),
        *,
        first_only: bool = False,
        first_state: Tensor | None = None,
    ) -> dict[int, Tensor]:
        """Compute token states.

        Args:
            batch: S packed sentences, T tokens.
            layers: which states, as numbers from either end.
            first_only: the last state is needed at the first token of each sentence only, and may
                be returned as ``(S, D)``.
            first_state: ``(S, D)``, taken as state 0 of each sentence's first token, as it is:
                nothing is added to it, normalised or dropped before layer 1. Gradients reach it.
                Or ``(S, N, D)``, of the first N tokens, which every sentence then has to have.

        Returns:
            For each of ``layers``, under the number it was asked by, ``(T, D)``.

        Raises:
            ConfigError: a ``first_state`` is given to one that :meth:`require_first_state` refuses.
        """

    def require_first_state(self) -> None:
        """Make sure that :meth:`forward` can take a ``first_state``.

        Raises:
            ConfigError: it cannot, because of what computes it or because of the architecture.
        """
        return

    def require_transformer(self) -> None:
        """Make sure that there are transformer layers, with states of one width.

        Raises:
            ConfigError: there are none.
        """
        return

    @property
    def identity(self) -> tuple[str, ...]:
        """What decides the states beside the parameters and buffers."""
        return ()

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.parameters()).device

    @property
    def precisions(self) -> tuple[str, ...]:
        """What its matrix products may run in, the usual one first."""
        return torch_precisions(self.device)

    def resolve_precision(self, name: str, *, amplified: bool = False) -> str:
        """The precision that ``name``, which may be ``auto``, stands for here.

        With ``amplified``, a fitted map follows, before which ``auto`` is fp32.

        Raises:
            ConfigError: there is no such precision, or not here.
        """
        computer = f"{self.kind} with engine {self.engine!r}"
        return resolve_precision(name, self.precisions, computer, amplified=amplified)

    def unchanging(self) -> AbstractContextManager[None]:
        """A promise that no weight changes inside: what is made of them may be kept."""
        return nullcontext()

    def serving(self) -> AbstractContextManager[None]:
        """:meth:`unchanging` for long, and for single sentences: what they need may be made."""
        return self.unchanging()

    def freeze_embeddings(self) -> None:
        """Leave the embedding layer as it is: of words, positions, and what normalises them."""
        layer = getattr(self.model, "embeddings", None) or self.model.get_input_embeddings()
        for parameter in layer.parameters():
            parameter.requires_grad_(False)

    def set_dropout(self, rate: float) -> None:
        """Give every dropout of the transformer the same rate."""
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = rate
