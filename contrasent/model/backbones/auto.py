"""Other encoders that ``AutoModel`` loads: padded inside, packed outside.

Shapes: S sentences, L tokens of the longest, D width.
"""

from collections.abc import Set
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from contrasent.data.batch import Batch
from contrasent.data.tokenizer import UNBOUNDED
from contrasent.model.backbones import base

_BIG_BIRD = "big_bird"
_PROBED, _OFF = 4, 1e-3
"""Tokens that are computed with and without padding, and what is more than rounding."""


class AutoBackbone(base.Backbone):
    """A ``transformers`` encoder run through its own forward."""

    pads = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width, self.depth = config.hidden_size, config.num_hidden_layers
        positions = getattr(config, "max_position_embeddings", None) or 0  # XLNet says -1
        self.max_tokens = (positions if positions > 0 else UNBOUNDED) - base.first_position(model)
        # BigBird's sparse attention is full in a short batch.
        is_sparse = config.model_type == _BIG_BIRD and config.attention_type == "block_sparse"
        self._padding_counts = True if is_sparse else None

    def set_checkpointing(self, wanted: bool) -> None:
        if wanted == self.checkpoint_layers:
            return
        if not self.model.supports_gradient_checkpointing:
            problem = "transformers has no gradient checkpointing for {}"
            self.refuse(problem, "set train.gradient_checkpointing to false")
        verb = "enable" if wanted else "disable"
        # Since transformers 5 it has the first name, and warns of the other.
        names = (f"{it}_checkpointing_{verb}" for it in ("activation", "gradient"))
        switch = next(getattr(self.model, it) for it in names if hasattr(self.model, it))
        switch(*([{"use_reentrant": False}] if wanted else []))
        self.checkpoint_layers = wanted

    def see_both_sides(self) -> None:
        if not self.is_causal():
            super().see_both_sides()
        self.model.config.is_causal = False
        if self.is_causal():
            remedy = "set encoder.bidirectional to false, with encoder.pooler last"
            self.refuse("no token of {} sees later ones", remedy)

    @property
    def identity(self) -> tuple[str, ...]:
        is_both_sided = getattr(self.model.config, "is_causal", None) is False
        return ("sees both sides",) if is_both_sided else ()

    def is_causal(self) -> bool:
        tokens = torch.tensor([[0, 1], [0, 2]], device=self.model.device)
        named = base.name_failures(self.kind, "two tokens")
        with torch.no_grad(), base.evaluating(self.model), named:
            first, other = self.model(input_ids=tokens).last_hidden_state[:, 0]
        return torch.equal(first, other)

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        lengths = batch.lengths.tolist()
        if len({*lengths}) > 1 and self.depends_on_padding():  # sentences of one length at a time
            groups = [(batch.lengths == length).nonzero()[:, 0] for length in {*lengths}]
            parts = [self.states(batch.select(it), wanted, first_only, None) for it in groups]
            rows = torch.cat(groups if first_only else [batch.places(it) for it in groups])
            order = rows.argsort()
            return {n: torch.cat([part[n] for part in parts])[order] for n in wanted}
        if self.model.config.model_type == _BIG_BIRD:  # a short batch leaves it full for good
            cast(Any, self.model).set_attention_type(self.model.config.attention_type)
        sentences = torch.split(batch.token_ids, lengths)
        padded = pad_sequence(list(sentences), batch_first=True, padding_value=self.padding_id)
        mask = torch.arange(padded.shape[1], device=padded.device) < batch.lengths.unsqueeze(1)
        inputs = {"input_ids": padded, "attention_mask": mask.long()}
        if batch.positions is not None:
            places = torch.zeros(mask.shape, dtype=torch.int64, device=mask.device)
            places[mask] = batch.positions
            inputs["position_ids"] = places + base.first_position(self.model)
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
                base.name_failures(self.kind, f"{_PROBED} tokens"),
                base.evaluating(self.model),
                torch.no_grad(),
                torch.random.fork_rng(devices=[]),
                torch.autocast(ids.device.type, None, False),
            ):
                alone, beside = (
                    self.model(input_ids=ids[:, :n], attention_mask=mask[:, :n]).last_hidden_state
                    for n in (_PROBED, longer)
                )
                off = (beside[:, :_PROBED] - alone.view(1, _PROBED, self.width)).abs().max()
            self._padding_counts = bool(off > _OFF * alone.abs().max())
        return self._padding_counts
