"""An index that follows files, against what a look at the files and at the encoder's calls says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.dummy_encoder import DummyEncoder

from contrasent.errors import CheckpointError, DataError
from contrasent.search import sync
from contrasent.search.index import Index
from contrasent.search.sync import sync_index

pytest.importorskip("semchunk")


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git/hidden.md").write_text("hidden")
    (folder / "photo.jpg").write_bytes(b"\xff")
    for n in range(10):
        (folder / f"sub/note {n}.txt").write_text(f"Note {n}.\n\nIts second paragraph.")
    (folder / "guide.md").write_text(
        "Before.\n\n# Guide\nFirst words.\n\n## Install\nRun it.\n```\n# no heading\n```\n"
        "## Use\nAsk.\n# Other\nLast."
    )
    (folder / "page.html").write_text(
        "<html><head><title>A &amp; B</title><style>p {}</style></head><body>"
        "<h1>One\n <b>two</b></h1><p>First &lt;p&gt;.</p><p>Second.</p>"
        "<h2>Deep</h2><h3></h3><pre>\n# code</pre></body></html>"
    )
    rows = [{"text": f"question {n}", "year": 2015 + n, "id": f"q{n}"} for n in range(6)]
    (folder / "faq.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows[:3]) + '{"text": "odd"}\n'
    )
    pq.write_table(pa.Table.from_pylist(rows[3:]), folder / "faq.parquet")
    return folder


def contents(folder):
    """Every live row: its metadata by id, path and text."""
    index = Index.open(folder)
    [hits] = index.search_vectors(DummyEncoder().vector("q")[None], max(1, len(index)))
    assert len({hit.id for hit in hits}) == len(hits)
    return {(hit.metadata["path"], hit.text): hit.metadata for hit in hits if hit.metadata}


def test_passages_have_their_text_title_heading_and_columns(encoder, files, folder):
    work = sync_index(folder, [files], encoder)
    rows = contents(folder)
    assert (work.files, work.changed, work.removed) == (14, 14, 0)
    assert work.passages == work.embedded == len(rows) == len(Index.open(folder))

    def of(name):
        return {
            text: (known.get("title"), known.get("heading"))
            for (path, text), known in rows.items()
            if path == f"files/{name}"
        }

    assert of("guide.md") == {
        "Before.": ("Guide", None),
        "Guide\nFirst words.": ("Guide", "Guide"),
        "Install\nRun it.\n```\n# no heading\n```": ("Guide", "Guide > Install"),
        "Use\nAsk.": ("Guide", "Guide > Use"),
        "Other\nLast.": ("Guide", "Other"),
    }
    assert of("page.html") == {
        "One two\nFirst <p>.\n\nSecond.": ("A & B", "One two"),
        "Deep\n# code": ("A & B", "One two > Deep"),
    }
    assert of("sub/note 3.txt") == {"Note 3.\n\nIts second paragraph.": (None, None)}
    faq = {"path": "files/faq.jsonl"}
    assert rows["files/faq.jsonl", "question 1"] == {**faq, "year": 2016, "row_id": "q1"}
    assert rows["files/faq.jsonl", "odd"] == faq
    index = Index.open(folder)
    hits = index.search(encoder, ["q"], 50, filter='year >= 2017 and path like "%.parquet"')[0]
    assert {hit.text for hit in hits} == {"question 3", "question 4", "question 5"}
    assert {
        hit.id
        for of in index.search(encoder, ["q"], 50, filter="id like 'files/guide.md#%'")
        for hit in of
    }


def test_only_what_changed_is_embedded_and_what_disappeared_is_removed(files, folder):
    encoder = DummyEncoder()
    sync_index(folder, [files], encoder)
    Index.open(folder).add(encoder, ["by hand"], ["mine"])
    encoder.embedded.clear()
    before = contents(folder)
    assert sync_index(folder, [files]).embedded == 0  # nor is the encoder of that name loaded
    (files / "sub/note 1.txt").write_text("Note 1 is new.")
    (files / "sub/note 2.txt").unlink()
    (files / "sub/note 3.txt").rename(files / "moved.txt")
    shutil.copy(files / "sub/note 4.txt", files / "copied.txt")
    guide = (files / "guide.md").read_text()
    (files / "guide.md").write_text("Now before all.\n\n" + guide.replace("Ask.", "Ask twice."))
    work = sync_index(folder, [files], encoder)
    changed = {"Note 1 is new.", "Now before all.\n\nBefore.", "Use\nAsk twice."}
    assert {*encoder.embedded} == changed
    assert (work.changed, work.removed, work.embedded) == (4, 2, 3)
    fresh = folder.with_name("fresh")
    sync_index(fresh, [files], DummyEncoder())
    assert contents(folder) == contents(fresh) != before
    assert Index.open(folder).snapshot.rows_of(["mine"])
    for block in Index.open(folder).blocks():
        for text, row in zip(block.texts, block.vectors, strict=True):
            vector = encoder.vector(text)
            assert row @ vector == pytest.approx((vector @ vector) ** 0.5, rel=1e-5)


def test_texts_that_call_themselves_files_are_left_alone(encoder, files, folder):
    Index.build(encoder, ["a"], folder, ["a"], metadata=[{"_file": "x"}])
    sync_index(folder, [files], encoder)
    Index.open(folder).add(encoder, ["c"], ["c"], metadata=[{"path": "files/c", "_file": "x"}])
    assert sync_index(folder, [files]).removed == 0
    assert len(Index.open(folder).snapshot.rows_of(["a", "c"])) == 2


COMMANDS = """
import sys
from contrasent.cli.app import main
for line in sys.argv[1:]:
    sys.argv = ["contrasent", *line.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
print("LOADED", *(name.partition(".")[0] for name in sys.modules))
"""


def test_columns_concern_tables_alone(encoder, files, folder):
    sync_index(folder, [files], encoder)
    work = sync_index(folder, [files], encoder, columns="text")
    assert (work.changed, work.embedded) == (2, 0)  # faq.jsonl and faq.parquet


def test_commands_that_embed_nothing_load_nothing_heavy(encoder, files, folder):
    sync_index(folder, [files], encoder)
    lines = "index sync {0} {1}", "index info {0}", "search --mode words {0} first"
    commands = [line.format(folder, files) for line in (*lines, "index remove {0} no --missing-ok")]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *commands], capture_output=True, text=True, check=True
    )
    said, _, loaded = done.stdout.partition("LOADED")
    assert "0 embedded" in done.stderr and '"encoder"' in said and "First words." in said
    assert "pyarrow" in loaded.split()
    assert not {"torch", "transformers", "faiss", "scipy", "semchunk"} & {*loaded.split()}


def test_only_files_below_the_paths_are_looked_for(encoder, files, folder):
    sync_index(folder, [files / "sub", files / "guide.md"], encoder)
    Index.open(folder).add(encoder, ["own"], ["own"], metadata=[{"_file": "of nobody"}])
    shutil.rmtree(files / "sub")
    (files / "sub").mkdir()
    with pytest.warns(UserWarning, match=r"is not there \(10 such files\): name its folder too"):
        assert sync_index(folder, files / "guide.md").removed == 0
    assert sync_index(folder, str(files / "sub")).removed == 10
    assert {path for path, _ in contents(folder)} == {"files/guide.md"}
    with pytest.raises(DataError, match="no-such"):
        sync_index(folder, [files / "no-such"])
    with pytest.raises(CheckpointError, match="was built with"):  # though nothing has changed
        sync_index(folder, [files], DummyEncoder(5))


def test_long_text_is_split_with_overlap_and_other_settings_split_anew(files, folder):
    text = " ".join(f"w{n}." for n in range(100))
    shutil.rmtree(files)
    files.mkdir()
    (files / "long.txt").write_text(text)
    encoder = DummyEncoder(max_tokens=1000)
    assert sync_index(folder, [files], encoder, tokens=10).passages == 10
    pieces = [text for _, text in contents(folder)]
    assert sorted(" ".join(pieces).split()) == sorted(text.split())
    assert sync_index(folder, [files], encoder, tokens=10).changed == 0
    work = sync_index(folder, [files], encoder, tokens=10, overlap=5)
    assert work.changed == 1 and work.passages > 15
    assert max(len(text.split()) for _, text in contents(folder)) <= 10


def test_an_unreadable_file_is_left_as_it_was_and_told(encoder, files, folder):
    sync_index(folder, [files], encoder)
    (files / "guide.md").write_bytes(b"\xff\xfe\x00")
    (files / "faq.jsonl").write_text("{")
    for name, text in [
        ("\udcff.txt", "x"),
        ("a.jsonl", '{"text": "a", "b": "\\ud800"}'),
        ("e.txt", ""),
        ("q.csv", "q,a\nb,c"),
    ]:
        (files / name).write_text(text)
    os.mkfifo(files / "pipe.txt")
    with pytest.warns(UserWarning, match="left as it was") as warned:
        assert sync_index(folder, [files]).changed == 0
    assert len(warned) == 5
    assert any("choose text with --columns" in str(it.message) for it in warned)
    assert {"files/guide.md", "files/faq.jsonl"} <= {path for path, _ in contents(folder)}


def test_a_heading_is_one_outside_code_and_a_passage_without_text_below_it(tmp_path):
    def passages(text):
        (tmp_path / "a.md").write_text(text)
        found = [(*it, known["heading"]) for *it, known in sync._sections(tmp_path / "a.md", None)]
        return [it for it in found if it[1]]

    contact = ("Contact", "Write.", "T > Contact")
    assert passages("# T\n\n## Paid\n\n## Contact\n\nWrite.\n\n# Last\n") == [
        *(("", "Paid", "T > Paid"), contact, ("", "Last", "Last"))
    ]
    code = "````md\n```sh\n# none\n```\n# none\n````"
    assert passages(f"```make test```\n\n# T\n\n## Contact\n\nWrite.\n\n{code}\n") == [
        *(("", "```make test```", None), ("Contact", f"Write.\n\n{code}", "T > Contact"))
    ]


def test_what_cannot_be_followed_is_told(encoder, files, folder, tmp_path):
    (files / "utf16.txt").write_bytes("a text of sixteen bits".encode("utf-16-le"))
    (tmp_path / "shared").mkdir()
    (files / "linked").symlink_to(tmp_path / "shared")
    with pytest.warns(UserWarning) as warned:
        sync_index(folder, [files], encoder)
    said = [str(it.message) for it in warned]
    assert any("utf16.txt is left as it was: it holds a NUL byte" in it for it in said)
    assert any("linked is a link to a folder, and left out" in it for it in said)
    (files / "linked").unlink()
    (files / "utf16.txt").unlink()
    (tmp_path / "elsewhere").mkdir()
    moved = folder.rename(tmp_path / "elsewhere" / folder.name)
    with pytest.warns(UserWarning, match=r"is not there \(14 such files\): .* move an index"):
        sync_index(moved, [files], encoder)


def test_a_long_heading_leaves_room_for_the_text(encoder, files, folder):
    for path in filter(Path.is_file, files.rglob("*")):
        path.unlink()
    (files / "long.md").write_text(f"# {'word ' * 300}\n\nThe zebra crossing is closed.")
    sync_index(folder, [files], encoder)
    [(_, text)] = contents(folder)
    assert text == f"{' '.join(['word'] * 16)}\nThe zebra crossing is closed."


@pytest.mark.parametrize("write", range(7))
def test_a_kill_at_any_write_loses_and_doubles_nothing(write, files, folder, monkeypatch):
    """Writes are counted at the moment at which a whole file would get its name."""
    monkeypatch.setattr(sync, "_AT_ONCE", 5)
    encoder = DummyEncoder()
    sync_index(folder, [files], encoder)
    for n in range(3):
        (files / f"sub/note {n}.txt").rename(files / f"{n}.txt")
        (files / f"sub/note {n + 3}.txt").write_text(f"Changed {n}.")
    left, moved = [write], Path.replace

    def dies(path, target):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return moved(path, target)

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        sync_index(folder, [files], encoder)
    monkeypatch.setattr(Path, "replace", moved)
    kept = contents(folder)
    for name in ("guide.md", "page.html", "sub/note 9.txt"):
        assert any(path == f"files/{name}" for path, _ in kept)
    sync_index(folder, [files], encoder)
    sync_index(folder.with_name("fresh"), [files], DummyEncoder())
    assert contents(folder) == contents(folder.with_name("fresh"))
