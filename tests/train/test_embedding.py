"""One mask for all views, and one encoder for the first view and another for the rest."""

import copy

import pytest
import torch

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead
from contrasent.model.protocol import Encoded
from contrasent.settings import TrainSettings
from contrasent.training.embedding import embedding

CHUNKS = (None, 4)


def sentences(seed, count=7):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [torch.randint(5, 40, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture
def make_encoder(tiny_bert):
    def make(head=None, dropout=None):
        encoder = SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu")
        encoder.head = head
        if dropout is not None:
            encoder.backbone.set_dropout(dropout)
        return encoder.train()

    return make


def simcse(views=2):
    torch.manual_seed(0)
    return objectives.build("simcse", {}, width=16, data_views=views)


def embedded(encoder, objective, batch, chunk=None, **how):
    """The embeddings of a batch, and the gradients of the loss, after seed 3."""
    torch.manual_seed(3)
    settings = TrainSettings(gradcache_chunk=chunk)
    encoded, backward = embedding(encoder, objective, settings, "fp32", **how)(batch)
    torch.stack(list(objective(encoded, batch).values())).sum().backward()
    backward()
    modules = [encoder, objective, *([how["twin"]] if "twin" in how else [])]
    return encoded.pooled.detach(), taken(*modules)


def taken(*modules):
    found = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    for module in modules:
        module.zero_grad(set_to_none=True)
    return found


def assert_close(found, expected):
    assert len(found) == len(expected) > 20
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=2e-6)


# One mask


@pytest.mark.parametrize("views", [2, 3])
def test_the_gradient_is_that_of_masks_replayed_for_each_view(views, make_encoder):
    encoder, objective, texts = make_encoder(), simcse(views), sentences(1)
    batch = pack(texts * views, views=views)
    rows = []
    for _ in range(views):
        torch.manual_seed(3)
        rows.append(encoder(pack(texts)).pooled[0])
    expected = torch.stack(rows)
    loss = torch.stack(list(objective(Encoded(expected, {}), batch).values())).sum()
    loss.backward()
    wanted = taken(encoder, objective)
    pooled, found = embedded(encoder, objective, batch, fixed_dropout=True)
    assert pooled.equal(expected.detach())
    assert_close(found, wanted)
    assert any(gradient.abs().max() > 1e-2 for gradient in found)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_all_views_are_one_embedding_and_chance_still_acts(chunk, make_encoder):
    encoder, objective, texts = make_encoder(), simcse(), sentences(2)
    batch = pack(texts * 2, views=2)
    pooled, _ = embedded(encoder, objective, batch, chunk, fixed_dropout=True)
    assert pooled.shape == (2, 7, 16)
    assert pooled[1].equal(pooled[0])
    assert not pooled[0].allclose(encoder.eval()(pack(texts)).pooled[0], atol=1e-2)
    free, _ = embedded(encoder.train(), objective, batch, chunk)
    assert not free[1].allclose(free[0], atol=1e-2)


def test_views_that_an_objective_added_are_embedded_as_they_are(make_encoder):
    encoder, objective, texts = make_encoder(dropout=0.0), simcse(), sentences(4)
    added = [sentences(5), sentences(6)]
    batch = pack([*texts, *texts, *added[0], *added[1]], views=4)
    embed = embedding(encoder, objective, TrainSettings(), "fp32", fixed_dropout=True)
    pooled = embed(batch)[0].pooled
    assert pooled.shape == (4, 7, 16)
    for view, expected in enumerate((texts, texts, *added)):
        torch.testing.assert_close(pooled[view], encoder(pack(expected)).pooled[0])


# Two encoders


def by_hand(encoder, twin, objective, batch, parts):
    """The loss of two forward passes, each of its views."""
    torch.manual_seed(3)
    rows = [encoder(pack(parts[0])).pooled[0]]
    rest = twin(pack([s for part in parts[1:] for s in part], views=len(parts) - 1)).pooled
    pooled = torch.stack([*rows, *rest])
    torch.stack(list(objective(Encoded(pooled, {}), batch).values())).sum().backward()
    return pooled.detach(), taken(encoder, objective, twin)


@pytest.mark.parametrize("views", [2, 3])
def test_two_encoders_by_hand(views, make_encoder):
    encoder, objective = make_encoder(MlpHead(16, 16)), simcse(views)
    twin = copy.deepcopy(encoder)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    parts = [sentences(seed) for seed in range(views)]
    batch = pack([s for part in parts for s in part], views=views)
    expected, wanted = by_hand(encoder, twin, objective, batch, parts)
    pooled, found = embedded(encoder, objective, batch, twin=twin)
    torch.testing.assert_close(pooled, expected)
    assert_close(found, wanted)
