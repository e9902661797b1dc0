"""Other encoders that ``AutoModel`` loads: padded inside, packed outside.

Shapes: S sentences, L tokens of the longest, D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.backbones.base import UNBOUNDED, Backbone, first_position, name_failures
from contrasent.model.encoding import evaluating

_ANY_RATE = 0.5
_BIG_BIRD = "big_bird"
_PROBED, _OFF = 4, 1e-3
"""Tokens that are computed with and without padding, and what is more than rounding."""


class AutoBackbone(Backbone):
    """A ``transformers`` encoder run through its own forward."""

    pads = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width = config.hidden_size
        self.depth = config.num_hidden_layers
        positions = getattr(config, "max_position_embeddings", None) or 0  # XLNet says -1
        self.max_tokens = (positions if positions > 0 else UNBOUNDED) - first_position(model)
        self._embedding_layer: tuple[str, int] | None = None
        # BigBird's sparse attention is full in a short batch.
        is_sparse = config.model_type == _BIG_BIRD and config.attention_type == "block_sparse"
        self._padding_counts = True if is_sparse else None

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

    def see_both_sides(self) -> None:
        if not self._is_causal():
            super().see_both_sides()
        self.model.config.is_causal = False
        if self._is_causal():
            raise ConfigError(
                f"transformers lets no token of {self.model.config.model_type!r} models see later "
                "ones; set encoder.bidirectional to false, with encoder.pooler last"
            )

    @property
    def identity(self) -> tuple[str, ...]:
        is_both_sided = getattr(self.model.config, "is_causal", None) is False
        return ("sees both sides",) if is_both_sided else ()

    def _is_causal(self) -> bool:
        """Whether the state of a token stays the same when the next one is another."""
        tokens = torch.tensor([[0, 1], [0, 2]], device=self.model.device)
        with torch.no_grad(), evaluating(self.model), name_failures(self.kind, "two tokens"):
            first, other = self.model(input_ids=tokens).last_hidden_state[:, 0]
        return torch.equal(first, other)

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        uneven = len(batch.token_ids) < batch.sentences * batch.longest
        if uneven and self.depends_on_padding():
            return self._states_by_length(batch, wanted, first_only, first_state)
        if self.model.config.model_type == _BIG_BIRD:  # a short batch leaves it full for good
            cast(Any, self.model).set_attention_type(self.model.config.attention_type)
        sentences = torch.split(batch.token_ids, batch.lengths.tolist())
        padded = pad_sequence(list(sentences), batch_first=True, padding_value=self.padding_id)
        mask = torch.arange(padded.shape[1], device=padded.device) < batch.lengths.unsqueeze(1)
        inputs = {"input_ids": padded, "attention_mask": mask.long()}
        if batch.positions is not None:
            inputs["position_ids"] = self._positions(batch.positions, mask)
        if self._embedding_layer and (first_state is not None or batch.changes_embeddings):
            change = partial(_changed, mask=mask, batch=batch, first=first_state)
            output = self._with_state_0(inputs, change, self._embedding_layer)
        else:
            output = self.model(**inputs, output_hidden_states=True)
        states = (*output.hidden_states[: self.depth], output.last_hidden_state)
        return {n: states[n][:, 0] if first_only else states[n][mask] for n in wanted}

    def depends_on_padding(self) -> bool:
        if self._padding_counts is None:
            padding = self.padding_id
            words = [n for n in range(3) if n != padding][:2] * (_PROBED // 2)
            longer = min(2 * _PROBED, self.max_tokens)
            ids = torch.full((1, longer), padding, device=self.model.device)
            ids[0, :_PROBED] = torch.tensor(words)
            mask = (torch.arange(longer, device=ids.device) < _PROBED).long().unsqueeze(0)
            with (
                name_failures(self.kind, f"{_PROBED} tokens"),
                evaluating(self.model),
                torch.no_grad(),
                torch.random.fork_rng(devices=[]),
                torch.autocast(ids.device.type, None, False),
            ):
                alone, beside = (
                    self.model(input_ids=ids[:, :n], attention_mask=mask[:, :n]).last_hidden_state
                    for n in (_PROBED, longer)
                )
                if alone.shape[1:] != (_PROBED, self.width):
                    shape, expected = list(alone.shape[1:]), [_PROBED, self.width]
                    raise ValueError(f"it gives states of shape {shape}, not {expected}")
            off = (beside[:, :_PROBED] - alone).abs().max()
            self._padding_counts = bool(off > _OFF * alone.abs().max())
        return self._padding_counts

    def _states_by_length(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        """The `states`, computed for sentences of one length at a time."""
        groups = [(batch.lengths == length).nonzero()[:, 0] for length in {*batch.lengths.tolist()}]
        parts = [
            self.states(
                batch.select(group),
                wanted,
                first_only,
                None if first_state is None else first_state[group],
            )
            for group in groups
        ]
        rows = torch.cat(groups if first_only else [batch.places(group) for group in groups])
        order = rows.argsort()
        return {n: torch.cat([part[n] for part in parts])[order] for n in wanted}

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

    def require_first_state(self) -> None:
        if self._embedding_layer is None:
            with name_failures(self.kind, "another state in place of its first"):
                self._embedding_layer = self._find_embedding_layer()

    def _find_embedding_layer(self) -> tuple[str, int]:
        """The name of the module whose output is state 0, and at which of its calls.

        T5 has one dropout for before and after its layers, so the call matters. Dropout is on in
        this pass of two tokens, or a module would pass for the dropout after it.
        """
        model, device = self.model, self.device
        names = {module: name for name, module in model.named_modules()}
        seen: list[tuple[str, Any]] = []

        def note(module: nn.Module, _: Any, output: Any) -> None:
            if module in names:
                seen.append((names[module], output))

        ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with ExitStack() as stack:
            for module in names:
                stack.callback(setattr, module, "training", module.training)
                module.training = True
                if isinstance(module, nn.Dropout):
                    stack.callback(setattr, module, "p", module.p)
                    module.p = _ANY_RATE
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
            with register_module_forward_hook(note):
                state = model(**inputs, output_hidden_states=True).hidden_states[0]
            places = [place for place, (_, output) in enumerate(seen) if output is state]
            if not places or state.shape[:2] != (1, 2):
                raise self._keeps_its_first_state()
            # Later ones only pass it on: modules around this one, an identity in layer 1.
            name, _ = seen[places[0]]
            layer = name, sum(other == name for other, _ in seen[: places[0]])
            self._with_state_0(inputs, torch.zeros_like, layer)
        return layer

    def _with_state_0(
        self, inputs: Mapping[str, Tensor], change: Callable[[Tensor], Tensor], at: tuple[str, int]
    ) -> Any:
        """The output of the model where ``change`` makes of state 0 what layer 1 is given.

        ConfigError if something after the embedding layer changes that.
        """
        calls: list[Tensor] = []
        name, call = at

        def changed(_module: nn.Module, _given: Any, output: Tensor) -> Tensor:
            calls.append(change(output) if len(calls) == call else output)
            return calls[-1]

        with self.model.get_submodule(name).register_forward_hook(changed):
            output = self.model(**inputs, output_hidden_states=True)
        if output.hidden_states[0] is not calls[call]:
            raise self._keeps_its_first_state()
        return output

    def _keeps_its_first_state(self) -> ConfigError:
        return ConfigError(
            f"the first state of {self.model.config.model_type!r} models cannot be replaced: no "
            "module of theirs gives what goes into layer 1; choose an architecture such as BERT, "
            "RoBERTa, MPNet, ELECTRA, ALBERT or DeBERTa"
        )


def _changed(state: Tensor, *, mask: Tensor, batch: Batch, first: Tensor | None) -> Tensor:
    """State 0 with other first rows of each sentence, and changed token by token."""
    if first is not None:
        given = first.to(state.dtype).reshape(len(state), -1, state.shape[-1])
        state = torch.cat([given, state[:, given.shape[1] :]], dim=1)
    return state.masked_scatter(mask.unsqueeze(-1), batch.changed(state[mask]))
