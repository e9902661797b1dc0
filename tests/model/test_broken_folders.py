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


def without(*names, **others):
    def change(folder):
        state = load_file(folder / "model.safetensors") | others
        kept = {name: tensor for name, tensor in state.items() if name not in names}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def truncated(kept):
    def change(folder):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:kept])

    return change


def with_decoder(folder):
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
    config = transformers.BartConfig(vocab_size=60, d_model=8, **sizes, **heads)
    transformer(config).save_pretrained(folder)


def config(**settings):
    def change(folder):
        stated = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**stated, **settings}))

    return change


def many_tokens(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    token = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [{**token, "id": n, "content": f"t{n}"} for n in range(150_000)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


RESIZED = {"embeddings.LayerNorm.bias": torch.zeros(8)}
ROWS = {
    "two weights": (
        without("encoder.layer.1.output.dense.weight", "embeddings.LayerNorm.bias"),
        r"lacks 2 of the weights .*first: embeddings\.LayerNorm\.bias\).* random",
    ),
    "another size": (
        without(**RESIZED),
        r"lacks 1 of .* in another shape \(first: embeddings\.LayerNorm\.b",
    ),
    **{f"{n} bytes": (truncated(n), "cannot load {folder}") for n in (0, 4, 100, -1)},
    "a decoder": (with_decoder, r"an encoder with a decoder \(bart\)"),
    "an adapter": (text("adapter_config.json", "{}"), r"holds an adapter \(LoRA\).* merge_and"),
    **{
        f"config {content}": (text("config.json", content), "cannot (load|read) {folder}")
        for content in ("", "{", "[]", "null", "{}", '{"model_type": "berd"}')
    },
    **{
        name: (config(**{name: value}), f"config.json has {name} {value}, which")
        for name, value in {
            "num_hidden_layers": 10_000_000,
            "hidden_size": 1_000_000,
            "vocab_size": 10**12,
            "num_labels": 10**8,
        }.items()
    },
    "many tokens": (many_tokens, r"tokenizer\.json has 150,000 added tokens"),
    "positions": (
        config(position_embedding_type="relative_key"),
        "position_embedding_type 'relative_key'; bert has only 'absolute' here",
    ),
    **{
        f"deep {name}": (text(name, "[" * 200_000), "{folder}")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
    },
    "no config": (lambda it: (it / "config.json").unlink(), "holds no config.json, so it is not"),
    "no tokenizer": (
        lambda it: [file.unlink() for file in it.glob("tokenizer*")],
        "no complete tokenizer in ",
    ),
}


@pytest.mark.parametrize(("change", "said"), ROWS.values(), ids=ROWS)
def test_a_damaged_folder_is_refused_by_what_is_wrong(change, said, folder):
    change(folder)
    refused(folder, said.replace("{folder}", str(folder)))


def test_a_head_that_is_not_stored(folder):
    without("pooler.dense.bias")(folder)
    refused(folder, r"stores no Linear\+Tanh head .* load it with head 'none'", head="mlp")


def test_a_shard_outside_the_folder(folder):
    index = {"weight_map": {"pooler.dense.weight": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "no path inside that folder", head="mlp")


def test_a_tokenizer_with_more_ids_than_there_are_embeddings(folder):
    ids = word_piece(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["##more"] = ids
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(folder, f"has {ids + 1} token ids, its weights only {ids}: they belong to different")


def test_code_of_a_folder_is_not_run(folder, tmp_path):
    mark = tmp_path / "was-here"
    (folder / "modeling_own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Own: pass\n")
    config(model_type="own", auto_map={"AutoConfig": "modeling_own.Own"})(folder)
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


def test_the_payload_would_work(tmp_path):
    """Without this, the tests above could not fail."""
    hostile_plain(tmp_path / "file", tmp_path / "was-here")
    pickle.loads((tmp_path / "file").read_bytes())
    assert (tmp_path / "was-here").exists()
