"""DeCLUTR: its loss against loops, means of positives, and masked anchors."""

import pytest
import torch
from helpers import oracles
from transformers import AutoModelForMaskedLM

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded

LONG = [2, *range(10, 30), 3]


@pytest.fixture
def encoder(tiny_masked_lm):
    return SentenceEncoder.load(tiny_masked_lm, pooler="mean", head="none", device="cpu")


def built(encoder=None, **settings):
    return objectives.build("declutr", settings, width=16, data_views=1, encoder=encoder)


def batch_of(examples, views):
    rows = [[2, 10 + k % 20, 11 + k % 7, 12 + k % 13, 3] for k in range(examples * views)]
    return pack(rows, views)


@pytest.mark.parametrize(("anchors", "positives"), [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_the_loss_and_its_gradients_are_those_of_the_formula(anchors, positives, rng):
    """Anchor a of document b is row (a, b); its positives are the views behind the anchors."""
    objective = built(anchors=anchors, positives=positives, mlm_weight=0.0, temperature=0.2)
    views, documents = anchors * (1 + positives), 3
    assert objective.views == views and objective.aligned == (anchors == 1)
    pooled = rng(views, documents, 6).requires_grad_()
    first, second = [], []
    for a in range(anchors):
        for b in range(documents):
            first.append(pooled[a, b])
            total = torch.zeros(6)
            for p in range(positives):
                total = total + pooled[anchors + a * positives + p, b]
            second.append(total / positives)
    expected = oracles.nt_xent(first, second, 0.2)
    terms = objective(Encoded(pooled, {}), batch_of(documents, views))
    assert terms.keys() == {"contrast"}
    torch.testing.assert_close(terms["contrast"], expected)
    oracles.equal_gradients(terms["contrast"], expected, [pooled])


def test_tokens_of_anchors_alone_are_hidden(encoder):
    objective, batch = built(encoder, mask_rate=0.5), pack([LONG] * 18, 6)
    torch.manual_seed(0)
    hidden = objective.prepare(batch)
    end = 2 * 3 * len(LONG)
    moved = hidden.token_ids != batch.token_ids
    assert moved[:end].view(6, -1).any(1).all() and not moved[end:].any()
    assert hidden.masked.chosen[:end].any() and not hidden.masked.chosen[end:].any()
    assert (hidden.views, hidden.examples) == (6, 3) and hidden.offsets.equal(batch.offsets)
    assert built(mlm_weight=0.0).prepare(batch) is batch


def test_the_masked_lm_term_is_cross_entropy_at_the_hidden_tokens(encoder, tiny_masked_lm):
    """By transformers' own masked language model, on each anchor alone."""
    objective, batch = built(encoder, mlm_weight=0.5, mask_rate=0.4), pack([LONG] * 12, 6)
    torch.manual_seed(0)
    hidden = objective.prepare(batch)
    encoded = encoder(hidden, objective.layers)
    terms = objective(encoded, hidden)
    model = AutoModelForMaskedLM.from_pretrained(tiny_masked_lm).eval()
    logits, targets = [], []
    for row in range(4):
        places = slice(row * len(LONG), (row + 1) * len(LONG))
        found = model(hidden.token_ids[places].unsqueeze(0)).logits[0]
        for place in hidden.masked.chosen[places].nonzero().flatten().tolist():
            logits.append(found[place])
            targets.append(LONG[place])
    expected = 0.5 * oracles.masked_cross_entropy(logits, targets)
    torch.testing.assert_close(terms["mlm"], expected, rtol=1e-4, atol=1e-5)
    plain = built(mlm_weight=0.0)(Encoded(encoded.pooled, {}), batch)
    torch.testing.assert_close(terms["contrast"], plain["contrast"])
    assert 0 <= terms.measures["mlm_accuracy"] <= 1
