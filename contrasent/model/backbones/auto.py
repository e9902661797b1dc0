"""Every other encoder that ``AutoModel`` loads: padded inside, packed outside.

Shapes: S sentences, L tokens of the longest, D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.backbones.base import UNBOUNDED, Backbone, first_position

_ANY_RATE = 0.5


@dataclass(frozen=True, slots=True)
class EmbeddingLayer:
    """The module ``name`` of a model whose output, at its call number ``call``, is state 0.

    T5 has one dropout for before and after its layers, so its call matters.
    """

    name: str
    call: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """Send two tokens through ``model``, and see which module gives state 0."""
        names = {module: name for name, module in model.named_modules()}
        seen: list[tuple[str, Any]] = []

        def note(module: nn.Module, _: Any, output: Any) -> None:
            if module in names:
                seen.append((names[module], output))

        device = next(model.parameters()).device
        inputs = {"input_ids": torch.zeros(1, 2, dtype=torch.int64, device=device)}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        with _probing(model, device):
            hook = register_module_forward_hook(note)
            try:
                state = model(**inputs, output_hidden_states=True).hidden_states[0]
            finally:
                hook.remove()
            places = [place for place, (_, output) in enumerate(seen) if output is state]
            if not places or state.shape[:2] != (1, 2):
                raise _impossible(model)
            # Later ones only pass it on: modules around this one, an identity in layer 1.
            name, _ = seen[places[0]]
            layer = cls(name, sum(other == name for other, _ in seen[: places[0]]))
            layer.forward(model, inputs, torch.zeros_like)
        return layer

    def forward(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        change: Callable[[Tensor], Tensor],
    ) -> Any:
        """The output of ``model``, all states included, with another state 0.

        ``change`` makes of state 0, ``(S, L, D)``, what layer 1 is given. Raises ConfigError if
        something after the embedding layer changes that.
        """
        calls: list[Tensor] = []

        def replace(_module: nn.Module, _given: Any, output: Tensor) -> Tensor:
            if len(calls) == self.call:
                output = change(output)
            calls.append(output)
            return output

        hook = model.get_submodule(self.name).register_forward_hook(replace)
        try:
            output = model(**inputs, output_hidden_states=True)
        finally:
            hook.remove()
        if output.hidden_states[0] is not calls[self.call]:
            raise _impossible(model)
        return output


@contextmanager
def _probing(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Dropout on, or a module would pass for the dropout after it; all is put back at the end."""
    training = {module: module.training for module in model.modules()}
    rates = {module: module.p for module in training if isinstance(module, nn.Dropout)}
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        model.train()
        for dropout in rates:
            dropout.p = _ANY_RATE
        try:
            yield
        finally:
            for dropout, rate in rates.items():
                dropout.p = rate
            for module, was in training.items():
                module.training = was


def _impossible(model: PreTrainedModel) -> ConfigError:
    return ConfigError(
        f"the first state of {model.config.model_type!r} models cannot be replaced: no module of "
        "theirs gives what goes into layer 1; choose an architecture such as BERT, RoBERTa, "
        "MPNet, ELECTRA, ALBERT or DeBERTa"
    )


class AutoBackbone(Backbone):
    """A ``transformers`` encoder run through its own forward."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width = config.hidden_size
        self.depth = config.num_hidden_layers
        self.max_tokens = getattr(config, "max_position_embeddings", None) or UNBOUNDED
        self.max_tokens -= first_position(model)
        self._first_layer: EmbeddingLayer | None = None

    @override
    def set_checkpointing(self, wanted: bool) -> None:
        if wanted == self.checkpoint_layers:
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
        self.checkpoint_layers = wanted

    @override
    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        sentences = torch.split(batch.token_ids, batch.lengths.tolist())
        padding = self.model.config.pad_token_id or 0
        padded = pad_sequence(list(sentences), batch_first=True, padding_value=padding)
        mask = torch.arange(padded.shape[1], device=padded.device) < batch.lengths.unsqueeze(1)
        inputs = {"input_ids": padded, "attention_mask": mask.long()}
        if batch.positions is not None:
            inputs["position_ids"] = self._positions(batch.positions, mask)
        if first_state is None and batch.embedding_mask is None:
            output = self.model(**inputs, output_hidden_states=True)
        else:
            change = partial(_changed, mask=mask, factors=batch.embedding_mask, first=first_state)
            output = self._embedding_layer().forward(self.model, inputs, change)
        states = (*output.hidden_states[: self.depth], output.last_hidden_state)
        return {n: states[n][:, 0] if first_only else states[n][mask] for n in wanted}

    def _positions(self, positions: Tensor, mask: Tensor) -> Tensor:
        """``(S, L)`` of ``(T,)``."""
        if "position_ids" not in inspect.signature(self.model.forward).parameters:
            raise ConfigError(
                f"{self.model.config.model_type!r} models take no positions of tokens; choose an "
                "architecture such as BERT, RoBERTa, MPNet, ELECTRA or ALBERT"
            )
        padded = torch.zeros(mask.shape, dtype=torch.int64, device=mask.device)
        padded[mask] = positions
        return padded + first_position(self.model)

    @override
    def require_first_state(self) -> None:
        self._embedding_layer()

    def _embedding_layer(self) -> EmbeddingLayer:
        if self._first_layer is None:
            self._first_layer = EmbeddingLayer.of(self.model)
        return self._first_layer


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
