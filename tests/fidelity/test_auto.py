"""AutoBackbone: other architectures give what transformers gives, and survive saving."""

import numpy as np
import pytest
import torch
import transformers
from helpers.padded import gradients, ids_of, packed_states, padded_states
from helpers.tiny_models import SENTENCES, SIZES, transformer, word_piece

from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.backbones.base import UNBOUNDED
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.weights import load_backbone

LIMIT = 64


def mpnet(vocabulary):
    return transformers.MPNetConfig(
        vocab_size=vocabulary, max_position_embeddings=LIMIT + 2, pad_token_id=1, **SIZES
    )


def albert(vocabulary):
    return transformers.AlbertConfig(
        vocab_size=vocabulary, max_position_embeddings=LIMIT, embedding_size=8, **SIZES
    )


def deberta_v2(vocabulary):
    return transformers.DebertaV2Config(
        vocab_size=vocabulary,
        max_position_embeddings=LIMIT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        **SIZES,
    )


def t5(vocabulary):
    return transformers.T5Config(
        vocab_size=vocabulary, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2
    )


def causal_bert(vocabulary):
    return transformers.BertConfig(
        vocab_size=vocabulary, max_position_embeddings=LIMIT, is_decoder=True, **SIZES
    )


CONFIGS = {config.__name__: config for config in (albert, deberta_v2, t5, causal_bert)}


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request, tmp_path_factory):
    """A plain Hugging Face folder of an architecture that PackedBert does not compute."""
    folder = tmp_path_factory.mktemp("auto") / request.param
    config = CONFIGS[request.param](word_piece(folder, LIMIT, "PreTrainedTokenizerFast"))
    kind = (
        transformers.AutoModelForTextEncoding if request.param == "t5" else transformers.AutoModel
    )
    transformer(config, kind=kind).save_pretrained(folder)
    return folder


@pytest.fixture
def backbone(folder):
    return load_backbone(folder)


def test_states_and_gradients_are_those_of_transformers(backbone):
    assert isinstance(backbone, AutoBackbone)
    backbone.eval()
    sentences = ids_of([6, 1, 30, 64, 2], 50)
    expected = padded_states(backbone.model, sentences)
    states = packed_states(backbone, sentences)
    last = len(expected) - 1
    assert last == backbone.depth == 2
    for layer, (mine, theirs) in enumerate(zip(states, expected, strict=True)):
        assert mine.shape == (103, backbone.width)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5, msg=f"layer {layer}")
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(state.shape, generator=generator) for state in states]
    wanted = gradients(backbone.model, expected, weights)
    for name, gradient in gradients(backbone.model, states, weights).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-5, msg=name)


def test_the_longest_sentence_it_promises_can_be_computed(backbone):
    backbone.eval()
    longest = min(backbone.max_tokens, 100)
    state = backbone(pack(ids_of([longest], 50)), [-1])[-1]
    assert state.isfinite().all()


def ibert(vocabulary):
    return transformers.IBertConfig(
        vocab_size=vocabulary, max_position_embeddings=LIMIT + 2, pad_token_id=1, **SIZES
    )


@pytest.mark.parametrize("config", [mpnet, ibert])
def test_a_longer_sentence_than_promised_has_no_position(config):
    backbone = AutoBackbone(transformer(config(60)))
    assert backbone.max_tokens == LIMIT
    backbone(pack(ids_of([LIMIT], 50)))
    kind = "a transformer of type '.*' cannot compute 1 sentences of up to 65 tokens: index out of"
    with pytest.raises(ConfigError, match=kind):
        backbone(pack(ids_of([LIMIT + 1], 50)))


def funnel(vocabulary):
    sizes = {"block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24}
    return transformers.FunnelConfig(vocab_size=vocabulary, **sizes)


def nystromformer(vocabulary):
    sizes = {"segment_means_seq_len": 32, "num_landmarks": 8}
    return transformers.NystromformerConfig(vocab_size=vocabulary, **SIZES, **sizes)


def xmod(vocabulary):
    return transformers.XmodConfig(vocab_size=vocabulary, languages=["en", "de"], **SIZES)


def vit(_):
    return transformers.ViTConfig(**SIZES, image_size=32, patch_size=16)


def canine(_):
    return transformers.CanineConfig(**SIZES, num_hash_buckets=50)


@pytest.mark.parametrize("config", [funnel, nystromformer, xmod, vit, canine])
def test_an_architecture_that_cannot_compute_a_few_tokens_is_named_on_load(config, tmp_path):
    is_funnel = config is funnel
    make = transformers.FunnelBaseModel if is_funnel else transformers.AutoModel.from_config
    make(config(word_piece(tmp_path, LIMIT, "PreTrainedTokenizerFast"))).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"a transformer of type '{config.__name__}' cannot"):
        load_backbone(tmp_path)
    if is_funnel:  # with its decoder it gives a state for every token
        transformers.FunnelModel(config(60)).save_pretrained(tmp_path)
        assert load_backbone(tmp_path).width == 16


@pytest.mark.parametrize("pooler", ["cls", "mean", "mean_top2", "mean_first_last"])
def test_saved_and_loaded_it_embeds_the_same(folder, pooler, tmp_path):
    encoder = SentenceEncoder.load(folder, pooler=pooler, head="none", device="cpu")
    rows = encoder.encode(SENTENCES, precision="fp32")
    encoder.save(tmp_path / "saved")
    loaded = SentenceEncoder.load(tmp_path / "saved", device="cpu")
    assert (loaded.pooler, loaded.max_tokens) == (pooler, encoder.max_tokens)
    assert loaded.fingerprint() == encoder.fingerprint()
    assert np.array_equal(loaded.encode(SENTENCES, precision="fp32"), rows)


def convbert(vocabulary):
    sizes = {"embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3, **SIZES}
    return transformers.ConvBertConfig(vocab_size=vocabulary, **sizes)


def fnet(vocabulary):
    sizes = {name: size for name, size in SIZES.items() if name != "num_attention_heads"}
    return transformers.FNetConfig(vocab_size=vocabulary, **sizes)


def big_bird(vocabulary):
    return transformers.BigBirdConfig(
        vocab_size=vocabulary, block_size=4, num_random_blocks=1, **SIZES
    )


def full_big_bird(vocabulary):
    return transformers.BigBirdConfig(
        vocab_size=vocabulary, attention_type="original_full", **SIZES
    )


def xlnet(vocabulary):
    return transformers.XLNetConfig(vocab_size=vocabulary, d_model=16, n_layer=2, n_head=2)


def test_a_model_without_a_limit_reads_any_length():
    backbone = AutoBackbone(transformer(xlnet(60)))
    assert backbone.max_tokens == UNBOUNDED
    assert backbone(pack(ids_of([100, 3], 50)))[-1].isfinite().all()


@pytest.mark.parametrize("config", [convbert, fnet, big_bird, full_big_bird, albert])
def test_padding_changes_no_state(config):
    backbone = AutoBackbone(transformer(config(60)))
    sentences = ids_of([5, 40, 1, 5, 17], 50)
    for layers, first_only in (([0, -1], False), ([-1], True)):
        together = backbone(pack(sentences), layers, first_only=first_only)
        alone = [backbone(pack([each]), layers, first_only=first_only) for each in sentences]
        for layer in layers:
            expected = torch.cat([states[layer] for states in alone])
            torch.testing.assert_close(together[layer], expected, rtol=0, atol=1e-5)
    assert backbone._padding_counts == (config in (convbert, fnet, big_bird))
