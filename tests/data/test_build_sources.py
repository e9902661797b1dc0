"""How the sources of ``data build`` are understood, and what is said about those that cannot be."""

import pytest
from helpers.building import built, premises, write
from helpers.command_line import refused

NLI = premises(("p", "e", "entailment"), ("p", "c", "contradiction"))
TRIPLET = [("p", "e", "c")]


def said(kind, source, *words, folder):
    """What is said when a build is refused."""
    output = folder / "never.csv"
    message = refused("data", "build", kind, source, "--output", output, *words)
    assert not output.exists()
    return message


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("b,a,mark", [["a", "mark", "b"], ["e", "entailment", "p"], ["c", "contradiction", "p"]]),
        ("2, 0, 1", [["e", "entailment", "p"], ["c", "contradiction", "p"]]),
        ("2,0,1", [["Hypothesis", "label", "premise"], *[["e", "e", "p"], ["c", "c", "p"]]]),
    ],
)
def test_columns_are_chosen_by_name_or_by_number(tmp_path, columns, rows):
    source = write(tmp_path / "f.tsv", rows)
    examples, report = built("nli", source, "--columns", columns, folder=tmp_path)
    assert examples == TRIPLET
    assert "as premise" in report["sources"][0]["columns"]
    assert "(chosen by n" in report["sources"][0]["columns"]


@pytest.mark.parametrize(
    ("kind", "name", "content", "expected"),
    [
        ("nli", "f.tsv", "premise\tlabel\nx\ty\n", "f.tsv:1: no column is known as the hypothesis"),
        (
            "nli",
            "f.tsv",
            "\na\tb\tentailment\n",
            "f.tsv:2: no column is known as the premise; ther",
        ),
        ("nli", "f.txt", "a,b,entailment\n", "f.txt:1: no tab in the first row, so there are no"),
        ("nli", "f.jsonl", '["p", "h", "e"]\n', "f.jsonl:1: expected an object with named values"),
        (
            "duplicates",
            "f.csv",
            "question1,question2,sentence1,label\n",
            "f.csv:1: the first question could be column question1 or sentence1; choose with "
            "--columns question1,question2,is_duplicate",
        ),
        (
            "captions",
            "f.csv",
            "a,b,c\n",
            "f.csv:1: no column is known as the image; there are a, b",
        ),
        ("paraphrases", "f.csv", "one cell\n", "no column is known as the reference"),
    ],
)
def test_a_source_that_cannot_be_understood_is_refused(tmp_path, kind, name, content, expected):
    source = write(tmp_path / name, content)
    assert expected in said(kind, source, folder=tmp_path)


ROWS = [
    {"premise": "p", "hypothesis": "c", "label": 0},
    {"premise": "p", "hypothesis": "e", "label": 1},
    {"premise": "p", "hypothesis": "", "label": 1},
    {"premise": "p", "hypothesis": "?", "label": -1},
    {"premise": None, "hypothesis": "?", "label": 1},
]


@pytest.fixture
def hub(hub):
    """A hub with a data set whose labels have names."""
    hub.rows, hub.labels = ROWS, {"label": ["contradiction", "entailment", "neutral"]}
    return hub


def test_a_data_set_on_the_hub_says_itself_what_its_labels_mean(hub, tmp_path):
    examples, report = built("nli", "org/name:en@test", folder=tmp_path)
    assert examples == TRIPLET
    (told,) = report["sources"]
    assert told["labels"] == "0 = contradiction, 1 = entailment, 2 = neutral (the data set says so)"
    assert (report["counts"]["empty"], report["counts"]["unlabelled"]) == (2, 1)
    settings = {"split": "test", "revision": "abc", "streaming": True}
    assert all(asked == ("org/name", "en", settings) for asked in hub.asked)
    assert len(told["sha256"]) == 64
