"""Masked language models beside embeddings: SimCSE's term, CMLM and InfoCSE, by transformers."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import transformers
from helpers.oracles import equal_gradients, masked_cross_entropy
from torch.nn import functional as F

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.mlm import HiddenTokens

ROWS = [[2, 10, 11, 12, 3], [2, 20, 21, 3], [2, 30, 31, 32, 33, 34, 3], [2, 5, 9, 14, 3]]
NEXT = [[2, *range(n, n + 6 - n % 3), 3] for n in (13, 22, 35, 40)]


@pytest.fixture
def encoder(tiny_masked_lm):
    found = SentenceEncoder.load(tiny_masked_lm, pooler="mean", head="none", device="cpu")
    found.backbone.set_dropout(0.0)
    return found


@pytest.fixture
def model(tiny_masked_lm):
    return transformers.AutoModelForMaskedLM.from_pretrained(tiny_masked_lm).eval()


def built(name, encoder, data_views=1, width=16, **settings):
    torch.manual_seed(0)
    return objectives.build(name, settings, width=width, data_views=data_views, encoder=encoder)


def simcse(encoder, batch, **settings):
    """A batch as it is prepared, and its terms."""
    objective = built("simcse", encoder, batch.views, mlm_weight=0.1, mlm_mask_rate=0.4, **settings)
    torch.manual_seed(7)
    prepared = objective.prepare(batch)
    return prepared, objective(encoder(prepared, objective.layers), prepared)


@pytest.mark.parametrize("views", [2, 3])
def test_the_term_is_the_mean_over_the_masked_tokens_of_every_view(views, encoder, model):
    batch = pack(ROWS * views, views)
    prepared, terms = simcse(encoder, batch)
    hidden = prepared.token_ids[len(batch.token_ids) :]
    logits, targets = [], []
    for start, end in pairwise(batch.offsets.tolist()):
        found = model(input_ids=hidden[start:end].unsqueeze(0)).logits[0]
        for place in prepared.masked.chosen[start:end].nonzero().flatten().tolist():
            logits.append(found[place])
            targets.append(int(batch.token_ids[start + place]))
    expected = 0.1 * masked_cross_entropy(logits, targets)
    torch.testing.assert_close(terms["mlm"], expected, rtol=1e-5, atol=1e-6)
    right = [int(row.argmax()) == target for row, target in zip(logits, targets, strict=True)]
    assert terms.measures["mlm_accuracy"].item() == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("exclude", [True, False])
def test_the_contrast_is_that_of_the_unmasked_views(exclude, encoder):
    batch = pack([*ROWS, ROWS[0]] * 2, 2)
    plain = built("simcse", encoder, exclude_duplicates=exclude)
    prepared, terms = simcse(encoder, batch, exclude_duplicates=exclude)
    assert prepared.views == 4
    torch.testing.assert_close(terms["contrast"], plain(encoder(batch), batch)["contrast"])


def test_masked_views_are_contrasted_with_the_same_tokens_hidden(encoder):
    """As the code behind the published numbers did, by masking its input in place."""
    batch = pack(ROWS * 2, 2)
    (before, usual), (after, terms) = (
        simcse(encoder, batch, mlm_views=views) for views in ("plain", "masked")
    )
    tokens = len(batch.token_ids)
    assert torch.equal(before.token_ids[:tokens], batch.token_ids)
    assert torch.equal(after.token_ids[:tokens], after.token_ids[tokens:])
    assert torch.equal(after.token_ids[tokens:], before.token_ids[tokens:])
    torch.testing.assert_close(terms["mlm"], usual["mlm"])
    parts = after.token_ids[:tokens].split(batch.lengths.tolist())
    hidden = replace(pack([it.tolist() for it in parts], 2), duplicate_of=batch.same_text())
    alone = built("simcse", encoder)(encoder(hidden), hidden)
    torch.testing.assert_close(terms["contrast"], alone["contrast"])


@pytest.mark.parametrize("vectors", [1, 4])
def test_a_step_of_cmlm_and_its_gradients_are_those_of_the_formula(vectors, encoder, model):
    objective = built("cmlm", encoder, vectors=vectors, mask_rate=0.6)
    given = objective.prepare(replace(pack(ROWS), next_sentences=pack(NEXT)))
    terms = objective(encoder(given), given)
    logits, targets, start, hidden = [], [], 0, given.next_sentences
    for row, following in zip(ROWS, NEXT, strict=True):
        embedding = model.bert(torch.tensor([row])).last_hidden_state[0].mean(0)
        before = [embedding]
        if vectors > 1:
            before += objective.projector(embedding).view(vectors - 1, 16)
        end = start + len(following)
        ids = [0] * vectors + hidden.token_ids[start:end].tolist()
        state = model.bert.embeddings(torch.tensor([ids]))[0]
        state = torch.cat([torch.stack(before), state[vectors:]])
        last = model.bert.encoder(state.unsqueeze(0)).last_hidden_state[0, vectors:]
        for place in hidden.masked.chosen[start:end].nonzero().flatten().tolist():
            logits.append(model.cls(last[place]))
            targets.append(following[place])
        start = end
    expected = masked_cross_entropy(logits, targets)
    assert len(targets) > 3 and terms.keys() == {"mlm"}
    torch.testing.assert_close(terms["mlm"], expected, rtol=1e-4, atol=1e-5)
    mine, theirs = (dict(it.named_parameters()) for it in (encoder.backbone.model, model.bert))
    names = [name for name in mine if "pooler" not in name]
    weights = [mine[name] for name in names], [theirs[name] for name in names]
    equal_gradients(terms["mlm"], expected, weights, rtol=1e-3, atol=1e-5)


def infocse(encoder, **settings):
    return built("infocse", encoder, projector="none", mlm_weight=0.5, **settings)


def test_the_term_of_infocse_by_hand(encoder, monkeypatch):
    """Upper layers over the embedding and the detached states of a lower one."""
    objective = infocse(encoder, lower_layers=1, upper_layers=3).eval()
    batch = pack(ROWS * 2, 2)
    hidden = objective.tokens.hide(batch)
    monkeypatch.setattr(HiddenTokens, "hide", lambda *_: hidden)
    encoded = encoder(batch)
    terms = objective(encoded, batch)
    layers = objective.upper.model.encoder.layer
    assert len(layers) == 3
    losses, rows = [], encoded.pooled.flatten(0, 1)
    for number, (start, end) in enumerate(pairwise(batch.offsets)):
        ids = hidden.masked.token_ids[start:end]
        with torch.no_grad():
            whole = encoder.backbone.model(ids[None], output_hidden_states=True)
        states = torch.cat([rows[number][None], whole.hidden_states[1][0, 1:]])[None]
        for layer in layers:
            output = layer(states)
            states = output[0] if isinstance(output, tuple) else output
        chosen = hidden.masked.chosen[start:end]
        logits = objective.tokens.head(states[0][chosen])
        losses.append(F.cross_entropy(logits, batch.token_ids[start:end][chosen], reduction="none"))
    torch.testing.assert_close(terms["mlm"], 0.5 * torch.cat(losses).mean())


def test_the_lower_layers_get_no_gradient_and_the_embedding_does(encoder):
    objective, batch = infocse(encoder, mask_rate=0.9), pack(ROWS[2:3] * 4, 2)
    encoded = encoder(batch)
    encoded.pooled.retain_grad()
    objective(encoded, batch)["mlm"].backward()
    assert encoded.pooled.grad.abs().amax(-1).min() > 0
    (lower,) = objective._lower
    assert all(weights.grad is None for weights in lower.parameters())
    assert len(objective.upper.model.encoder.layer) == 2
    assert not [name for name, _ in objective.named_parameters() if "embeddings" in name]
