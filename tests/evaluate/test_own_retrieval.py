"""A user's folder of queries, documents and relevance."""

import gzip
import json
from math import log2

import numpy as np
import pytest

from contrasent import evaluate
from contrasent.errors import DataError
from contrasent.evaluation.retrieval import read_retrieval
from contrasent.evaluation.task_names import TaskName

CORPUS = {
    "d1": "red cat",
    "d2": "old house",
    "d3": "green dog runs",
    "d4": "new blue house",
    "q2": "under house",
}
QUERIES = {"q1": "blue cat", "q2": "under house", "q3": "never"}
JUDGED = [("q1", "d1", 2), ("q1", "d3", 1), ("q1", "d2", 0), ("q2", "d2", 1), ("q2", "q2", 1)]


@pytest.fixture
def folder(tmp_path):
    """As BEIR's; ``q2`` is a document too, and ``q3`` has nothing that is relevant."""
    made = tmp_path / "own"
    (made / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", CORPUS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": number, "text": text}) for number, text in texts.items()]
        (made / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in JUDGED)]
    (made / "qrels/test.tsv").write_text("\n".join(lines) + "\n")
    return made


def task_of(folder, split="test"):
    return read_retrieval(TaskName(str(folder), split))


def test_a_folder_is_read_as_beirs(folder):
    task = task_of(folder)
    assert task.corpus == tuple(CORPUS.values())
    assert task.queries == ("blue cat", "under house")
    assert task.relevant == ({0: 2, 2: 1}, {1: 1})
    assert task.left_out == (None, 4)
    assert task.description == "2 of 3 queries, those with a relevant document; 5 documents"


def test_a_query_that_is_a_titled_document_does_not_find_itself(folder):
    lines = map(json.loads, (folder / "corpus.jsonl").read_text().splitlines())
    titled = [json.dumps({**line, "title": "On cats"}) for line in lines]
    (folder / "corpus.jsonl").write_text("\n".join(titled) + "\n")
    assert task_of(folder).left_out == (None, 4)


def test_metrics_are_those_of_a_loop(folder, encoder):
    def cosine(a, b):
        u, v = (encoder.embed(text).astype(float) for text in (a, b))
        return (u * v).sum() / np.sqrt((u * u).sum() * (v * v).sum())

    ndcg = mrr = 0.0
    recall = dict.fromkeys((1, 5, 10, 100), 0.0)
    for query, grades in (("q1", {"d1": 2, "d3": 1}), ("q2", {"d2": 1})):
        others = [d for d in CORPUS if d != query]
        ranked = sorted(others, key=lambda d, q=query: -cosine(QUERIES[q], CORPUS[d]))
        gains = [grades.get(d, 0) for d in ranked]
        best = sorted(gains, reverse=True)
        ndcg += sum(g / log2(n + 2) for n, g in enumerate(gains)) / sum(
            g / log2(n + 2) for n, g in enumerate(best)
        )
        mrr += 1 / (1 + next(n for n, g in enumerate(gains) if g))
        for k in recall:
            recall[k] += sum(g > 0 for g in gains[:k]) / len(grades)
    found = {r.metric: r.value for r in evaluate(encoder, [str(folder)])}
    expected = {"ndcg@10": ndcg, "mrr@10": mrr, **{f"recall@{k}": v for k, v in recall.items()}}
    assert found == pytest.approx({metric: value / 2 for metric, value in expected.items()})


def test_equal_texts_are_embedded_once_behind_prompts_too(folder, tiny_encoder, monkeypatch):
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d9", "text": "red cat"}\n')
    asked, encode = [], tiny_encoder.encode
    monkeypatch.setattr(
        tiny_encoder, "encode", lambda texts, **how: asked.append(texts) or encode(texts, **how)
    )
    tiny_encoder.prompts = {"query": "find: ", "document": ""}
    records = evaluate(tiny_encoder, [str(folder)])
    assert asked == [[*CORPUS.values()], ["blue cat", "under house"]]
    assert records[0].prompts == {"query": "find: ", "document": ""}
    tiny_encoder.default_prompt_name = "query"
    (record, *_) = evaluate(tiny_encoder, [str(folder)])
    assert record.prompts == {"default": "find: ", "query": "find: ", "document": ""}


@pytest.mark.parametrize("header", [True, False])
def test_tables_are_read_too(folder, header):
    expected = task_of(folder)
    for name, texts in (("corpus", CORPUS), ("queries", QUERIES)):
        (folder / f"{name}.jsonl").unlink()
        lines = [f"{number}\t{text}\n" for number, text in texts.items()]
        text = "".join(["id\ttext\n", *lines] if header else lines)
        with gzip.open(folder / f"{name}.tsv.gz", "wt") as file:
            file.write(text)
    (folder / "qrels/test.tsv").unlink()
    rows = "".join(f"{query}\t{document}\t{grade}\n" for query, document, grade in JUDGED)
    (folder / "qrels.tsv").write_text("q\td\tgrade\n" * header + rows)
    found = task_of(folder)
    assert (found.corpus, found.queries) == (expected.corpus, expected.queries)
    assert (found.relevant, found.left_out) == (expected.relevant, expected.left_out)
    assert found.sha256 != expected.sha256


REFUSED = {
    "corpus.jsonl": [
        ("", r"corpus.jsonl is empty; it needs at least one sentence"),
        ('{"_id": "d1"}', r"corpus.jsonl:1: no column is known as the text; there are _id"),
        (
            '{"_id": true, "text": "a"}',
            r"corpus.jsonl:1: every text needs an id of its own, .* not T",
        ),
        (
            '{"_id": "", "text": "a"}',
            r"corpus.jsonl:1: every text needs an id of its own, .* not ''",
        ),
        (
            '{"_id": 1, "text": "a"}\n{"_id": "1", "text": "b"}',
            r"corpus.jsonl:2: every text needs an id of its own, .* not '1'",
        ),
    ],
    "qrels/test.tsv": [
        ("q1\td9\t1\n", r"qrels/test.tsv:1: there is no document 'd9'"),
        ("q1\td1\t1\nq1\td1\t0\n", r"test.tsv:2: the relevance of 'd1' for 'q1' is 0 here and 1"),
        ("q1\td1\t1\nq1\td2\thigh\n", r"test.tsv:2: the score must be a number, not 'high'"),
        ("q1\td1\n", r"test.tsv:1: no column is known as the query's id; there are q1, d1"),
        ("q1\td1\t0\nq2\tq2\t1\n", r"test.tsv: no query has a relevant document"),
    ],
    "queries.tsv": [("q1\ta\n", r"own has queries.jsonl, queries.tsv, .* one of each is needed")],
}


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [(file, text, message) for file, cases in REFUSED.items() for text, message in cases],
)
def test_what_is_wrong_is_told_with_its_line(folder, file, text, message):
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=message):
        task_of(folder)
