import io

import pytest

from contrasent.errors import ConfigError, DataError
from contrasent.search.sentences import open_sentences


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("id\tsentence1\tsentence2\na\tone\ttwo\nb\tthree\t\nc\tfive\tsix\n")
    return str(path)


def test_a_column_is_read_again_and_again(table):
    with open_sentences(table, "sentence1") as sentences:
        assert [*sentences] == [*sentences] == ["one", "three", "five"]
        assert sentences.count() == 3 and sentences.ids() is None


def test_ids_come_from_their_column_and_stay_with_their_sentences(table):
    with open_sentences(table, "sentence2", "id") as sentences:
        assert sentences.count() == 2
        assert [*zip(sentences.ids(), sentences, strict=True)] == [("a", "two"), ("c", "six")]
        assert sentences.examples.skipped == 1


def test_several_sentences_in_a_row_need_a_choice(table):
    with (
        pytest.raises(ConfigError, match=r"has 2 sentences in a row .*choose one with --columns"),
        open_sentences(table),
    ):
        pass


@pytest.mark.parametrize(
    ("columns", "ids", "said"),
    [
        (None, "id", "--ids id needs --columns too"),
        ("sentence1,sentence2", None, "one column holds the sentences; name only that"),
        ("sentense1", None, "Did you mean 'sentence1'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(table, columns, ids, said):
    with pytest.raises(ConfigError, match=said), open_sentences(table, columns, ids):
        pass


def test_a_source_without_a_sentence_is_refused(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("sentence1\tsentence2\nonly\t\n")
    with (
        open_sentences(str(path), "sentence2") as sentences,
        pytest.raises(DataError, match=r"table.tsv holds no sentence; it needs at least one"),
    ):
        sentences.count()


def given(monkeypatch, content):
    class Stdin:
        buffer = io.BytesIO(content)

    monkeypatch.setattr("sys.stdin", Stdin)


def test_standard_input_is_a_sentence_per_line(monkeypatch):
    given(monkeypatch, "erste Zeile\n\nzweite ✓\n".encode())
    with open_sentences("-") as sentences:
        assert [*sentences] == [*sentences] == ["erste Zeile", "zweite ✓"]
        assert sentences.source == "standard input"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", r"^standard input is empty"), (b"good\ncaf\xe9\n", r"^standard input:2: not UTF-8")],
)
def test_trouble_with_standard_input_is_told_under_its_name(monkeypatch, content, said):
    given(monkeypatch, content)
    with pytest.raises(DataError, match=said), open_sentences("-") as sentences:
        sentences.count()
