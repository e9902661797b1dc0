"""Other encoders that ``AutoModel`` loads: padded inside, packed outside; ModernBERT all packed.

Shapes: S sentences, L tokens of the longest, D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.backbones.attention import attention
from contrasent.model.backbones.base import UNBOUNDED, Backbone, first_position, name_failures
from contrasent.model.backbones.layers import dropout
from contrasent.model.backbones.packing import Blocks, packed_attention_available
from contrasent.model.encoding import evaluating

_ANY_RATE = 0.5
_BIG_BIRD = "big_bird"
_PROBED, _OFF = 4, 1e-3
"""Tokens that are computed with and without padding, and what is more than rounding."""


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
        with name_failures(model.config.model_type, "two tokens"), _probing(model, device):
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

    pads = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width = config.hidden_size
        self.depth = config.num_hidden_layers
        positions = getattr(config, "max_position_embeddings", None) or 0  # XLNet says -1
        self.max_tokens = (positions if positions > 0 else UNBOUNDED) - first_position(model)
        self._first_layer: EmbeddingLayer | None = None
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
        training = self.model.training
        tokens = torch.tensor([[0, 1], [0, 2]], device=self.model.device)
        with torch.no_grad(), name_failures(self.kind, "two tokens"):
            self.model.train(False)
            first, other = self.model(input_ids=tokens).last_hidden_state[:, 0]
        self.model.train(training)
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
        if first_state is None and not batch.changes_embeddings:
            output = self.model(**inputs, output_hidden_states=True)
        else:
            change = partial(_changed, mask=mask, batch=batch, first=first_state)
            output = self._embedding_layer().forward(self.model, inputs, change)
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
                if alone.shape[1] != _PROBED:
                    raise ValueError(f"it gives {alone.shape[1]} states for {_PROBED} tokens")
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
        self._embedding_layer()

    def _embedding_layer(self) -> EmbeddingLayer:
        if self._first_layer is None:
            self._first_layer = EmbeddingLayer.of(self.model)
        return self._first_layer


def _changed(state: Tensor, *, mask: Tensor, batch: Batch, first: Tensor | None) -> Tensor:
    """State 0 with other first rows of each sentence, and changed token by token."""
    if first is not None:
        given = first.to(state.dtype).reshape(len(state), -1, state.shape[-1])
        state = torch.cat([given, state[:, given.shape[1] :]], dim=1)
    return state.masked_scatter(mask.unsqueeze(-1), batch.changed(state[mask]))


_UNSEEN = -30_000.0
"""Added to a score makes its weight 0, also in fp16; finite, as a padded row may see nothing."""


class PackedModernBert(Backbone):
    """ModernBERT: rotary positions, gated layers with the norm first, and local attention.

    Warner et al. 2024, arXiv:2412.13663. Tokens of most layers see those within a window.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        self.depth = config.num_hidden_layers
        self.max_tokens = config.max_position_embeddings

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        known: Any = self.model
        blocks = self._blocks(batch, self.products(batch.token_ids.device)[1])
        places = blocks["full_attention"]
        state = known.embeddings(batch.token_ids)
        if first_state is not None:
            state = places.with_first(state, first_state)
        state = batch.changed(state)
        by_number = {0: state}
        positions, kinds = places.positions.unsqueeze(0), set(self.model.config.layer_types)
        angles = {kind: known.rotary_emb(state.float(), positions, kind) for kind in kinds}
        for number, layer in enumerate(known.layers[: max(wanted)], start=1):
            kind = layer.attention_type
            state = self.run_layer(self._layer, layer, state, angles[kind], blocks[kind])
            if number in wanted:
                by_number[number] = known.final_norm(state) if number == self.depth else state
        return {n: by_number[n] for n in wanted}

    def _blocks(self, batch: Batch, dtype: torch.dtype) -> dict[str, Blocks]:
        """The places of tokens for layers that see whole sentences, and for those of a window."""
        device, config = batch.token_ids.device, self.model.config
        window = config.sliding_window
        packed = packed_attention_available(device, dtype, self.width // self.heads)
        whole = Blocks.of(batch, self.heads, packed=packed)
        local = whole
        if batch.longest > window + 1:
            local = Blocks.of(batch, self.heads)
            places = torch.arange(local.longest, device=device)
            far = (places.unsqueeze(0) - places.unsqueeze(1)).abs() > window
            unseen = torch.zeros(far.shape, device=device).masked_fill(far, _UNSEEN)
            local = replace(local, added=unseen.unsqueeze(0))
        return {"full_attention": whole, "sliding_attention": local}

    def _layer(
        self, layer: Any, state: Tensor, angles: tuple[Tensor, Tensor], blocks: Blocks
    ) -> Tensor:
        part = layer.attn
        qkv = part.Wqkv(layer.attn_norm(state))
        qkv = _rotate(qkv, *angles, self.heads)
        rate = part.attention_dropout if self.training else 0.0
        mixed = attention(F.pad(qkv, (0, 0, 0, blocks.rows - len(qkv))), blocks, rate)
        mixed = part.Wo(mixed[: len(state)])
        state = state + dropout(mixed, self.rate_of(part.out_drop))
        mlp = layer.mlp
        inner, gate = mlp.Wi(layer.mlp_norm(state)).chunk(2, dim=-1)
        inner = dropout(mlp.act(inner) * gate, self.rate_of(mlp.drop))
        total: Tensor = state + mlp.Wo(inner)
        return total


def _rotate(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """``(T, 3 D)`` with queries and keys turned by the angles ``(1, T, d)`` of their positions."""
    parts = qkv.view(len(qkv), 3, heads, -1)
    turned = parts[:, :2].float()
    real, imaginary = turned.chunk(2, dim=-1)
    across = torch.cat([-imaginary, real], dim=-1)
    cosine, sine = (it.squeeze(0)[:, None, None] for it in (cos, sin))
    turned = (turned * cosine + across * sine).to(qkv.dtype)
    return torch.cat([turned, parts[:, 2:]], dim=1).flatten(1)
