"""What is damaged, incomplete or hostile is refused with the name of what is wrong."""

import json
import os
import pickle
import shutil

import pytest
import torch
import transformers
from helpers.layouts import published
from helpers.tiny_models import transformer, word_piece
from safetensors.torch import load_file, save_file

from contrasent.errors import CheckpointError
from contrasent.model.encoder import SentenceEncoder


@pytest.fixture
def folder(tiny_bert, tmp_path):
    return shutil.copytree(tiny_bert, tmp_path / "copy")


def refused(folder, said, head="none"):
    with pytest.raises(CheckpointError, match=said):
        SentenceEncoder.load(folder, pooler="cls", head=head)


def without(folder, *names):
    state = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in state.items() if name not in names}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_head_that_is_not_stored(folder):
    without(folder, "pooler.dense.weight", "pooler.dense.bias")
    refused(folder, r"stores no Linear\+Tanh head .* load it with head 'none'", head="mlp")


def test_missing_weights_are_counted_and_the_first_is_named(folder):
    without(folder, "encoder.layer.1.output.dense.weight", "embeddings.LayerNorm.bias")
    refused(folder, r"lacks 2 of the weights .*first: embeddings\.LayerNorm\.bias\).* random")


def test_weights_of_another_size(folder):
    state = load_file(folder / "model.safetensors")
    state["embeddings.LayerNorm.bias"] = torch.zeros(8)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, r"lacks 1 of .* in another shape \(first: embeddings\.LayerNorm\.bias\)")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_safetensors(kept, folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refused(folder, f"cannot load {folder}")


def test_an_encoder_with_a_decoder(folder):
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    config = transformers.BartConfig(vocab_size=60, d_model=8, **sizes, **heads)
    transformer(config).save_pretrained(folder)
    refused(folder, r"an encoder with a decoder \(bart\)")


def test_an_adapter_beside_a_model_and_alone(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "bert"}')
    refused(folder, r"holds an adapter \(LoRA\).* merge_and_unload")
    (folder / "config.json").unlink()
    refused(folder, r"holds an adapter \(LoRA\).* merge_and_unload")


def test_a_shard_outside_the_folder(folder):
    index = {"weight_map": {"pooler.dense.weight": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "no path inside that folder", head="mlp")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", '{"model_type": "berd"}'])
def test_a_config_that_is_none(content, folder):
    (folder / "config.json").write_text(content)
    refused(folder, f"cannot (load|read) {folder}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 10_000_000),
        ("hidden_size", 1_000_000),
        ("vocab_size", 10**12),
        ("intermediate_size", 10**9),
        ("num_labels", 10**8),
        ("num_attention_heads", 10**9),
    ],
)
def test_sizes_that_the_weights_cannot_have(name, value, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    refused(folder, f"{folder / 'config.json'} has {name} {value}, which")


def test_a_tokenizer_of_millions_of_added_tokens(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [{**token, "id": n, "content": f"t{n}"} for n in range(150_000)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(folder, r"tokenizer\.json has 150,000 added tokens")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_json_of_great_depth(name, folder):
    (folder / name).write_text("[" * 200_000)
    refused(folder, f"{folder}")


def test_no_config(folder):
    (folder / "config.json").unlink()
    refused(folder, "holds no config.json, so it is not an encoder")


def test_a_file(folder):
    refused(folder / "config.json", "is a file; an encoder is a folder that holds config.json")


def test_relative_positions(folder):
    config = json.loads((folder / "config.json").read_text())
    config["position_embedding_type"] = "relative_key"
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "position_embedding_type 'relative_key'; for bert only 'absolute'")


def test_a_tokenizer_with_more_ids_than_there_are_embeddings(folder):
    ids = word_piece(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["##more"] = ids
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(folder, f"has {ids + 1} token ids, its weights only {ids}: they belong to different")


def test_no_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    refused(folder, "no tokenizer in ")


def test_code_of_a_folder_is_not_run(folder, tmp_path):
    mark = tmp_path / "was-here"
    (folder / "modeling_own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "modeling_own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, f"cannot load {folder}")
    assert not mark.exists()


class Payload:
    """Pickled, it is a call that makes a folder when it is read."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


def hostile(path, mark):
    torch.save({"embeddings.LayerNorm.bias": Payload(mark)}, path)


def hostile_plain(path, mark):
    path.write_bytes(pickle.dumps({"pooler.dense.weight": Payload(mark)}, protocol=2))


@pytest.mark.parametrize("write", [hostile, hostile_plain])
@pytest.mark.parametrize("head", ["none", "mlp"])
def test_a_pickle_is_not_executed(head, write, tmp_path):
    folder, mark = tmp_path / "folder", tmp_path / "was-here"
    published(folder, "bert", "pickle")
    write(folder / "pytorch_model.bin", mark)
    refused(folder, f"cannot load {folder}.*save_pretrained", head)
    assert not mark.exists()


@pytest.mark.parametrize("write", [hostile, hostile_plain])
def test_a_pickled_head_is_not_executed(write, tiny_encoder, tmp_path):
    from contrasent.model.heads import MlpHead

    tiny_encoder.head = MlpHead(16)
    tiny_encoder.save(tmp_path / "saved")
    (tmp_path / "saved" / "2_Dense" / "model.safetensors").unlink()
    write(tmp_path / "saved" / "2_Dense" / "pytorch_model.bin", tmp_path / "was-here")
    refused(tmp_path / "saved", "cannot read the weights in .*2_Dense", "mlp")
    assert not (tmp_path / "was-here").exists()


def test_the_payload_would_work(tmp_path):
    """Without this, the tests above could not fail."""
    hostile_plain(tmp_path / "file", tmp_path / "was-here")
    pickle.loads((tmp_path / "file").read_bytes())
    assert (tmp_path / "was-here").exists()
