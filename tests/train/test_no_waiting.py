"""A step asks its device nothing, so that neither the host nor the device waits for the other.

On the meta device tensors have no values: whoever asks for one gets an error.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from helpers.tiny_models import config_of, transformer
from torch.nn.utils import clip_grad_norm_

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.backbones import kernels
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.heads import POOLERS
from contrasent.model.protocol import Encoded
from contrasent.settings import TrainSettings
from contrasent.training.embedding import embedding
from contrasent.training.loop import Training

META = torch.device("meta")


@pytest.fixture(autouse=True)
def meta_like_an_accelerator(monkeypatch):
    """Torch has no autocast for the meta device."""
    autocast = torch.autocast
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    monkeypatch.setattr(
        torch,
        "autocast",
        lambda device, *args, **kwargs: (
            nullcontext() if device == "meta" else autocast(device, *args, **kwargs)
        ),
    )


@pytest.mark.parametrize("varlen", [True, False])
@pytest.mark.parametrize("name", POOLERS)
def test_a_step_asks_the_device_nothing(name, varlen, monkeypatch):
    monkeypatch.setattr(kernels, "packed_attention_available", lambda *_: varlen)
    backbone = PackedBert(transformer(config_of("bert", 100))).to(META).train()
    scored = objectives.build(
        "simcse", {"hard_negative_weight": 2.0}, width=backbone.width, data_views=3
    ).to(META)
    pool = POOLERS[name]
    batch = pack([[n, 5, 6][: 1 + n % 3] for n in range(12)], views=scored.views)
    batch = scored.prepare(replace(batch, duplicate_of=batch.same_text()).to(META))
    states = backbone(batch, pool.layers, first_only=pool.first_only)
    pooled = pool(states, batch).float().view(batch.views, -1, backbone.width)
    terms = scored(Encoded(pooled, {}), batch)
    torch.stack(list(terms.values())).sum().backward()
    parameters = [p for p in (*backbone.parameters(), *scored.parameters()) if p.grad is not None]
    assert len(parameters) > 20
    assert clip_grad_norm_(parameters, 1.0).device == META


def test_one_mask_for_all_views_is_drawn_without_asking(tiny_encoder):
    tiny_encoder.to(META).train()
    scored = objectives.build("simcse", {}, width=16, data_views=1).to(META)
    batch = pack([[n, 5, 6][: 1 + n % 3] for n in range(6)] * 2, views=2)
    batch = replace(batch, duplicate_of=batch.same_text()).to(META)
    parts = {"objectives": {}, "optimizer": None, "settings": TrainSettings(), "steps": 1}
    training = Training(encoder=tiny_encoder, precision="fp32", fixed_dropout=True, **parts)
    encoded, _ = embedding(training, scored)(batch)
    torch.stack(list(scored(encoded, batch).values())).sum().backward()
    assert encoded.pooled.shape == (2, 6, 16)
