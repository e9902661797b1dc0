"""What a user brings, cut: whole lines, whole documents, whole rows."""

import csv
import gzip
from pathlib import Path

import pytest

from contrasent.errors import CheckpointError, DataError
from contrasent.reproduce.plan import Material, Plan, Scale
from contrasent.reproduce.row_builder import bring


def brought(tmp_path, name, source, limit=None, **material):
    plan = Plan(
        title="",
        materials={name: Material(about="some text", **material)},
        scales={},
        rows={},
    )
    scale = Scale(about="", tasks=[], lines={name: limit} if limit else {})
    return bring(plan, scale, {name: str(source)}, tmp_path / "cut")[name]


def text_of(found):
    return Path(found.path).read_text(encoding="utf-8")


def test_without_a_limit_the_file_itself_is_read(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "a"}\n')
    found = brought(tmp_path, "sentences", path)
    assert (found.path, found.lines) == (str(path), None)
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_cut(tmp_path, packed):
    text = "".join(f"line {n}\r\n" for n in range(9))
    path = tmp_path / ("text.txt.gz" if packed else "text.txt")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = brought(tmp_path, "sentences", path, 4)
    assert found.lines == 4
    assert text_of(found) == "".join(f"line {n}\n" for n in range(4))


@pytest.mark.parametrize(("limit", "documents"), [(1, 1), (4, 1), (7, 1), (8, 2), (9, 2), (99, 3)])
def test_documents_stay_whole(tmp_path, limit, documents):
    # Each has three sentences and a blank line; the last has no blank line behind it.
    whole = [f"{n} a\n{n} b\n{n} c\n\n" for n in range(3)]
    path = tmp_path / "documents.txt"
    path.write_text("".join(whole).rstrip("\n") + "\n")
    found = brought(tmp_path, "documents", path, limit, blocks=True)
    assert text_of(found) == path.read_text()[: len("".join(whole[:documents]))]


def test_rows_with_line_ends_in_cells_stay_whole(tmp_path):
    rows = [["sent0", "sent1"], ['say "a"', "b\nc"], ["d, e", "f"], ["g", "h"]]
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    found = brought(tmp_path, "triplets", path, 3)
    with Path(found.path).open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == rows[:3]


def test_the_hash_is_of_what_is_read(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a\nb\nc\n")
    first = brought(tmp_path, "sentences", path, 2)
    path.write_text("a\nb\nother\n")
    assert brought(tmp_path, "sentences", path, 2).sha256 == first.sha256
    assert brought(tmp_path, "sentences", path, 3).sha256 != first.sha256


def test_an_encoder_is_known_by_its_files(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    shas = [brought(tmp_path, "m", tmp_path / n, kind="encoder").sha256 for n in ("one", "two")]
    assert shas[0] == shas[1]
    (tmp_path / "two" / "config.json").write_text("{ }")
    assert brought(tmp_path, "m", tmp_path / "two", kind="encoder").sha256 != shas[0]


def test_what_is_missing_is_told(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt is not there; it is to be some text"):
        brought(tmp_path, "sentences", tmp_path / "none.txt")
    with pytest.raises(CheckpointError, match="no-such"):
        brought(tmp_path, "encoder", tmp_path / "no-such", kind="encoder")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataError, match=r"empty\.txt has no line"):
        brought(tmp_path, "sentences", tmp_path / "empty.txt", 3)
    (tmp_path / "a.parquet").write_text("x")
    with pytest.raises(DataError, match=r"cannot be cut at 3 rows; bring one of \.txt, \.csv"):
        brought(tmp_path, "sentences", tmp_path / "a.parquet", 3)
