"""A folder in SentEval's layout with a few made-up pairs per subset, and an encoder of words."""

from pathlib import Path

import numpy as np
import pytest
from helpers.dummy_encoder import WORDS, WordEncoder
from helpers.tiny_sts import SUBSETS
from typer.testing import CliRunner

from contrasent.cli import app as tree
from contrasent.errors import CheckpointError
from contrasent.model.encoder import SentenceEncoder

PAIRS = {"dev": 7, "train": 9, "test": 8}


@pytest.fixture
def encoder():
    return WordEncoder()


@pytest.fixture
def runner(senteval, monkeypatch):
    """Make what runs commands and gives what typer caught.

    A model of any name is an encoder of words, but ``gone``, which is none, and ``constant``,
    which tells nothing apart. ``loaded`` of what runs has their names.
    """
    monkeypatch.setenv("CONTRASENT_DATA", str(senteval))
    loaded = []

    def load(name, *, engine="torch", **_):
        loaded.append(name)
        if str(name) == "gone":
            raise CheckpointError("'gone' is no folder here")
        made = WordEncoder()
        made.name, made.engine, made.head_name = name, engine, None
        if str(name) == "constant":
            made.embed = lambda _: np.ones(6, np.float32)
        return made

    def make(*commands, columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(tree, "_guarded", lambda run: run)
        name = commands if len(commands) == 1 else ()

        def run(*words):
            return CliRunner().invoke(tree.app, [str(word) for word in (*name, *words)])

        run.loaded = loaded
        return run

    monkeypatch.setattr(SentenceEncoder, "load", load)
    monkeypatch.setattr("contrasent.model.loading.resolve", Path)
    return make


@pytest.fixture
def senteval(tmp_path, monkeypatch):
    """The folder; nothing else is in reach of the code under test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    draw = np.random.default_rng(0)

    def sentence():
        return " ".join(draw.choice(WORDS, size=draw.integers(2, 6)))

    root = tmp_path / "senteval"
    for task, subsets in SUBSETS.items():
        folder = root / "STS" / f"{task.upper()}-en-test"
        folder.mkdir(parents=True)
        for size, subset in enumerate(subsets, start=6):
            pairs = [f"{sentence()}\t{sentence()}\n" for _ in range(size)]
            gold = [f"{draw.integers(0, 6)}.{number}0\n" for number in range(size)]
            if task in ("sts15", "sts16"):
                gold[1] = gold[4] = "\n"
            (folder / f"STS.input.{subset}.txt").write_text("".join(pairs))
            (folder / f"STS.gs.{subset}.txt").write_text("".join(gold))
    (root / "STS" / "STSBenchmark").mkdir()
    (root / "SICK").mkdir()
    sick = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
    for split, size in PAIRS.items():
        rows = [
            f'genre\tfile\t2012\t{number:04}\t{draw.integers(0, 5)}.{number}00\t"{sentence()}\t'
            f'{sentence()} " said\n'
            for number in range(size)
        ]
        (root / f"STS/STSBenchmark/sts-{split}.csv").write_text("".join(rows))
        end = "\r\n" if split == "test" else "\n"
        header = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"]
        table = [header] + [
            [str(n), sentence(), sentence(), f"{draw.integers(1, 5)}.{n}", "NEUTRAL"]
            for n in range(size)
        ]
        text = "".join("\t".join(row) + end for row in table)
        (root / "SICK" / sick[split]).write_bytes(text.encode())
    return root
