"""sentence-transformers folders that would give other vectors here are refused by name."""

import json
from pathlib import Path

import pytest
import torch

from contrasent.errors import CheckpointError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead
from contrasent.model.pooling import pooler

OWN = "config_sentence_transformers.json"


@pytest.fixture
def folder(tiny_encoder, tmp_path):
    """A sentence-transformers folder with a Dense and a Normalize."""
    tiny_encoder.head = MlpHead(16)
    tiny_encoder.normalize = True
    tiny_encoder.save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def layered(tiny_encoder, tmp_path):
    tiny_encoder._pooler = pooler("mean_top2")
    tiny_encoder.save(tmp_path / "layered")
    return tmp_path / "layered"


def change(path, **settings):
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **settings}))


def refused(folder, said):
    with pytest.raises(CheckpointError, match=said):
        SentenceEncoder.load(folder)


def modules_of(folder, *names):
    """Let the folder be made of these modules."""
    kept = {
        m["type"].rsplit(".", 1)[-1]: m for m in json.loads((folder / "modules.json").read_text())
    }
    modules = []
    for name in names:
        module = kept.get(
            name, {"path": f"9_{name}", "type": f"sentence_transformers.models.{name}"}
        )
        modules.append(module)
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    "settings",
    [
        {"processing_kwargs": {"text": {"add_special_tokens": False}}},
        {"tokenizer_args": {"model_max_length": 7}},
        {"config_args": {"is_causal": False}},
        {"transformer_task": "fill-mask"},
        {"module_output_name": "sentence_embedding"},
        {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
    ],
)
def test_settings_with_which_a_text_has_other_states(folder, settings):
    change(folder / "sentence_bert_config.json", **settings)
    refused(folder, f"has {next(iter(settings))} .* not computed here")


def test_modules_of_someone_else(folder):
    text = (folder / "modules.json").read_text()
    kinds = [m["type"] for m in json.loads(text) if m["type"].endswith(".Pooling")]
    (folder / "modules.json").write_text(text.replace(kinds[0], "custom_st.Pooling"))
    refused(folder, "is made of Transformer, custom_st.Pooling")


@pytest.mark.parametrize(
    "names",
    [
        ("Transformer", "Pooling", "LayerNorm"),
        ("Transformer", "Pooling", "FittedTransform", "Dense"),
        ("Transformer", "Dense", "Pooling"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer", "Pooling", "CNN"),
        ("CNN", "Transformer", "Pooling"),
        ("StaticEmbedding",),
        ("Transformer",),
        ("Pooling",),
        (),
    ],
    ids=" ".join,
)
def test_modules_in_another_order_or_of_another_kind(names, folder):
    modules_of(folder, *names)
    refused(folder, f"is made of {', '.join(names)}; only Transformer, Pooling")


@pytest.mark.parametrize("path", ["../outside", "/tmp", "link"])
def test_a_module_outside_the_folder(path, folder):
    (folder.parent / "outside").mkdir()
    (folder / "link").symlink_to(folder.parent / "outside")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    refused(folder, f"names '{path}', which is no path inside that folder")


def test_two_heads(folder):
    modules_of(folder, "Transformer", "Pooling", "Dense", "Dense")
    refused(folder, "only the first may have Tanh")


@pytest.mark.parametrize(
    ("module", "setting", "value"),
    [
        ("1_Pooling", "include_prompt", False),
        ("3_Normalize", "module_input_name", "token_embeddings"),
        ("3_Normalize", "module_output_name", "other"),
    ],
)
def test_a_module_that_reads_or_leaves_out_something_else(module, setting, value, folder):
    change(folder / module / "config.json", **{setting: value})
    refused(folder, f"{module} has {setting} {value!r}.* only ")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, r"activation\.ReLU'; only"),
        ({"activation_function": None}, "activation_function None; only a Linear map"),
        ({"bias": False}, "bias False"),
        ({"use_residual": True}, "use_residual True"),
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings'"),
        ({"module_output_name": "other"}, "module_output_name 'other'"),
    ],
)
def test_another_dense(settings, said, folder):
    change(folder / "2_Dense" / "config.json", **settings)
    refused(folder, f"2_Dense has .*{said}")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pooling_mode": "sum"}, "pools by sum; only cls, mean, max and lasttoken"),
        ({"pooling_mode": ["cls", "mean"]}, r"pools by cls \+ mean; only"),
        ({"pooling_mode": "weightedmean"}, "pools by weightedmean; only"),
        ({"pooling_mode_weightedmean_tokens": True}, "pools by weightedmean; only"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"pools by cls \+ mean; only",
        ),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "pools by mean_sqrt_len; only"),
        ({"pooling_mode_cls_token": False}, "pools by nothing; only"),
    ],
)
def test_another_pooling(config, said, folder):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    refused(folder, said)


def test_the_new_spelling_goes_before_the_old_flags(folder):
    both = {
        "pooling_mode": "mean",
        "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": True,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(both))
    assert SentenceEncoder.load(folder).pooler == "mean"


def test_layers_weighed_in_another_way(layered):
    from safetensors.torch import save_file

    path = layered / "1_WeightedLayerPooling" / "model.safetensors"
    for weights in ([1.0, 2.0], [1.0], [0.0, 0.0]):
        save_file({"layer_weights": torch.tensor(weights)}, path)
        refused(layered, "weighs layers in a way that is none of our poolers")
    save_file({"other": torch.ones(2)}, path)
    refused(layered, "weighs layers in a way that is none of our poolers")


def test_cls_of_weighted_layers(layered):
    change(layered / "2_Pooling" / "config.json", pooling_mode="cls")
    refused(layered, "pools by cls")


def test_text_lower_cased_outside_the_tokenizer(folder):
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    refused(folder, "do_lower_case.*set it to false in sentence_bert_config.json")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompts": {"query": "q: "}, "default_prompt_name": "qury"}, "no prompt named 'qury'"),
        ({"prompts": {"query": 3}}, "prompt 'query' must be a string, not 3"),
        ({"prompts": ["query"]}, "is damaged"),
        ({"truncate_dim": 0}, "truncate_dim must be above 0"),
        ({"similarity_fn_name": "maxsim"}, "similarity_fn_name 'maxsim'"),
    ],
)
def test_conventions_that_cannot_be(settings, said, folder):
    change(folder / OWN, **settings)
    refused(folder, said)


@pytest.mark.parametrize("limit", ["128", 0, -1, 12.5])
def test_a_limit_that_is_none(limit, folder):
    change(folder / "sentence_bert_config.json", max_seq_length=limit)
    refused(folder, f"sentence_bert_config.json: max_seq_length cannot be {limit!r}")


@pytest.mark.parametrize("content", ["", "not JSON", '{"a": ', "\x00"])
@pytest.mark.parametrize(
    "name", ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", OWN]
)
def test_what_is_no_json_is_named(name, content, folder):
    (folder / name).write_text(content)
    refused(folder, f"cannot read .*{Path(name).name}")


@pytest.mark.parametrize(
    "content", ["{}", "3", "null", '["a"]', "[{}]", '[{"type": 3, "path": ""}]']
)
def test_json_of_another_form_is_named(content, folder):
    (folder / "modules.json").write_text(content)
    refused(folder, "modules.json.*is not in the form that sentence-transformers writes|is made of")


@pytest.mark.parametrize("name", ["1_Pooling/config.json", "2_Dense/config.json"])
@pytest.mark.parametrize("content", ["[]", "3", "null"])
def test_a_configuration_of_another_form_is_named(name, content, folder):
    (folder / name).write_text(content)
    refused(folder, "is not in the form that sentence-transformers writes")


def test_a_missing_configuration_is_named(layered):
    (layered / "1_WeightedLayerPooling" / "config.json").write_text("{}")
    refused(layered, r"is not in the form .*KeyError: 'num_hidden_layers'")
    (layered / "2_Pooling" / "config.json").unlink()
    refused(layered, r"cannot read .*2_Pooling.config\.json")


def test_a_dense_without_its_weights(folder):
    (folder / "2_Dense" / "model.safetensors").unlink()
    refused(folder, r"stores no Linear\+Tanh head \(linear\)")


def test_a_dense_for_another_width(folder):
    from safetensors.torch import save_file

    state = {"linear.weight": torch.ones(16, 12), "linear.bias": torch.ones(16)}
    save_file(state, folder / "2_Dense" / "model.safetensors")
    refused(folder, r"2_Dense has \[16, 12\] for linear.weight, where a head .* needs \[16, 16\]")
