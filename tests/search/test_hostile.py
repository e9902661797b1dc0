"""Folders from elsewhere: what leads out of them is refused, and texts that a terminal obeys."""

import json
import shutil

import pytest
from helpers.command_line import tree, worked

from contrasent.encode.shards import FinishedShards
from contrasent.errors import CheckpointError
from contrasent.search.index import Index


def changed(folder, **fields):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def link_segments(index, elsewhere):
    shutil.copytree(index / "segments", elsewhere, dirs_exist_ok=True)
    shutil.rmtree(index / "segments")
    (index / "segments").symlink_to(elsewhere)


def link_file(index, elsewhere):
    file = next((index / "segments").iterdir())
    shutil.move(file, elsewhere / file.name)
    file.symlink_to(elsewhere / file.name)


def link_milvus(index, elsewhere):
    (index / "milvus.db").symlink_to(elsewhere)


def name_outside(index, elsewhere):
    shutil.copytree(index / "segments", elsewhere, dirs_exist_ok=True)
    changed(index, segments=[{"name": f"../../{elsewhere.name}/000001", "rows": 3}])


def removed_outside(index, elsewhere):
    shutil.copy(index / "manifest.json", elsewhere / "removed.npy")
    changed(index, removed=str(elsewhere / "removed.npy"))


def ann_outside(index, elsewhere):
    fields = {"kind": "hnsw", "rows": 3, "effort": 8, "recall": 1.0, "queries": 3}
    changed(index, ann={"file": f"../{elsewhere.name}/a.faiss", **fields})


@pytest.mark.parametrize(
    "spoil", [link_segments, link_file, link_milvus, name_outside, removed_outside, ann_outside]
)
def test_an_index_never_reads_or_deletes_outside_itself(spoil, encoder, folder, tmp_path):
    index = Index.build(encoder, ["a", "b", "c"], folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    spoil(folder, elsewhere)
    before = tree(elsewhere)
    uses = [lambda: Index.open(folder), index.optimize, index.refresh]
    for use in (*uses, lambda: index.add(encoder, ["d"]), lambda: index.remove(["0"])):
        with pytest.raises(CheckpointError, match="no path inside that folder"):
            use()
    Index.build(encoder, ["d"], folder, overwrite=True)
    assert tree(elsewhere) == before


def test_shards_are_read_inside_their_folder_only(encoder, tmp_path):
    (tmp_path / "secret.parquet").write_bytes(b"")
    folder = tmp_path / "shards"
    folder.mkdir()
    shard = {"file": "../secret.parquet", "sha256": ""}
    shards = FinishedShards(folder, {"encoder": encoder.fingerprint(), "shards": [shard]})
    with pytest.raises(CheckpointError, match="no path inside that folder"):
        list(shards.blocks(encoder))


def test_search_prints_no_control_characters(encoder, folder, monkeypatch):
    text = "a\x1b]0;title\x07 text\u202e of\x1b[2J one\nline"
    Index.build(encoder, [text, text, "other"], folder, ["one\x1b[1m", "two", "three"])
    monkeypatch.setattr(Index, "encoder", lambda *_: encoder)
    said = worked("search", folder, text).out
    assert not {"\x1b", "\x07", "\u202e"} & {*said}
    assert said.count("a text of one line") == 2
    rows = [json.loads(line) for line in worked("search", folder, text, "--json").out.splitlines()]
    assert [row["text"] for row in rows] == [text, text, "other"]
