"""InfoCSE: the masked language model over detached states and the embedding, layer by layer."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.mlm import HiddenTokens

SENTENCES = [[2, 5 + n, 9, 11 + n, 14, 3][: 5 + n % 2] for n in range(4)]


@pytest.fixture
def encoder(tiny_masked_lm):
    return SentenceEncoder.load(tiny_masked_lm, pooler="cls", head="none", device="cpu")


def built(encoder, **settings):
    torch.manual_seed(0)
    settings = {"projector": "none", "mlm_weight": 0.5, **settings}
    return objectives.build("infocse", settings, width=16, data_views=1, encoder=encoder)


def test_the_term_by_hand(encoder, monkeypatch):
    objective = built(encoder, lower_layers=1, upper_layers=3).eval()
    batch = pack(SENTENCES * 2, 2)
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
        wanted = batch.token_ids[start:end][chosen]
        losses += [
            F.cross_entropy(row[None], token[None])
            for row, token in zip(logits, wanted, strict=True)
        ]
    assert losses
    torch.testing.assert_close(terms["mlm"], 0.5 * torch.stack(losses).mean())


def test_the_lower_layers_get_no_gradient_and_the_embedding_does(encoder):
    objective = built(encoder)
    batch = pack(SENTENCES * 2, 2)
    encoded = encoder(batch)
    encoded.pooled.retain_grad()
    objective(encoded, batch)["mlm"].backward()
    assert encoded.pooled.grad.abs().amax(-1).min() > 0
    (lower,) = objective._lower
    assert all(weights.grad is None for weights in lower.parameters())
    assert len(objective.upper.model.encoder.layer) == 2
    assert not [name for name, _ in objective.named_parameters() if "embeddings" in name]
