"""AutoBackbone: other architectures give what transformers gives, and survive saving."""

import numpy as np
import pytest
import torch
import transformers
from helpers import tiny_models
from helpers.padded import gradients, ids_of, packed_states, padded_states
from helpers.tiny_models import OTHERS, SENTENCES, SIZES, transformer, word_piece

from contrasent.data.batch import pack
from contrasent.data.tokenizer import UNBOUNDED
from contrasent.errors import ConfigError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.weights import load_backbone

LIMIT = 64
KINDS = {
    "t5": (
        transformers.T5Config,
        {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
    ),
    "causal_bert": (transformers.BertConfig, {"is_decoder": True}),
    "ibert": (transformers.IBertConfig, {"pad_token_id": 1, "max_position_embeddings": LIMIT + 2}),
    "funnel": (
        transformers.FunnelConfig,
        {"block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24},
    ),
    "nystromformer": (
        transformers.NystromformerConfig,
        {"segment_means_seq_len": 32, "num_landmarks": 8},
    ),
    "xmod": (transformers.XmodConfig, {"languages": ["en", "de"]}),
    "vit": (transformers.ViTConfig, {"image_size": 32, "patch_size": 16}),
    "canine": (transformers.CanineConfig, {"num_hash_buckets": 50}),
    "xlnet": (transformers.XLNetConfig, {"d_model": 16, "n_layer": 2, "n_head": 2}),
}
CHANGES = {"deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}}
CHANGES["deberta-v2"]["position_biased_input"] = False
OWN_SIZES = ("t5", "funnel", "xlnet")  # under names of their own


def config_of(name, vocabulary=60):
    """The configuration of a tiny model of an architecture."""
    if name in OTHERS:
        return tiny_models.config_of(name, vocabulary, LIMIT, **CHANGES.get(name, {}))
    kind, settings = KINDS[name]
    sizes = {**SIZES, "max_position_embeddings": LIMIT}
    if name in OWN_SIZES:
        sizes = {}
    if name not in ("vit", "canine"):
        sizes["vocab_size"] = vocabulary
    return kind(**{**sizes, **settings})


@pytest.fixture(scope="module", params=["albert", "deberta-v2", "t5", "causal_bert"])
def folder(request, tmp_path_factory):
    """A plain Hugging Face folder of an architecture that PackedBert does not compute."""
    folder = tmp_path_factory.mktemp("auto") / request.param
    config = config_of(request.param, word_piece(folder, LIMIT, "PreTrainedTokenizerFast"))
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


@pytest.mark.parametrize("name", ["mpnet", "ibert"])
def test_a_longer_sentence_than_promised_has_no_position(name):
    backbone = AutoBackbone(transformer(config_of(name)))
    assert backbone.max_tokens == LIMIT
    backbone(pack(ids_of([LIMIT], 50)))
    kind = "a transformer of type '.*' cannot compute 1 sentences of up to 65 tokens: index out of"
    with pytest.raises(ConfigError, match=kind):
        backbone(pack(ids_of([LIMIT + 1], 50)))


@pytest.mark.parametrize("name", ["funnel", "nystromformer", "xmod", "vit", "canine"])
def test_an_architecture_that_cannot_compute_a_few_tokens_is_named_on_load(name, tmp_path):
    is_funnel = name == "funnel"
    make = transformers.FunnelBaseModel if is_funnel else transformers.AutoModel.from_config
    make(config_of(name, word_piece(tmp_path, LIMIT, "PreTrainedTokenizerFast"))).save_pretrained(
        tmp_path
    )
    with pytest.raises(ConfigError, match=f"a transformer of type '{name}' cannot"):
        load_backbone(tmp_path)
    if is_funnel:  # with its decoder it gives a state for every token
        transformers.FunnelModel(config_of(name)).save_pretrained(tmp_path)
        assert load_backbone(tmp_path).width == 16


@pytest.mark.parametrize("pooler", ["cls", "mean_first_last"])
def test_saved_and_loaded_it_embeds_the_same(folder, pooler, tmp_path):
    encoder = SentenceEncoder.load(folder, pooler=pooler, head="none", device="cpu")
    rows = encoder.encode(SENTENCES, precision="fp32")
    encoder.save(tmp_path / "saved")
    loaded = SentenceEncoder.load(tmp_path / "saved", device="cpu")
    assert (loaded.pooler, loaded.max_tokens) == (pooler, encoder.max_tokens)
    assert loaded.fingerprint() == encoder.fingerprint()
    assert np.array_equal(loaded.encode(SENTENCES, precision="fp32"), rows)


def test_a_model_without_a_limit_reads_any_length():
    backbone = AutoBackbone(transformer(config_of("xlnet")))
    assert backbone.max_tokens == UNBOUNDED
    assert backbone(pack(ids_of([100, 3], 50)))[-1].isfinite().all()
