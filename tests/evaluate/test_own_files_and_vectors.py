"""Retrieval in three files and on the hub; vectors in place of an encoder for every kind."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import refused, worked
from helpers.tables import write

from contrasent import evaluate
from contrasent.data.readers import retrieval_sources
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.retrieval import read_retrieval
from contrasent.evaluation.task_names import TaskName
from contrasent.model.lookup_encoders import WordEncoder

CORPUS = {"d1": "red cat", "d2": "old house", "d3": "green dog", "d4": "new cat", "q2": "house"}
QUERIES = {"q1": "blue cat", "q3": "never", "q2": "house"}
JUDGED = [("q1", "d1", 2), ("q1", "d3", 1), ("q1", "d2", 0), ("q2", "d2", 1), ("q2", "d1", -1)]


def three(folder, names=("qid", "query"), judged=JUDGED):
    """Queries, documents and relevance, the latter with its columns in another order."""
    queries = [*QUERIES.items()]
    corpus = [("", number, text) for number, text in CORPUS.items()]
    rows = [(document, query, grade) for query, document, grade in judged]
    files = [
        write(folder / "queries.csv", names=("n", *names), rows=queries),
        write(folder / "documents.csv", names=("n", "title", "doc_id", "text"), rows=corpus),
        write(folder / "qrels.csv", names=("n", "corpus-id", "query-id", "score"), rows=rows),
    ]
    return "retrieve:" + "+".join(files)


def test_three_files(tmp_path):
    name = TaskName(three(tmp_path))
    task = read_retrieval(name)
    assert task.corpus == tuple(CORPUS.values())
    assert task.every_query == tuple(QUERIES.values())
    assert task.queries == ("blue cat", "house")
    assert task.relevant == ({0: 2, 2: 1}, {1: 1})
    assert task.left_out == (None, 4)
    assert name.heading == "queries.csv+documents.csv+qrels.csv"


def test_what_is_wrong_with_three_files_is_told(tmp_path):
    name = three(tmp_path, judged=[*JUDGED, ("q1", "d9", 1)])
    with pytest.raises(DataError, match=r"qrels.csv:7: there is no document 'd9'$"):
        read_retrieval(TaskName(name))
    name = three(tmp_path, judged=[("d1", "q1", 1)])
    said = "qrels.csv:2: there is no query 'd1'; a row is query, document, relevance"
    with pytest.raises(DataError, match=said):
        read_retrieval(TaskName(name))
    queries = tmp_path / "queries.csv"
    for files in (str(queries), f"{queries}+{queries}"):
        with pytest.raises(ConfigError, match="name three, retrieve:QUERIES"):
            read_retrieval(TaskName(f"retrieve:{files}"))
    with pytest.raises(DataError, match=r"there is no file \S+none.csv"):
        read_retrieval(TaskName(f"retrieve:{queries}+{queries}+{tmp_path}/none.csv"))


@pytest.fixture
def retrieval_hub(hub):
    """Data sets in the layouts of BEIR and MTEB; what they hold is the same."""
    judged = [{"query-id": q, "corpus-id": d, "score": g} for q, d, g in JUDGED]
    queries, corpus = (
        [{"_id": n, "title": "", "text": text} for n, text in texts.items()]
        for texts in (QUERIES, CORPUS)
    )
    for name in ("BeIR/x", "mteb/x"):
        hub.tables[name, "corpus"] = {"corpus": corpus}
        hub.tables[name, "queries"] = {"queries": queries}
    hub.tables["BeIR/x-qrels", None] = {"train": judged, "test": judged}
    hub.tables["mteb/x", "default"] = {"dev": judged, "test": judged}
    for config, rows in (("corpus", corpus), ("queries", queries), ("qrels", judged)):
        hub.tables["mteb/y", f"de-{config}"] = {"test": rows}


@pytest.mark.usefixtures("retrieval_hub")
@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("BeIR/x", ("BeIR/x:queries@queries", "BeIR/x:corpus@corpus", "BeIR/x-qrels@test")),
        ("mteb/x", ("mteb/x:queries@queries", "mteb/x:corpus@corpus", "mteb/x:default@test")),
        ("mteb/y:de", ("mteb/y:de-queries@test", "mteb/y:de-corpus@test", "mteb/y:de-qrels@test")),
    ],
)
def test_data_sets_of_the_hub(name, sources, tmp_path):
    assert retrieval_sources(name, "test") == sources
    expected = read_retrieval(TaskName(three(tmp_path)))
    for named in (name, "+".join(sources)):
        task = read_retrieval(TaskName(f"retrieve:{named}"))
        assert (task.queries, task.corpus) == (expected.queries, expected.corpus)
        assert (task.relevant, task.left_out) == (expected.relevant, expected.left_out)


def saved(path, rows):
    np.save(path, np.stack(rows))
    return str(path)


def values(*arguments):
    said = worked("evaluate", *arguments, "--json", "-")
    return {record["metric"]: record["value"] for record in map(json.loads, said.out.splitlines())}


def test_matrices_of_queries_and_documents_score_as_their_encoder(encoder, tmp_path):
    task = three(tmp_path)
    queries, corpus = ([*map(encoder.embed, side.values())] for side in (QUERIES, CORPUS))
    expected = {r.metric: r.value for r in evaluate(encoder, [task])}
    together = saved(tmp_path / "v.npy", queries + corpus)
    joined = "+".join([saved(tmp_path / "q.npy", queries), saved(tmp_path / "d.npy", corpus)])
    assert values(together, "--tasks", task) == values(joined, "--tasks", task) == expected
    other = [*queries[:-1], -queries[-1]]  # of "house", which is a document too
    found = values(saved(tmp_path / "o.npy", other + corpus), "--tasks", task)
    assert found["mrr@10"] != expected["mrr@10"]
    short = saved(tmp_path / "s.npy", queries + corpus[1:])
    said = refused("evaluate", short, "--tasks", task)
    assert (
        "s.npy has 7 rows, but queries.csv+documents.csv+qrels.csv needs 8: 3 queries, then" in said
    )


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_matrix_of_labelled_sentences_scores_as_its_encoder(
    encoder, tmp_path, monkeypatch, of_pairs
):
    from contrasent.model.encoder import SentenceEncoder

    monkeypatch.setattr(SentenceEncoder, "load", lambda *_, **__: encoder)
    monkeypatch.setattr("contrasent.model.loading.resolve", Path)
    draw = np.random.default_rng(0)
    words = ("red", "old", "new", "cat", "dog", "house")
    texts = [
        [" ".join(draw.choice(words, size=draw.integers(2, 5))) for _ in range(1 + of_pairs)]
        for _ in range(60)
    ]
    rows = [(*text, int("red" in text[0])) for text in texts]
    names = ("n", "sentence1", "sentence2", "label") if of_pairs else ("n", "text", "label")
    files = [
        write(tmp_path / f"{part}.csv", names=names, rows=chosen)
        for part, chosen in (("train", rows[:40]), ("test", rows[40:]))
    ]
    matrix = [encoder.embed(text) for side in zip(*texts, strict=True) for text in side]
    how = ("--tasks", f"classify:{files[0]}+{files[1]}", "--classifier", "sklearn")
    path = saved(tmp_path / "v.npy", matrix)
    assert values(path, *how, "--preset", "dev") == values("m", *how, "--preset", "dev")
    said = refused("evaluate", saved(tmp_path / "s.npy", matrix[1:]), *how)
    needed = "60 first sentences, then 60 second sentences" if of_pairs else "60 sentences"
    assert f"train.csv+test.csv needs {len(matrix)}: {needed}" in said
    two = refused("evaluate", path, "--tasks", f"{how[1]},classify:{files[0]}", *how[2:])
    assert "holds the vectors of one task; name that one with --tasks, not 2" in two


def test_words_rank_a_text_without_a_known_word_last_and_count_it(tmp_path):
    (tmp_path / "glove.txt").write_text("cat 1 0\nred -1 0.5\nhouse -1 -1\nold -1 -1\n")
    (tmp_path / "q.tsv").write_text("q1\tcat\nq2\tnothing\n")
    (tmp_path / "d.tsv").write_text("d1\tred\nd2\tunknown\nd3\told house\n")
    (tmp_path / "r.tsv").write_text("q1\td2\t1\nq2\td1\t1\n")
    task = f"retrieve:{tmp_path}/q.tsv+{tmp_path}/d.tsv+{tmp_path}/r.tsv"
    encoder = WordEncoder.load(tmp_path / "glove.txt")
    encoder.save(tmp_path / "sif", {"transform": {"described": "SIF"}})
    kept = worked("evaluate", tmp_path / "sif", "--tasks", task, "--json", "-")
    said = worked("evaluate", tmp_path / "glove.txt", "--tasks", task, "--json", "-")
    assert [json.loads(line)["value"] for line in kept.out.splitlines()] == [
        json.loads(line)["value"] for line in said.out.splitlines()
    ]
    found = {r["metric"]: r["value"] for r in map(json.loads, said.out.splitlines())}
    # d2 stands behind both, whose cosines are below 0; d1 behind the one that is no worse.
    assert found["mrr@10"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    told = "1 of 2 queries and 1 of 3 documents have no known word: such a query finds"
    assert re.search(rf"glove.txt: q.tsv\+d.tsv\+r.tsv: {told}", said.err)
