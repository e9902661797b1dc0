"""``contrasent evaluate`` on a user's labelled sentences, with the encoder of words."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import call, refused, worked
from helpers.tables import write
from helpers.tiny_transfer import write_transfer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import StratifiedKFold

from contrasent.evaluation import protocols
from contrasent.evaluation.cross_validation import Accuracy
from contrasent.evaluation.intervals import Bootstrap, intervals
from contrasent.evaluation.protocols import Preset
from contrasent.evaluation.suite import evaluate
from contrasent.evaluation.transfer import ratios_of
from contrasent.evaluation.transfer_data import TransferData
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


def test_scores_over_folds_are_those_of_scikit_learn(own, encoder):
    rows = sorted(made(), key=lambda row: (len(row[0].split()), row[1]))
    x = np.stack([encoder.embed(text) for text, _ in rows])
    y = np.array([label for _, label in rows])
    found = np.empty_like(y)
    accuracies = []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=1111).split(x, y):
        fitted = LogisticRegression(C=1, max_iter=1000).fit(x[train], y[train])
        found[test] = fitted.predict(x[test])
        accuracies.append(accuracy_score(y[test], found[test]))
    records = scored("--tasks", own, "--classifier", "sklearn", "--splits", "dev,test")
    assert set(records) == {("test", "accuracy"), ("test", "macro_f1"), ("dev", "accuracy")}
    accuracy, f1 = records["test", "accuracy"], records["test", "macro_f1"]
    assert accuracy["value"] == pytest.approx(np.mean(accuracies))
    assert f1["value"] == pytest.approx(f1_score(y, found, average="macro"))
    assert accuracy["value"] != pytest.approx(f1["value"], abs=0.01)
    assert (accuracy["aggregation"], f1["aggregation"]) == ("mean", "all")
    assert accuracy["pairs"] == f1["pairs"] == 51 and accuracy["interval"] is None
    assert accuracy["classifier"] == {"name": "sklearn", "seed": 1111, "folds": 3}
    assert accuracy["task"] == own and len(accuracy["data_sha256"]) == 64


def test_scores_of_a_test_file_are_those_of_scikit_learn(own, encoder, tmp_path):
    test = write(tmp_path / "test.jsonl", names=NAMES, rows=made(1)[:20])
    x, z = (np.stack([encoder.embed(t) for t, _ in rows]) for rows in (made(), made(1)[:20]))
    y = [label for _, label in made()]
    expected = [label for _, label in made(1)[:20]]
    found = LogisticRegression(C=1, max_iter=1000).fit(x, y).predict(z)
    task = f"classify:{own}+{test}"
    records = scored("--tasks", task, "--classifier", "sklearn")
    assert records["test", "accuracy"]["value"] == accuracy_score(expected, found)
    f1 = f1_score(expected, found, average="macro")
    assert records["test", "macro_f1"]["value"] == pytest.approx(f1)
    assert records["test", "accuracy"]["aggregation"] == "all"
    assert records["test", "accuracy"]["task"] == task


def test_sentences_without_known_words_are_classified_by_their_zeros(own, encoder):
    embed = encoder.embed
    encoder.embed = lambda text: embed(text) * ("cat" not in text)
    assert not encoder.embed("old cat").any()
    records = scored("--tasks", own, "--classifier", "sklearn")
    assert records["test", "accuracy"]["pairs"] == 51


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


def test_two_encoders_are_compared(own, encoder, monkeypatch):
    class Other(type(encoder)):
        name = "other"

        def embed(self, sentence):
            return super().embed(sentence)[:1]

    load = {"m": encoder, "other": Other()}
    monkeypatch.setattr(SentenceEncoder, "load", lambda name, **_: load[name])
    monkeypatch.setattr("contrasent.model.loading.resolve", Path)
    said = worked("evaluate", "m", "other", "--tasks", own, "--compare", "--json", "-")
    records = {(r["encoder"], r["metric"]): r for r in map(json.loads, said.out.splitlines())}
    for metric in ("accuracy", "macro_f1"):
        one, other = records["some/words", metric], records["other", metric]
        difference = other["compared"]["difference"]
        assert difference == pytest.approx(other["value"] - one["value"])
        assert other["compared"]["baseline"] == "some/words" and one["compared"] is None
        bounds = other["compared"]["interval"]
        assert bounds["low"] < difference < bounds["high"]
    said = worked("evaluate", "m", "other", "--tasks", own, "--compare")
    assert "other minus m" in said.out
    assert "own.csv accuracy" in said.out and "own.csv macro-F1" in said.out


def test_the_table_says_what_classes_there_are(own, tmp_path):
    test = write(tmp_path / "test.csv", names=NAMES, rows=made(1))
    said = worked("evaluate", "m", "--tasks", own, "--confidence", "0.9")
    assert f"{own}: text as sentence, label as class (by name)" in said.err
    heading, _, row, *protocol = [line for line in said.out.splitlines() if line.strip()]
    assert heading.split() == ["accuracy", "macro-F1"]
    assert row.count("[") == 2
    told = "\n".join(protocol)
    assert (
        "own.csv: 51 sentences of 3 classes; the most frequent, 'good', is 58.82 %; every" in told
    )
    assert "3 folds, nested without a test part; seed 1111." in told
    assert (
        "In brackets the 90 % bootstrap interval" in told and "resamples of the test rows" in told
    )
    both = f"{own},classify:{own}+{test},classify:{own}+{test}+{test}"
    said = worked("evaluate", "m", "--tasks", both, "--splits", "dev,test")
    assert "own.csv+test.csv: 51 + 51 sentences (train, test) of 3 classes; the most" in said.out
    assert "is 58.82 % of the test part; folds of the training part choose" in said.out
    assert "the dev part chooses the penalty." in said.out
    assert "own.csv+test.csv+test.csv macro-F1" in said.out
    assert "own.csv dev accuracy" in said.out and "optimistic" in said.out


def test_pairs_are_learned_by_distance_and_product(encoder, tmp_path):
    draw = np.random.default_rng(0)
    words = [word for known in WORDS.values() for word in known]
    rows = []
    for number in range(40):
        first = " ".join(draw.choice(words, size=3))
        second = first if number % 2 else " ".join(draw.choice(words, size=3))
        rows.append((first, second, ["other", "same"][number % 2]))
    names = ("id", "sentence1", "sentence2", "label")
    files = [write(tmp_path / f"{n}.csv", names=names, rows=rows[n::2]) for n in (0, 1)]
    mixed = [rows[:20], rows[20:]]
    files = [write(tmp_path / f"{n}.csv", names=names, rows=part) for n, part in enumerate(mixed)]
    features = []
    for part in mixed:
        pairs = [(encoder.embed(a), encoder.embed(b)) for a, b, _ in part]
        features.append(np.stack([np.concatenate([abs(u - v), u * v]) for u, v in pairs]))
    fitted = LogisticRegression(C=1, max_iter=1000).fit(features[0], [r[2] for r in mixed[0]])
    expected = accuracy_score([r[2] for r in mixed[1]], fitted.predict(features[1]))
    task = f"classify:{files[0]}+{files[1]}"
    records = scored("--tasks", task, "--classifier", "sklearn")
    assert records["test", "accuracy"]["value"] == expected > 0.8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("text,label\na,x\nb,x\n", "own.csv: the label of all 2 rows is 'x'; 2 classes or more"),
        ("text,label\na,x\n ,y\n", "own.csv:3: a sentence is empty"),
        ("text,label\na,x\nb,\n", "own.csv:3: the label is missing"),
        ("text,label\na,x\nb\n", "own.csv:3: 1 column, but the first row has 2"),
        ("text,label\n" + "a,x\n" * 9 + "b,y\n" * 3, "class 'y' has 3 sentences, but 3 nested"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_anything_is_encoded(
    own, encoder, tmp_path, text, said
):
    (tmp_path / "own.csv").write_text(text)
    assert said in refused("evaluate", "m", "--tasks", own)
    assert not encoder.calls
    ended = call("evaluate", "m", "--tasks", f"{own},stsb")
    assert ended.code == 2 and said in ended.err and "Spearman" in ended.out


def test_a_file_in_the_home_folder_is_known_too(own, monkeypatch):
    monkeypatch.setenv("HOME", str(Path(own).parent))
    records = scored("--tasks", "~/own.csv", "--classifier", "sklearn")
    assert {metric for _, metric in records} == {"accuracy", "macro_f1"}


def test_splits_that_are_not_there(own):
    said = refused("evaluate", "m", "--tasks", own, "--splits", "train")
    assert "labelled sentences have no score on train, only on dev and test" in said


def test_leaks_are_counted(own, tmp_path):
    test = write(tmp_path / "test.csv", names=NAMES, rows=made(1))
    texts = list(dict.fromkeys(text for text, _ in made(1)))
    (tmp_path / "train.txt").write_text("\n".join([texts[0].upper(), texts[3], "nothing"]) + "\n")
    task = f"classify:{own}+{test}"
    said = worked("data", "leaks", tmp_path / "train.txt", "--tasks", task, "--json")
    (found,) = json.loads(said.out)["tasks"]
    count = [text for text, _ in made(1)].count
    assert (found["sentences"], found["exact"]) == (51, count(texts[3]))
    assert found["normalised"] == count(texts[3]) + count(texts[0])
    assert found["split"] == "test"
