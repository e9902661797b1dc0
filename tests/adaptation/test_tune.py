"""``contrasent tune``: a grid or Optuna's proposals, the dev task alone, killed and again."""

import json

import pytest
from helpers.command_line import call, refused, worked
from helpers.tiny_sentences import PAIRS, sentence, write

from contrasent.adaptation import trials
from contrasent.errors import ContrasentError
from contrasent.recipe import load_recipe

pytest.importorskip("optuna")

RATES = ("--space", "train.learning_rate=1e-4,1e-3")
RANGE = ("--space", "train.learning_rate=1e-4..1e-2:log", "--space", "train.warmup_steps=0..2")


@pytest.fixture
def words(tiny_bert, tmp_path, monkeypatch):
    """A command over tiny text, from a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "text.txt", [sentence(n, 3 + n % 6) for n in range(40)])
    write(tmp_path / "dev.tsv", PAIRS)
    write(tmp_path / "test.tsv", [*PAIRS[2:], PAIRS[0]])
    return (
        *("tune", "unsup-simcse", "--encoder", tiny_bert, "--data", "text.txt", "--device", "cpu"),
        *("--batch-size", "8", "--evaluation.task", "dev.tsv", "--evaluation.every", "2"),
        *("--evaluation.final", "none", "--output", "found"),
    )


def dev_scores(run):
    """The dev scores of a run by its steps."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {it["step"]: it["evaluation"]["dev.tsv"] for it in lines if "evaluation" in it}


def test_a_grid_is_searched_by_dev_scores_and_the_best_made_again(words, tmp_path):
    said = worked(*words, "--evaluation.final", "test.tsv", *RATES)
    best = {}
    for number, rate in enumerate(("1e-4", "1e-3")):
        run = tmp_path / "found" / "trials" / str(number)
        assert load_recipe(run / "recipe.yaml").train.learning_rate == float(rate)
        best[number] = max(score for step, score in dev_scores(run).items() if step)
        assert f"{100 * best[number]:.2f}" in said.out
    start = dev_scores(run)[0]
    assert f"{100 * start:.2f}" in said.out.split("as it comes")[1].splitlines()[0]
    assert ("no trial has a higher dev score" in said.out) == (start >= max(best.values()))
    chosen = max(best, key=best.get)
    kept = tmp_path / "found" / "trials" / str(chosen)
    assert [(it.parent / "last").is_dir() for it in sorted(kept.parent.glob("*/recipe.yaml"))] == [
        number == chosen for number in best
    ]
    worked("train", "found/recipe.yaml", "--device", "cpu", "--output", "again")
    for name in ("best", "last"):
        again = tmp_path / "again" / name / "model.safetensors"
        assert again.read_bytes() == (kept / name / "model.safetensors").read_bytes()
    records = (tmp_path / "found" / "scores.jsonl").read_text()
    assert "test.tsv" in records
    assert "dev.tsv" not in records


def test_a_search_that_was_cut_off_ends_like_a_whole_one(words, monkeypatch):
    whole = worked(*words, *RANGE, "--trials", "4").out
    made, train = [], trials.training.train

    def cut_off(recipe, folder, **options):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(folder)
        return train(recipe, folder, **options)

    monkeypatch.setattr(trials.training, "train", cut_off)
    said = call(*words, *RANGE, "--trials", "4", "--overwrite")
    assert said.code == 130
    assert "--resume" in said.err
    monkeypatch.setattr(trials.training, "train", train)
    again = worked(*words, *RANGE, "--trials", "4", "--resume")
    assert again.out == whole
    assert "trial 0" not in again.err


def test_what_fails_is_named_and_tried_again(words, monkeypatch, tmp_path):
    train = trials.training.train

    def out_of_memory(recipe, folder, **options):
        if recipe.train.learning_rate == 1e-3:
            raise ContrasentError("out of memory")
        return train(recipe, folder, **options)

    monkeypatch.setattr(trials.training, "train", out_of_memory)
    said = worked(*words, *RATES)
    assert "trial 1: " in said.err and ": out of memory" in said.err
    assert "encoder: found/trials/0/best" in said.out
    monkeypatch.setattr(trials.training, "train", train)
    again = worked(*words, *RATES, "--resume")
    assert "trial 0:" not in again.err
    assert "trial 1: train.learning_rate=1e-3: dev" in again.err
    assert "failed" not in again.err
    assert "--overwrite" in refused(*words, *RATES, "--resume", "--overwrite")
    write(tmp_path / "dev.tsv", PAIRS[1:])  # whose scores do not compare with these
    assert "dev.tsv" in refused(*words, *RATES, "--resume")
