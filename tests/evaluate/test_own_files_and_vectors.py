"""Retrieval in three files and on the hub; vectors of words."""

import gzip
import json
import re

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tables import write

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
    assert task.queries == ("blue cat", "house")
    assert task.relevant == ({0: 2, 2: 1}, {1: 1})
    assert task.left_out == (None, 4)
    assert name.heading == "queries.csv+documents.csv+qrels.csv"


def test_what_is_wrong_with_three_files_is_told(tmp_path):
    name = three(tmp_path, judged=[*JUDGED, ("q1", "d9", 1)])
    with pytest.raises(DataError, match=r"qrels.csv:7: there is no document 'd9'; a row is"):
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


GLOVE = "the 1 0 2\ncat 0.5 -1 0\nDog 3 3 3\ndog 4 4 4\n"


@pytest.mark.parametrize("name", ["glove.txt", "crawl.vec", "glove.txt.gz"])
def test_a_sentence_is_the_mean_of_its_words(tmp_path, name):
    text = ("4 3\n" if name == "crawl.vec" else "") + GLOVE
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    with pytest.warns(UserWarning, match="1 of 4 sentences have no word"):
        found = WordEncoder.load(path).encode(
            ["The cat runs", "cat cat Dog", "dog", "runs"], precision="fp32", show_progress=False
        )
    expected = [[0.75, -0.5, 1], [4 / 3, 1 / 3, 1], [4, 4, 4], [0, 0, 0]]
    assert found == pytest.approx(np.array(expected), abs=1e-6)
