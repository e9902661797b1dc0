"""Runs of single baselines: what each trains, logs and saves beside what every run does."""

import torch
from helpers.run_files import logged_losses, logged_steps
from safetensors.torch import load_file

from contrasent.model.encoder import SentenceEncoder

SG_OPT = {"data__max_tokens": 32, "objective__projection": 16, "train__max_steps": 8}
IS_BERT = {"data__max_tokens": 32, "encoder__channels": 4, "train__max_steps": 8}
TENSION = {
    "data__max_tokens": 32,
    "objective__negatives": 2,
    "train__batch_size": 10,
    "train__max_steps": 6,
    "evaluation__every": 2,
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
