import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow
import pytest
from pyarrow import parquet

from contrasent.data.columns import sentence_columns
from contrasent.data.examples import open_examples
from contrasent.errors import DataError, MissingExtraError


def test_lines_are_sentences_and_blank_lines_are_left_out(write):
    text = 'one, "two"\t\n\n  \n \tthree\u2028still\x85three  \nsentence\nlast without line end'
    examples = open_examples(write("f.txt", text))
    rest = ["three\u2028still\x85three", "sentence", "last without line end"]
    assert [s for (s,) in examples] == ['one, "two"', *rest]
    assert (examples.views, examples.blank, examples.skipped) == (1, 2, 0)
    assert examples.columns == "1 sentence per line"


def test_quoted_csv_cells_may_hold_commas_quotes_and_line_ends(write):
    long = "c," * 70_000
    text = f'sent0,sent1\n"a, ""b""","two\r\nlines"\n\n c ,"d\n\n"\n"{long}",e\n'
    expected = [('a, "b"', "two\r\nlines"), ("c", "d"), (long, "e")]
    assert list(open_examples(write("f.csv", text))) == expected
    tabs = text.replace(long, "f").replace(",", "\t")
    expected = [('a\t "b"', "two\r\nlines"), ("c", "d"), ("f", "e")]
    assert list(open_examples(write("f.tsv", tabs))) == expected
    whole = open_examples(write("g.tsv", '"sent0"\t"sent1"\n"a b"\t"c"\n'))
    assert list(whole) == [("a b", "c")] and "between '\\t'" in whole.columns
    literal = write("h.tsv", '"a"\t"b" c\n""d""\te\n')
    assert list(open_examples(literal)) == [('"a"', '"b" c'), ('""d""', "e")]


def test_a_header_may_follow_blank_lines(write):
    examples = open_examples(write("f.csv", "\n\nsent0,sent1\n\na,b\nsent0,sent1\n"))
    assert list(examples) == [("a", "b"), ("sent0", "sent1")]
    assert examples.blank == 3


def test_rows_with_an_empty_sentence_are_skipped_and_counted(write):
    rows = '["a","b","c"]\n["","b","c"]\n["a",null,"c"]\n["\u2003","b","c"]\n["d","e","f"]\n'
    examples = open_examples(write("f.jsonl", rows))
    assert examples.skipped == 0
    for _ in range(2):
        assert list(examples) == [("a", "b", "c"), ("d", "e", "f")]
        assert examples.skipped == 3


LINES, PAIR = '"a dog"\n"a cat"\n', "sent0,sent1\na,b\nc,d\n"


@pytest.mark.parametrize(
    ("name", "content", "columns", "sha256"),
    [
        ("a.txt", LINES, None, "7b7e7f71d669"),
        ("a.csv", LINES, None, "c4978c4744e2"),
        ("b.csv", PAIR, None, "8e2118d081da"),
        ("b.csv", PAIR, ["sent0", "sent1"], "8e2118d081da"),
        ("b.csv", PAIR, ["0"], "3f9d4de077e6"),
        ("b.csv", PAIR, ["1", "0"], "f19d15ed2899"),
        ("c.tsv", "a\tb\nc\td\n", None, "236006c7217b"),
        ("c.tsv", "a\tb\nc\td\n", ["0"], "92dd857b003c"),
        ("d.csv", "a;b\nc;d\ne;f\n", None, "338be089e4a8"),
        ("e.jsonl", '{"sent1":"b","sent0":"a"}\n', None, "530f690462d2"),
        ("f.jsonl", '["a","b"]\n', None, "aaea26582cf6"),
    ],
)
def test_the_hash_of_content_and_columns_is_that_of_releases(write, name, content, columns, sha256):
    """Caches, run folders and records are known by it."""
    assert open_examples(write(name, content), columns).sha256.startswith(sha256)


def test_reading_can_go_on_after_bad_rows(write):
    text = b'a,b\nc\n"d" d,e\nf\xff,g\n"h\ni",j\nk,l,m\n\nn,o\n'
    told = []
    examples = open_examples(write("f.csv", text))
    read = list(examples.read(lambda error: told.append(str(error))))
    found = [(where.rsplit(":")[-1], sentences) for where, sentences in read]
    assert found == [("1", ("a", "b")), ("5", ("h\ni", "j")), ("9", ("n", "o"))]
    assert [message.split(":")[1] for message in told] == ["2", "3", "4", "7"]
    assert examples.blank == 1


def test_a_parquet_file_damaged_inside_is_named(tmp_path):
    path = tmp_path / "f.parquet"
    rows = [str(k) * 9 for k in range(9999)]
    parquet.write_table(pyarrow.table({"text": rows}), path, row_group_size=5000)
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half - 3000 : half + 3000] = bytes(6000)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"f.parquet: damaged after row \d+: "):
        list(open_examples(str(path)))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("f.txt", b"a\n" + b"b" * ((1 << 24) + 2), ":2: longer than 16 MiB, so no line"),
        ("f.jsonl", '["a"]\n' + "[" * 100_000 + "\n", ":2: not JSON"),
    ],
    ids=["long", "nested"],
)
def test_what_is_too_long_or_nested_is_named_by_its_line(write, name, content, said):
    with pytest.raises(DataError, match=said):
        list(open_examples(write(name, content)))


@pytest.mark.parametrize(("cells", "said"), [([1, 2], ":1: 1 is no text"), ([], "is empty")])
def test_parquet_without_text_or_rows_is_named(tmp_path, cells, said):
    path = str(tmp_path / "f.parquet")
    kind = pyarrow.int64() if cells else pyarrow.string()
    parquet.write_table(pyarrow.table({"text": pyarrow.array(cells, kind)}), path)
    with pytest.raises(DataError, match=said):
        list(open_examples(path))


@pytest.mark.parametrize(
    ("first", "columns", "positions", "header", "described"),
    [
        ("sent0,sent1,hard_neg", None, (0, 1, 2), True, ""),
        ("anchor,positive,negative_2,negative_10,negative_1", None, (0, 1, 4, 2, 3), True, ""),
        ("anchor,positive,negative,negative2,negative3", None, (0, 1, 2, 3, 4), True, ""),
        ("Sentence1, SENTENCE2 ", None, (0, 1), True, ""),
        ("id,premise,hypothesis", None, (1, 2), True, ""),
        ("query,positive,negative", None, (0, 1, 2), True, ""),
        ("split,text,year", None, (1,), True, ""),
        ("query", None, (0,), True, ""),
        ("anchor,positive,score", None, (0, 1), True, ""),
        ("x", None, (0,), False, "1 column: the sentence"),
        ("x,y", None, (0, 1), False, "2 columns in the order of the file: anchor, positive"),
        (
            "x,y,z",
            None,
            (0, 1, 2),
            False,
            "3 columns in the order of the file: anchor, positive, h",
        ),
        ("a,b,c", "c,a", (2, 0), True, "c as anchor, a as positive (chosen by name)"),
        ("Frage,Antwort", "frage", (0,), True, "frage as the sentence (chosen by name)"),
        ("a,A", "A", (1,), True, "A as the sentence (chosen by name)"),
        ("x,y,z", "2,0", (2, 0), False, "2 as anchor, 0 as positive (chosen by number; no header)"),
        ("sent0,sent1", "1", (1,), True, "1 as the sentence (chosen by number; first row is a h"),
        ("sentence1,sentence2,label", "sentence1,sentence2", (0, 1), True, "sentence1 as anchor"),
    ],
)
def test_columns_are_known_or_chosen_by_name_or_number(
    first, columns, positions, header, described
):
    """A first row of known names is a header; any other is an example, every column a sentence."""
    layout = sentence_columns(first.split(","), columns and columns.split(","), "f.csv:1")
    assert (layout.positions, layout.header) == (positions, header)
    assert layout.described.startswith(described)


def test_names_that_are_certain_need_not_be_known():
    names = ["url", "anchor", "positive", "vector"]
    for columns, positions in ((None, (1, 2)), (["url"], (0,)), (["3", "0"], (3, 0))):
        assert sentence_columns(names, columns, "f", named=True).positions == positions
    with pytest.raises(DataError, match=r"f: cannot tell which column"):
        sentence_columns(["url", "body"], None, "f", named=True)


@pytest.mark.parametrize(
    ("first", "below", "header"),
    [
        (["message"], [["my printer fails again"]] * 3, True),
        (["hello"], [["hi"], ["good day"], ["thanks"]], False),
        (["A dog barks.", "It barks."], [["a cat sleeps here", "the cat is asleep"]] * 3, False),
    ],
)
def test_rows_of_text_are_read_with_and_without_a_header(first, below, header):
    layout = sentence_columns(first, None, "f.csv:1", below=below)
    assert (layout.header, layout.positions) == (header, tuple(range(len(first))))


def test_the_one_column_of_text_beside_ids_dates_and_states_is_the_sentence():
    rows = [[str(n), f"2024-05-0{n}", f"my printer number {n} fails", "open"] for n in range(1, 5)]
    layout = sentence_columns(["no", "date", "body", "state"], None, "f.csv:1", below=rows)
    assert (layout.header, layout.positions) == (True, (2,))
    assert layout.described.endswith("others: no, date, state)")
    names = [[*row[:3], f"Ann {row[0]} Low"] for row in rows]  # a second column of many values
    with pytest.raises(DataError, match="is this a header"):
        sentence_columns(["no", "date", "body", "who"], None, "f.csv:1", below=names)


ROWS = [
    {"anchor": " a ", "positive": "b", "n": 1},
    {"anchor": None, "positive": "b", "n": 2},
    {"anchor": "c", "positive": "d", "n": 3},
]


@pytest.fixture
def hub(hub):
    hub.rows = ROWS
    return hub


def test_a_data_set_is_streamed_at_one_revision(hub):
    examples = open_examples("org/name")
    hub.revision = "newer"
    for _ in range(2):
        assert list(examples) == [("a", "b"), ("c", "d")]
    assert (examples.views, examples.skipped, examples.source) == (2, 1, "org/name")
    assert examples.columns == "anchor as anchor, positive as positive (by name; others: n)"
    settings = {"split": "train", "revision": "abc", "streaming": True}
    assert hub.asked == [("org/name", None, settings)] * 3
    others = [open_examples("org/name"), open_examples("org/name", ["anchor"])]
    hashes = {it.sha256 for it in (examples, *others, open_examples("org/name@test"))}
    assert len(hashes) == 4 and open_examples("org/name").sha256 in hashes


@pytest.mark.usefixtures("hub")
def test_a_failure_while_loading_is_explained(monkeypatch):
    error = ValueError("Unknown split 'dev'.\nShould be one of ['train']")
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", Mock(side_effect=error))
    with pytest.raises(DataError, match=r"data set 'org/name@dev': Unknown split 'dev'.; check"):
        open_examples("org/name@dev")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[datasets\]'"):
        open_examples("org/name")


@pytest.mark.acceptance
@pytest.mark.filterwarnings("default")
def test_the_real_library_gives_the_rows(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    api = SimpleNamespace(dataset_info=lambda _: SimpleNamespace(sha="abc"))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    (tmp_path / "rows").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows/train.parquet")
    load = datasets.load_dataset

    def local(_, config, **settings):
        settings.pop("revision")
        return load(str(tmp_path / "rows"), config, cache_dir=str(tmp_path / "cache"), **settings)

    monkeypatch.setattr(datasets, "load_dataset", local)
    assert list(open_examples("org/name")) == [("a", "b"), ("c", "d")]
