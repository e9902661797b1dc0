"""Runs on labelled pairs, from the command line and from a state, and what is refused."""

import json

import numpy as np
import pytest
from helpers.careless import prepare
from helpers.command_line import worked
from helpers.run_files import logged_steps

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
