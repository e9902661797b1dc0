"""A recipe over tiny text that trains in a second."""

import pytest
from helpers.command_line import prepare
from helpers.tiny_sentences import sentence, write, write_pairs

from contrasent.recipe import load_recipe
from contrasent.training.run import train


@pytest.fixture
def text_file(tmp_path):
    return write(tmp_path / "text.txt", [sentence(n, 3 + n % 6) for n in range(40)])


@pytest.fixture
def triplet_file(tmp_path):
    rows = [f"{sentence(n)},{sentence(n, 4)},{sentence(n + 17)}" for n in range(40)]
    return write(tmp_path / "triplets.csv", ["sent0,sent1,hard_neg", *rows])


@pytest.fixture
def pairs_file(tmp_path):
    return write_pairs(tmp_path / "pairs.tsv")


@pytest.fixture
def desk(tmp_path, monkeypatch, tiny_bert):
    """The folder one works in."""
    return prepare(tmp_path, monkeypatch, tiny_bert)


@pytest.fixture
def recipe(tiny_bert, text_file, pairs_file):
    """Make a recipe for the tiny encoder: 40 sentences, batches of 8, 5 steps an epoch."""

    def make(name="unsup-simcse", **overrides):
        settings = {
            "encoder.name": str(tiny_bert),
            "data.file": str(text_file),
            "train.batch_size": 8,
            "train.learning_rate": 1e-3,
            "train.precision": "fp32",
            "evaluation.task": str(pairs_file),
            "evaluation.every": 2,
            "evaluation.final": "none",
            **{key.replace("__", "."): value for key, value in overrides.items()},
        }
        return load_recipe(name, settings)

    return make


@pytest.fixture
def trained(tmp_path, recipe):
    """Train a recipe into a new folder."""

    def run(name="unsup-simcse", folder="run", **overrides):
        return train(recipe(name, **overrides), tmp_path / folder)

    return run
