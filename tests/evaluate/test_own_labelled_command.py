"""``contrasent evaluate`` on a user's labelled sentences, with the encoder of words."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tables import write
from helpers.tiny_transfer import write_transfer
from sklearn.metrics import f1_score

from contrasent import evaluate
from contrasent.evaluation import protocols
from contrasent.evaluation.intervals import Bootstrap, intervals
from contrasent.evaluation.logistic_regression import Accuracy
from contrasent.evaluation.protocols import Preset
from contrasent.evaluation.transfer import TransferData, ratios_of
from contrasent.model.encoder import SentenceEncoder

NAMES = ("id", "text", "label")
WORDS = {"good": ("red", "green", "new"), "bad": ("old", "never"), "odd": ("under", "cat", "dog")}
COUNTS = {"good": 30, "bad": 12, "odd": 9}


@pytest.fixture(autouse=True)
def small(encoder, senteval, monkeypatch):
    made = {
        name: Preset(name, 3, "adam", 16, 1, 2, max_epochs=4)
        for name in ("test", "dev", "fasttest")
    }
    monkeypatch.setattr(protocols, "PRESETS", made)
    monkeypatch.setattr(SentenceEncoder, "load", lambda *_, **__: encoder)
    monkeypatch.setattr("contrasent.model.loading.resolve", Path)
    monkeypatch.setenv("CONTRASENT_DATA", str(senteval))
    monkeypatch.setenv("COLUMNS", "220")


def made(seed=0):
    """Sentences of three classes that words tell apart, but not always."""
    draw = np.random.default_rng(seed)
    rows = [
        (" ".join(draw.choice([*WORDS[label], "house", "runs", "blue"], size=4)), label)
        for label, count in COUNTS.items()
        for _ in range(count)
    ]
    return [rows[place] for place in draw.permutation(len(rows))]


@pytest.fixture
def own(tmp_path):
    return write(tmp_path / "own.csv", names=NAMES, rows=made())


def scored(*arguments):
    """The records, by split and metric."""
    said = worked("evaluate", "m", *arguments, "--json", "-")
    records = [json.loads(line) for line in said.out.splitlines()]
    return {(record["split"], record["metric"]): record for record in records}


def test_scores_over_folds(own):
    records = scored("--tasks", own, "--splits", "dev,test")
    assert set(records) == {("test", "accuracy"), ("test", "macro_f1"), ("dev", "accuracy")}
    accuracy, f1 = records["test", "accuracy"], records["test", "macro_f1"]
    assert accuracy["value"] > f1["value"] > 0
    assert (accuracy["aggregation"], f1["aggregation"]) == ("mean", "all")
    assert accuracy["pairs"] == f1["pairs"] == 51 and accuracy["interval"] is None
    assert accuracy["classifier"]["name"] == "senteval" and accuracy["classifier"]["folds"] == 3
    assert accuracy["task"] == own and len(accuracy["data_sha256"]) == 64


def test_own_files_of_mr_give_mrs_accuracy(senteval, encoder, tmp_path):
    write_transfer(senteval)
    rows = [
        (line, name)
        for name in ("pos", "neg")
        for line in (senteval / f"MR/rt-polarity.{name}").read_text().splitlines()
    ]
    source = write(tmp_path / "mr.csv", names=NAMES, rows=rows)
    (expected,) = evaluate(encoder, ["mr"])
    assert scored("--tasks", source)["test", "accuracy"]["value"] == expected.value


def judged(labels, predicted, folds=None, classes=3):
    """The ratios of accuracy and macro-F1 of a user's own task."""
    task = TransferData("x", {}, classes, "", class_names=("a",) * classes)
    return ratios_of(task, Accuracy(None, 0, predicted, folds), labels)


@pytest.mark.parametrize("folds", [1, 3])
def test_intervals_are_those_of_rows_drawn_again(folds):
    draw = np.random.default_rng(3)
    labels = draw.choice(3, size=60, p=[0.7, 0.2, 0.1])
    predicted = np.where(draw.random(60) < 0.7, labels, draw.choice(3, size=60))
    fold_of = draw.permutation(60) % folds if folds > 1 else None
    ratios = judged(labels, predicted, fold_of)
    assert ratios["macro_f1"].value == pytest.approx(f1_score(labels, predicted, average="macro"))
    found = intervals(ratios, Bootstrap(0.9, 4000), "x")
    again = []
    for _ in range(1500):
        rows = draw.choice(60, size=60)
        f1 = f1_score(labels[rows], predicted[rows], average="macro", zero_division=0)
        again.append(((labels[rows] == predicted[rows]).mean(), f1))
    low, high = np.quantile(again, [0.05, 0.95], axis=0)
    for number, metric in enumerate(("accuracy", "macro_f1")):
        bounds = found[metric]
        assert (bounds.low, bounds.high) == pytest.approx((low[number], high[number]), abs=0.03)
        assert bounds.error == pytest.approx(np.std(again, axis=0)[number], rel=0.12)


def test_a_class_that_is_nowhere_does_not_count():
    labels, predicted = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    expected = pytest.approx(f1_score(labels, predicted, average="macro"))
    assert judged(labels, predicted, classes=4)["macro_f1"].value == expected
