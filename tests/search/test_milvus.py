"""An index in Milvus Lite does what one by faiss does."""

import shutil
from itertools import count

import numpy as np
import pytest
from helpers.command_line import started
from helpers.dummy_encoder import DummyEncoder

from contrasent.encode.shards import FinishedShards, open_sentences, write_embeddings
from contrasent.errors import CheckpointError, ConfigError, ContrasentError, DataError
from contrasent.options import Sharding
from contrasent.search import milvus, storage
from contrasent.search.index import Index
from contrasent.search.milvus import close_milvus

TEXTS = [f"text number {i}" for i in range(300)]
QUERIES = ["a", "b", *TEXTS[:8]]


@pytest.fixture(scope="module", autouse=True)
def _lite():
    pytest.importorskip("milvus_lite", reason="contrasent[milvus] is not installed")


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "index"
    close_milvus(tmp_path / "index")


def contents(index):
    return [(i, t) for rows in index.blocks() for i, t in zip(rows.ids, rows.texts, strict=True)]


def require_equal(index, other, encoder):
    """The same texts in the same order, and the same hits, by vectors, words and both."""
    assert contents(index) == contents(other) and len(index) == len(other)
    for how in ({"top_k": 7}, {"top_k": 400}, {"threshold": 0.4}, {"only": "_1%"}, {"only": "zz"}):
        for mode in ("dense", "hybrid") if "threshold" in how else ("dense", "words", "hybrid"):
            found, expected = (i.search(encoder, QUERIES, mode=mode, **how) for i in (index, other))
            assert found == expected


def test_it_answers_and_changes_as_an_index_by_faiss(encoder, folder, tmp_path):
    pair = [
        Index.build(encoder, TEXTS, path, kind=kind)
        for path, kind in ((folder, "milvus"), (tmp_path / "flat", "flat"))
    ]
    require_equal(*pair, encoder)
    for index in pair:
        index.remove(["3", "17"])
        index.add(encoder, [TEXTS[3], "new"])
        assert index.add_vectors(np.ones((1, 8)), ["ones"]) == ["302"]
        with pytest.raises(DataError, match=r"no text of .* has the id '3'"):
            index.remove(["3", "1000", "5"])
        with pytest.raises(DataError, match="id '300' is in the index already"):
            index.add(encoder, ["x", "y"], ["x", "300"])
        with pytest.raises(DataError, match="text 1 is no text"):
            index.add(encoder, iter(["x", " "]))
        assert index.remove(["300", "gone"], missing_ok=True) == 1
        assert index.change(["5", "8"], np.ones((1, 8)), ["like 5"]) == (2, ["303"])
        with pytest.raises(CheckpointError, match="was built with dummy"):
            index.search(DummyEncoder(salt="x"), ["q"])
    require_equal(*pair, encoder)
    close_milvus(folder)
    require_equal(Index.open(folder), pair[1], encoder)


def test_ids_of_any_kind_and_a_pattern_with_its_signs_quoted(encoder, folder):
    ids = ['with "quotes"', "100%", "100 times", "日本", "a\\b", "a_b", "axb"]
    index = Index.build(encoder, ids, folder, ids, kind="milvus")
    other = Index.build(encoder, ids, folder.with_name("flat"), ids)
    for pattern in ("100%", "100\\%", '%"%', "日_", "a\\_b", "a_b"):
        found, expected = (i.search(encoder, ["q"], only=pattern)[0] for i in (index, other))
        assert found == expected and found
    index.remove(ids[:5])
    assert [name for name, _ in contents(index)] == ids[5:]
    assert index.change(["a_b"], np.ones((1, 8)), ["new"], ["a_b"]) == (1, ["a_b"])
    assert contents(index) == [("axb", "axb"), ("a_b", "new")]


def test_an_index_in_milvus_is_replaced_by_one_of_faiss_and_back(encoder, folder):
    index = Index.build(encoder, TEXTS, folder, kind="milvus-hnsw")
    index.remove([299])
    index.optimize()
    assert TEXTS[299] not in index.snapshot.table["text"].to_pylist()
    with pytest.raises(ConfigError, match="is milvus-hnsw; build it anew as flat"):
        index.optimize("flat")
    flat = Index.build(encoder, TEXTS[:299], folder.with_name("flat"), kind="flat")
    require_equal(index, flat, encoder)
    for it in (index, flat):
        it.reembed(other := DummyEncoder(salt="x"))
    require_equal(index, flat, other)
    with pytest.raises(ConfigError, match="is flat; build it anew as milvus"):
        flat.optimize("milvus")
    for kind in ("flat", "milvus"):
        Index.build(encoder, TEXTS, folder, kind=kind, overwrite=True).add(encoder, ["more"])
        assert contents(Index.open(folder))[-1] == ("300", "more")


def test_what_milvus_refuses_leaves_the_index_as_it_was(encoder, folder):
    index = Index.build(encoder, TEXTS[:3], folder, kind="milvus")
    with pytest.raises(ContrasentError, match=r"Milvus says: .*exceeds max_length=65535"):
        index.add(encoder, ["good", "x" * 70_000])
    for row, text in ((np.ones((1, 8)), "x" * 70_000), (np.zeros((1, 8)), "zero")):
        with pytest.raises(ContrasentError, match=r"exceeds max_length|a direction"):
            index.change(["0", "2"], row, [text])
    assert [text for _, text in contents(index)] == TEXTS[:3]
    index.add(encoder, ["good"])
    assert contents(index)[-1] == ("3", "good")


class CutError(ContrasentError):
    """What ends a write."""


@pytest.mark.parametrize("for_good", [False, True], ids=["refused", "killed"])
def test_a_change_that_ends_at_any_step_is_whole_or_not(encoder, tmp_path, monkeypatch, for_good):
    """The steps are calls of Milvus and files that are written; a killed process takes no other."""

    def change(index):
        index.change(["1", "2", "3"], np.eye(8)[:3], ["a", "b", "c"], ["1", "3", "5"])

    Index.build(encoder, TEXTS[:5], tmp_path / "first", list(range(5)), kind="milvus")
    old = [(str(n), TEXTS[n]) for n in range(5)]
    new = [old[0], old[4], ("1", "a"), ("3", "b"), ("5", "c")]
    for last in count(1):
        folder, steps = tmp_path / f"{last}", count(1)
        shutil.copytree(tmp_path / "first", folder)
        index = Index.open(folder)

        def cut(name, owner=milvus, last=last, steps=steps):
            step = getattr(owner, name)

            def counted(*args, **how):
                number = next(steps)
                if number == last or (for_good and number > last):
                    raise CutError
                return step(*args, **how)

            return counted

        with monkeypatch.context() as patched:
            for owner, name in ((milvus, "write_table"), (storage, "write_manifest")):
                patched.setattr(owner, name, cut(name, owner))
            patched.setattr(milvus.MilvusRows, "_call", cut("_call", milvus.MilvusRows))
            try:
                change(index)
                ended = False
            except CutError:
                ended = True
        if for_good:
            close_milvus(folder)
            index = Index.open(folder)
        assert contents(index) == (old if ended else new)
        assert len(index) == len(old)
        if ended:
            change(index)
        close_milvus(folder)
        assert contents(Index.open(folder)) == new
        close_milvus(folder)
        if not ended:
            break
    assert last == 5


@pytest.fixture
def shards(encoder, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))

    def write(keep="parquet"):
        with open_sentences(str(path)) as sentences:
            settings = Sharding(shard_size=70, shards=keep)
            write_embeddings(encoder, sentences, tmp_path / keep, settings)
        return tmp_path / keep

    return write


@pytest.mark.parametrize("kind", ["milvus", "flat"])
def test_an_index_of_shards_is_that_of_their_texts(kind, encoder, folder, shards, tmp_path):
    built = Index.build(DummyEncoder(), FinishedShards.open(shards()), folder, kind=kind)
    whole = Index.build(encoder, TEXTS, tmp_path / "whole")
    assert contents(built) == contents(whole)
    pairs = zip(*(index.search(encoder, QUERIES) for index in (built, whole)), strict=True)
    for found, expected in pairs:  # the shards' vectors had another length
        assert [hit.id for hit in found] == [hit.id for hit in expected]
        scores = [hit.score for hit in expected]
        assert [hit.score for hit in found] == pytest.approx(scores, abs=1e-6)


def test_shards_that_do_not_fit_are_refused(encoder, folder, shards, tmp_path):
    def build(by=encoder, path=None):
        Index.build(by, FinishedShards.open(path or tmp_path / "parquet"), folder)

    with pytest.raises(CheckpointError, match="holds no finished shards with texts"):
        build(path=shards("npy"))
    whole = shards()
    with pytest.raises(CheckpointError, match="was written by another encoder"):
        build(DummyEncoder(salt="x"))
    shard = whole / "000002.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"000002.parquet is missing or damaged"):
        build()
    assert not folder.exists()


def test_one_process_at_a_time(encoder, folder):
    Index.build(encoder, TEXTS, folder, kind="milvus")
    process = started("index", "info", folder)
    assert "one process at a time" in process.communicate()[1] and process.returncode == 2
