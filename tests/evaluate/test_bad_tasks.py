"""What is wrong with one task, file or encoder costs its own numbers only: through the command
line, for every kind of tasks."""

import pytest
from helpers.command_line import call
from helpers.tiny_transfer import BAD, GOOD, OTHER, write_transfer
from helpers.tiny_words import WORDS, WordEncoder

from contrasent.records import read_records

KNOWN = (*WORDS, *GOOD, *BAD, *OTHER)
FAST = ("--preset", "dev")


@pytest.fixture(autouse=True)
def data(senteval, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTRASENT_DATA", str(senteval))
    return write_transfer(senteval)


def vectors(path):
    """A file of words."""
    rows = {word: WordEncoder().embed(word) for word in KNOWN}
    path.write_text("".join(" ".join([word, *map(str, rows[word])]) + "\n" for word in rows))
    return path


def folder(path, corpus, queries="cat"):
    path.mkdir()
    (path / "corpus.tsv").write_text("".join(f"d{n}\t{text}\n" for n, text in enumerate(corpus)))
    (path / "queries.tsv").write_text(f"q1\t{queries}\n")
    (path / "qrels.tsv").write_text("q1\td0\t1\n")
    return path


def pairs(path, words, scores=(1, 2, 3, 4)):
    rows = [f"{words[n]} {words[n + 1]}\t{words[n + 2]}\t{s}\n" for n, s in enumerate(scores)]
    path.write_text("".join(rows))
    return path


def evaluated(*words, json="scores.jsonl"):
    """What a command that ends as a user's mistake does said, and the tasks it kept by model."""
    said = call("evaluate", *words, "--json", json)
    assert said.code == 2 and "Traceback" not in said.err
    kept = {(record.encoder, record.task) for record in read_records(json)}
    return said, kept


def test_bad_data_of_every_kind_leaves_the_others_their_results(data, tmp_path):
    (data / "STS/STS13-en-test/STS.gs.OnWN.txt").write_text("1\n")
    (data / "CR/custrev.neg").write_text("poor\n")
    constant = pairs(tmp_path / "constant.tsv", WORDS, scores=(2, 2, 2))
    good, empty = folder(tmp_path / "good", ["cat", "old dog"]), folder(tmp_path / "empty", [])
    model = str(vectors(tmp_path / "words.vec"))
    tasks = f"stsb,sts13,{constant},mr,cr,{good},{empty}"
    said, kept = evaluated(model, "--tasks", tasks, *FAST)
    assert kept == {(model, "stsb"), (model, "mr"), (model, str(good))}
    assert "Spearman" in said.out and "MR" in said.out and "recall@1" in said.out
    message = said.err.split("error: ")[1]
    for problem in (
        f"sts13: {data}/STS/STS13-en-test/STS.gs.OnWN.txt has 1 lines, but ",
        "constant.tsv: no spearman correlation: every gold is 2",
        "CR: a class has 1 sentences, fewer than the 5 folds",
        f"{empty}: {empty}/corpus.tsv is empty",
    ):
        assert problem in message
    assert "stsb" not in message and "good" not in message
