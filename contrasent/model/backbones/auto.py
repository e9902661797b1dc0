"""Every other encoder that ``AutoModel`` loads: padded inside, packed outside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.backbones.base import UNBOUNDED, Backbone
from contrasent.model.backbones.embedding_layer import EmbeddingLayer


class AutoBackbone(Backbone):
    """A ``transformers`` encoder run through its own forward."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width = config.hidden_size
        self.depth = config.num_hidden_layers
        self.max_tokens = getattr(config, "max_position_embeddings", None) or UNBOUNDED
        self.max_tokens -= _first_position(model)
        self._checkpoints = False
        self._found: EmbeddingLayer | None = None

    @property
    def checkpoint_layers(self) -> bool:
        """Left to ``transformers``, which does it while training only."""
        return self._checkpoints

    @checkpoint_layers.setter
    def checkpoint_layers(self, wanted: bool) -> None:
        if wanted == self._checkpoints:
            return
        if not self.model.supports_gradient_checkpointing:
            raise ConfigError(
                f"transformers has no gradient checkpointing for {self.model.config.model_type!r} "
                "models; set train.gradient_checkpointing to false"
            )
        verb = "enable" if wanted else "disable"
        # Its name since transformers 5; the old one then warns.
        name = f"activation_checkpointing_{verb}"
        old = f"gradient_checkpointing_{verb}"
        switch = getattr(self.model, name if hasattr(self.model, name) else old)
        switch(*([{"use_reentrant": False}] if wanted else []))
        self._checkpoints = wanted

    @override
    def forward(
        self,
        batch: Batch,
        layers: Sequence[int] = (-1,),
        *,
        first_only: bool = False,
        first_state: Tensor | None = None,
    ) -> dict[int, Tensor]:
        sentences = torch.split(batch.token_ids, batch.lengths.tolist())
        padding = self.model.config.pad_token_id or 0
        padded = pad_sequence(list(sentences), batch_first=True, padding_value=padding)
        mask = torch.arange(padded.shape[1], device=padded.device) < batch.lengths.unsqueeze(1)
        inputs = {"input_ids": padded, "attention_mask": mask.long()}
        if first_state is None and batch.factors is None:
            output = self.model(**inputs, output_hidden_states=True)
        else:
            change = partial(_changed, mask=mask, factors=batch.factors, first=first_state)
            output = self._embedding_layer().forward(self.model, inputs, change)
        states = (*output.hidden_states[:-1], output.last_hidden_state)
        if first_only:
            return {layer: states[layer][:, 0] for layer in layers}
        return {layer: states[layer][mask] for layer in layers}

    @override
    def require_first_state(self) -> None:
        self._embedding_layer()

    def _embedding_layer(self) -> EmbeddingLayer:
        if self._found is None:
            self._found = EmbeddingLayer.of(self.model)
        return self._found


def _changed(
    state: Tensor, *, mask: Tensor, factors: Tensor | None, first: Tensor | None
) -> Tensor:
    """State 0 with other first rows of each sentence, and multiplied token by token."""
    if first is not None:
        given = first.to(state.dtype).reshape(len(state), -1, state.shape[-1])
        state = torch.cat([given, state[:, given.shape[1] :]], dim=1)
    if factors is not None:
        padded = torch.ones(*mask.shape, factors.shape[1], dtype=state.dtype, device=state.device)
        padded[mask] = factors.to(state.dtype)
        state = state * padded
    return state


def _first_position(model: PreTrainedModel) -> int:
    """The first token's position: MPNet and others count, as RoBERTa does, from the padding's."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0
