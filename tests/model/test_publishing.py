"""Publishing: the model card, and what reaches the hub."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.command_line import worked
from helpers.tiny_models import SENTENCES
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import contrasent
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import published_files


@pytest.fixture(scope="module")
def run(tiny_bert, tmp_path_factory):
    """A run on a file of text, scored on rated pairs."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "secret.txt").write_text("\n".join(SENTENCES * 4))
    pairs = [f"{a}\t{b}\t{len(a) % 5}" for a in SENTENCES for b in SENTENCES[:3]]
    (folder / "pairs.tsv").write_text("\n".join(pairs))
    settings = {"train.max_steps": 2, "train.batch_size": 4, "encoder.pooler": "cls"}
    scored = {"evaluation.task": "none", "evaluation.final": str(folder / "pairs.tsv")}
    how = {"encoder": tiny_bert, "data": str(folder / "secret.txt"), "output": folder / "run"}
    contrasent.train(**how, **settings, **scored)
    return folder / "run"


def test_the_card_says_where_it_comes_from_and_how_it_scored(run):
    text = (run / "last" / "README.md").read_text()
    card = ModelCard(text)
    assert card.data.library_name == "sentence-transformers"
    assert card.data.pipeline_tag == "sentence-similarity" and "simcse" in card.data.tags
    assert card.data.eval_results[0].metric_type == "spearman"
    info = json.loads((run / "last" / "contrasent.json").read_text())
    assert info["data"]["sha256"] in text
    (after,) = [s for s in info["scores"] if s["metric"] == "spearman" and s["protocol"]]
    (before,) = [s for s in info["scores_before"] if s["metric"] == "spearman" and s["protocol"]]
    assert f"| {100 * before['value']:.2f} | {100 * after['value']:.2f} |" in text
    assert str(run.parent) not in text and "secret.txt" in text
    count = 2 * 3 * len(SENTENCES)  # every sentence of the pairs was trained on
    assert f"Of the {count} sentences of pairs.tsv, {count} stand in the training" in text


def test_a_base_model_is_the_start(tiny_encoder, tmp_path):
    tiny_encoder.save(tmp_path / "it", {"recipe": {"encoder": {"name": "bert-base-uncased"}}})
    card = ModelCard((tmp_path / "it" / "README.md").read_text())
    assert card.data.base_model == "bert-base-uncased"


def test_an_edited_card_is_published_as_it_is(run):
    made = published_files(run, "me/tiny")[1]["README.md"].decode()
    assert "me/tiny" in made and "path/to/this/folder" not in made
    card = run / "last" / "README.md"
    before = card.read_text()
    card.write_text("my own words")
    try:
        assert published_files(run, "me/tiny")[1]["README.md"] == b"my own words"
    finally:
        card.write_text(before)


class Hub:
    """A stand-in for ``huggingface_hub.HfApi`` that keeps what is committed."""

    def create_repo(self, name, *, private, exist_ok):
        assert (name, private, exist_ok) == ("me/tiny", True, True)

    def create_commit(self, _, operations, *, commit_message):
        assert commit_message
        for it in operations:
            content = it.path_or_fileobj
            file = Path(self.folder, it.path_in_repo)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else Path(content).read_bytes())
        return SimpleNamespace(commit_url="https://hub/me/tiny/commit/1")


def test_what_is_pushed_is_read_by_everybody_without_a_warning(run, tmp_path, monkeypatch):
    Hub.folder = tmp_path / "tiny"
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    said = worked("push", run, "me/tiny", "--private")
    assert "https://hub/me/tiny/commit/1" in said.err
    published = {path.relative_to(Hub.folder).as_posix(): path for path in Hub.folder.rglob("*.*")}
    # what text-embeddings-inference reads
    needed = {"config.json", "tokenizer.json", "model.safetensors", "modules.json"}
    assert needed | {"1_Pooling/config.json", "README.md"} <= published.keys()
    here = [str(run.parent).encode(), str(tmp_path).encode(), b"/home/", b"/tmp/"]
    contents = {name: path.read_bytes() for name, path in published.items()}
    assert not [name for name, it in contents.items() for place in here if place in it]
    tokenizer = AutoTokenizer.from_pretrained(Hub.folder)
    with torch.no_grad():
        tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        states = AutoModel.from_pretrained(Hub.folder).eval()(**tokens).last_hidden_state
    local = SentenceEncoder(run / "last", device="cpu").encode(SENTENCES, precision="fp32")
    for rows in (
        SentenceTransformer(str(Hub.folder), device="cpu").encode(SENTENCES),
        SentenceEncoder(Hub.folder, device="cpu").encode(SENTENCES, precision="fp32"),
        states[:, 0].numpy(),
    ):
        np.testing.assert_allclose(rows, local, atol=1e-6)
