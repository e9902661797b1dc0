"""What is saved is read back as it was, and an existing folder is replaced whole or not at all."""

import numpy as np
import pytest
import torch
from helpers.tiny_models import SENTENCES, save_tiny, shaken
from safetensors import safe_open

from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead


def vectors(encoder):
    return encoder.encode(SENTENCES, precision="fp32")


def with_head(encoder):
    encoder.head = shaken(MlpHead(16))
    return encoder


@pytest.mark.parametrize("pooler", ["mean_top2", "mean_first_last", "mean_embed_last"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_shallow_encoder_keeps_its_poolers_name(depth, pooler, tmp_path):
    folder = save_tiny(tmp_path / "plain", num_hidden_layers=depth)
    encoder = SentenceEncoder.load(folder, pooler=pooler, head="none")
    encoder.save(tmp_path / "saved")
    again = SentenceEncoder.load(tmp_path / "saved")
    assert again.pooler == pooler
    assert np.array_equal(vectors(again), vectors(encoder))


def test_a_folder_is_what_the_ecosystem_reads(tiny_encoder, tmp_path):
    with_head(tiny_encoder).save(tmp_path / "saved")
    files = {str(f.relative_to(tmp_path / "saved")) for f in (tmp_path / "saved").rglob("*.*")}
    settings = ("modules", "config", "contrasent", "sentence_bert_config", "tokenizer")
    settings += ("tokenizer_config", "config_sentence_transformers", "1_Pooling/config")
    weights = {"model.safetensors", "2_Dense/model.safetensors", "2_Dense/config.json"}
    assert files == {"README.md", *weights, *(f"{name}.json" for name in settings)}
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    unused = {"pooler.dense.weight", "pooler.dense.bias"}  # which others would draw at random
    assert names == unused | set(tiny_encoder.backbone.model.state_dict())


def test_saving_replaces_nothing_but_an_encoder(tiny_encoder, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match=r"exists already; without a contrasent\.json"):
        tiny_encoder.save(tmp_path)
    assert [it.name for it in tmp_path.iterdir()] == ["mine.txt"]


def test_a_fingerprint_tells_encoders_apart(tiny_encoder, tiny_roberta):
    first = tiny_encoder.fingerprint()
    assert first == tiny_encoder.fingerprint()
    seen = {first, SentenceEncoder.load(tiny_roberta, pooler="cls", head="none").fingerprint()}
    for name, value in (("normalize", True), ("max_tokens", 10)):
        old = getattr(tiny_encoder, name)
        setattr(tiny_encoder, name, value)
        seen.add(tiny_encoder.fingerprint())
        setattr(tiny_encoder, name, old)
    with_head(tiny_encoder)
    seen.add(tiny_encoder.fingerprint())
    with torch.no_grad():
        tiny_encoder.head.linear.bias[0] += 1e-6
    seen.add(tiny_encoder.fingerprint())
    assert len(seen) == 6


def test_weights_stored_in_half_precision_are_loaded_in_fp32(tiny_encoder, tmp_path):
    tiny_encoder.backbone.model.half()
    tiny_encoder.save(tmp_path / "saved")
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as stored:
        assert stored.get_tensor("embeddings.LayerNorm.weight").dtype == torch.float16
    encoder = SentenceEncoder.load(tmp_path / "saved")
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    assert vectors(encoder).dtype == np.float32


def test_a_plain_folder_says_what_it_is_taken_for(tiny_bert):
    with pytest.warns(UserWarning, match="taking pooler 'cls' with head 'none'") as caught:
        encoder = SentenceEncoder.load(tiny_bert, device="cpu")
    assert caught[0].filename == __file__
    assert (encoder.pooler, encoder.head) == ("cls", None)
    with pytest.warns(UserWarning, match="taking pooler 'mean' with head 'none'"):
        SentenceEncoder.load(tiny_bert, pooler="mean", device="cpu")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pooler": []}', '"cls"', "\ufffd{"])
def test_a_damaged_contrasent_json_is_named(content, tiny_encoder, tmp_path):
    tiny_encoder.save(tmp_path / "saved")
    (tmp_path / "saved" / "contrasent.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"contrasent\.json( is damaged|:)"):
        SentenceEncoder.load(tmp_path / "saved")
