"""Runs of single baselines: what each trains, logs and saves beside what every run does."""

import json

import pytest
import torch
from helpers.run_files import logged_evaluations, logged_losses, logged_steps
from helpers.tiny_sentences import PLAIN
from safetensors.torch import load_file

from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.training.run import train

SG_OPT = {"data__max_tokens": 32, "objective__projection": 16, "train__max_steps": 8}
IS_BERT = {"data__max_tokens": 32, "encoder__channels": 4, "train__max_steps": 8}
TENSION = {
    "data__max_tokens": 32,
    "objective__negatives": 2,
    "train__batch_size": 10,
    "train__max_steps": 6,
    "evaluation__every": 2,
}
DECLUTR = {
    "data__max_tokens": 32,
    "objective__min_words": 2,
    "objective__max_words": 6,
    "train__batch_size": 4,
    "train__max_steps": 8,
}


def test_sg_opt_freezes_the_embeddings_and_keeps_near_the_start(trained, tmp_path, tiny_bert):
    trained("sg-opt", **SG_OPT)
    start = load_file(tiny_bert / "model.safetensors")
    last = load_file(tmp_path / "run" / "last" / "model.safetensors")
    same = {name for name in last if last[name].equal(start[name])}
    assert {name for name in last if name.startswith("embeddings.")} <= same
    assert "encoder.layer.0.output.dense.weight" not in same
    distances = [line["term_distance"] for line in logged_steps(tmp_path / "run")]
    # The warm-up begins at a rate of 0, so the second step still starts at the start.
    assert distances[:2] == [0.0, 0.0] and distances[-1] > 0


def test_both_encoders_are_trained_scored_and_saved(trained, tmp_path):
    result = trained("contrastive-tension", **TENSION)
    found = logged_evaluations(tmp_path / "run")
    assert len(found) == 4 and all("beside" in line for line in found[1:])
    assert all(max(a["evaluation"].values()) >= max(a["beside"].values()) for a in found[1:])
    assert (tmp_path / "run" / "best-twin").is_dir()
    told = json.loads((result.best / "contrasent.json").read_text())
    assert (
        told["dev_spearman"]
        == found[[line["step"] for line in found].index(result.best_step)]["evaluation"]
    )
    assert all("alignment" not in line for line in logged_steps(tmp_path / "run"))


def test_convolutions_are_trained_saved_and_taken_on(trained, tmp_path):
    trained("is-bert", "run", **IS_BERT)
    losses = logged_losses(tmp_path / "run")
    assert losses[-1] < losses[0]
    once = SentenceEncoder.load(tmp_path / "run" / "last", device="cpu")
    assert once.convolutions.widths == (1, 3, 5) and once.width == 12
    again = {
        **IS_BERT,
        "encoder__name": str(tmp_path / "run" / "last"),
        "train__learning_rate": 1e-12,
    }
    trained("is-bert", "again", **again)
    twice = SentenceEncoder.load(tmp_path / "again" / "last", device="cpu")
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_other_convolutions_than_those_of_the_start_are_refused(trained, recipe, tmp_path):
    trained("is-bert", "run", **IS_BERT)
    start = {"encoder__name": str(tmp_path / "run"), "encoder__convolutions": [3]}
    with pytest.raises(ConfigError, match=r"convolutions of widths \[1, 3, 5\] with 4 channels"):
        train(recipe("is-bert", **{**IS_BERT, **start}), tmp_path / "other")


@pytest.fixture
def documents(tmp_path, tiny_masked_lm):
    """Fourteen documents of 6 to 48 words, of which those with 24 are long enough."""
    path = tmp_path / "documents.txt"
    lines = [" ".join((PLAIN * 2)[n * 5 % len(PLAIN) :][:6]) for n in range(22)]
    texts = ["\n".join(lines[n : n + 1 + n % 8]) for n in range(14)]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return {"data__file": str(path), "encoder__name": str(tiny_masked_lm)}


def test_documents_that_are_left_out_are_counted(documents, tmp_path, trained, caplog):
    with caplog.at_level("INFO", logger="contrasent"):
        trained("declutr", **{**DECLUTR, **documents})
    said = "8 examples; 6 of 14 documents left out, which have fewer than 24 words"
    assert said in caplog.messages
    steps = logged_steps(tmp_path / "run")
    assert {"term_contrast", "term_mlm", "mlm_accuracy"} <= steps[0].keys()
    assert "alignment" not in steps[0]
    assert steps[0]["loss"] == pytest.approx(steps[0]["term_contrast"] + steps[0]["term_mlm"])
