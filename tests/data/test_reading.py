"""Reading of files as other programs write them: a table of what is right for each."""

import json
from functools import partial
from pathlib import Path

import pytest

from contrasent.data.check import describe
from contrasent.data.documents import document_lengths
from contrasent.data.examples import open_examples, open_training
from contrasent.data.readers import lines
from contrasent.data.rows import as_number, open_rows_of
from contrasent.data.word_vectors import word_lines
from contrasent.errors import CheckpointError, DataError
from contrasent.evaluation.retrieval import read_texts
from contrasent.evaluation.sts_data import read_pairs
from contrasent.progress import printable, step_progress

ROWS = [
    ("Die Rechnung kam zweimal, an die falsche Adresse", "Sie bekommen eine, später, erstattet"),
    ("Wie kann ich das Passwort ändern", "Öffnen Sie die Einstellungen"),
    ("Der Drucker zeigt einen Fehler an", "Bitte den Treiber neu installieren"),
]


def table(delimiter, head="", rows=ROWS, end="\r\n"):
    return head + "".join(delimiter.join(row) + end for row in rows)


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        (table(";", "\ufeffsep=;\r\nquestion;answer\r\n"), "cells between ';'"),
        (table("^", "sep=^\nquestion^answer\n"), "cells between '^'"),
        (table(";"), "cells between ';'"),
        (table(";", "question;answer\n", [[f'"{cell}"' for cell in row] for row in ROWS]), "';'"),
        (table(",", "question,answer\n", [[f'"{cell};"' for cell in row] for row in ROWS]), ""),
    ],
)
def test_cells_of_csv_may_stand_between_semicolons_and_bars(write, content, layout):
    path = write("f.csv", content)
    examples = open_examples(path)
    assert [tuple(cell.rstrip(";") for cell in row) for row in examples] == ROWS
    told = examples.rows.layout
    assert told.endswith(layout) and bool(told) == bool(layout)
    assert layout in examples.columns
    assert any(layout in it for it in describe(examples).cautions()) or not layout


def test_decimal_commas_are_no_delimiters_and_no_numbers(write):
    path = write("f.csv", table(";", rows=[("a dog", "a cat", "4,5"), ("x", "y", "1,0")] * 2))
    assert next(open_rows_of(path, "rated_pairs").rows())[1] == ["a dog", "a cat", "4,5"]
    with pytest.raises(DataError, match=r"f.csv:1: the score must be a number, not '4,5'"):
        read_pairs(path)


MAC = "first\rsecond\r\rthird\nfourth\r\nfifth"


@pytest.mark.parametrize(
    ("name", "content", "read", "expected"),
    [
        ("f.txt", MAC, lambda path: [it for (it,) in open_examples(path)], MAC.split()),
        ("f.txt", MAC, lambda path: document_lengths(open_examples(path)).tolist(), [2, 3]),
        ("f.csv", 'a,"b\rc"\rd,e\r', lambda path: list(open_examples(path))[1], ("d", "e")),
        ("f.vec", "a 1 2\rb 3 4", lambda path: list(dict(word_lines(Path(path)))), ["a", "b"]),
        ("f.txt", "\ufeffa\rb", lambda path: [n for n, _ in lines(Path(path))], [1, 2]),
    ],
)
def test_a_lone_carriage_return_ends_a_line(write, name, content, read, expected):
    assert read(write(name, content)) == expected


def ragged(first, later, count=3):
    return "".join(json.dumps(row) + "\n" for row in [first] * count + [later])


PAIR = {"anchor": "a dog", "positive": "a puppy"}
NLI = {"premise": "a dog", "hypothesis": "a puppy"}
RATED = {"sentence1": "a dog", "sentence2": "a puppy"}


@pytest.mark.parametrize(
    ("opened", "first", "later"),
    [
        (open_examples, PAIR, {**PAIR, "negative": "a cat"}),
        (open_examples, PAIR, {**PAIR, "hard_neg_2": "a cat"}),
        (partial(open_training, labels="nli"), NLI, {**NLI, "label": "neutral"}),
        (partial(open_training, labels="scores"), RATED, {**RATED, "score": 1}),
        (lambda path: open_rows_of(path, "rated_pairs"), RATED, {**RATED, "score": 1}),
    ],
)
@pytest.mark.parametrize("count", [3, 1000])
def test_a_name_that_the_first_rows_lack_is_not_left_out(write, opened, first, later, count):
    path = write("f.jsonl", ragged(first, later, count))
    with pytest.raises(DataError, match=r"f.jsonl:(1|1001): (no '|'|no column is known as)"):
        examples = opened(path)
        list(examples if hasattr(examples, "read") else examples.rows())


def test_names_that_change_nothing_are_left_out(write):
    path = write("f.jsonl", ragged(PAIR, {**PAIR, "mood": "calm"}, 1000))
    assert len(list(open_examples(path))) == 1001
    chosen = open_examples(write("f.jsonl", ragged(PAIR, {**PAIR, "negative": 1})), [*PAIR])
    assert list(chosen) == [("a dog", "a puppy")] * 4


def test_ids_and_titles_of_ragged_documents(write):
    rows = [{"_id": 1, "text": "a"}, {"_id": 2, "text": "b", "title": "T"}]
    path = write("f.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert read_texts(path)[0] == {"1": "a", "2": "T b"}


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *((text, float(text)) for text in ("4.5", "-3e0", "+.5", "5.", "1E-2", " 2 ")),
        *((value, float(value)) for value in (3, 2.5)),
        *((text, None) for text in ("4_5", "nan", "inf", "-Infinity", "0x10", "4,5", "")),
        *((text, None) for text in ("\u0664", "\uff14")),
        *((value, None) for value in (True, None, [1], float("nan"), 10**400)),
    ],
)
def test_numbers_of_files_are_decimal(write, cell, number):
    assert as_number(cell) == number
    if isinstance(cell, str):
        if number is None:
            with pytest.raises(CheckpointError, match=r"f.vec:2: no word and 2 finite"):
                list(word_lines(Path(write("f.vec", f"a 1 2\nb 1 {cell.strip() or 'x'}\n"))))
        pairs = write("f.tsv", "".join(f"a b\tc d\t{it}\n" for it in ("1", "2", "3", cell)))
        if number is None:
            with pytest.raises(DataError, match=r"f.tsv:4: the score must be a number"):
                read_pairs(pairs)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07name", "name"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[31mred\x9b0m", "red"),
        ("\x9d0;t\x9cname\x07\b\r", "name"),
        ("\x1bPq#0\x1b\\a\x1bcb", "ab"),
        ("a\u202eb\u2066c\u200fd\udcffe", "abcde"),
        ("\x1b]0;open", "0;open"),
        ("ä\tb\nc 日本 👩\u200d🚀", "ä\tb\nc 日本 👩\u200d🚀"),
    ],
)
def test_text_for_a_terminal_has_no_controls(text, shown):
    assert printable(text) == shown


def test_steps_are_logged_from_the_first_loss_on(monkeypatch, caplog):
    monkeypatch.setattr("contrasent.progress._SECONDS_BETWEEN", 0)
    caplog.set_level("INFO", "contrasent")
    with step_progress(100, 0, shown=True) as advance:
        advance(doing="evaluating")
        advance(1, loss="loss 0.5")
    assert caplog.messages == ["step 1 of 100: loss 0.5"]
