"""A user's labelled sentences and what is told of those that cannot be learned."""

import pytest
from helpers.tables import write

from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.sts_data import read_pairs
from contrasent.evaluation.transfer import holds_labels, read_labelled

NAMES = ("id", "text", "label")
ROWS = [("a b c", "sport"), ("d  e", "news"), (" f", "sport"), ("g h", "sport")]


def test_columns_are_known_by_name(tmp_path):
    source = write(tmp_path / "p.csv", names=NAMES, rows=ROWS)
    assert holds_labels(source, None)
    task = read_labelled(source)
    assert task.class_names == ("news", "sport")
    assert task.parts["all"].texts == ("f", "d e", "g h", "a b c")
    assert task.parts["all"].labels.tolist() == [1, 0, 1, 1]
    assert task.description == "4 sentences of 2 classes; the most frequent, 'sport', is 75.00 %"
    assert task.note == f"{source}: text as sentence, label as class (by name)"
    assert len(task.sha256) == 64 and not task.of_pairs


@pytest.mark.parametrize("columns", [["said", "about"], ["1", "2"]])
def test_columns_can_be_chosen(tmp_path, columns):
    source = write(tmp_path / "p.parquet", names=("no", "said", "about"), rows=ROWS)
    assert holds_labels(source, columns)
    assert read_labelled(source, columns).class_names == ("news", "sport")
    with pytest.raises(ConfigError, match="does not name first sentence, second sentence"):
        read_labelled(source, ["said"])


def test_two_columns_without_a_header_are_labelled_where_that_is_said(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text("a b\t1\nc\t0\n")
    assert not holds_labels(str(path), None)
    assert read_labelled(f"classify:{path}").class_names == ("0", "1")
    path.write_text("a b\tc\t1\nc\td\t0\n")
    assert not holds_labels(str(path), None)
    task = read_labelled(f"classify:{path}")
    assert task.of_pairs
    assert task.parts["all"].texts == ("c", "a b", "d", "c")


@pytest.mark.parametrize(("heading", "columns"), [("label", None), ("stance", ["0", "1"])])
def test_a_header_of_unknown_names_is_no_class(tmp_path, heading, columns):
    paths = [tmp_path / f"{part}.csv" for part in ("train", "dev", "test")]
    for path in paths:
        path.write_text(f"tweet_text,{heading}\n" + "a,pos\nb,neg\n" * 3)
    name = "classify:" + "+".join(map(str, paths))
    with pytest.raises(DataError, match=rf"train.csv:1: '{heading}' looks like a heading"):
        read_labelled(name, columns)
    assert read_labelled(name, ["tweet_text", heading]).class_names == ("neg", "pos")
    for path in paths:
        path.write_text("a,pos\n" + "b,neg\n" * 3)
    paths[0].write_text("a,pos\n" + "b,neg\nc,pos\n" * 3)
    assert read_labelled(name, columns).class_names == ("neg", "pos")


PAIRS = [("a", "b", 1), ("c", "d", 0), ("e", "f", 1)]


def test_scored_pairs_are_not_labelled_sentences(tmp_path):
    source = write(tmp_path / "p.csv", names=("n", "sentence1", "sentence2", "label"), rows=PAIRS)
    assert not holds_labels(source, None)
    assert read_pairs(source)[0] == PAIRS
    assert read_labelled(f"classify:{source}").of_pairs
    assert not holds_labels(str(tmp_path / "none.csv"), None)


def test_classes_may_be_text_numbers_or_truths(tmp_path):
    for label, told in [(3, "3"), (2.0, "2"), (True, "True"), (" a  b ", "a b")]:
        source = write(tmp_path / "p.jsonl", names=NAMES, rows=[("a", "x"), ("b", label)])
        assert told in read_labelled(source).class_names
    source = write(tmp_path / "p.jsonl", names=NAMES, rows=[("a", n) for n in (10, 9, 2)])
    assert read_labelled(source).class_names == ("2", "9", "10")


@pytest.mark.parametrize(
    "row", [("a", None), ("a", float("nan")), ("a", " "), (" ", "x"), ("a", 0.5)]
)
def test_what_is_wrong_with_a_row_is_told(tmp_path, row):
    source = write(tmp_path / "p.jsonl", names=NAMES, rows=[*ROWS, row])
    with pytest.raises(DataError, match=r"p.jsonl:5: a sentence or its label"):
        read_labelled(source)


def test_what_cannot_be_learned_is_told(tmp_path):
    source = write(tmp_path / "p.csv", names=NAMES, rows=ROWS[2:])
    with pytest.raises(DataError, match="label of all rows is 'sport'"):
        read_labelled(source)
    source = write(tmp_path / "p.csv", names=NAMES, rows=ROWS)
    with pytest.raises(ConfigError, match="names 4 files; a task of labelled sentences is one"):
        read_labelled("classify:" + "+".join([source] * 4))
    pairs = write(tmp_path / "r.csv", names=("n", "sentence1", "sentence2", "label"), rows=PAIRS)
    with pytest.raises(DataError, match="every row needs a sentence and a class, or every row two"):
        read_labelled(f"classify:{source}+{pairs}")


def test_data_sets_of_the_hub_are_judged_as_files_are(hub):
    def publish(labels, *splits):
        records = [{"text": f"{n} a", "label": label} for n, label in enumerate(labels)]
        hub.tables["org/a", None] = dict.fromkeys(splits, records)

    hub.labels = {"label": ["no", "yes"]}
    publish((0, 1, 1), "train", "test")
    task = read_labelled("classify:org/a@train+org/a@test")
    assert [*task.parts] == ["train", "test"] and task.class_names == ("no", "yes")
    name, config, settings = hub.asked[-1]
    assert (name, config, settings["split"]) == ("org/a", None, "test")
    assert [*read_labelled("org/a").parts] == ["all"]
    assert holds_labels("org/a@test", None)
    publish((0, 1, -1), "test")
    with pytest.raises(DataError, match=r"org/a@test:3: a sentence or its label -1"):
        read_labelled("classify:org/a@test")
