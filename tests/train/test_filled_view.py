"""The view ``mlm``: what the generator wrote, where it may, and which generators are refused."""

import dataclasses
import json

import pytest
import torch
from helpers.command_line import refused
from helpers.tiny_models import SENTENCES, save_tiny_masked_lm

from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.settings import ViewSettings
from contrasent.training.masked_text import MlmView
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


def test_both_sides_change_each_in_its_own_way(encoder):
    batch = batch_of(encoder)
    found = filled(encoder, batch, share=0.5, sides="both")
    anchor, positive = found.token_ids.view(2, -1)
    original = batch.token_ids.view(2, -1)[0]
    assert not torch.equal(anchor, original)
    assert not torch.equal(positive, original)
    assert not torch.equal(anchor, positive)


def test_what_was_known_of_the_old_texts_is_found_anew_and_the_rest_is_kept(encoder):
    batch = batch_of(encoder)
    batch = dataclasses.replace(batch, duplicate_of=batch.same_text())
    assert torch.equal(*batch.duplicate_of.view(2, -1))
    found = filled(encoder, batch, share=0.5)
    assert not torch.equal(*found.same_text().view(2, -1))
    assert (found.views, found.longest) == (batch.views, batch.longest)
    assert torch.equal(found.next_sentences.token_ids, batch.next_sentences.token_ids)


def test_the_share_is_15_percent_if_nobody_says(encoder):
    view = MlmView.of(ViewSettings(name="mlm"), encoder)
    assert (view.share, view.both) == (0.15, False)
    assert MlmView.of(ViewSettings(name="crop"), encoder) is None


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


def command(encoder, text, output, *words):
    return (
        *("train", "unsup-simcse", "--encoder", encoder, "--data", text, "--output", output),
        *("--evaluation.task", "none", "--view.name", "mlm", *words),
    )


def test_generators_that_cannot_be_are_refused(tmp_path, tiny_bert, text_file, masked_lm):
    said = refused(*command(tiny_bert, text_file, tmp_path / "run"))
    assert said.startswith("view.name mlm needs a masked language model: ")
    assert "has no masked-LM head" in said
    other = save_tiny_masked_lm(tmp_path / "roberta", "roberta")
    said = refused(*command(masked_lm, text_file, tmp_path / "run", "--view.generator", other))
    assert "has another vocabulary than the encoder" in said
    said = refused(*command(masked_lm, text_file, tmp_path / "run", "--view.generator", "nowhere"))
    assert "'nowhere' is not a local folder" in said
    assert not (tmp_path / "run").exists()


def test_sentences_longer_than_the_generator_has_positions_for_are_refused(
    tmp_path, text_file, masked_lm
):
    short = save_tiny_masked_lm(tmp_path / "short", limit=16)
    words = ("--view.generator", short, "--data.max_tokens", "17")
    said = refused(*command(masked_lm, text_file, tmp_path / "run", *words))
    assert "max_tokens is 17, but the generator of view mlm takes at most 16 tokens; lower" in said
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path, text_file):
    folder = save_tiny_masked_lm(tmp_path / "it")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("[MASK]", "[HIDE]"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = refused(*command(folder, text_file, tmp_path / "run"))
    assert said.startswith("this tokenizer has no mask token, so no token can be hidden")
