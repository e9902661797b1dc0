import faiss
import numpy as np
import pytest

from contrasent.encode.vectors import SmallVectors, quantized
from contrasent.search import nearest as module
from contrasent.search.nearest import nearest


def random_rows(seed, count, width):
    rows = np.random.default_rng(seed).standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("cuts", [[], [1], [7, 7 + 64], [100, 101, 102]])
@pytest.mark.parametrize("top_k", [1, 5, 150, 1000])
def test_hits_are_those_of_a_sort_by_score_and_row(cuts, top_k):
    rows, queries = random_rows(0, 150, 12), random_rows(1, 70, 12)
    found = nearest(np.split(rows, cuts), queries, top_k)
    for query, hits in zip(queries, found, strict=True):
        scores = rows.astype(float) @ query.astype(float)
        expected = np.argsort(-scores, kind="stable")[:top_k]
        assert [row for row, _ in hits] == expected.tolist()
        assert [score for _, score in hits] == pytest.approx(scores[expected], abs=1e-12)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_hits_of_bytes_are_those_of_the_vectors_that_they_stand_for(similarity, monkeypatch):
    monkeypatch.setattr(module, "_SMALL", 64)
    rows, queries = random_rows(2, 500, 24), random_rows(3, 30, 24)
    rows[:, 0] += 3.0 if similarity == "dot" else 0.0
    rows[40:50] = rows[0]
    ranges = np.stack([rows.min(axis=0), rows.max(axis=0)])
    small = SmallVectors(quantized(rows, "int8", ranges), ranges)
    live = np.arange(500) % 7 > 0
    for kept in (None, live):
        expected = nearest([small[:]], queries, 12, kept, similarity=similarity)
        assert nearest([small], queries, 12, kept, similarity=similarity) == expected


@pytest.mark.parametrize("copies", [3, 40, 500])
@pytest.mark.parametrize("width", [3, 17, 384])
def test_equal_vectors_come_in_the_order_of_their_rows_wherever_they_lie(copies, width):
    same = random_rows(4, 1, width)[0]
    rows = random_rows(5, 1200, width)
    where = np.sort(np.random.default_rng(6).choice(1200, copies, replace=False))
    rows[where] = same
    found = nearest(np.split(rows, [311, 312, 900]), same[None], 25)[0]
    assert [row for row, _ in found[: min(copies, 25)]] == where[:25].tolist()
    assert len({score for _, score in found[: min(copies, 25)]}) == 1


def test_only_queries_beside_many_equal_rows_are_searched_again(monkeypatch):
    rows, queries = random_rows(4, 1200, 17), random_rows(5, 40, 17)
    rows[:500] = queries[7]
    alone, asked = [nearest([rows], query[None], 5)[0] for query in queries], []
    knn = faiss.knn
    monkeypatch.setattr(faiss, "knn", lambda q, *how: asked.append(len(q)) or knn(q, *how))
    assert nearest([rows], queries, 5) == alone
    assert asked[0] == 40 and len(asked) > 3 and {*asked[1:]} == {1}


def test_a_score_is_never_outside_the_range_of_a_cosine():
    rows = random_rows(7, 300, 384)
    scores = [hits[0][1] for hits in nearest([rows], rows, 1)]
    assert max(scores) <= 1.0 and min(scores) > 1 - 1e-6


def test_one_query_and_many_give_the_same_scores():
    rows, queries = random_rows(8, 500, 48), random_rows(9, 130, 48)
    together = nearest([rows], queries, 7)
    assert together == [nearest([rows], query[None], 7)[0] for query in queries]


@pytest.mark.parametrize(
    ("found", "effort"), [([0.9, 0.93, 0.934], 64), ([0.9, 0.98], 64), ([0.98], 32)]
)
def test_effort_is_doubled_until_it_finds_enough_or_hardly_more(found, effort, tmp_path):
    (tmp_path / "segments").mkdir()
    measured = iter(found)
    how = tmp_path, 1, lambda _: None, "cosine", lambda *_: next(measured)
    ann = module.write_ann([random_rows(0, 500, 8)], "hnsw", *how)
    assert (ann.effort, ann.recall, [*measured]) == (effort, found[:2][-1], [])
