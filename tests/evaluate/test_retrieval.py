"""Retrieval: metrics and rankings against loops, DiffCSE's task on small splits."""

from math import log2

import numpy as np
import pytest

from contrasent import evaluate
from contrasent.evaluation.retrieval import similarities, stsb_retrieval
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import relevant_ranks, retrieval_score

TASK = TaskName("stsb-retrieval")
SENTENCES = [
    ("red cat", "red dog", "5.000"),
    ("old house", "new house", "5.000"),
    ("red cat", "blue cat", "5.000"),
    ("never runs", "never runs", "5.000"),
    ("green dog runs", "old house", "3.000"),
    ("under blue", "red dog", "0.000"),
]


@pytest.fixture(autouse=True)
def stsb(senteval, monkeypatch):
    """A test split with repeated sentences, and a pair of one sentence twice."""
    monkeypatch.setenv("CONTRASENT_DATA", str(senteval))
    lines = [f"g\tf\t2012\t1\t{score}\t{a}\t{b}\n" for a, b, score in SENTENCES]
    (senteval / "STS/STSBenchmark/sts-test.csv").write_text("".join(lines))
    return senteval


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 5, 30])
def test_metrics_are_those_of_loops_over_the_ranked_list(seed, k):
    """Of equal scores the less relevant is first."""
    draw = np.random.default_rng(seed)
    scores = draw.integers(0, 12, size=(8, 30)) / 4  # with many ties
    relevant = [
        {int(d): int(draw.integers(1, 4)) for d in draw.choice(30, size, replace=False)}
        for size in draw.integers(1, 6, size=8)
    ]
    found = [
        relevant_ranks(row, [*grades], [*grades.values()], left_out=None)
        for row, grades in zip(scores, relevant, strict=True)
    ]
    recall = mrr = ndcg = 0.0
    for row, grades in zip(scores, relevant, strict=True):
        ranked = sorted((-score, grades.get(document, 0)) for document, score in enumerate(row))
        ranking = [grade for _, grade in ranked]
        recall += sum(grade > 0 for grade in ranking[:k]) / len(grades)
        first = next(place for place, grade in enumerate(ranking, start=1) if grade)
        mrr += 1 / first if first <= k else 0
        gain = sum(g / log2(place + 1) for place, g in enumerate(ranking[:k], start=1))
        best = sorted(grades.values(), reverse=True)[:k]
        ndcg += gain / sum(g / log2(place + 1) for place, g in enumerate(best, start=1))
    for metric, expected in (("recall", recall), ("mrr", mrr), ("ndcg", ndcg)):
        assert sum(retrieval_score(f"{metric}@{k}", *it) for it in found) == pytest.approx(expected)


def test_a_rank_does_not_depend_on_the_other_queries():
    draw = np.random.default_rng(0)
    corpus, queries = draw.normal(size=(1001, 384)), draw.normal(size=(65, 384))
    corpus[[10, 300, 500, 998]] = corpus[1000]

    def ranks(rows):
        scores = similarities((rows, corpus))
        return [int(relevant_ranks(row, [1000], [1], None)[0][0]) for row in scores]

    every = queries @ corpus[:1000].T
    expected = [int((row > row[10] + 1e-9).sum()) + 5 for row in every]
    assert ranks(queries) == ranks(queries[::-1])[::-1] == expected
    assert [rank for query in queries for rank in ranks(query[None])] == expected


def test_both_sentences_of_the_pairs_rated_5_are_queries(encoder):
    task = stsb_retrieval(TASK)
    queries = ("red cat", "old house", "red cat", "red dog", "new house", "blue cat")
    assert task.queries == queries
    assert len(task.corpus) == len(set(task.corpus)) == 8
    answers = [task.corpus[row] for (row,) in task.relevant]
    assert answers == ["red dog", "new house", "blue cat", "red cat", "old house", "red cat"]
    assert [task.corpus[row] for row in task.left_out] == [*task.queries]
    assert "6 queries, both sentences of the 3 pairs rated 5; 8 documents" in task.description
    assert "of 12 sentences" in task.description
    records = evaluate(encoder, ["stsb-retrieval"])
    assert [record.metric for record in records] == ["recall@1", "recall@5", "recall@10"]
    for record in records:
        assert (record.task, record.split, record.aggregation) == (TASK.name, "test", "mean")
        assert (record.pairs, record.encoder) == (6, "some/words")


@pytest.mark.acceptance
def test_the_task_has_the_papers_size(shared):
    task = stsb_retrieval(TASK, shared / "data/senteval")
    assert len(task.queries) == 2 * 97
    assert "2,551 documents, the different ones of 2,758 sentences" in task.description
