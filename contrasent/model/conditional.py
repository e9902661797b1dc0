"""A transformer that knows the embedding of a sentence: DiffCSE's discriminator and its kin.

Shapes: S sentences, T tokens end to end, D width, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.backbones.base import Backbone
from contrasent.model.precision import matrix_precision
from contrasent.profiling import part


class Conditional(nn.Module):
    """A copy of a backbone whose first state of every sentence is an embedding.

    The embedding takes the place of the first token behind the embedding layer, with gradient, so
    that every layer can compare each token with it (Chuang et al. 2022, section 3).
    """

    def __init__(
        self, backbone: Backbone, width: int, heads: Mapping[str, nn.Module], precision: str
    ) -> None:
        """Copy ``backbone``, which is not kept.

        Args:
            backbone: the start.
            width: D of the embeddings.
            heads: by name, maps from ``(N, D)`` states to logits.
            precision: of the matrix products, ``fp32`` or ``bf16``.

        Raises:
            ConfigError: the embeddings are not as wide as the states, or the architecture takes
                no first state.
        """
        super().__init__()
        backbone.require_first_state()
        if width != backbone.width:
            raise ConfigError(
                f"the embeddings have {width} numbers, but the token states {backbone.width}, so "
                "that an embedding cannot stand for a state; set encoder.head to none"
            )
        # Under this name, since it belongs to no encoder.
        self.transformer = copy.deepcopy(backbone)
        self.heads = nn.ModuleDict(heads)
        self._precision = precision

    @override
    def forward(self, batch: Batch, embeddings: Tensor) -> Tensor:
        """The last states of the tokens.

        Args:
            batch: S sentences.
            embeddings: ``(S, D)``, one for each.

        Returns:
            ``(T, D)`` float32.
        """
        with part("discriminator"), matrix_precision(self._precision, batch.token_ids.device):
            states: Tensor = self.transformer(batch, first_state=embeddings)[-1]
        return states.float()

    def logits(self, name: str, states: Tensor) -> Tensor:
        """``(N, C)`` float32 of the head ``name``, in the precision of the products if it is large.

        Two classes are told apart in fp32; a vocabulary is not worth that.
        """
        head = self.heads[name]
        if isinstance(head, nn.Linear):
            found: Tensor = head(states)
            return found
        with matrix_precision(self._precision, states.device):
            found = head(states)
        return found.float()
