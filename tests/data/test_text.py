import pyarrow
import pytest
from pyarrow import parquet

from contrasent.data.examples import open_examples
from contrasent.errors import DataError


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
    assert [(where.rsplit(":")[-1], sentences) for where, sentences in read] == [
        ("1", ("a", "b")),
        ("5", ("h\ni", "j")),
        ("9", ("n", "o")),
    ]
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


ARRAY, OBJECT = '["a"]\n', '{"text": "a"}\n'
REFUSED = [  # when it is opened, or read: what the matrix of tests/test_data_formats.py has not
    ("f.txt", "\ufeff", "f.txt is empty"),
    ("f.json", "{}", "unknown kind of file"),
    ("f.jsonl", "3\n", ":1: expected an object or an array"),
    ("f.jsonl", '{"a": "b"}\n', ":1: cannot tell which column is the sentence"),
    ("f.csv", '"a\n', ":1: not a row of quoted CSV: unexpected end of data"),
    ("f.csv", 'a,b\n"c\nd",e\nf,g,h\n', ":4: 3 columns, but the first row has 2"),
    ("f.csv", 'a,b\n"c\nd" e,f\n', ":2: not a row of quoted CSV: ',' expected"),
    ("f.txt", b"a\n" + b"b" * ((1 << 24) + 2), ":2: longer than 16 MiB, so no line"),
    ("f.jsonl", f'{ARRAY}{{"b": 1}}\n', ":2: expected an array of 1 sentences, as in the first"),
    ("f.jsonl", f'{ARRAY}["\\ud83d"]\n', ":2: half of a surrogate pair"),
    ("f.jsonl", ARRAY + "[" * 100_000 + "\n", ":2: not JSON"),
    ("f.jsonl", f'{OBJECT}["b"]\n', ":2: expected an object, as in the first"),
    ("f.jsonl", f'{OBJECT}{{"text": ["b"]}}\n', ":2: ['b'] is no text"),
]


@pytest.mark.parametrize(("name", "content", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_read_is_named_by_its_line(write, name, content, said):
    with pytest.raises(DataError) as caught:
        list(open_examples(write(name, content)))
    assert said in str(caught.value)


@pytest.mark.parametrize(("cells", "said"), [([1, 2], ":1: 1 is no text"), ([], "is empty")])
def test_parquet_without_text_or_rows_is_named(tmp_path, cells, said):
    path = str(tmp_path / "f.parquet")
    kind = pyarrow.int64() if cells else pyarrow.string()
    parquet.write_table(pyarrow.table({"text": pyarrow.array(cells, kind)}), path)
    with pytest.raises(DataError, match=said):
        list(open_examples(path))
