"""Decoders, which may be made to see both sides, and what int8 would compute wrongly."""

import pytest
import torch
import transformers
from helpers.tiny_models import SIZES, transformer, word_piece

from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.int8 import Int8Bert
from contrasent.model.weights import backbone_of
from contrasent.settings import EncoderSettings
from contrasent.training.setup import start_encoder

ELECTRA = transformers.ElectraConfig(vocab_size=40, embedding_size=8, **SIZES)
MPNET = transformers.MPNetConfig(vocab_size=40, pad_token_id=1, **SIZES)


@pytest.mark.parametrize(("name", "config"), [("electra", ELECTRA), ("mpnet", MPNET)])
def test_int8_refuses_what_it_would_compute_wrongly(name, config):
    with pytest.raises(ConfigError, match=f"not '{name}'"):
        Int8Bert.from_backbone(backbone_of(transformer(config)))


@pytest.mark.parametrize(("is_causal", "padding"), [(True, -1), (False, 0)])
def test_a_decoder_sees_what_its_config_says(is_causal, padding):
    config = transformers.Qwen2Config(vocab_size=40, **SIZES, num_key_value_heads=1)
    config.is_causal, config.pad_token_id = is_causal, padding  # LLaMA's first says -1
    backbone = backbone_of(transformer(config)).eval()
    with torch.no_grad():
        first = backbone(pack([[5, 6, 7]]), (-1,))[-1][0]
        other = backbone(pack([[5, 6, 9], [4, 8]]), (-1,))[-1][0]
    assert torch.allclose(first, other, atol=1e-5) is is_causal


def test_a_decoder_is_made_to_see_both_sides_and_says_so_in_its_config():
    config = transformers.Qwen2Config(vocab_size=40, **SIZES, num_key_value_heads=1, pad_token_id=0)
    backbone = backbone_of(transformer(config)).eval()
    batches = [pack([[5, 6, 7]]), pack([[5, 6, 9], [4, 8]])]
    assert backbone.identity == ()
    with torch.no_grad():
        assert torch.allclose(*(backbone(it, (-1,))[-1][0] for it in batches), atol=1e-5)
        backbone.see_both_sides()
        alone, other = (backbone(it, (-1,))[-1][0] for it in batches)
        padded = backbone(pack([[5, 6, 7], [4, 8, 3, 2]]), (-1,))[-1][0]
    assert not torch.allclose(alone, other, atol=1e-5)
    assert torch.allclose(alone, padded, atol=1e-5)
    assert backbone.model.config.to_dict()["is_causal"] is False
    assert backbone.identity != ()  # the weights are equal, the vectors are not
    for seeing in (backbone, backbone_of(transformer(ELECTRA))):
        with pytest.raises(ConfigError, match="sees all of the sentence already"):
            seeing.see_both_sides()


def test_a_plain_decoder_is_pooled_by_the_token_that_sees_all(tmp_path):
    sizes = {**SIZES, "num_key_value_heads": 1, "pad_token_id": 0}
    config = transformers.Qwen2Config(vocab_size=word_piece(tmp_path) + 1, **sizes)
    transformer(config).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="taking pooler 'last' with head 'none'; pass"):
        encoder = SentenceEncoder(tmp_path, device="cpu")
    start = {"name": str(tmp_path)}
    assert encoder.pooler == start_encoder(EncoderSettings(**start)).pooler == "last"
    both_sided = start_encoder(EncoderSettings(**start, pooler="cls", bidirectional=True))
    assert both_sided.pooler == "cls"
    with pytest.raises(ConfigError, match=r"first token of .* sees no other; .* last"):
        start_encoder(EncoderSettings(**start, pooler="cls"))
