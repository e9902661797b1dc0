"""``contrasent evaluate`` on transfer tasks, with the encoder of words."""

from math import hypot
from statistics import NormalDist

import numpy as np
import pytest
from helpers.command_line import rows as cells_of
from helpers.tables import write
from helpers.tiny_transfer import write_transfer

import contrasent.evaluation.transfer as under_test
from contrasent import evaluate
from contrasent.evaluation import protocols
from contrasent.evaluation.logistic_regression import Accuracy
from contrasent.evaluation.protocols import Preset
from contrasent.evaluation.transfer import load_transfer
from contrasent.records import read_records

PRESETS = {
    "test": Preset("test", 2, "adam", 16, 1, 2, max_epochs=4),
    "dev": Preset("dev", 2, "rmsprop", 16, 1, 2, max_epochs=4),
    "fasttest": Preset("fasttest", 2, "rmsprop", 16, 1, 2, max_epochs=4),
}
PAPERS = ["MR", "CR", "SUBJ", "MPQA", "SST-2", "TREC", "MRPC", "Avg.", "MRPC", "F1"]


@pytest.fixture(autouse=True)
def data(senteval, monkeypatch):
    monkeypatch.setattr(protocols, "PRESETS", PRESETS)
    monkeypatch.setenv("CONTRASENT_DATA", str(senteval))
    monkeypatch.setenv("COLUMNS", "90")
    return write_transfer(senteval)


@pytest.fixture
def command(runner):
    return runner("evaluate", columns=90)


def test_the_table_is_the_papers(command, encoder):
    result = command("org/model", "--tasks", "transfer")
    assert result.exit_code == 0, result.output
    (heading, _, row), protocol = cells_of(result)
    assert heading == PAPERS
    records = evaluate(encoder, ["transfer"])
    values = [r.value for r in records if r.metric == "accuracy"]
    f1 = next(r.value for r in records if r.metric == "f1")
    assert row == ["model", *(f"{100 * v:.2f}" for v in [*values, sum(values) / 7, f1])]
    assert "Accuracy of a logistic regression on frozen embeddings x 100; test part; " in protocol
    assert "Avg. over 7 tasks" in protocol
    assert "seed 1111, preset test, folds 2, optimiser adam, batch 16" in protocol
    assert "model: pooler mean, fp32, encoder org/model." in protocol


def test_features_of_pairs_are_distance_and_product(encoder, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        under_test,
        "cross_validate",
        lambda parts, *_: seen.update(parts) or Accuracy(0.5, 0, np.zeros(48, int)),
    )
    evaluate(encoder, ["mrpc"])
    part = load_transfer("mrpc").parts["test"]
    for row in (0, 20):
        first, second = encoder.embed(part.texts[row]), encoder.embed(part.texts[48 + row])
        expected = [
            *(abs(a - b) for a, b in zip(first, second, strict=True)),
            *(a * b for a, b in zip(first, second, strict=True)),
        ]
        assert seen["test"].features[row] == pytest.approx(expected, rel=1e-6)


def test_intervals_stand_behind_the_accuracies(command, tmp_path):
    path = tmp_path / "scores.jsonl"
    asked = ("m", "--tasks", "mr,mrpc", "--splits", "dev,test", "--confidence", "0.8")
    result = command(*asked, "--json", str(path))
    assert result.exit_code == 0, result.output
    table, protocol = (" ".join(part.split()) for part in result.stdout.split("\n\n", 1))
    found = read_records(path)
    sure = {(r.task, r.metric): r for r in found if r.split == "test"}
    assert len(sure) == 3 and all(r.interval.confidence == 0.8 for r in sure.values())
    assert all(r.interval is None for r in found if r.split == "dev")
    for r in sure.values():
        ends = f"[{100 * r.interval.low:.2f}, {100 * r.interval.high:.2f}]"
        assert f"{100 * r.value:.2f} {ends}" in table
    both = [r for r in sure.values() if r.metric == "accuracy"]
    value = sum(r.value for r in both) / 2
    reach = NormalDist().inv_cdf(0.9) * hypot(*(r.interval.error for r in both)) / 2
    assert f"{100 * value:.2f} [{100 * (value - reach):.2f}, {100 * (value + reach):.2f}]" in table
    assert "80 % bootstrap interval: percentiles over 5000 resamples of the test sen" in protocol
    assert "with the trained classifiers as they are" in protocol
    assert "dev accuracies have none" in protocol
    assert "interval" not in command("m", "--tasks", "mr").stdout


def test_accuracies_of_every_model_are_compared_with_the_first(command, tmp_path):
    path = tmp_path / "scores.jsonl"
    models = ("words", "other", "--tasks", "mr,mrpc", "--compare", "--json", str(path))
    result = command(*models)
    assert result.exit_code == 0, result.output
    _, compared = result.stdout.split("\nother minus words\n")
    first = [" ".join(line.split()[:2]) for line in compared.splitlines()[2:6]]
    assert first == ["MR accuracy", "MRPC accuracy", "Avg. accuracy", "MRPC F1"]
    assert "Holm's adjustment is over the 2 tasks of a metric" in compared
    kept = {(r.task, r.metric): r.compared for r in read_records(path) if r.compared}
    assert list(kept) == [("mr", "accuracy"), ("mrpc", "accuracy"), ("mrpc", "f1")]
    for one in kept.values():
        assert (one.baseline, one.difference, one.p_value) == ("words", 0, 1)


def test_own_files_of_mr_give_mrs_accuracy(data, encoder, tmp_path):
    sides = [(data / f"MR/rt-polarity.{it}").read_text().splitlines() for it in ("pos", "neg")]
    rows = [(line, it) for it, lines in zip(("pos", "neg"), sides, strict=True) for line in lines]
    source = write(tmp_path / "mr.csv", names=("id", "text", "label"), rows=rows)
    (expected,) = evaluate(encoder, ["mr"])
    found = {(r.split, r.metric): r for r in evaluate(encoder, [source], splits=["dev", "test"])}
    assert set(found) == {("test", "accuracy"), ("test", "macro_f1"), ("dev", "accuracy")}
    accuracy, f1 = found["test", "accuracy"], found["test", "macro_f1"]
    assert accuracy.value == expected.value and 0 < f1.value < 1
    assert (accuracy.aggregation, f1.aggregation) == ("mean", "all")
    assert accuracy.pairs == f1.pairs == len(rows) and accuracy.interval is None
    assert (accuracy.classifier["name"], accuracy.classifier["folds"]) == ("senteval", 2)
    assert accuracy.task == source and len(accuracy.data_sha256) == 64
