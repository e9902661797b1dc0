"""Runs on labelled pairs, from the command line and from a state, and what is refused."""

import json

import numpy as np
import pytest
from helpers.careless import prepare
from helpers.command_line import refused, worked
from helpers.run_files import logged_steps

from contrasent.training.run import train

COMMON = (
    "--encoder",
    "tiny",
    "--data",
    "nli.tsv",
    "--output",
    "out",
    "--evaluation.task",
    "none",
    "--evaluation.final",
    "none",
    "--data.max_tokens",
    "32",
    "--max-steps",
    "3",
)
LABELS = ("entailment", "neutral", "contradiction", "-")


@pytest.fixture
def nli_file(tmp_path):
    path = tmp_path / "nli.tsv"
    rows = [f"a dog and {n} cats\tthe man {n}\t{LABELS[n % 4]}" for n in range(40)]
    path.write_text("premise\thypothesis\tgold_label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def desk(tmp_path, monkeypatch, tiny_bert, nli_file):
    folder = prepare(tmp_path, monkeypatch, tiny_bert)
    (folder / "nli.tsv").symlink_to(nli_file)
    return folder


def test_rows_without_a_label_are_left_out_and_counted(desk):
    said = worked("train", "nli-softmax", *COMMON)
    assert "30 examples" in said.err and "10 rows without a label left out" in said.err
    first = logged_steps(desk / "out")[0]
    assert {"term_nli", "nli_accuracy"} <= first.keys()
    assert "alignment" not in first
    assert json.loads((desk / "out" / "data.json").read_text())["examples"] == 30


def test_a_joint_run_is_evaluated_and_encodes(desk):
    """Both losses of ConSERT's sup-joint are there, and what is kept is a plain encoder."""
    worked("train", "consert-joint", *COMMON, "--evaluation.task", "pairs.tsv")
    steps = logged_steps(desk / "out")
    for line in steps:
        parts = sum(value for key, value in line.items() if key.startswith("term_"))
        assert parts == pytest.approx(line["loss"], rel=1e-6)
    assert {"term_contrast", "term_nli"} <= steps[0].keys()
    said = worked("evaluate", "out", "--tasks", "pairs.tsv", "--json", "-")
    records = [json.loads(line) for line in said.out.splitlines()]
    assert {(r["pooler"], r["head"]) for r in records} == {("mean", "none")}
    best = json.loads((desk / "out" / "result.json").read_text())["best_score"]
    assert best == pytest.approx(
        next(r["value"] for r in records if (r["metric"], r["aggregation"]) == ("spearman", "all"))
    )
    worked("encode", "out", "text.txt", "rows.npy")
    assert np.load("rows.npy").shape == (20, 16)


def test_labels_are_learnt(tmp_path, recipe):
    """The label follows from the hypothesis alone, so the classifier has to find it."""
    path = tmp_path / "easy.csv"
    words = {"entailment": "dog runs", "neutral": "red house", "contradiction": "no music"}
    rows = [f"a man,{text},{label}" for label, text in words.items()] * 20
    path.write_text("sent0,sent1,label\n" + "\n".join(rows) + "\n")
    changed = {"data__max_tokens": 32, "train__epochs": 6, "train__learning_rate": 1e-2}
    settings = recipe("nli-softmax", data__file=str(path), **changed)
    train(settings, tmp_path / "run")
    steps = logged_steps(tmp_path / "run")
    assert steps[0]["loss"] > 0.8 and steps[-1]["loss"] < 0.2


def test_two_classes_are_refused(desk):
    rows = [f"a dog {n}\ta man\t{LABELS[n % 2]}" for n in range(9)]
    (desk / "two.tsv").write_text("premise\thypothesis\tlabel\n" + "\n".join(rows) + "\n")
    message = refused("train", "nli-softmax", *COMMON, "--data", "two.tsv")
    assert message.startswith("two.tsv has pairs of the classes 1 (entailment), 2 (neutral) only")
    assert not (desk / "out").exists()


def test_labelled_pairs_are_built_from_several_sources_and_trained_on(desk):
    (desk / "more.jsonl").write_text(
        '{"sentence1": "a dog", "sentence2": "a cat", "gold_label": "contradiction"}\n' * 2
    )
    made = worked(
        "data", "build", "nli", "nli.tsv", "more.jsonl", "--make", "labelled", "--output", "all.csv"
    )
    assert "31 examples of 2 sentences and a label each" in made.out
    assert "  hypothesis: the man 0" in made.out and "  label: entailment" in made.out
    lines = (desk / "all.csv").read_text().splitlines()
    assert lines[0] == "sent0,sent1,label" and lines[-1] == "a dog,a cat,contradiction"
    said = worked("train", "nli-softmax", *COMMON, "--data", "all.csv")
    assert "31 examples" in said.err
