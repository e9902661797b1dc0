"""``contrasent evaluate`` on transfer tasks, with the encoder of words."""

import pytest
from helpers.tables import write
from helpers.tiny_transfer import write_transfer

from contrasent import evaluate
from contrasent.evaluation import protocols
from contrasent.evaluation.protocols import Preset

PRESETS = {"test": Preset("test", 2, "adam", 16, 1, 2, max_epochs=4)}


@pytest.fixture(autouse=True)
def data(senteval, monkeypatch):
    monkeypatch.setattr(protocols, "PRESETS", PRESETS)
    monkeypatch.setenv("CONTRASENT_DATA", str(senteval))
    return write_transfer(senteval)


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
