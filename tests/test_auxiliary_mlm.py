"""SimCSE's auxiliary masked language modelling, against transformers, sentence by sentence."""

from dataclasses import replace

import pytest
import torch
import transformers
from helpers.tiny_models import SENTENCES, save_tiny_masked_lm
from torch.nn import functional as F

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder

WEIGHT = 0.1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_masked_lm(tmp_path_factory.mktemp("mlm") / "bert")


@pytest.fixture
def encoder(folder):
    found = SentenceEncoder.load(folder, pooler="cls", head="none", device="cpu")
    found.backbone.set_dropout(0.0)
    return found


def built(encoder, views=2, **settings):
    torch.manual_seed(0)
    return objectives.build(
        "simcse", settings, width=encoder.width, data_views=views, encoder=encoder
    )


def batch_of(encoder, views=2, examples=3):
    ids, _ = encoder.tokenizer.ids(SENTENCES, None)
    return pack((ids * 2)[: views * examples], views=views)


def scored(encoder, objective, batch):
    torch.manual_seed(7)
    prepared = objective.prepare(batch)
    return prepared, objective(encoder(prepared, objective.layers), prepared)


@pytest.mark.parametrize("views", [2, 3])
def test_the_term_is_the_mean_over_the_masked_tokens_of_every_view(encoder, folder, views):
    batch = batch_of(encoder, views)
    objective = built(encoder, views, mlm_weight=WEIGHT, mlm_mask_rate=0.4)
    prepared, terms = scored(encoder, objective, batch)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    losses, right = [], []
    count, tokens = batch.sentences, len(batch.token_ids)
    hidden = prepared.token_ids[tokens:]
    chosen = prepared.masked.chosen
    for s in range(count):
        part = slice(int(batch.offsets[s]), int(batch.offsets[s + 1]))
        logits = model(input_ids=hidden[part].unsqueeze(0)).logits[0]
        for place in chosen[part].nonzero().flatten().tolist():
            wanted = batch.token_ids[part][place]
            losses.append(F.cross_entropy(logits[place], wanted).item())
            right.append(float(logits[place].argmax() == wanted))
    assert losses
    assert terms["mlm"].item() == pytest.approx(WEIGHT * sum(losses) / len(losses), rel=1e-5)
    assert terms.measures["mlm_accuracy"].item() == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("exclude", [True, False])
def test_the_contrast_is_that_of_the_unmasked_views(encoder, exclude):
    batch = batch_of(encoder, examples=7)  # every sentence twice
    plain = built(encoder, exclude_duplicates=exclude)
    both = built(encoder, exclude_duplicates=exclude, mlm_weight=WEIGHT)
    both.head.load_state_dict(plain.head.state_dict())
    expected = plain(encoder(batch), batch)["contrast"]
    prepared, terms = scored(encoder, both, batch)
    assert prepared.views == 4
    torch.testing.assert_close(terms["contrast"], expected)


def test_masked_views_are_contrasted_with_the_same_tokens_hidden(encoder):
    """As the code behind the published numbers did, by masking its input in place."""
    batch = batch_of(encoder)
    plain = built(encoder, mlm_weight=WEIGHT, mlm_mask_rate=0.4)
    masked = built(encoder, mlm_weight=WEIGHT, mlm_mask_rate=0.4, mlm_views="masked")
    (before, usual), (after, terms) = (scored(encoder, it, batch) for it in (plain, masked))
    tokens = len(batch.token_ids)
    assert torch.equal(before.token_ids[:tokens], batch.token_ids)
    assert torch.equal(after.token_ids[:tokens], after.token_ids[tokens:])
    assert torch.equal(after.token_ids[tokens:], before.token_ids[tokens:])
    torch.testing.assert_close(terms["mlm"], usual["mlm"])
    hidden = pack(
        [row.tolist() for row in after.token_ids[:tokens].split(batch.lengths.tolist())], 2
    )
    alone = built(encoder)(encoder(hidden), replace(hidden, duplicate_of=batch.same_text()))
    torch.testing.assert_close(terms["contrast"], alone["contrast"])
