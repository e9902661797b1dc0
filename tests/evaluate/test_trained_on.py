"""``contrasent evaluate`` on encoders that were trained on text of the tasks, end to end."""

from dataclasses import replace

import pytest
from helpers.command_line import worked

from contrasent.data.examples import open_examples
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.leaks import (
    Overlap,
    TaskOverlap,
    find_overlap,
    overlap_of,
    training_text,
)
from contrasent.evaluation.suite import load_suite
from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records

PAIRS = [
    ("a dog runs", "one dog runs", 4.0),
    ("the old man reads", "a woman sings", 1.0),
    ("the child is sad", "the child is happy", 2.0),
    ("red house", "green house", 3.0),
]
ROWS = [
    ("A dog runs.", "one dog runs !"),
    ("the old man reads", "something else"),
    ("new text", "here"),
]
CLEAN = [("never seen", "before"), ("by any", "task")]


def table(rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with tasks and training text, where everything happens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.tsv").write_text(table(PAIRS))
    (tmp_path / "train.tsv").write_text(table([("sent0", "sent1"), *ROWS]))
    (tmp_path / "clean.tsv").write_text(table([("sent0", "sent1"), *CLEAN]))
    return tmp_path


@pytest.fixture
def trained(here, tiny_encoder):
    """Saves an encoder as a run on ``file`` leaves it."""

    def save(file="train.tsv", folder="runs/mine/last", start="", columns=None):
        data = {"source": file, "sha256": open_examples(file, columns).sha256}
        recipe = {"encoder": {"name": start}, "data": {"file": file, "columns": columns}}
        tiny_encoder.save(here / folder, {"recipe": recipe, "data": data})
        (here / folder).parent.joinpath("recipe.yaml").touch()
        return folder

    return save


def overlaps(model, *tasks):
    training = training_text(model)
    return [find_overlap(load_suite(tasks or ["own.tsv"]), training)] if training else []


def test_a_run_is_held_to_the_tasks_by_the_real_commands(here, tiny_bert):
    worked(
        *("train", "unsup-simcse", "--encoder", tiny_bert, "--data", "train.tsv"),
        *("--data.columns", "sent0,sent1", "--output", "runs/mine", "--max-steps", "1"),
        *("--evaluation.task", "none", "--evaluation.final", "none"),
    )
    said = worked("evaluate", "runs/mine", "--tasks", "own.tsv", "--json", "scores.jsonl")
    (line,) = [it for it in said.err.splitlines() if "was trained on" in it]
    assert line == (
        "warning: runs/mine was trained on train.tsv, which has sentences of the tasks: own.tsv 3 "
        "of 8; 'contrasent data leaks train.tsv' shows them"
    )
    expected = {"file": "train.tsv", "sentences": 8, "sentences_seen": 3}
    expected |= {"pairs": 4, "pairs_together": 1}
    records = read_records(here / "scores.jsonl")
    assert records and all(record.overlap == expected for record in records)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        (lambda path: path.unlink(), "there is no such file here any more"),
        (lambda path: path.write_text("sent0\tsent1\na\tb\n"), "train.tsv has changed since"),
        (lambda path: path.write_text(""), "train.tsv is empty"),
        (lambda path: path.write_bytes(b"\xff\xfe\xff" * 9), "train.tsv"),
    ],
)
def test_what_cannot_be_checked_is_said_and_stops_nothing(trained, here, change, trouble):
    model = trained()
    change(here / "train.tsv")
    said = worked("evaluate", model, "--tasks", "own.tsv", "--json", "scores.jsonl")
    (line,) = [it for it in said.err.splitlines() if "was trained on" in it]
    assert f"train.tsv; whether that has text of the tasks was not checked: {trouble}" in line
    assert {record.overlap for record in read_records(here / "scores.jsonl")} == {None}


@pytest.mark.parametrize("text", ["[]", '{"recipe": 3}', '{"recipe": {"data": {"file": 1}}}'])
def test_a_folder_that_does_not_say_what_it_was_trained_on_has_no_overlap(trained, here, text):
    model = trained()
    (here / model / "contrasent.json").write_text(text)
    assert overlaps(model) == []
    (here / model / "contrasent.json").unlink()
    assert overlaps(model) == [] == overlaps("all-MiniLM-L6-v2") == overlaps("org/unknown")


def records(model):
    encoder = SentenceEncoder.load(model)
    return load_suite(["own.tsv"]).records(EncoderUse(encoder)).records


@pytest.mark.parametrize(
    ("split", "parts", "expected"),
    [
        ("test", ["dev", "test", "all"], 1),
        ("test", ["dev", "all"], 1),
        ("test", ["dev", "train"], None),
        ("dev", ["train", "dev"], 1),
        ("dev", ["all", "train"], 1),
        ("dev", ["all"], 0),
        ("train", ["dev", "train", "all"], 1),
    ],
)
def test_a_record_has_the_counts_of_its_own_part(trained, split, parts, expected):
    (record, *_) = records(trained())
    counts = [TaskOverlap("mr", part, 9, number, 0, 0, 0, ()) for number, part in enumerate(parts)]
    other = TaskOverlap("cr", split, 9, 5, 0, 0, 0, ())
    asked = replace(record, task="mr", split=split)
    found = overlap_of(asked, Overlap("b", (other, *counts)))
    assert (found and found["sentences_seen"]) == expected
    assert overlap_of(asked, None) is overlap_of(asked, Overlap("a", trouble="gone")) is None
