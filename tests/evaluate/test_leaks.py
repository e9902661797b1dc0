"""Text of the tasks in training text: ``contrasent data leaks`` against loops over all texts, and
what ``contrasent evaluate`` says of encoders that were trained on some."""

from dataclasses import replace
from itertools import permutations

import pytest
from helpers.command_line import worked
from helpers.oracles import letters
from helpers.tiny_transfer import write_transfer

from contrasent.data.examples import open_examples, open_training
from contrasent.evaluation import suite as suites
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.suite import Overlap, find_leaks, find_overlap, load_suite, overlap_of
from contrasent.records import read_records

TRIPLETS = [
    ("Red cat.", "The OLD house!", "a green dog"),
    ("old dog", "new  cat", "red cat"),
    ("never", "never!", "blue"),
    ("unheard of", "words", "here"),
]
PAIRS = [
    ("red cat", "the old house", 1.0),
    ("a green dog", "old dog", 2.0),
    ("new cat", "old dog", 3.0),
    ("Never", "never", 4.0),
    ("blue", "blue", 4.5),
    ("red cat", "something else", 5.0),
    ("...", "!", 2.5),
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a task and training text, where everything happens."""
    monkeypatch.chdir(tmp_path)
    lines = ["sent0,sent1,hard_neg", *(",".join(row) for row in TRIPLETS)]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    text = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS)
    (tmp_path / "own.tsv").write_text(text)
    return tmp_path


def counted_in_loops(form, rows=TRIPLETS):
    """Sentences, pairs seen anywhere and pairs in one example, by comparing all with all."""

    def same(a, b):
        return form(a) == form(b) != ""

    def has(row, sentence):
        return any(same(sentence, other) for other in row)

    sentences = seen = together = 0
    for a, b, _ in PAIRS:
        found = [any(has(row, sentence) for row in rows) for sentence in (a, b)]
        sentences += sum(found)
        seen += all(found)
        two = [it for row in rows for it in permutations(row, 2)]
        together += any(same(a, first) and same(b, second) for first, second in two)
    return sentences, seen, together


def test_counts_are_those_of_loops():
    found = find_leaks(open_examples("train.csv"), load_suite(["own.tsv"]))
    (task,) = found.tasks
    assert (task.sentences, task.pairs, found.examples) == (14, 7, 4)
    expected = counted_in_loops(letters)
    assert (task.seen, task.pairs_seen, task.pairs_together) == expected == (11, 5, 3)
    assert (task.task, task.split, task.heading) == ("own.tsv", "test", "own.tsv")
    first = ("Red cat.", "The OLD house!", "a green dog")
    assert task.first == tuple(("train.csv:2", it) for it in first)


def test_every_kind_of_task_is_looked_at(senteval, monkeypatch):
    monkeypatch.setenv("CONTRASENT_DATA", str(write_transfer(senteval)))
    source = senteval / "STS/STSBenchmark/sts-test.csv"
    rows = [line.split("\t") for line in source.read_text().splitlines()]
    source.write_text("\n".join("\t".join([*r[:4], "5.0", *r[5:]]) for r in rows[:2]) + "\n")
    with source.open("a") as file:
        file.write("g\tf\t2012\t1\t1.0\tlast one\tand another\n")
    train = senteval / "train.tsv"
    train.write_text("".join(f"{row[5]}\t{row[6]}\n" for row in rows[:2]))
    names = ["stsb", "stsb-retrieval", "mr", "trec-dev", "mrpc"]
    suite = load_suite(names, Options(senteval))
    found = {t.task: t for t in find_leaks(open_examples(str(train)), suite).tasks}
    splits = {name: found[name].split for name in ("stsb", "mr", "trec", "mrpc")}
    assert splits == {"stsb": "test", "mr": "all", "trec": "train", "mrpc": "test"}
    assert (found["stsb"].seen, found["stsb"].pairs_together, found["stsb"].pairs) == (4, 2, 3)
    ranked = found["stsb-retrieval"]
    assert ranked.pairs_together == ranked.pairs == 4
    assert (found["mr"].pairs, found["mr"].seen) == (0, 0)
    assert found["mrpc"].pairs * 2 == found["mrpc"].sentences


def test_a_run_is_held_to_the_tasks_by_the_real_commands(here, tiny_bert):
    worked(
        *("train", "unsup-simcse", "--encoder", tiny_bert, "--data", "train.csv"),
        *("--data.columns", "sent0,sent1", "--output", "runs/mine", "--max-steps", "1"),
        *("--evaluation.task", "none", "--evaluation.final", "none"),
    )
    said = worked("evaluate", "runs/mine", "--tasks", "own.tsv", "--json", "scores.jsonl")
    (line,) = [it for it in said.err.splitlines() if "was trained on" in it]
    seen, _, together = counted_in_loops(letters, [row[:2] for row in TRIPLETS])
    assert line == (
        "warning: runs/mine was trained on train.csv, which has sentences of the tasks: own.tsv "
        f"{seen} of 14; see: contrasent data leaks train.csv --tasks own.tsv"
    )
    expected = {"file": "train.csv", "sentences": 14, "sentences_seen": seen}
    expected |= {"pairs": 7, "pairs_together": together}
    records = read_records(here / "scores.jsonl")
    assert records and all(record.overlap == expected for record in records)


def test_a_run_on_labelled_pairs_is_held_to_the_tasks(here, tiny_encoder):
    rows = "".join(f"{a},{b},entailment\n" for a, b, _ in TRIPLETS)
    (here / "nli.csv").write_text(f"sent0,sent1,label\n{rows}")
    data = {"source": "nli.csv", "sha256": open_training("nli.csv", "nli").sha256}
    recipe = {"data": {"file": "nli.csv", "columns": None, "labels": "nli"}}
    tiny_encoder.save(here / "mine", {"recipe": recipe, "data": data})
    found = find_overlap("mine", load_suite(["own.tsv"]))
    seen, _, together = counted_in_loops(letters, [row[:2] for row in TRIPLETS])
    assert (found.tasks[0].seen, found.tasks[0].pairs_together) == (seen, together)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        (lambda path: path.unlink(), "there is no such file here any more"),
        (lambda path: path.write_text("sent0,sent1\na,b\n"), "train.csv has changed since"),
        (lambda path: path.write_text(""), "train.csv is empty"),
        (lambda path: path.write_bytes(b"\xff\xfe\xff" * 9), "train.csv"),
    ],
)
def test_what_cannot_be_checked_is_said_and_stops_nothing(here, tiny_encoder, change, trouble):
    data = {"source": "train.csv", "sha256": open_examples("train.csv").sha256}
    recipe = {"encoder": {"name": ""}, "data": {"file": "train.csv", "columns": None}}
    tiny_encoder.save(here / "runs/mine/last", {"recipe": recipe, "data": data})
    (here / "runs/mine/recipe.yaml").touch()
    change(here / "train.csv")
    said = worked("evaluate", "runs/mine/last", "--tasks", "own.tsv", "--json", "scores.jsonl")
    (line,) = [it for it in said.err.splitlines() if "was trained on" in it]
    assert f"train.csv; whether that has text of the tasks was not checked: {trouble}" in line
    assert {record.overlap for record in read_records(here / "scores.jsonl")} == {None}


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
def test_a_record_has_the_counts_of_its_own_part(encoder, split, parts, expected):
    record = load_suite(["own.tsv"]).records(EncoderUse(encoder)).records[0]
    counts = [
        suites.TaskOverlap("mr", part, 9, number, 0, 0, 0, ()) for number, part in enumerate(parts)
    ]
    other = suites.TaskOverlap("cr", split, 9, 5, 0, 0, 0, ())
    asked = replace(record, task="mr", split=split)
    found = overlap_of(asked, Overlap("b", (other, *counts)))
    assert (found and found["sentences_seen"]) == expected
    assert overlap_of(asked, None) is overlap_of(asked, Overlap("a", trouble="gone")) is None


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("train", "columns", "expected"),
    [
        ("nli/nli_triplets.csv", None, [149, 0, 0, 79, 0, 75, 70, 284]),
        ("paraphrase/flickr8k_captions.tsv", ["1"], [3, 0, 7, 1493, 0, 280, 243, 334]),
        ("paraphrase/qqp_sample.tsv", ["question1", "question2"], [0] * 8),
    ],
)
def test_the_overlap_of_real_files_is_the_published_one(shared, train, columns, expected):
    tasks = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb-dev", "stsb", "sickr"]
    data = shared / "data"
    suite = load_suite(tasks, Options(data / "senteval"))
    found = find_leaks(open_examples(str(data / train), columns), suite)
    assert [task.seen for task in found.tasks] == expected
