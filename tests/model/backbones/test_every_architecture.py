"""Every architecture with unusual but valid configurations, beside transformers' own vectors."""

import json

import numpy as np
import pytest
import torch
import transformers
from helpers.tiny_models import SENTENCES, byte_level, transformer, unigram, word_piece

from contrasent.data.batch import pack
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.weights import backbone_of

pytestmark = pytest.mark.acceptance

BAR = 1e-5
LIMIT, VOCABULARY = 40, 300
LENGTHS = [1, 2, 3, 17, LIMIT, 5, 1, 9]
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": LIMIT, "hidden_size": 16}
SIZES |= {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
BERT = [
    {},
    {"pad_token_id": 1},
    {"pad_token_id": 2},
    {"pad_token_id": VOCABULARY - 1},
    {"hidden_act": "relu", "layer_norm_eps": 1e-3},
    {"hidden_act": "gelu_new", "type_vocab_size": 1},
    {"hidden_act": "silu", "num_attention_heads": 1, "num_hidden_layers": 1},
    {"hidden_size": 20, "num_attention_heads": 4, "initializer_range": 0.2},
]
# Rows for so many tokens, whatever token stands for padding, and whatever it does to positions.
MORE = {"max_position_embeddings": VOCABULARY + LIMIT + 1}
ROBERTA = [MORE | it for it in [{"pad_token_id": 0}, {"pad_token_id": 5}, *BERT]]
DISTILBERT = [
    {},
    {"pad_token_id": 3},
    {"activation": "relu", "sinusoidal_pos_embds": True},
    {"n_heads": 1, "n_layers": 1},
]
MPNET = [*ROBERTA, MORE | {"relative_attention_num_buckets": 128}]
ELECTRA = [{"embedding_size": size} | it for size, it in zip((8, 16, 24, 8) * 2, BERT, strict=True)]
LOCAL = "sliding_attention"
MODERNBERT = [
    {},
    *({"local_attention": window} for window in (2, 3, 6, 2 * LIMIT)),
    {"layer_types": [LOCAL] * 3, "local_attention": 4},
    {"layer_types": ["full_attention"] * 3},
    {"layer_types": [LOCAL, LOCAL, "full_attention"], "local_attention": 4, "norm_eps": 1e-2},
    {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "hidden_activation": "silu"},
    {"global_rope_theta": 500.0, "local_rope_theta": 10.0, "num_attention_heads": 4},
    {"pad_token_id": VOCABULARY - 1, "num_hidden_layers": 1},
]
T = transformers
PACKED = {
    "bert": (T.BertConfig, SIZES, BERT),
    "camembert": (T.CamembertConfig, SIZES, ROBERTA),
    "distilbert": (T.DistilBertConfig, {**SIZES, "hidden_dim": 24}, DISTILBERT),
    "electra": (T.ElectraConfig, SIZES, ELECTRA),
    "modernbert": (T.ModernBertConfig, {**SIZES, "pad_token_id": 0}, MODERNBERT),
    "mpnet": (T.MPNetConfig, SIZES, MPNET),
    "roberta": (T.RobertaConfig, SIZES, ROBERTA),
    "xlm-roberta": (T.XLMRobertaConfig, SIZES, ROBERTA),
}
COUNTED = {**SIZES, "pad_token_id": 1, "max_position_embeddings": LIMIT + 2}
GENERIC = {
    "albert": (T.AlbertConfig, {**SIZES, "embedding_size": 8}),
    "big-bird": (T.BigBirdConfig, {**SIZES, "attention_type": "original_full"}),
    "clip": (T.CLIPTextConfig, {**SIZES, "eos_token_id": 3}),
    "convbert": (T.ConvBertConfig, {**SIZES, "embedding_size": 16, "head_ratio": 1}),
    "ctrl": (T.CTRLConfig, SIZES | {"n_embd": 16, "n_head": 2, "n_layer": 3, "dff": 24}),
    "data2vec": (T.Data2VecTextConfig, COUNTED),
    "deberta": (T.DebertaConfig, SIZES),
    "deberta-v2": (T.DebertaV2Config, {**SIZES, "relative_attention": True}),
    "ernie": (T.ErnieConfig, SIZES),
    "esm": (T.EsmConfig, COUNTED),
    "flaubert": (T.FlaubertConfig, {**SIZES, "emb_dim": 16, "n_layers": 3, "n_heads": 2}),
    "fnet": (T.FNetConfig, {k: v for k, v in SIZES.items() if k != "num_attention_heads"}),
    "gemma2": (T.Gemma2Config, {**SIZES, "num_key_value_heads": 1, "head_dim": 8}),
    "gpt2": (T.GPT2Config, {**SIZES, "n_positions": LIMIT}),
    "ibert": (T.IBertConfig, COUNTED),
    "longformer": (T.LongformerConfig, {**COUNTED, "attention_window": 4}),
    "megatron": (T.MegatronBertConfig, SIZES),
    "mobilebert": (T.MobileBertConfig, {**SIZES, "intra_bottleneck_size": 8}),
    "mra": (T.MraConfig, COUNTED),
    "nystromformer": (T.NystromformerConfig, SIZES),
    "qwen2": (T.Qwen2Config, {**SIZES, "num_key_value_heads": 1}),
    "qwen3": (T.Qwen3Config, {**SIZES, "num_key_value_heads": 1, "head_dim": 8}),
    "rembert": (T.RemBertConfig, {**SIZES, "input_embedding_size": 8}),
    "roberta-prelayernorm": (T.RobertaPreLayerNormConfig, COUNTED),
    "roformer": (T.RoFormerConfig, SIZES),
    "squeezebert": (T.SqueezeBertConfig, {**SIZES, "embedding_size": 16}),
    "t5": (T.T5Config, {**SIZES, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}),
    "xlm": (T.XLMConfig, {**SIZES, "emb_dim": 16, "n_layers": 3, "n_heads": 2}),
    "xlm-roberta-xl": (T.XLMRobertaXLConfig, COUNTED),
    "xlnet": (T.XLNetConfig, {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 3, "n_head": 2}),
    "xmod": (T.XmodConfig, {**COUNTED, "languages": ["en"], "default_language": "en"}),
    "yoso": (T.YosoConfig, COUNTED),
}
CASES = [
    pytest.param(kind(**{**sizes, **changes}), id=f"{name}-{number}")
    for name, (kind, sizes, variants) in PACKED.items()
    for number, changes in enumerate(variants)
] + [pytest.param(kind(**sizes), id=name) for name, (kind, sizes) in GENERIC.items()]


def ids_with_specials():
    """Sentences of many lengths in which any of the low ids, and the last, may stand anywhere."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in LENGTHS]
    for ids in drawn:
        low = torch.rand(len(ids), generator=generator) < 0.4
        ids[low] = torch.tensor([0, 1, 2, 3, 5, VOCABULARY - 1])[ids[low] % 6]
    return [ids.tolist() for ids in drawn]


def made(config):
    is_encoder_half = type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    kind = T.AutoModelForTextEncoding if is_encoder_half else T.AutoModel
    return transformer(config, kind=kind)


@pytest.mark.parametrize("config", CASES)
def test_states_are_those_of_transformers(config):
    model, sentences = made(config), ids_with_specials()
    backbone = backbone_of(model).eval()
    with torch.no_grad():
        states = backbone(pack(sentences), range(backbone.depth + 1))
        rows = {n: state.split(LENGTHS) for n, state in states.items()}
        firsts = backbone(pack(sentences), first_only=True)[-1]
        firsts = firsts if len(firsts) == len(sentences) else firsts[pack(sentences).offsets[:-1]]
        for number, ids in enumerate(sentences):
            mask = torch.ones(1, len(ids), dtype=torch.int64)
            given = {"input_ids": torch.tensor([ids]), "attention_mask": mask}
            expected = model(**given, output_hidden_states=True)
            wanted = dict(enumerate(expected.hidden_states[: backbone.depth]))
            wanted[backbone.depth] = expected.last_hidden_state
            off = [(rows[n][number] - state[0]).abs().max() for n, state in wanted.items()]
            off.append((firsts[number] - expected.last_hidden_state[0, 0]).abs().max())
            assert max(off) <= BAR * max(1.0, float(expected.last_hidden_state.abs().max()))


KINDS = {"roberta": byte_level, "xlm-roberta": unigram, "camembert": unigram}
PAIRS = [
    pytest.param(
        ("cls", "mean")[number % 2], name, kind, {**sizes, **changes}, id=f"{name}-{number}"
    )
    for name, (kind, sizes, variants) in PACKED.items()
    for number, changes in enumerate(variants)
]
TEXTS = [
    *SENTENCES,
    "",
    "[PAD] a dog <pad> runs [MASK]",
    "[CLS] [SEP] horse </s> <s> <mask>",
    "<pad>",
    "[PAD] [PAD] <pad> <pad> dog",
    "[UNK] <unk> the [MASK] reads [SEP] a bird",
    "big dog " * LIMIT,
    "<pad> [PAD] " * LIMIT,
]


@pytest.mark.filterwarnings("ignore:.* have no word:UserWarning")
@pytest.mark.parametrize(("pooling", "name", "kind", "sizes"), PAIRS)
def test_vectors_are_those_of_sentence_transformers(pooling, name, kind, sizes, tmp_path):
    """With special tokens written in the text, and texts above the limit."""
    st = pytest.importorskip("sentence_transformers")
    tokenizer = KINDS.get(name, word_piece)
    tokenizer(tmp_path, LIMIT, "PreTrainedTokenizerFast")
    made(kind(**sizes)).save_pretrained(tmp_path)
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LIMIT}))
    (tmp_path / "1_Pooling").mkdir()
    pooler = {"word_embedding_dimension": 16, "pooling_mode": pooling}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooler))
    theirs = st.SentenceTransformer(str(tmp_path), device="cpu")
    expected = np.concatenate([theirs.encode([text]) for text in TEXTS])
    encoder = SentenceEncoder(tmp_path, device="cpu")
    assert not isinstance(encoder.backbone, AutoBackbone)
    how = {"precision": "fp32", "on_overflow": "truncate"}
    found = encoder.encode(TEXTS, **how)
    alone = np.concatenate([encoder.encode([it], **how) for it in TEXTS])
    with encoder.serving():
        served = np.concatenate([encoder.encode([it], **how) for it in TEXTS])
    for rows in (found, alone, served):
        assert np.abs(rows - expected).max() <= BAR
