"""CMLM: states put before a sentence, and a step, against transformers' own forward."""

import dataclasses

import pytest
import torch
import transformers
from helpers import oracles

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder

ROWS = [[2, 10, 11, 12, 3], [2, 20, 21, 3], [2, 30, 31, 32, 33, 34, 3]]
NEXT = [[2, 13, 14, 15, 16, 17, 18, 3], [2, 22, 23, 24, 25, 26, 3], [2, 35, 36, 37, 38, 39, 3]]


@pytest.fixture
def encoder(tiny_masked_lm):
    return SentenceEncoder.load(tiny_masked_lm, pooler="mean", head="none", device="cpu")


def built(encoder, width=16, **settings):
    return objectives.build("cmlm", settings, width=width, data_views=1, encoder=encoder)


def batch():
    return dataclasses.replace(pack(ROWS), next_sentences=pack(NEXT))


@pytest.mark.parametrize("vectors", [1, 4])
def test_a_step_and_its_gradients_are_those_of_the_formula(vectors, encoder, tiny_masked_lm):
    torch.manual_seed(0)
    objective = built(encoder, vectors=vectors, mask_rate=0.6)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny_masked_lm).eval()
    given = objective.prepare(batch())
    terms = objective(encoder(given), given)

    logits, targets, start = [], [], 0
    hidden = given.next_sentences
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
    expected = oracles.masked_cross_entropy(logits, targets)
    assert len(targets) > 3 and terms.keys() == {"mlm"}
    torch.testing.assert_close(terms["mlm"], expected, rtol=1e-4, atol=1e-5)
    names = [
        "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight",
        "encoder.layer.0.attention.self.query.weight",
        "encoder.layer.1.output.dense.weight",
    ]
    mine, theirs = (dict(it.named_parameters()) for it in (encoder.backbone.model, model.bert))
    ours = torch.autograd.grad(terms["mlm"], [mine[name] for name in names])
    wanted = torch.autograd.grad(expected, [theirs[name] for name in names])
    for name, a, b in zip(names, ours, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=name)


def test_an_embedding_of_another_width_is_refused(encoder):
    with pytest.raises(ConfigError, match="embeddings of 8 dimensions beside token states of 16"):
        built(encoder, width=8)
