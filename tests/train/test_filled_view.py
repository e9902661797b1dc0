"""The view ``mlm``: what the generator wrote, where it may, and which generators are refused."""

import dataclasses

import pytest
import torch
from helpers.tiny_models import SENTENCES, save_tiny_masked_lm

from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.settings import ViewSettings
from contrasent.training.embedding import MlmView
from contrasent.training.run import train


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    return save_tiny_masked_lm(tmp_path_factory.mktemp("mlm") / "bert")


@pytest.fixture
def encoder(masked_lm):
    return SentenceEncoder.load(masked_lm, pooler="cls", head="none", device="cpu")


def batch_of(encoder, views=2):
    ids, _ = encoder.tokenizer.ids(SENTENCES, None)
    following = pack(ids)
    return dataclasses.replace(pack(ids * views, views=views), next_sentences=following)


def filled(encoder, batch, seed=0, **settings):
    view = MlmView.of(ViewSettings(name="mlm", **settings), encoder)
    torch.manual_seed(seed)
    return view(batch)


@pytest.mark.parametrize("views", [2, 3])
def test_the_anchor_stays_and_about_a_share_of_the_other_views_changes(encoder, views):
    batch = batch_of(encoder, views)
    anchor = len(batch.token_ids) // views
    changed = torch.zeros(len(batch.token_ids))
    view = MlmView.of(ViewSettings(name="mlm", share=0.3), encoder)
    torch.manual_seed(0)
    rounds = 100
    for _ in range(rounds):
        found = view(batch)
        assert torch.equal(found.offsets, batch.offsets)
        changed += found.token_ids != batch.token_ids
    special = torch.isin(batch.token_ids, torch.tensor(encoder.tokenizer.special_ids.every))
    assert not changed[:anchor].any()
    assert not changed[special].any()
    # An untrained generator seldom draws the original token.
    share = changed[anchor:][~special[anchor:]].mean().item() / rounds
    assert 0.25 < share < 0.32


def test_a_run_with_it_is_repeated_by_its_seed_and_differs_from_dropout(
    recipe, tmp_path, masked_lm
):
    def ran(folder, **settings):
        made = recipe(encoder__name=str(masked_lm), evaluation__task="none", **settings)
        train(made, tmp_path / folder)
        return (tmp_path / folder / "last" / "model.safetensors").read_bytes()

    first = ran("first", view__name="mlm")
    assert first == ran("again", view__name="mlm", view__generator=str(masked_lm))
    assert first != ran("dropout")
