"""A gradient taken chunk by chunk is that of the whole batch, under the same dropout masks."""

import dataclasses

import pytest
import torch

from contrasent import objectives
from contrasent.data import batch as batches
from contrasent.data.batch import pack
from contrasent.distributed import Split, splitting
from contrasent.errors import ContrasentError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import mlm
from contrasent.training.embedding import GradientCache, chunks_of

CHUNK = 5


@pytest.fixture(params=["packed", "auto"])
def backbone_kind(request):
    return request.param


@pytest.fixture
def make_encoder(tiny_bert):
    """An encoder in training mode, with dropout; either backbone computes the same model."""

    def make(kind="packed", pooler="cls", head=None):
        encoder = SentenceEncoder.load(tiny_bert, pooler=pooler, head="none", device="cpu")
        encoder.head = head
        if kind == "auto":
            encoder.backbone = AutoBackbone(encoder.backbone.model)
        return encoder.train()

    return make


def examples(views, count=9):
    """Sentences of 2 to 8 tokens; some example has the text of another one."""
    ids = [[2, *[5 + (7 * n + k) % 40 for k in range(n % 7)], 3] for n in range(views * count)]
    ids[1] = ids[0]
    ids[count + 4] = ids[count + 2]
    return pack(ids, views=views)


def loss_of(objective, pooled, batch):
    return torch.stack(list(objective(Encoded(pooled, {}), batch).values())).sum()


def gradients(*modules):
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


def plain(encoder, objective, batch, chunk=CHUNK):
    """Loss and gradients of one backward pass through all chunks, and where torch's draws are."""
    torch.manual_seed(3)
    parts, place = chunks_of(batch, chunk)
    rows = torch.cat([encoder(part).pooled[0] for part in parts])
    pooled = rows[place].view(batch.views, -1, encoder.width)
    loss = loss_of(objective, pooled, batch)
    loss.backward()
    return loss.detach(), taken(encoder, objective), torch.get_rng_state()


def cached(encoder, objective, batch, chunk=CHUNK):
    torch.manual_seed(3)
    encoded, backward = GradientCache(encoder, chunk, "fp32").embed(batch)
    loss = loss_of(objective, encoded.pooled, batch)
    loss.backward()
    backward()
    return loss.detach(), taken(encoder, objective), torch.get_rng_state()


def taken(*modules):
    found = gradients(*modules)
    for module in modules:
        module.zero_grad(set_to_none=True)
    return found


def assert_same(encoder, objective, batch):
    expected_loss, expected, drawn = plain(encoder, objective, batch)
    loss, found, left = cached(encoder, objective, batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    assert len(found) == len(expected) > 20
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=2e-6)
    assert left.equal(drawn)
    assert any(gradient.abs().max() > 1e-2 for gradient in found)


@pytest.mark.parametrize("views", [2, 3, 5])
def test_the_gradient_is_that_of_the_whole_batch(views, backbone_kind, make_encoder):
    torch.manual_seed(0)
    objective = objectives.build("simcse", {}, width=16, data_views=views)
    assert_same(make_encoder(backbone_kind), objective, examples(views))


TOKENS = {
    "auxiliary mlm": ("simcse", {"mlm_weight": 0.5}),
    "diffcse": ("diffcse", {"rtd_weight": 1.0}),
    "diffcse, corrective": ("diffcse", {"rtd_weight": 1.0, "task": "corrective"}),
    "mlm": ("mlm", {}),
    "tsdae": ("tsdae", {}),
    "is-bert": ("is_bert", {}),
    "infocse": ("infocse", {}),
}


def step(name, settings, tiny_masked_lm, embed):
    """Loss and gradients of a step in chunks, every dropout on, by a way to embed."""
    encoder = SentenceEncoder.load(tiny_masked_lm, pooler="cls", head="none", device="cpu").train()
    torch.manual_seed(0)
    objective = objectives.build(name, settings, width=16, data_views=2, encoder=encoder).train()
    batch = objective.prepare(dataclasses.replace(examples(2), views=objective.views))
    torch.manual_seed(3)
    encoded, backward = embed(GradientCache(encoder, CHUNK, "fp32", objective.layers), batch)
    with splitting(Split(chunk=CHUNK)):
        loss = torch.stack(list(objective(encoded, batch).values())).sum()
    loss.backward()
    backward()
    return loss.detach(), taken(encoder, objective), torch.get_rng_state()


def with_graph(cache, batch):
    """Embed all chunks with gradients, as no machine without their memory could."""
    parts, place = chunks_of(batch, CHUNK)
    outputs = zip(*(cache._encode(part) for part in parts), strict=True)
    kept = [torch.cat(tensors) for tensors in outputs]
    return cache._reunited(batch, kept, parts, place), lambda: None


@pytest.mark.parametrize("case", TOKENS)
def test_what_is_computed_of_tokens_has_the_gradient_of_one_pass_too(
    case, tiny_masked_lm, monkeypatch
):
    name, settings = TOKENS[case]
    monkeypatch.setattr(mlm, "_HIDDEN", 3)
    loss, found, left = step(name, settings, tiny_masked_lm, GradientCache.embed)
    for module in (batches, mlm):
        monkeypatch.setattr(module, "checkpoint", lambda compute, part, **_: compute(part))
    expected_loss, expected, drawn = step(name, settings, tiny_masked_lm, with_graph)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    assert len(found) == len(expected) > 20
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=2e-6)
    assert left.equal(drawn)


# chunks


# refusals


class Forgetful(AutoBackbone):
    """Draws more where there is no gradient, as a kernel of its own would."""

    def forward(self, batch, layers=(-1,), *, first_only=False):
        if not torch.is_grad_enabled():
            torch.rand(3)
        return super().forward(batch, layers, first_only=first_only)


def test_a_backbone_that_draws_other_masks_without_gradients_is_found(make_encoder):
    encoder = make_encoder()
    encoder.backbone = Forgetful(encoder.backbone.model)
    objective = objectives.build("simcse", {"head": "none"}, width=16, data_views=2)
    with pytest.raises(ContrasentError, match="does not draw the same dropout"):
        cached(encoder.train(), objective, examples(2))


# Whole runs
