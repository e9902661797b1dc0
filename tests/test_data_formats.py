"""Every reader of data gets the same rows from every format, and tells the same faults of them."""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
from helpers.command_line import call
from helpers.tables import records, write

from contrasent.data.examples import open_examples, open_training
from contrasent.encode.shards import open_sentences
from contrasent.errors import DataError
from contrasent.evaluation.retrieval import read_retrieval
from contrasent.evaluation.sts_data import read_pairs
from contrasent.evaluation.task_names import TaskName
from contrasent.evaluation.transfer import read_labelled


@dataclass(frozen=True)
class Table:
    """Rows under a header that readers know; the first column of the file is a number."""

    header: str
    rows: list

    def write(self, path, **how):
        return write(path, names=self.header.split(), rows=self.rows, **how)

    def records(self):
        return records(self.header.split(), self.rows)


@dataclass(frozen=True)
class Reader:
    """What reads tables, what it makes of them, and whether ``.txt`` is one to it."""

    read: Any
    expected: Any
    tables: tuple
    txt: bool = True


def examples(source):
    return list(open_examples(source))


def labelled_examples(source):
    pairs = open_training(source, "nli")
    return list(pairs), list(pairs.numbers["LABELS"]), pairs.unlabelled


def build_nli(source):
    result = call("data", "build", "nli", source, "--output", "built.csv", "--overwrite")
    if result.code:
        raise DataError(result.err)
    return examples("built.csv")


def labelled_sentences(source):
    task = read_labelled(f"classify:{source}")
    parts = [(part.texts, part.labels.tolist()) for part in task.parts.values()]
    return task.class_names, parts


def retrieval(*sources):
    task = read_retrieval(TaskName("retrieve:" + "+".join(sources)))
    return task.queries, task.corpus, task.relevant


def search(source):
    with open_sentences(source, "sentence", "name") as sentences:
        return sentences.ids(), [*sentences]


ODD = ('naïve "café"', "日本語, 😀")
PAIRS = [("a dog", "a puppy"), ODD]
SCORED = [("a dog", "a puppy", 2.5), ("e", "f g", 1.0), (*ODD, -3.0)]
NLI = [
    *(("a dog", "an animal", "entailment"), ("a dog", "a cat", "contradiction")),
    *(("x", "y", "-"), (*ODD, "neutral")),
]
CLASSES = [(ODD[0], "sport"), ("d  e", "news"), (" f", "sport")]
READERS = {
    "text": Reader(
        examples, [("a dog",), ODD[:1]], (Table("id text", [["a dog"], ODD[:1]]),), False
    ),
    "pairs": Reader(examples, PAIRS, (Table("id sent0 sent1", PAIRS),), False),
    "labelled pairs": Reader(
        labelled_examples,
        ([NLI[0][:2], NLI[1][:2], ODD], [1, 0, 2], 1),
        (Table("id premise hypothesis label", NLI),),
    ),
    "build nli": Reader(
        build_nli,
        [("a dog", "an animal", "a cat")],
        (Table("id sentence1 sentence2 gold_label", NLI),),
    ),
    "scored pairs": Reader(
        lambda source: read_pairs(source)[0],
        SCORED,
        (Table("id sentence1 sentence2 score", SCORED),),
    ),
    "labelled sentences": Reader(
        labelled_sentences,
        (("news", "sport"), [(("f", "d e", ODD[0]), [1, 0, 1])]),
        (Table("id text label", CLASSES),),
    ),
    "retrieval": Reader(
        retrieval,
        (("blue cat",), ODD, ({1: 2},)),
        (
            Table("n qid query", [("q1", "blue cat")]),
            Table("n title doc_id text", [("", "d1", ODD[0]), ("", "d2", ODD[1])]),
            Table("n corpus-id query-id score", [("d2", "q1", 2)]),
        ),
    ),
    "search": Reader(
        search,
        (["one", "two"], [*ODD]),
        (Table("id name sentence", [("one", ODD[0]), ("two", ODD[1])]),),
        False,
    ),
}
FORMATS = [
    *(("csv", "\ufeff", "\r\n"), ("csv.gz", "", "\n")),
    *(("tsv", "", "\r"), ("tsv", "\ufeff", "\r\n")),
    *(("jsonl", "\ufeff", "\r\n"), ("jsonl.gz", "", "\n"), ("jsonl", "", "\r")),
    *(("txt", "\ufeff", "\r\n"), ("txt.gz", "", "\n")),
    *(("csv;", "", "\n"), ("csv|", "\ufeff", "\r\n"), ("csv;", "sep=;\r\n", "\r\n")),
    *(("parquet", "", ""), ("hub", "", "")),
]
OPENING = ("pairs", "labelled pairs", "build nli", "labelled sentences", "retrieval", "search")
"""Readers that open their sources in another way, each."""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "kind", "mark", "end"),
    [
        (name, *form)
        for name, reader in READERS.items()
        for form in FORMATS
        if reader.txt or "txt" not in form[0]
    ],
)
def test_every_format_gives_the_same_rows(name, kind, mark, end, tmp_path, hub):
    reader, sources = READERS[name], []
    for number, table in enumerate(reader.tables):
        if kind == "hub":
            hub.tables[f"org/t{number}", None] = {"train": table.records()}
            sources.append(f"org/t{number}@train")
        else:
            between = kind[-1] if kind[-1] in ";|" else ","
            path = tmp_path / f"{number}.{kind.rstrip(';|')}"
            sources.append(table.write(path, mark=mark, end=end, between=between))
    assert reader.read(*sources) == reader.expected


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("csv", b"\xff,b\n", "not UTF-8: byte 0xff at 0"),
        ("tsv", b"\xff\tb\n", "not UTF-8: byte 0xff at 0"),
        ("jsonl", b"\xff\n", "not UTF-8: byte 0xff at 0"),
        ("tsv", b"a\0b\n", "holds a NUL byte"),
        ("csv", b'"a" b\n', "not a row of quoted CSV"),
        ("csv", b"x\n", "1 .*columns?.* [2-4]"),
        ("tsv", b"x\n", "1 .*columns?.* [2-4]"),
        ("jsonl", b"{\n", "not JSON"),
        ("jsonl", b"[]\n", "expected an object"),
        ("jsonl", b'{"n": 1}\n', "no '|expected an object with "),
    ],
)
@pytest.mark.parametrize("name", OPENING)
def test_a_bad_row_is_named_by_its_line(name, kind, row, message, tmp_path):
    reader = READERS[name]
    paths = [tmp_path / f"{number}.{kind}" for number in range(len(reader.tables))]
    sources = [table.write(path) for table, path in zip(reader.tables, paths, strict=True)]
    with paths[0].open("ab") as file:
        file.write(row)
    line = paths[0].read_bytes().count(b"\n")
    with pytest.raises(DataError, match=f"{re.escape(str(paths[0]))}:{line}: (?:{message})"):
        reader.read(*sources)


@pytest.mark.parametrize("name", OPENING)
@pytest.mark.parametrize("number", [0, 1500])
def test_a_name_that_a_row_lacks_is_named_by_its_line(name, number, tmp_path):
    reader = READERS[name]
    paths = [tmp_path / f"{number}.jsonl" for number in range(len(reader.tables))]
    sources = [table.write(path) for table, path in zip(reader.tables, paths, strict=True)]
    rows = [json.loads(line) for line in paths[-1].read_text().splitlines()]
    rows *= 2 + number // len(rows)
    last = [key for key in rows[0] if key not in ("title", "n", "id")][-1]
    rows[number] = {key: value for key, value in rows[number].items() if key != last}
    paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=rf"{paths[-1]}:{number + 1}: no '{last}', which other"):
        reader.read(*sources)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("csv", None, "there is no file {path}"),
        ("csv", b"", "{path} is empty"),
        ("tsv", b"\n\r\n", "{path} is empty"),
        ("jsonl", b"\n", "{path} is empty"),
        ("csv.gz", b"a,b\n", "{path}: damaged or truncated gzip"),
        ("csv", "a,b\n".encode("utf-16"), "{path}:1: holds a NUL byte"),
        ("parquet", b"no", "{path}: not a readable Parquet file"),
    ],
)
@pytest.mark.parametrize("name", OPENING)
def test_a_file_that_is_none_is_named(name, kind, content, message, tmp_path):
    reader = READERS[name]
    paths = [tmp_path / f"{number}.{kind}" for number in range(len(reader.tables))]
    sources = [table.write(path) for table, path in zip(reader.tables, paths, strict=True)]
    paths[0].unlink()
    if content is not None:
        paths[0].write_bytes(content)
    with pytest.raises(DataError) as caught:
        reader.read(*sources)
    assert message.format(path=paths[0]) in str(caught.value)
