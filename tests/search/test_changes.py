"""Removal, merging, approximate search, threads, and processes that are killed while they write."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from helpers.dummy_encoder import DummyEncoder

from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.search import storage
from contrasent.search.index import Index
from contrasent.search.words import WordsInfo

TEXTS = [f"text number {i}" for i in range(40)]


def texts_of(index):
    return {i: t for rows in index.blocks() for i, t in zip(rows.ids, rows.texts, strict=True)}


def test_hits_after_changes_are_those_of_an_index_of_what_is_left(encoder, folder, tmp_path):
    """Any sequence of additions and removals, against a dict and an index built from it."""
    draw, kept = random.Random(0), dict(zip(map(str, range(40)), TEXTS, strict=True))
    index = Index.build(encoder, TEXTS, folder)
    for step in range(30):
        if draw.random() < 0.5:
            new = [f"new {step} {i}" for i in range(draw.choice([1, 1, 2, 9]))]
            rows = np.stack([3 * encoder.vector(text) for text in new])
            kept |= dict(zip(index.change((), rows, new)[1], new, strict=True))
        else:
            gone = draw.sample(sorted(kept), draw.choice([1, 2, 5]))
            assert index.remove(gone) == len(gone)
            for each in gone:
                del kept[each]
        if step == 20:
            index.optimize("hnsw")
    assert texts_of(index) == texts_of(Index.open(folder)) == kept and len(index) == len(kept)
    fresh = Index.build(encoder, list(kept.values()), tmp_path / "fresh", list(kept))
    queries = ["a", "b", *list(kept.values())[:3]]
    for top_k in (1, 7, 100):
        require_equal(index.search(encoder, queries, top_k), fresh.search(encoder, queries, top_k))
    index.optimize("flat")
    assert index.manifest.removed is None and len(index.manifest.segments) == 1
    require_equal(index.search(encoder, queries, 7), fresh.search(encoder, queries, 7))


def test_blocks_are_the_rows_that_were_not_removed_in_order(encoder, folder, monkeypatch):
    monkeypatch.setattr(storage, "_BLOCK", 7)
    index = Index.build(encoder, TEXTS, folder)
    gone = [0, 5, 6, *range(14, 21), 39]  # a whole block among them
    index.remove(gone)
    blocks, kept = [*index.blocks()], [n for n in range(40) if n not in gone]
    assert [*chain(*(rows.ids for rows in blocks))] == [*map(str, kept)]
    assert [*chain(*(rows.texts for rows in blocks))] == [TEXTS[n] for n in kept]
    vectors = index.snapshot.vectors[0]
    assert (np.concatenate([rows.vectors for rows in blocks]) == vectors[kept]).all()
    assert all(0 < len(rows.ids) == len(rows.vectors) <= 7 for rows in blocks)


def test_a_segment_may_hold_more_text_than_one_arrow_array(encoder, folder, monkeypatch):
    monkeypatch.setattr(storage, "_BLOCK", 8)
    opened = Index.build(encoder, TEXTS, folder).snapshot
    part = pa.array(["x" * (1 << 24)] * 4)  # many times in the column, and once in memory
    column = pa.chunked_array([part] * 40)
    assert column.nbytes > 1 << 31
    vectors, table = np.zeros((160, 8), np.float32), pa.table([column, column], ["id", "text"])
    half = replace(opened, vectors=[vectors], table=table, live=np.arange(160) % 2 == 0)
    first = next(half.blocks())
    assert len(first.ids) == len(first.texts) == len(first.vectors) == 4


def require_equal(found, expected):
    """The same hits, but for the last digits, as vectors of another length were normalised."""
    for some, others in zip(found, expected, strict=True):
        assert [(hit.id, hit.text) for hit in some] == [(hit.id, hit.text) for hit in others]
        assert [h.score for h in some] == pytest.approx([h.score for h in others], abs=1e-6)


def test_additions_one_by_one_leave_few_segments_and_files(encoder, folder):
    index = Index.build(encoder, TEXTS[:1], folder)
    for text in TEXTS[1:]:
        index.add(encoder, [text])
    assert len(index.manifest.segments) <= 6
    index.add(encoder, ["last"])
    assert len(list((folder / "segments").iterdir())) <= 2 * 7 + 2
    assert list(texts_of(index).values()) == [*TEXTS, "last"]


def test_a_number_is_given_once_and_an_id_can_come_back(encoder, folder):
    index = Index.build(encoder, TEXTS[:3], folder)
    index.remove([2])
    index.add(encoder, ["another"])
    assert [*texts_of(index)] == ["0", "1", "3"]
    index.optimize()
    index.add(encoder, ["yet another"])
    assert [*texts_of(index)] == ["0", "1", "3", "4"]
    index.add(encoder, ["named"], [2])
    assert texts_of(index)["2"] == "named"


def test_all_can_be_removed(encoder, folder):
    index = Index.build(encoder, TEXTS, folder, kind="hnsw")
    index.remove(range(40))
    for opened in (index, Index.open(folder)):
        assert len(opened) == 0 and opened.search(encoder, ["q"]) == [[]]
    index.optimize()
    index.add(encoder, ["new"])
    assert [hit.text for hit in index.search(encoder, ["q"])[0]] == ["new"]


@pytest.mark.parametrize(
    ("use", "error", "said"),
    [
        (lambda i: i.remove(["1", "x", "y"]), DataError, "'x'; nothing was"),
        (lambda i: i.remove("12"), ConfigError, "ids must be a list"),
        (lambda i: i.change((), np.ones((2, 8)), ["one"]), ConfigError, r"expected \(1, 8\)"),
        (lambda i: i.change((), np.zeros((1, 8)), ["one"]), ConfigError, "a direction"),
        (lambda i: i.change((), np.ones((1, 8)), [" "]), DataError, "text 0 is no text"),
        (lambda i: i.change(["x"], np.ones((1, 8)), ["one"]), DataError, "'x'; nothing was"),
        (lambda i: i.change(["1"], np.ones((1, 8)), ["one"], ["2"]), DataError, "id '2' is in"),
        (lambda i: i.change(["1"], np.full((1, 8), np.nan), ["one"]), ConfigError, "a direction"),
        (lambda i: i.search_vectors(np.ones(8)), ConfigError, r"expected \(1, 8\)"),
        (lambda i: i.search_vectors(np.ones((1, 8)), threshold=2), ConfigError, "from -1 to 1"),
        (lambda i: i.optimize("hsnw"), ConfigError, "Did you mean 'hnsw'"),
        (lambda i: i.change(["1"], np.ones((0, 8)), [], ["x"]), DataError, "no text to index"),
        (lambda i: i.search_vectors(np.ones((1, 8)), fusion="ranks"), ConfigError, "ranks"),
    ],
)
def test_mistakes_change_nothing(encoder, folder, use, error, said):
    index = Index.build(encoder, TEXTS, folder)
    before = texts_of(index)
    with pytest.raises(error, match=said):
        use(index)
    assert texts_of(index) == texts_of(Index.open(folder)) == before


def test_an_index_of_the_first_format_opens_and_grows(encoder, folder):
    Index.build(encoder, TEXTS, folder)
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    old = {key: content[key] for key in ("encoder", "segments", "numbered")}
    path.write_text(json.dumps(old | {"format": "contrasent-index-1"}))
    index = Index.open(folder)
    assert len(index) == 40 and index.kind == "flat"
    index.add(encoder, ["new"], metadata=[{"n": 1}])
    index.remove([0])
    assert [*texts_of(index)] == list(map(str, range(1, 41)))
    [hits] = found = index.search(encoder, ["q"], 50)
    assert [h.id for h in hits if h.metadata == {"n": 1}] == ["40"] and len(hits) == 40
    encoder.similarity_fn_name = "dot"
    with pytest.warns(UserWarning, match="ranks by cosine, as it was built, but dummy states dot"):
        assert Index.open(folder).search(encoder, ["q"], 50) == found


def exact(rows, ids, queries, top_k):
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    order = np.argsort(-(queries @ rows.T), axis=1)[:, :top_k]
    return [{ids[row] for row in some} for some in order]


def recall(index, queries, expected):
    found = [{int(hit.id) for hit in hits} for hits in index.search_vectors(queries, 10)]
    return np.mean([len(some & best) / 10 for some, best in zip(found, expected, strict=True)])


@pytest.mark.parametrize(
    "kind", ["hnsw", "binary", pytest.param("ivfpq", marks=pytest.mark.acceptance)]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_approximate_search_finds_what_exact_search_finds(kind, folder):
    """Vectors around 200 centres, as those of sentences lie, and queries beside them."""
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((200, 16))
    drawn = centres[draw.integers(200, size=10_200)] + 0.5 * draw.standard_normal((10_200, 16))
    rows, queries = drawn[:10_000].astype(np.float32), drawn[10_000:].astype(np.float32)
    texts = list(map(str, range(len(rows))))
    encoder = DummyEncoder(16, vectors=dict(zip(texts, rows, strict=True)))
    index = Index.build(encoder, texts, folder, kind=kind)
    ann = index.manifest.ann
    assert (index.kind, ann.rows) == (kind, 10_000) and ann.recall >= 0.95
    ids = np.arange(10_000)
    expected = exact(rows, ids, queries, 10)
    assert recall(index, queries, expected) == pytest.approx(ann.recall, abs=0.04)
    [best] = index.search_vectors(queries[:1], 1)
    unit = rows[int(best[0].id)] / np.linalg.norm(rows[int(best[0].id)])
    assert best[0].score == pytest.approx(unit @ queries[0] / np.linalg.norm(queries[0]), abs=1e-6)

    # The nearest texts of every query are removed, and others are added beside it.
    gone = sorted({row for some in exact(rows, ids, queries, 5) for row in some})
    index.remove(gone)
    index.change((), queries + 0.01, [f"near {i}" for i in range(len(queries))])
    everything = np.concatenate([rows, queries + 0.01])
    left = np.setdiff1d(np.arange(10_200), gone)
    expected = exact(everything[left], left, queries, 10)
    assert recall(index, queries, expected) >= 0.95
    assert index.manifest.ann == ann
    index.change((), rows[gone] + 3, [f"far {row}" for row in gone])  # enough to train with
    index.optimize()
    assert index.manifest.ann.rows == 10_200 and index.kind == kind
    assert recall(Index.open(folder), queries, expected) >= 0.95


def test_a_damaged_approximate_index_is_searched_exactly_until_it_is_made_anew(encoder, folder):
    index = Index.build(encoder, TEXTS, folder, kind="hnsw")
    hits, path = index.search(encoder, TEXTS[:3]), folder / index.manifest.ann.file
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"faiss cannot be read .*contrasent index optimize"):
        damaged = Index.open(folder)
        assert damaged.kind == "flat" and damaged.search(encoder, TEXTS[:3]) == hits
        damaged.optimize()
    assert Index.open(folder).kind == "hnsw"


def test_threads_search_add_and_remove_together(encoder, folder):
    index = Index.build(encoder, TEXTS, folder)

    def add(thread):
        for i in range(6):
            index.add(encoder, [f"thread {thread} text {i}"])

    def remove(_):
        for i in range(12):
            index.remove([i])

    def search(_):
        for _ in range(20):
            hits = index.search(encoder, [TEXTS[20]], 10)[0]
            assert hits[0].text == TEXTS[20] and len(hits) == 10

    with ThreadPoolExecutor(5) as pool:
        work = [add, add, remove, search, search]
        for each in [pool.submit(work[n], n) for n in range(5)]:
            each.result()
    assert len(index) == len(Index.open(folder)) == 40 + 12 - 12


def test_what_another_process_wrote_is_there_after_refresh(encoder, folder):
    first = Index.build(encoder, TEXTS, folder, kind="hnsw")
    second = Index.open(folder)
    second.remove([3])
    second.add(encoder, ["new"])
    second.optimize()
    assert len(first) == 40 and first.search(encoder, [TEXTS[3]], 1)[0][0].id == "3"
    first.refresh()
    assert texts_of(first) == texts_of(second)


def test_an_index_that_another_encoder_built_anew_is_not_taken_over(encoder, folder):
    index = Index.build(encoder, TEXTS, folder)
    Index.build(DummyEncoder(salt="x"), ["other"], folder, overwrite=True)
    for use in (index.refresh, lambda: index.remove(["0"]), lambda: index.add(encoder, ["new"])):
        with pytest.raises(CheckpointError, match="was built anew, with dummy; open it again"):
            use()
    assert index.search(encoder, [TEXTS[3]], 1)[0][0].id == "3"
    assert texts_of(Index.open(folder)) == {"0": "other"}


def test_an_index_can_be_embedded_by_another_encoder(encoder, folder, tmp_path, monkeypatch):
    texts, metadata = [f"t{n}" for n in range(12)], [{"n": n} for n in range(12)]
    index = Index.build(encoder, texts, folder, metadata=metadata)
    index.remove(["3"])
    other = DummyEncoder(5, salt="other", name="other")
    kept = [n for n in range(12) if n != 3]
    theirs = {"metadata": [metadata[n] for n in kept]}
    fresh = Index.build(other, [texts[n] for n in kept], tmp_path / "fresh", kept, **theirs)
    old = Index.open(folder)
    with monkeypatch.context() as patched:
        patched.setattr(DummyEncoder, "vector", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index.reembed(other)
    assert old.search(encoder, ["a"]) == Index.open(folder).search(encoder, ["a"])
    index.set_words(WordsInfo(0.4, "queries", hybrid=True, queries=9, gain=0.1))
    index.search(encoder, ["a"])
    index.reembed(other)
    with pytest.raises(CheckpointError, match="encoder"):
        index.search(encoder, ["a"])
    assert index.manifest.words == WordsInfo(0.4, "queries", hybrid=True)  # not measured anew
    index.set_words(WordsInfo())
    for opened in (index, Index.open(folder)):
        assert opened.search(other, ["a", "t5"], 12) == fresh.search(other, ["a", "t5"], 12)
    index.add(other, ["new"])  # numbers go on where they were
    assert index.search(other, ["new"], 1)[0][0].id == "12"
    with pytest.raises(CheckpointError, match="built anew"):
        old.refresh()
