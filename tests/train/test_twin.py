"""Runs with two encoders: each trained, saved, resumed and refused as it should."""

import copy
import json

import pytest
from helpers.command_line import tree
from helpers.interrupted import CutError, cut
from helpers.run_files import metrics
from safetensors.torch import load_file

from contrasent.model.encoder import SentenceEncoder
from contrasent.training.run import save_encoders
from contrasent.training.run import train as train_recipe

TWIN = {"encoder__encoders": "twin"}


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_each_encoder_is_saved_whole_and_moved_by_itself(trained, tmp_path, tiny_bert):
    result = trained(train__epochs=8, train__learning_rate=0.01, **TWIN)
    assert result.best_step, "choose other settings: best must not be the start"
    run = tmp_path / "run"
    start = weights(tiny_bert)
    for name in ("best", "last"):
        first, second = run / name, run / f"{name}-twin"
        assert {str(p) for p in tree(first)} == {str(p) for p in tree(second)}
        told = [json.loads((place / "contrasent.json").read_text()) for place in (first, second)]
        assert told[0]["step"] == told[1]["step"] == (result.best_step if name == "best" else 40)
        assert "twin_of" not in told[0] and told[1]["twin_of"] == name
        assert told[1]["dev_spearman"] == {}
        word = "embeddings.word_embeddings.weight"
        moved = [weights(place)[word] for place in (first, second)]
        assert not moved[0].equal(moved[1])
        assert all(not new.equal(start[word]) for new in moved)
        encoders = [SentenceEncoder.load(place, device="cpu") for place in (first, second)]
        rows = [encoder.encode(["a dog runs", "the cat"]) for encoder in encoders]
        assert rows[0].shape == (2, 16) and not (rows[0] == rows[1]).all()
    prints = [SentenceEncoder.load(it).fingerprint() for it in (run, result.best)]
    assert prints[0] == prints[1]


def steps_of(run):
    told = [run / name / "contrasent.json" for name in ("best", "best-twin")]
    return [json.loads(path.read_text())["step"] if path.is_file() else None for path in told]


@pytest.mark.parametrize("moment", ["before the first", "between the two"])
def test_encoders_of_different_steps_never_lie_beside_each_other(moment, tmp_path, tiny_encoder):
    encoder, best = tiny_encoder, tmp_path / "best"
    twin = copy.deepcopy(encoder)
    save_encoders(best, encoder, twin, {"step": 1})
    assert steps_of(tmp_path) == [1, 1]
    dying, how = copy.deepcopy(twin), {}
    dying.save = cut
    if moment == "before the first":
        how["save"] = cut
    with pytest.raises(CutError):
        save_encoders(best, encoder, dying, {"step": 2}, **how)
    assert steps_of(tmp_path) == [1 if moment == "before the first" else 2, None]
    save_encoders(best, encoder, twin, {"step": 2})
    assert steps_of(tmp_path) == [2, 2]


class Dev:
    """A dev task with scores that were thought of: of the two encoders in turn, time after time."""

    metric = "spearman"

    def __init__(self, *scores):
        self.scores = list(scores)

    def score(self, _encoder, **_how):
        return {"thought": self.scores.pop(0)}


@pytest.mark.parametrize("better", [False, True])
def test_the_better_encoder_is_kept(better, tmp_path, recipe, monkeypatch):
    """The same run twice, once by itself and once with the second encoder said to be better."""
    settings = recipe(**TWIN)
    train_recipe(settings, tmp_path / "whole")
    monkeypatch.setattr(
        "contrasent.training.scoring.dev_task",
        lambda _: Dev(0.0, *([0.1, 0.2] if better else [0.2, 0.1]) * 3),
    )
    train_recipe(recipe(**TWIN, encoder__keep="better"), tmp_path / "kept")
    for name, other in (("last", "last-twin"), ("last-twin", "last")):
        expected = tmp_path / "whole" / (other if better else name)
        assert weights(tmp_path / "kept" / name)["embeddings.word_embeddings.weight"].equal(
            weights(expected)["embeddings.word_embeddings.weight"]
        )
    lines = [line for line in metrics(tmp_path / "kept") if "evaluation" in line]
    assert [line["evaluation"]["thought"] for line in lines] == [0.0, 0.2, 0.2, 0.2]
    assert [line["beside"]["thought"] for line in lines[1:]] == [0.1, 0.1, 0.1]
