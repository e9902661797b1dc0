"""The published SimCSE and DiffCSE checkpoints, and what their training scripts wrote."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.layouts import cls_by_hand, diffcse_run, published, simcse_run
from helpers.tiny_models import SENTENCES

from contrasent.errors import CheckpointError
from contrasent.model.checkpoint import PUBLISHED_HEADS
from contrasent.model.encoder import SentenceEncoder

MODEL_TYPES = ("bert", "roberta")


def assert_rows(encoder, expected):
    rows = encoder.encode(SENTENCES, precision="fp32")
    np.testing.assert_allclose(rows, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["safetensors", "pickle"])
@pytest.mark.parametrize("name", PUBLISHED_HEADS)
def test_a_published_id_chooses_cls_and_its_head_by_itself(name, form, tmp_path, monkeypatch):
    info = SimpleNamespace(sha="0" * 40, siblings=())
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    model = published(tmp_path, "roberta" if "-roberta-" in name else "bert", form)
    encoder = SentenceEncoder.load(name, device="cpu")
    assert encoder.pooler == "cls"
    expected = cls_by_hand(model, encoder, SENTENCES)
    if "/sup-" in name:
        layer = model.pooler.dense
        expected = torch.tanh(expected @ layer.weight.T + layer.bias).detach()
    assert encoder.head_name == ("mlp" if "/sup-" in name else "none")
    assert_rows(encoder, expected)


@pytest.mark.parametrize(
    "place",
    [
        "sup-simcse-bert-base-uncased",
        "princeton-nlp/sup-simcse-bert-base-uncased/",
        "hub/models--princeton-nlp--sup-simcse-bert-base-uncased/snapshots/0a1b",
        "unsup-simcse-bert-base-uncased",
        "hub/models--voidism--diffcse-bert-base-uncased-sts/snapshots/0a1b",
    ],
)
def test_a_copy_gets_the_head_that_its_id_gets(place, tmp_path, monkeypatch):
    published(tmp_path / place, "bert", "safetensors")
    monkeypatch.chdir((tmp_path / place).parent)
    names = (f"{tmp_path}/{place}", f"./{(tmp_path / place).name}", (tmp_path / place).name + "/")
    for name in names if "models--" not in place else names[:1]:
        encoder = SentenceEncoder.load(name, device="cpu")
        assert encoder.head_name == ("mlp" if "/sup-" in f"/{name}" or "--sup-" in name else "none")
        for head in ("none", "mlp"):
            assert SentenceEncoder.load(name, head=head, device="cpu").head_name == head


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_training_folder_of_simcse(model_type, tmp_path):
    model, head = simcse_run(tmp_path / "run", model_type)
    plain = SentenceEncoder.load(tmp_path / "run", pooler="cls", head="none", device="cpu")
    rows = cls_by_hand(model, plain, SENTENCES)
    assert_rows(plain, rows)
    headed = SentenceEncoder.load(tmp_path / "run", pooler="cls", head="mlp", device="cpu")
    assert_rows(headed, torch.tanh(head(rows)).detach())
    # It goes before a pretrained layer beside it.
    path = tmp_path / "run" / "pytorch_model.bin"
    state = torch.load(path, weights_only=True)
    state |= {f"{model_type}.pooler.dense.{k}": v + 1 for k, v in head.state_dict().items()}
    torch.save(state, path)
    headed = SentenceEncoder.load(tmp_path / "run", pooler="cls", head="mlp", device="cpu")
    torch.testing.assert_close(headed.head.linear.state_dict(), head.state_dict())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_training_folder_of_diffcse(model_type, tmp_path):
    model = diffcse_run(tmp_path / "run", model_type)
    encoder = SentenceEncoder.load(tmp_path / "run", pooler="cls", head="none", device="cpu")
    assert_rows(encoder, cls_by_hand(model, encoder, SENTENCES))
    with pytest.raises(CheckpointError, match=r"stores no Linear\+Tanh head"):
        SentenceEncoder.load(tmp_path / "run", pooler="cls", head="mlp")


def test_shards(tmp_path):
    model = published(tmp_path / "whole")
    model.save_pretrained(tmp_path / "whole", max_shard_size="4KB")
    (tmp_path / "whole" / "model.safetensors").unlink()
    assert len(list((tmp_path / "whole").glob("model-*.safetensors"))) > 1
    encoder = SentenceEncoder.load(tmp_path / "whole", pooler="cls", head="mlp", device="cpu")
    layer = model.pooler.dense
    rows = cls_by_hand(model, encoder, SENTENCES)
    assert_rows(encoder, torch.tanh(rows @ layer.weight.T + layer.bias).detach())
