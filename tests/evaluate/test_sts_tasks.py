import pytest
from helpers.tiny_sts import SUBSETS

from contrasent.errors import ConfigError
from contrasent.evaluation.task_names import STS, TaskName, averaged, task_names


def labels(asked, splits=("test",)):
    return [name.label for name in task_names(asked, splits)]


def test_the_seven_tasks_are_in_the_order_of_the_papers():
    assert labels(["sts"]) == ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
    headings = [name.heading for name in task_names(["sts"])]
    assert headings == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]


def test_the_subsets_are_sentevals():
    assert {task: len(subsets) for task, subsets in SUBSETS.items()} == {
        "sts12": 5,
        "sts13": 3,
        "sts14": 6,
        "sts15": 5,
        "sts16": 5,
    }


@pytest.mark.parametrize(
    ("asked", "label"),
    [
        ("STS-B", "stsb"),
        ("STS-B-train", "stsb-train"),
        ("stsb-test", "stsb"),
        (" stsb ", "stsb"),
        ("SICK-R", "sickr"),
        ("sick-r-dev", "sickr-dev"),
        ("STS12", "sts12"),
        ("sts-16", "sts16"),
        ("data/My-Pairs.TSV", "data/My-Pairs.TSV"),
        ("pairs.csv.gz", "pairs.csv.gz"),
        ("pairs.jsonl.gz", "pairs.jsonl.gz"),
        ("some/pairs.parquet", "some/pairs.parquet"),
        ("org/pairs:en@test", "org/pairs:en@test"),
        ("sick-r-all", "sickr-all"),
    ],
)
def test_spellings(asked, label):
    assert labels([asked]) == [label]


def test_splits_apply_to_tasks_named_without_one():
    assert labels(["sts"], ["dev"]) == ["stsb-dev", "sickr-dev"]
    assert labels(["stsb", "sickr-dev"], ["train", "test"]) == ["stsb-train", "stsb", "sickr-dev"]
    assert labels(["sts-dev"]) == ["stsb-dev", "sickr-dev"]
    assert labels(["sts12", "p.tsv"], ["dev", "test"]) == ["sts12", "p.tsv"]
    assert len(labels(["sts"], ["train", "dev", "test"])) == len(STS) + 4


def test_a_task_asked_for_twice_is_scored_once():
    assert labels(["stsb", "sts12", "STS-B", "sts"]) == ["stsb", "sts12", *STS[1:5], "sickr"]


def test_headings_name_other_splits_and_files():
    assert TaskName("stsb", "dev").heading == "STS-B dev"
    assert TaskName("some/where/pairs.tsv").heading == "pairs.tsv"


@pytest.mark.parametrize(
    ("asked", "splits", "said"),
    [
        (["stsbe"], ["test"], "Did you mean 'stsb', '"),
        (
            ["pairs.xlsx"],
            ["test"],
            "'pairs.xlsx' is no file or scored pairs; name a .tsv, .csv, .jsonl or",
        ),
        (["sts12-dev"], ["test"], "'sts12-dev' has no score on dev, only on test"),
        (["sts12", "p.tsv"], ["dev"], "'sts12' has no score on dev, only on test"),
    ],
)
def test_a_task_that_does_not_exist_is_explained(asked, splits, said):
    with pytest.raises(ConfigError) as caught:
        task_names(asked, splits)
    assert said in str(caught.value)


def test_the_average_is_over_test_splits_and_over_all_pairs_where_there_is_no_test_split():
    names = task_names(["sts12", "sickr-all", "stsb-dev", "stsb", "stsb-all", "p.tsv"])
    assert [name.label for name in averaged(names)] == ["sts12", "sickr-all", "stsb"]
