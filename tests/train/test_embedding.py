"""Ways to embed a batch: in chunks, with one mask for all views, by two encoders, views written."""

import copy
import dataclasses

import pytest
import torch
from helpers.run_files import weights
from helpers.tiny_models import SENTENCES

from contrasent import objectives
from contrasent.data import batch as batches
from contrasent.data.batch import pack
from contrasent.distributed import Split, splitting
from contrasent.errors import ContrasentError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead
from contrasent.model.masked_lm import MlmView
from contrasent.model.protocol import Encoded
from contrasent.objectives import mlm
from contrasent.settings import TrainSettings, ViewSettings
from contrasent.training.embedding import GradientCache, chunks_of, embedding
from contrasent.training.loop import Training
from contrasent.training.run import train

CHUNK = 5


@pytest.fixture
def encoder(tiny_encoder):
    """In training mode, with dropout."""
    return tiny_encoder.train()


def sentences(seed, count=7):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    return [torch.randint(5, 40, (n,), generator=generator).tolist() for n in lengths]


def examples(views, count=9):
    """Sentences of 2 to 8 tokens; some example has the text of another one."""
    ids = [[2, *[5 + (7 * n + k) % 40 for k in range(n % 7)], 3] for n in range(views * count)]
    ids[1] = ids[0]
    ids[count + 4] = ids[count + 2]
    return pack(ids, views=views)


def simcse(views=2):
    torch.manual_seed(0)
    return objectives.build("simcse", {}, width=16, data_views=views)


def loss_of(objective, encoded, batch):
    return torch.stack(list(objective(encoded, batch).values())).sum()


def taken(*modules):
    """The gradients of all parameters, which have none afterwards."""
    found = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    for module in modules:
        module.zero_grad(set_to_none=True)
    return found


def assert_close(found, expected):
    assert len(found) == len(expected) > 20
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=2e-6)
    assert any(gradient.abs().max() > 1e-2 for gradient in found)


def step(encoder, objective, batch, embed):
    """Loss and gradients of a step in chunks by a way to embed, and where torch's draws are."""
    batch = objective.prepare(batch)
    torch.manual_seed(3)
    encoded, backward = embed(GradientCache(encoder, CHUNK, "fp32", objective.layers), batch)
    with splitting(Split(chunk=CHUNK)):
        loss = loss_of(objective, encoded, batch)
    loss.backward()
    backward()
    return loss.detach(), taken(encoder, objective), torch.get_rng_state()


def with_graph(cache, batch):
    """Embed all chunks with gradients, as no machine without their memory could."""
    parts, place = chunks_of(batch, CHUNK)
    outputs = zip(*(cache._encode(part) for part in parts), strict=True)
    pooled, *states = (torch.cat(tensors) for tensors in outputs)
    states = [state[batches.concat(parts).places(place)] for state in states]
    return cache._united(batch, pooled[place], *states), lambda: None


def assert_same(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-6)
    assert_close(found[1], expected[1])
    assert found[2].equal(expected[2])


@pytest.mark.parametrize("kind", ["packed", "auto"])
@pytest.mark.parametrize("views", [2, 3, 5])
def test_the_gradient_is_that_of_the_whole_batch(views, kind, encoder):
    if kind == "auto":
        encoder.backbone = AutoBackbone(encoder.backbone.model).train()
    objective, batch = simcse(views), examples(views)
    torch.manual_seed(3)
    parts, place = chunks_of(batch, CHUNK)
    rows = torch.cat([encoder(part).pooled[0] for part in parts])
    encoded = Encoded(rows[place].view(views, -1, encoder.width), {})
    loss = loss_of(objective, encoded, batch)
    loss.backward()
    expected = loss.detach(), taken(encoder, objective), torch.get_rng_state()
    assert_same(step(encoder, objective, batch, GradientCache.embed), expected)


TOKENS = {
    "auxiliary mlm": ("simcse", {"mlm_weight": 0.5}),
    "diffcse": ("diffcse", {"rtd_weight": 1.0}),
    "diffcse, corrective": ("diffcse", {"rtd_weight": 1.0, "task": "corrective"}),
    "mlm": ("mlm", {}),
    "tsdae": ("tsdae", {}),
    "is-bert": ("is_bert", {}),
    "infocse": ("infocse", {}),
}


@pytest.mark.parametrize("case", TOKENS)
def test_tokens_have_the_gradient_of_one_pass_too(case, tiny_masked_lm, monkeypatch):
    name, settings = TOKENS[case]
    encoder = SentenceEncoder.load(tiny_masked_lm, pooler="cls", head="none", device="cpu").train()
    torch.manual_seed(0)
    objective = objectives.build(name, settings, width=16, data_views=2, encoder=encoder).train()
    batch = dataclasses.replace(examples(2), views=objective.views)
    monkeypatch.setattr(mlm, "_HIDDEN", 3)
    torch.manual_seed(1)
    found = step(encoder, objective, batch, GradientCache.embed)
    for module in (batches, mlm):
        monkeypatch.setattr(module, "checkpoint", lambda compute, part, **_: compute(part))
    torch.manual_seed(1)
    assert_same(found, step(encoder, objective, batch, with_graph))


class Forgetful(AutoBackbone):
    """Draws more where there is no gradient, as a kernel of its own would."""

    def forward(self, batch, layers=(-1,), *, first_only=False):
        if not torch.is_grad_enabled():
            torch.rand(3)
        return super().forward(batch, layers, first_only=first_only)


def test_a_backbone_that_draws_other_masks_without_gradients_is_found(encoder):
    encoder.backbone = Forgetful(encoder.backbone.model).train()
    with pytest.raises(ContrasentError, match="does not draw the same dropout"):
        step(encoder, simcse(), examples(2), GradientCache.embed)


def embeds(encoder, objective, chunk=None, **how):
    settings = TrainSettings(gradcache_chunk=chunk)
    parts = {"objectives": {}, "optimizer": None, "precision": "fp32", "steps": 1, **how}
    return embedding(Training(encoder=encoder, settings=settings, **parts), objective)


def embedded(encoder, objective, batch, chunk=None, **how):
    """The embeddings of a batch, and the gradients of the loss, after seed 3."""
    torch.manual_seed(3)
    encoded, backward = embeds(encoder, objective, chunk, **how)(batch)
    loss_of(objective, encoded, batch).backward()
    backward()
    twins = [how["twin"]] if "twin" in how else []
    return encoded.pooled.detach(), taken(encoder, objective, *twins)


@pytest.mark.parametrize("views", [2, 3])
def test_the_gradient_is_that_of_masks_replayed_for_each_view(views, encoder):
    objective, texts = simcse(views), sentences(1)
    batch = pack(texts * views, views=views)
    rows = []
    for _ in range(views):
        torch.manual_seed(3)
        rows.append(encoder(pack(texts)).pooled[0])
    expected = torch.stack(rows)
    loss_of(objective, Encoded(expected, {}), batch).backward()
    wanted = taken(encoder, objective)
    pooled, found = embedded(encoder, objective, batch, fixed_dropout=True)
    assert pooled.equal(expected.detach())
    assert_close(found, wanted)


@pytest.mark.parametrize("chunk", [None, 4])
def test_all_views_are_one_embedding_and_chance_still_acts(chunk, encoder):
    objective, texts = simcse(), sentences(2)
    batch = pack(texts * 2, views=2)
    pooled, _ = embedded(encoder, objective, batch, chunk, fixed_dropout=True)
    assert pooled.shape == (2, 7, 16) and pooled[1].equal(pooled[0])
    assert not pooled[0].allclose(encoder.eval()(pack(texts)).pooled[0], atol=1e-2)
    free, _ = embedded(encoder.train(), objective, batch, chunk)
    assert not free[1].allclose(free[0], atol=1e-2)


def test_views_that_an_objective_added_are_embedded_as_they_are(encoder):
    encoder.backbone.set_dropout(0.0)
    parts = [sentences(4), sentences(4), sentences(5), sentences(6)]
    batch = pack([s for part in parts for s in part], views=4)
    pooled = embeds(encoder, simcse(), fixed_dropout=True)(batch)[0].pooled
    assert pooled.shape == (4, 7, 16)
    for view, expected in enumerate(parts):
        torch.testing.assert_close(pooled[view], encoder(pack(expected)).pooled[0])


@pytest.mark.parametrize("views", [2, 3])
def test_two_encoders_by_hand(views, encoder):
    encoder.head, objective = MlpHead(16, 16), simcse(views)
    twin = copy.deepcopy(encoder)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    parts = [sentences(seed) for seed in range(views)]
    batch = pack([s for part in parts for s in part], views=views)
    torch.manual_seed(3)
    first = encoder(pack(parts[0])).pooled
    rest = twin(pack([s for part in parts[1:] for s in part], views=views - 1)).pooled
    expected = torch.cat([first, rest])
    loss_of(objective, Encoded(expected, {}), batch).backward()
    wanted = taken(encoder, objective, twin)
    pooled, found = embedded(encoder, objective, batch, twin=twin)
    torch.testing.assert_close(pooled, expected.detach())
    assert_close(found, wanted)


@pytest.mark.parametrize("views", [2, 3])
def test_the_anchor_stays_and_about_a_share_of_the_other_views_changes(views, tiny_masked_lm):
    encoder = SentenceEncoder.load(tiny_masked_lm, pooler="cls", head="none", device="cpu")
    ids, _ = encoder.tokenizer.ids(SENTENCES, None)
    batch = dataclasses.replace(pack(ids * views, views=views), next_sentences=pack(ids))
    anchor, rounds = len(batch.token_ids) // views, 100
    changed = torch.zeros(len(batch.token_ids))
    view = MlmView.of(ViewSettings(name="mlm", share=0.3), encoder)
    torch.manual_seed(0)
    for _ in range(rounds):
        found = view(batch)
        assert torch.equal(found.offsets, batch.offsets)
        changed += found.token_ids != batch.token_ids
    special = torch.isin(batch.token_ids, torch.tensor(encoder.tokenizer.special_ids.every))
    assert not changed[:anchor].any() and not changed[special].any()
    # An untrained generator seldom draws the original token.
    share = changed[anchor:][~special[anchor:]].mean().item() / rounds
    assert 0.25 < share < 0.32


def test_the_generator_is_the_encoder_unless_one_is_named(recipe, tmp_path, tiny_masked_lm):
    def ran(folder, **settings):
        made = recipe(encoder__name=str(tiny_masked_lm), evaluation__task="none", **settings)
        train(made, tmp_path / folder)
        return weights(tmp_path / folder)

    first = ran("first", view__name="mlm")
    assert first == ran("again", view__name="mlm", view__generator=str(tiny_masked_lm))
    assert first != ran("dropout")


@pytest.mark.parametrize("lengths", [[1, 1], [3, 1, 13, 7], [16] * 50, [1] * 302, [9, 2]], ids=len)
def test_sentences_of_nobody_make_few_shapes_and_change_nothing(lengths, tiny_encoder, monkeypatch):
    batch = pack([[5 + n % 7 for n in range(length)] for length in lengths], views=2)
    encoder, tokens = tiny_encoder.eval(), len(batch.token_ids)
    most = encoder.backbone.max_tokens
    filled = batch.filled(most)
    extra = filled.lengths[len(lengths) :]
    assert extra.min() >= 1 and extra.max() <= min(filled.longest, most)
    assert filled.offsets[-1] == len(filled.token_ids) <= 1.15 * tokens + 32
    monkeypatch.setattr(type(encoder.backbone), "is_capturable", True)  # as on a GPU
    caches = [GradientCache(encoder, None, "fp32", (-1,), graphs) for graphs in (True, False)]
    made = [cache.embed(batch)[0] for cache in caches]
    assert [bool(cache._seen) for cache in caches] == [True, False]
    torch.testing.assert_close(made[0].pooled, made[1].pooled)
    torch.testing.assert_close(made[0].states[-1], made[1].states[-1])
    sums = [it.pooled.cos().sum() + it.states[-1].sin().sum() for it in made]
    found = [torch.autograd.grad(it, encoder.parameters(), allow_unused=True) for it in sums]
    for one, other in zip(*found, strict=True):
        assert one is other is None or torch.allclose(one, other, atol=1e-5)
