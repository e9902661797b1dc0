"""ModernBERT on packed tokens.

Shapes: T tokens end to end, D width, d = D / H numbers per head, R >= T rows, a few of them spare.
"""

from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.data.batch import Batch
from contrasent.model.backbones import kernels
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.packed_bert import rate_of

_UNSEEN = -30_000.0
"""Added to a score makes its weight 0, also in fp16; finite, as a padded row may see nothing."""


class PackedModernBert(Backbone):
    """ModernBERT (Warner et al. 2024): rotary positions, gated layers, a local window in most."""

    takes_first_state = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        self.depth, self.max_tokens = config.num_hidden_layers, config.max_position_embeddings

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

    def _blocks(self, batch: Batch, dtype: torch.dtype) -> dict[str, kernels.Blocks]:
        device, config = batch.token_ids.device, self.model.config
        window = config.sliding_window
        packed = kernels.packed_attention_available(device, dtype, self.width // self.heads)
        whole = kernels.Blocks.of(batch, self.heads, packed=packed)
        local = whole
        if batch.longest > window + 1:
            local = kernels.Blocks.of(batch, self.heads)
            places = torch.arange(local.longest, device=device)
            far = (places.unsqueeze(0) - places.unsqueeze(1)).abs() > window
            unseen = torch.zeros(far.shape, device=device).masked_fill(far, _UNSEEN)
            local = replace(local, added=unseen.unsqueeze(0))
        return {"full_attention": whole, "sliding_attention": local}

    def _layer(
        self, layer: Any, state: Tensor, angles: tuple[Tensor, Tensor], blocks: kernels.Blocks
    ) -> Tensor:
        part = layer.attn
        qkv = _rotate(part.Wqkv(layer.attn_norm(state)), *angles, self.heads)
        rate = part.attention_dropout if self.training else 0.0
        mixed = kernels.attention(F.pad(qkv, (0, 0, 0, blocks.rows - len(qkv))), blocks, rate)
        mixed = part.Wo(mixed[: len(state)])
        state = state + kernels.dropout(mixed, rate_of(part.out_drop, self.training))
        mlp = layer.mlp
        inner, gate = mlp.Wi(layer.mlp_norm(state)).chunk(2, dim=-1)
        inner = kernels.dropout(mlp.act(inner) * gate, rate_of(mlp.drop, self.training))
        return torch.add(state, mlp.Wo(inner))


def _rotate(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    parts = qkv.view(len(qkv), 3, heads, -1)
    turned = parts[:, :2].float()
    real, imaginary = turned.chunk(2, dim=-1)
    across = torch.cat([-imaginary, real], dim=-1)
    cosine, sine = (it.squeeze(0)[:, None, None] for it in (cos, sin))
    turned = (turned * cosine + across * sine).to(qkv.dtype)
    return torch.cat([turned, parts[:, 2:]], dim=1).flatten(1)
