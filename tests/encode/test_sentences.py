import io
from types import SimpleNamespace

import pyarrow as pa
import pytest
from helpers.tiny_sentences import sentence
from pyarrow import parquet

from contrasent.encode.shards import open_sentences
from contrasent.errors import ConfigError


def test_a_column_is_read_again_and_again_with_its_ids(tmp_path):
    table = str(tmp_path / "table.tsv")
    rows = "id\tsentence1\tsentence2\na\tone\ttwo\nb\tthree\t\nc\tfive\tsix\n"
    (tmp_path / "table.tsv").write_text(rows)
    with open_sentences(table, "sentence1") as sentences:
        assert [*sentences] == [*sentences] == ["one", "three", "five"]
        assert sentences.count() == 3 and sentences.ids() is None
    with open_sentences(table, "sentence2", "id") as sentences:
        assert sentences.count() == 2 and sentences.examples.skipped == 1
        assert [*zip(sentences.ids(), sentences, strict=True)] == [("a", "two"), ("c", "six")]
    said = r"has 2 sentences in a row .*choose one with --columns"
    with pytest.raises(ConfigError, match=said), open_sentences(table):
        pass


def test_standard_input_is_a_sentence_per_line(monkeypatch):
    stdin = SimpleNamespace(buffer=io.BytesIO("erste Zeile\n\nzweite ✓\n".encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    with open_sentences("-") as sentences:
        assert [*sentences] == [*sentences] == ["erste Zeile", "zweite ✓"]
        assert sentences.source == "standard input"


WORDS = [f"{sentence(n % 70, 4)}\nline {n % 70}" for n in range(300)]


def test_a_folder_of_parquet_is_read_by_its_url(tmp_path):
    """Files in the order of their names, one of them in a folder of its own."""
    folder = tmp_path / "corpus"
    (folder / "b").mkdir(parents=True)
    for number, name in enumerate(("a.parquet", "b/c.parquet", "d.parquet")):
        table = pa.table({"text": WORDS[100 * number : 100 * (number + 1)]})
        parquet.write_table(table, folder / name)
    (folder / "_SUCCESS").write_text("done")
    url = folder.as_uri()
    with open_sentences(url) as sentences:
        assert [*sentences] == [*sentences] == [text.strip() for text in WORDS]
        before = sentences.examples.sha256
    parquet.write_table(pa.table({"text": ["another"]}), folder / "d.parquet")
    with open_sentences(url) as sentences:
        assert sentences.count() == 201 and sentences.examples.sha256 != before
