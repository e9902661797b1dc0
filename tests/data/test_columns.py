import pytest

from contrasent.data.columns import sentence_columns
from contrasent.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("first", "positions"),
    [
        ("sent0,sent1,hard_neg", (0, 1, 2)),
        ("anchor,positive,negative_2,negative_10,negative_1", (0, 1, 4, 2, 3)),
        ("anchor,positive,negative,negative2,negative3", (0, 1, 2, 3, 4)),
        ("Sentence1, SENTENCE2 ", (0, 1)),
        ("id,premise,hypothesis", (1, 2)),
        ("query,positive,negative", (0, 1, 2)),
        ("split,text,year", (1,)),
        ("query", (0,)),
        ("anchor,positive,score", (0, 1)),
    ],
)
def test_a_first_row_of_known_names_is_a_header(first, positions):
    layout = sentence_columns(first.split(","), None, "f.csv:1")
    assert layout.header
    assert layout.positions == positions


def test_any_other_first_row_is_an_example_and_every_column_a_sentence():
    for count, named in ((1, "the sentence"), (2, "anchor, positive"), (3, "anchor, positive, h")):
        layout = sentence_columns(["x", "y", "z"][:count], None, "f.csv:1")
        assert (layout.header, layout.positions) == (False, tuple(range(count)))
        assert f": {named}" in layout.described


@pytest.mark.parametrize(
    ("first", "columns", "positions", "header", "described"),
    [
        ("a,b,c", "c,a", (2, 0), True, "c as anchor, a as positive (chosen by name)"),
        ("Frage,Antwort", "frage", (0,), True, "frage as the sentence (chosen by name)"),
        ("a,A", "A", (1,), True, "A as the sentence (chosen by name)"),
        ("x,y,z", "2,0", (2, 0), False, "2 as anchor, 0 as positive (chosen by number; no header)"),
        ("sent0,sent1", "1", (1,), True, "1 as the sentence (chosen by number; first row is a h"),
        ("sentence1,sentence2,label", "sentence1,sentence2", (0, 1), True, "sentence1 as anchor"),
    ],
)
def test_columns_are_chosen_by_name_or_number(first, columns, positions, header, described):
    layout = sentence_columns(first.split(","), columns.split(","), "f.csv:1")
    assert (layout.positions, layout.header) == (positions, header)
    assert layout.described.startswith(described)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("sentence1,sentence2,gold_label", "--columns, one or more of sentence1, sentence2, gold"),
        ("premise,hypothesis,label1", "column 'label1' says"),
        ("question1,question2,is_duplicate", "column 'is_duplicate' says"),
        ("id,label", "f.csv:1: cannot tell which column is the sentence; choose with --columns"),
        ("text,sentence", "cannot tell which column is the sentence"),
        ("anchor,positive,sent0,sent1", "f.csv:1: the pair could be anchor+positive or sent0+s"),
    ],
)
def test_a_table_that_cannot_be_understood_is_explained(first, said):
    with pytest.raises(DataError) as caught:
        sentence_columns(first.split(","), None, "f.csv:1")
    assert said in str(caught.value)


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
    assert layout.described.endswith("ignored: no, date, state)")
    names = [[*row[:3], f"Ann {row[0]} Low"] for row in rows]  # a second column of many values
    with pytest.raises(DataError, match="is this a header"):
        sentence_columns(["no", "date", "body", "who"], None, "f.csv:1", below=names)


@pytest.mark.parametrize("columns", [["sent9"], ["7"], ["hard_neg", "hard_neg"], [], ["sent0"]])
def test_a_choice_that_does_not_fit_is_refused(columns):
    with pytest.raises(ConfigError, match=columns[0] if columns else "''"):
        sentence_columns(["sent0", "sent0", "hard_neg", "a" * 50], columns, "f.csv:1")
