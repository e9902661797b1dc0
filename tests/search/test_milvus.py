"""An index in Milvus, Lite or a server, does what one by faiss does."""

import os
import shutil
from contextlib import suppress
from itertools import count

import numpy as np
import pytest
from helpers.command_line import started
from helpers.dummy_encoder import DummyEncoder

from contrasent.encode.shards import FinishedShards, open_sentences, write_embeddings
from contrasent.errors import CheckpointError, ConfigError, ContrasentError, DataError
from contrasent.options import Sharding
from contrasent.search import milvus as milvus_module
from contrasent.search import storage
from contrasent.search.index import Index
from contrasent.search.milvus import MilvusRows, close_milvus

TEXTS = [f"text number {i}" for i in range(300)]
QUERIES = ["a", "b", *TEXTS[:8]]

pytestmark = pytest.mark.usefixtures("milvus")
ON_SERVER = pytest.param("server", marks=pytest.mark.acceptance)
on_server = pytest.mark.parametrize("milvus", [ON_SERVER], indirect=True)


def contents(index):
    return [(i, t) for rows in index.blocks() for i, t in zip(rows.ids, rows.texts, strict=True)]


def require_equal(index, other, encoder):
    """The same texts in the same order, and the same hits, by vectors, words and both."""
    assert contents(index) == contents(other) and len(index) == len(other)
    filters = [{"filter": "id like '_1%'"}, {"filter": "id = 'zz'"}]
    for how in ({"top_k": 7}, {"top_k": 400}, {"threshold": 0.4}, *filters):
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
        assert index.change((), np.ones((1, 8)), ["ones"]) == (0, ["302"])
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


def test_an_approximate_index_finds_all_that_a_filter_or_removals_leave(encoder, folder):
    texts, how = [f"text {n}" for n in range(5_000)], {"metadata": [{"n": n} for n in range(5_000)]}
    index = Index.build(encoder, texts, folder, kind="milvus-hnsw", **how)
    flat = Index.build(encoder, texts, folder.with_name("flat"), kind="flat", **how)
    nearest = [int(hit.id) for hit in flat.search(encoder, ["q"], 5_000)[0]]
    few, many = nearest[-2:], nearest[-2_500:]
    for asked in (f"n in ({few[0]}, {few[1]})", f"not n in {tuple(nearest[:-30])}"):
        assert index.search(encoder, ["q"], filter=asked) == flat.search(
            encoder, ["q"], filter=asked
        )
    for it in (index, flat):
        it.remove([n for n in range(5_000) if n not in many])
    assert index.search(encoder, ["q"], 2_400) == flat.search(encoder, ["q"], 2_400)


def test_what_milvus_refuses_leaves_the_index_as_it_was(encoder, folder, monkeypatch):
    index = Index.build(encoder, TEXTS[:3], folder, kind="milvus")
    with monkeypatch.context() as patched:
        patched.setattr(milvus_module, "_batched", lambda _: [[{"row": 3, "vector": [1.0]}]])
        with pytest.raises(ContrasentError, match=r"index: Milvus says: .*dim"):
            index.add(encoder, ["good"])
    assert [text for _, text in contents(index)] == TEXTS[:3]
    index.add(encoder, [long := "x" * 70_000])
    assert contents(index)[-1] == ("3", long)


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
        index.optimize()  # which gives a copy its own collection, where a server has it

        def cut(name, owner=storage, last=last, steps=steps):
            step = getattr(owner, name)

            def counted(*args, **how):
                number = next(steps)
                if number == last or (for_good and number > last):
                    raise CutError
                return step(*args, **how)

            return counted

        with monkeypatch.context() as patched:
            for name in ("write_table", "write_manifest"):
                patched.setattr(storage, name, cut(name))
            patched.setattr(MilvusRows, "_call", cut("_call", MilvusRows))
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
    ids = [f"text {n}" for n in range(len(TEXTS))]
    built = Index.build(DummyEncoder(), FinishedShards.open(shards()), folder, ids, kind=kind)
    whole = Index.build(encoder, TEXTS, tmp_path / "whole", ids)
    assert contents(built) == contents(whole)
    pairs = zip(*(index.search(encoder, QUERIES) for index in (built, whole)), strict=True)
    for found, expected in pairs:  # the shards' vectors had another length
        assert [hit.id for hit in found] == [hit.id for hit in expected]
        scores = [hit.score for hit in expected]
        assert [hit.score for hit in found] == pytest.approx(scores, abs=1e-6)


def test_shards_that_do_not_fit_are_refused(encoder, folder, shards, tmp_path):
    def build(by=encoder, path=None, **how):
        Index.build(by, FinishedShards.open(path or tmp_path / "parquet"), folder, **how)

    with pytest.raises(CheckpointError, match="holds no finished shards with texts"):
        build(path=shards("npy"))
    whole = shards()
    with pytest.raises(ConfigError, match="precision of the shards 'bf16'; choose one of auto"):
        build(precision="bf16")
    with pytest.raises(CheckpointError, match="was written by another encoder"):
        build(DummyEncoder(salt="x"))
    shard = whole / "000002.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"000002.parquet is missing or damaged"):
        build()
    assert not folder.exists()


def test_a_server_lets_many_processes_read_and_lite_one(encoder, folder, milvus):
    Index.build(encoder, TEXTS, folder, kind="milvus")
    process = started("index", "info", folder)
    told, code = ("one process at a time", 2) if milvus is None else ('"texts": 300', 0)
    assert told in "".join(process.communicate()) and process.returncode == code


@on_server
def test_a_copy_of_a_folder_only_reads_until_it_has_its_own_vectors(encoder, folder, tmp_path):
    index, copied = Index.build(encoder, TEXTS, folder, kind="milvus"), tmp_path / "copy"
    index.remove(["7"])
    shutil.copytree(folder, copied)
    index.add(encoder, ["later"])
    flat = Index.build(encoder, TEXTS, tmp_path / "flat")
    flat.remove(["7"])
    require_equal(copy := Index.open(copied), flat, encoder)
    with pytest.raises(ConfigError, match=r"is a copy, .* contrasent index optimize"):
        copy.add(encoder, ["x"])
    copy.optimize()
    for it in (copy, flat):
        it.add(encoder, ["of the copy"])
    require_equal(Index.open(copied), flat, encoder)
    shutil.copytree(copied, tmp_path / "late")
    Index.build(encoder, TEXTS, copied, overwrite=True)
    assert contents(Index.open(folder))[-1] == ("300", "later")
    with pytest.raises(CheckpointError, match="has no collection contrasent_"):
        Index.open(tmp_path / "late")


@on_server
@pytest.mark.parametrize("cut", ["create_collection", "insert", "flush", "drop_collection"])
def test_the_next_writer_drops_what_a_build_left(encoder, folder, monkeypatch, milvus, cut):
    ask = milvus_module._ask

    def asked(client, folder, method, *more, **how):
        if method in (cut, "drop_collection"):  # as a killed process drops nothing
            raise CutError
        return ask(client, folder, method, *more, **how)

    Index.build(encoder, TEXTS[:3], folder, kind="milvus")
    with monkeypatch.context() as patched, suppress(CutError):
        patched.setattr(milvus_module, "_ask", asked)
        Index.build(encoder, TEXTS[:4], folder, kind="milvus", overwrite=True)
    assert len(milvus()) == (1 if cut == "create_collection" else 2)
    index = Index.open(folder)
    assert len(index) == (4 if cut == "drop_collection" else 3)
    index.remove(["0"])
    assert milvus() == {index.manifest.collection}
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


def test_a_folder_of_a_server_says_what_it_lacks(encoder, folder, monkeypatch, milvus):
    Index.build(encoder, TEXTS[:2], folder, kind="milvus")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"texts"', f'"contrasent_1_{16 * "0"}"'))
    told = dict.fromkeys(("", "localhost:1"), "names no")
    told |= dict.fromkeys(("http://h:x", "http://[::1]:1"), "leads")
    if milvus and "CONTRASENT_MILVUS_TOKEN" in os.environ:
        told[os.environ["CONTRASENT_MILVUS_URI"]] = "refuses CONTRASENT_MILVUS_TOKEN"
    monkeypatch.setenv("CONTRASENT_MILVUS_TOKEN", "root:wrong")
    for address, said in told.items():
        monkeypatch.setenv("CONTRASENT_MILVUS_URI", address)
        with pytest.raises(ConfigError, match=f"in a Milvus server, but .*_URI .*{said}"):
            Index.open(folder)
