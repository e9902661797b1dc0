import json
import statistics
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from helpers.command_line import call, worked
from helpers.tiny_models import save_tokenizer
from helpers.tiny_tokenizers import bert_folder

from contrasent.data import examples as examples_module
from contrasent.data.check import Finding
from contrasent.data.tokenizer import Tokenizer

run, tried = (partial(it, "data", "check") for it in (worked, call))


def lengths(values):
    ordered = sorted(values)
    return {
        "count": len(values),
        "minimum": ordered[0],
        "median": statistics.median(ordered),
        "mean": pytest.approx(statistics.mean(ordered)),
        "p95": next(v for k, v in enumerate(ordered, 1) if k >= 0.95 * len(ordered)),
        "maximum": ordered[-1],
    }


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 100])
@pytest.mark.parametrize("views", [1, 3])
def test_lengths_are_those_of_every_view(facts, bert, monkeypatch, count, views):
    monkeypatch.setattr(examples_module, "_SENTENCES_AT_ONCE", 7)
    random = np.random.default_rng(count)
    rows = [[" ".join("a" * random.integers(1, 9)) for _ in range(views)] for _ in range(count)]
    content = "".join("\t".join(row) + "\n" for row in rows)
    report = facts("f.tsv", content, tokenizer=bert, max_tokens=6)
    words = [[len(row[view].split()) for row in rows] for view in range(views)]
    assert [asdict(found) for found in report.words] == [lengths(column) for column in words]
    assert list(map(asdict, report.tokens)) == [lengths([n + 2 for n in of]) for of in words]
    assert facts("h.tsv", content).unknown is None
    assert report.unknown == 0 and not any("does not know" in it for it in report.cautions())
    alien = facts("g.tsv", content.replace("a", "q"), tokenizer=bert)
    assert (alien.unknown, alien.split_words, report.split_words) == (count * views, 1.0, 0.0)
    assert f"{count} (100%) of words that the tokenizer does not know" in [*alien.cautions()]
    assert report.cut == sum(n + 2 > 6 for column in words for n in column)
    assert (report.examples, report.views, report.max_tokens) == (count, views, 6)


def test_repeats_and_pairs_of_the_same_sentence_are_counted(facts):
    found = facts("f.tsv", "a\tb\na\tc\nb\tb\nA\ta\n a \td\nc\tc \n")
    assert found.repeated == 2 and not list(found.cautions())[1:]
    assert found.identical == Finding(2, [f"{found.source}:3", f"{found.source}:6"])


def test_signs_of_wrong_encoding_are_placed(facts):
    sentences = [
        "fine: naïve Ångström Ärger À São Ça va Âme ½ °",
        "caf\ufffd",
        "bell \x07",
        "dash \x96",
        "é".encode().decode("latin-1"),
        "“quoted”".encode().decode("cp1252", "replace"),
        "it\u2019s".encode().decode("cp1252"),
        "ñ ü ö".encode().decode("cp1252"),
        "привет".encode().decode("latin-1"),
        "😀".encode().decode("latin-1"),
        "tab\tinside",
    ]
    signs = facts("f.txt", "\n".join(sentences)).signs

    def lines(finding):
        return [int(where.rsplit(":", 1)[1]) for where in finding.first]

    assert (signs["replaced"].count, lines(signs["replaced"])) == (2, [2, 6])
    assert lines(signs["control"])[:2] == [3, 4]
    assert (signs["mojibake"].count, lines(signs["mojibake"])) == (6, [5, 6, 7])
    fine = facts("g.txt", "\n".join(["1", *sentences[:1], "2"]))
    assert fine.signs["mojibake"].count == 0


def test_unreadable_rows_are_told_and_the_rest_is_checked(facts):
    rows = b"a,b\n" + b"c\n" * 5 + b"d,\xff\n" + b"e,f\n" * 4
    found = facts("f.csv", rows)
    assert (found.examples, found.unreadable.count, found.documents) == (5, 6, None)
    assert [message.split(": ")[0] for message in found.unreadable.first] == [
        f"{found.source}:{line}" for line in (2, 3, 4)
    ]
    said = f"6 rows of {found.source} cannot be read, first: {found.source}:2: 1 column, but the"
    failed = tried(found.source)
    assert failed.code == 2 and said in failed.err
    damaged = facts("f.txt", b"a\nb\n\nb\n\xff\n\nc\nd\ne\n")
    assert (damaged.documents.count, damaged.documents.maximum) == (3, 3)


def test_too_few_examples_are_not_usable(facts):
    few = facts("f.csv", "a,b\n,c\n")
    said = tried(few.source)
    assert said.code == 2 and "f.csv holds 1 example without" in said.err
    empty = facts("f.csv", ",c\n")
    assert (empty.words, empty.examples) == ((), 0)
    said = tried(empty.source)
    assert said.code == 2 and "holds 0 examples" in said.err


def test_the_command_prints_facts_and_writes_clean_text(write, tmp_path):
    path = write("f.csv", 'anchor,positive\na b,"c\n d"\na b,a b\n[red]e[/red],\x1b[31mf\n')
    said = run(path, "--encoder", str(bert_folder(tmp_path / "bert")), "--max-tokens", "3").out
    for line in (
        f"file        {path}\n",
        "columns     anchor as anchor, positive as positive (by name)\n",
        "examples    3 of 2 sentences each\n",
        "repeated    1 example (33.3%) with an earlier one's anchor\n",
        "dirt        anchor and positive the same in 1 example (33.3%), first at :4\n",
        "dirt        control characters in 1 example (33.3%), first at :5\n",
        "cut         6 sentences (100.0%) longer than 3 tokens\n",
        "words       anchor: 2 in the median, 1.7 in the mean, 1 to 2, 95% up to 2\n",
        "  positive: c d\n",
        "  anchor: [red]e[/red]\n  positive: f\n",
    ):
        assert line in said
    assert "\x1b" not in said
    text = write("t.txt", "a dog <b>barks</b>\n\na&amp;b\na&b\n")
    for words, expected in (
        (("--documents", "--clean"), "a dog barks\n\na&b\n"),
        (("--lines",), "a dog <b>barks</b>\na&amp;b\na&b\n"),
    ):
        run(text, *words, "--output", str(tmp_path / "out.txt"), "--overwrite")
        assert (tmp_path / "out.txt").read_text() == expected
    said = tried(text, "--output", tmp_path / "out.txt")
    assert said.code == 2 and "exists already" in said.err and not said.out
    cells = write("cells.csv", 'a,"b\n\tc"\nd,e\n')
    run(cells, "--output", str(tmp_path / "out.tsv"))
    assert (tmp_path / "out.tsv").read_text() == "sent0\tsent1\na\tb c\nd\te\n"
    run(cells, "--columns", "1", "--output", str(tmp_path / "out.txt"), "--overwrite")
    assert (tmp_path / "out.txt").read_text() == "b c\ne\n"


READY = "ready\ntrain with: contrasent "
VERDICTS = [
    ("my printer fails {n}", "", f"{READY}adapt"),
    ("my printer fails {n}", "--lines --clean", f"{READY}adapt"),
    ("{n}-x,my printer fails {n},off {n}", "--columns 1,2", f"{READY}train sup-adapt --encoder"),
    ("- - -", "", "train unsup-simcse --encoder"),
]


def test_cleaned_text_that_is_not_written_is_told(write):
    path = write("pairs.csv", "anchor,positive\n<b>a</b>,b\n<i>c</i>,d\n")
    assert "not kept: add --output, then: contrasent train sup-adapt" in run(path, "--clean").out


def test_lists_of_candidates_are_known_by_name(write):
    row = {"anchor": "ask", "candidate_1": "right", "candidate_2": "wrong", "scores": [1.0, 0.5]}
    said = run(write("lists.jsonl", "".join(f"{json.dumps(row)}\n" for _ in range(5)))).out
    assert "train with: contrasent train rank-distil --encoder" in said


@pytest.mark.parametrize(("row", "words", "verdict"), VERDICTS)
def test_the_command_ends_with_a_verdict_and_what_to_run(write, row, words, verdict):
    name = "a.csv" if "," in row else "a.txt"
    path = write(name, "".join(row.format(n=n) + "\n" for n in range(600)))
    said = run(path, *words.split()).out
    whole = f"{verdict} all-MiniLM-L6-v2 --data {path} {words}".rstrip()
    assert said.endswith(f"{whole}\n"), said[-400:]
    assert ("600 (100%) with no word" in said and "599 (100%) repeats" in said) == (row == "- - -")


def test_a_word_is_one_token_though_the_tokenizer_marks_the_start_itself(facts, tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers

    pieces = [("<unk>", 0.0), ("\u2581", -9.0), ("\u2581a", -1.0), ("\u2581dog", -1.0)]
    backend = Backend(models.Unigram(pieces, unk_id=0))
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence(steps)
    save_tokenizer(tmp_path, backend, 64, unk_token="<unk>")
    found = facts("f.txt", "a dog\na cat\n", tokenizer=Tokenizer.load(tmp_path))
    assert found.split_words == 0.25
