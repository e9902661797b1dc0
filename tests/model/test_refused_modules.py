"""sentence-transformers folders: what would give other vectors here is refused by name, all else
gives the same."""

import json

import numpy as np
import pytest
import torch
from helpers.tiny_models import SENTENCES, save_tiny
from safetensors.torch import save_file

from contrasent.errors import CheckpointError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import POOLERS, MlpHead

st = pytest.importorskip("sentence_transformers")

OWN, MODULES = "config_sentence_transformers.json", "modules.json"
TRANSFORMER = "sentence_bert_config.json"
POOLING, DENSE, NORMALIZE = (f"{it}/config.json" for it in ("1_Pooling", "2_Dense", "3_Normalize"))
USUAL = "sentence_embedding"
TEXTS = [*SENTENCES, "The Dog SITS", "the cat sits . the dog runs here and there and more"]


@pytest.fixture
def folder(tiny_encoder, tmp_path):
    """A sentence-transformers folder with a Dense and a Normalize."""
    tiny_encoder.head = MlpHead(16)
    tiny_encoder.normalize = True
    tiny_encoder.save(tmp_path / "saved")
    return tmp_path / "saved"


def change(path, **settings):
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **settings}))


def refused(folder, said):
    with pytest.raises(CheckpointError, match=said):
        SentenceEncoder.load(folder)


def modules_of(folder, *names):
    """Let the folder be made of these modules."""
    rows = json.loads((folder / MODULES).read_text())
    kept = {row["type"].rsplit(".", 1)[-1]: row for row in rows}
    new = [
        kept.get(name) or {"path": f"9_{name}", "type": f"sentence_transformers.models.{name}"}
        for name in names
    ]
    (folder / MODULES).write_text(json.dumps(new))


WRONG = [
    *(
        (TRANSFORMER, {name: value})
        for name, value in (
            ("processing_kwargs", {"text": {"add_special_tokens": False}}),
            ("tokenizer_args", {"truncation_side": "left"}),
            ("config_args", {"is_causal": False}),
            ("model_args", {"num_hidden_layers": 1}),
            ("transformer_task", "fill-mask"),
            ("module_output_name", USUAL),
            ("modality_config", {"text": {"method": "forward", "method_output_name": "pooled"}}),
            ("modality_config", {"message": {}}),
            ("tokenizer_name_or_path", "other"),
            ("max_seq_length", 0),
            ("document_length", -1),
            ("query_expansion", "fixed"),
            ("from_a_later_version", True),
        )
    ),
    (POOLING, {"include_prompt": False}),
    (NORMALIZE, {"module_input_name": "token_embeddings"}),
    (NORMALIZE, {"p": 1}),
    *(
        (DENSE, {name: value})
        for name, value in (
            ("activation_function", "torch.nn.modules.activation.ReLU"),
            ("activation_function", None),
            ("use_residual", True),
            ("module_input_name", "token_embeddings"),
            ("scale", 2),
        )
    ),
    (OWN, {"similarity_fn_name": "maxsim"}),
    (OWN, {"model_type": "SparseEncoder"}),
    (OWN, {"query_prefix": "[Q] "}),
]


@pytest.mark.parametrize(("file", "settings"), WRONG)
def test_a_setting_that_is_not_computed_is_refused_by_name(file, settings, folder):
    change(folder / file, **settings)
    ((name, value),) = settings.items()
    with pytest.raises(CheckpointError) as told:
        SentenceEncoder.load(folder)
    assert f"{folder / file} has {name}" in str(told.value)
    assert repr(value) in str(told.value) and "not computed here" in str(told.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompts": {"query": "q: "}, "default_prompt_name": "qury"}, "unknown prompt 'qury'"),
        ({"prompts": {"query": 3}}, r"prompts\.query 3"),
        ({"truncate_dim": 0}, "truncate_dim 0"),
    ],
)
def test_conventions_that_cannot_be(settings, said, folder):
    change(folder / OWN, **settings)
    refused(folder, f"{OWN}.*{said}")


EXPANSION = {"strategy": "fixed", "length": 12}
RIGHT = [
    (TRANSFORMER, {"query_length": 6, "document_length": 9}),
    (TRANSFORMER, {"query_expansion": EXPANSION}),
    (TRANSFORMER, {"query_expansion": {**EXPANSION, "attend": True}}),
    (TRANSFORMER, {"query_expansion": {**EXPANSION, "attend": True, "token": "dog"}}),
    (TRANSFORMER, {"query_expansion": {**EXPANSION, "strategy": "min", "attend": True}}),
    (TRANSFORMER, {"query_expansion": {**EXPANSION, "strategy": "min"}, "query_length": 14}),
    (TRANSFORMER, {"do_lower_case": True}),
    (TRANSFORMER, {"max_seq_length": 20, "tokenizer_args": {"model_max_length": 7}}),
    (TRANSFORMER, {"model_args": {"torch_dtype": "float32"}, "unpad_inputs": False}),
    (TRANSFORMER, {"max_seq_length": None, "processing_kwargs": {"image": {"size": 3}}}),
    (DENSE, {"activation_function": "torch.nn.Tanh", "module_output_name": None}),
    (NORMALIZE, {"module_input_name": USUAL}),
    (POOLING, {"include_prompt": True}),
    (OWN, {"model_type": "SentenceTransformer", "truncate_dim": 5, "similarity_fn_name": None}),
]


@pytest.mark.parametrize(
    ("file", "settings", "cased"),
    [*((*it, False) for it in RIGHT), (TRANSFORMER, {"do_lower_case": True}, True)],
)
@pytest.mark.filterwarnings("ignore")
def test_other_settings_give_the_vectors_of_sentence_transformers(file, settings, cased, tmp_path):
    encoder = SentenceEncoder(save_tiny(tmp_path / "plain"), pooler="mean", head="none")
    encoder.head, encoder.normalize = MlpHead(16), True
    encoder.save(tmp_path / "saved")
    if cased:
        change(tmp_path / "saved" / "tokenizer_config.json", do_lower_case=False)
    change(tmp_path / "saved" / file, **settings)
    encoder = SentenceEncoder(tmp_path / "saved", device="cpu")
    encoder.save(tmp_path / "again")
    again = SentenceEncoder(tmp_path / "again", device="cpu")
    for folder in (tmp_path / "saved", tmp_path / "again"):
        model = st.SentenceTransformer(str(folder), device="cpu")
        for call in ("encode", "encode_query", "encode_document"):
            wanted = getattr(model, call)(TEXTS)
            for ours in (encoder, again):
                rows = getattr(ours, call)(TEXTS, precision="fp32", on_overflow="truncate")
                np.testing.assert_allclose(rows, wanted, atol=2e-6)
    assert again.fingerprint() == encoder.fingerprint()


def test_a_dense_with_tanh_and_without_a_bias(folder):
    change(folder / DENSE, bias=False)
    weight = torch.randn(16, 16)
    save_file({"linear.weight": weight}, folder / "2_Dense/model.safetensors")
    ours = SentenceEncoder(folder, device="cpu").encode(TEXTS[:3], precision="fp32")
    theirs = st.SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:3])
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_dropout_does_nothing_and_modules_of_someone_else_are_refused(folder):
    before = SentenceEncoder.load(folder).encode(TEXTS)
    modules_of(folder, "Transformer", "Pooling", "Dropout", "Dense", "Normalize")
    assert np.array_equal(SentenceEncoder.load(folder).encode(TEXTS), before)
    text = (folder / MODULES).read_text()
    (folder / MODULES).write_text(
        text.replace("sentence_transformers.models.Pooling", "custom_st.Pooling")
    )
    refused(folder, "is made of Transformer, custom_st.Pooling")


@pytest.mark.parametrize(
    "names",
    [
        ("Transformer", "Pooling", "LayerNorm"),
        ("Transformer", "Pooling", "FittedTransform", "Dense"),
        ("Transformer", "Dense", "Pooling"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer", "WeightedLayerPooling", "CNN", "Pooling"),
        ("CNN", "Transformer", "Pooling"),
        ("BoW", "Dense"),
        ("WordEmbeddings", "Pooling"),
        ("Transformer",),
        ("Transformer", "Pooling", "Dense", "Dense"),
    ],
    ids=" ".join,
)
def test_modules_in_another_order_or_of_another_kind(names, folder):
    modules_of(folder, *names)
    found = [name.replace("Dense", "Dense with Tanh") for name in names]
    refused(folder, f"is made of {', '.join(found)}; only Transformer, Pooling")


@pytest.mark.parametrize("path", ["../outside", "/tmp", "link"])
def test_a_module_outside_the_folder(path, folder):
    (folder.parent / "outside").mkdir()
    (folder / "link").symlink_to(folder.parent / "outside")
    rows = json.loads((folder / MODULES).read_text())
    rows[1]["path"] = path
    (folder / MODULES).write_text(json.dumps(rows))
    refused(folder, f"names '{path}', which is no path inside that folder")


CLS, MEAN = "pooling_mode_cls_token", "pooling_mode_mean_tokens"


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({}, "mean"),
        ({CLS: False}, "mean"),
        ({"pooling_mode": "mean", MEAN: True, CLS: True}, "mean"),
        ({"pooling_mode": "sum"}, "sum"),
        ({"pooling_mode": ["cls", "mean"]}, r"cls \+ mean"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({CLS: True, MEAN: True}, r"cls \+ mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
    ],
)
def test_poolings_and_their_spellings(config, modes, folder):
    (folder / POOLING).write_text(json.dumps(config))
    if modes == "mean":
        assert SentenceEncoder.load(folder).pooler == "mean"
    else:
        refused(folder, f"pools by {modes} the layers .*, which is none of the poolers cls")


def test_layers_weighed_in_another_way(tiny_encoder, tmp_path):
    layered, tiny_encoder._pooler = tmp_path / "layered", POOLERS["mean_top2"]
    tiny_encoder.save(layered)
    path = layered / "1_WeightedLayerPooling"
    for weights in ([1.0, 2.0], [1.0], [0.0, 0.0], []):
        save_file({"layer_weights": torch.tensor(weights)}, path / "model.safetensors")
        refused(layered, "which is none of the poolers")
    change(layered / "2_Pooling" / "config.json", pooling_mode="cls")
    refused(layered, "pools by cls")


@pytest.mark.parametrize("name", [MODULES, POOLING, DENSE, OWN, TRANSFORMER])
def test_what_is_no_json_or_of_another_form_is_named(name, folder):
    for content in ("", "not JSON", '{"a": ', "\x00", "[" * 100_000, "3", "null", '["a"]'):
        (folder / name).write_text(content)
        refused(folder, f"{folder / name}")


def test_a_dense_without_its_weights_or_for_another_width(folder):
    path = folder / "2_Dense/model.safetensors"
    path.unlink()
    refused(folder, r"2_Dense has nothing for linear.weight")
    state = {"linear.weight": torch.ones(16, 12), "linear.bias": torch.ones(16)}
    save_file(state, path)
    refused(folder, r"2_Dense has \[16, 12\] for linear.weight, where a head .* needs \[16, 16\]")
