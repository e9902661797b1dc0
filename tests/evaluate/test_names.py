"""Names of tasks, and how the kinds of tasks share them out."""

import pytest
from helpers.tiny_transfer import write_transfer

from contrasent.errors import DataError
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import STS, averaged, task_names


def labels(asked, splits=("test",)):
    return [name.label for name in task_names(asked, splits)]


@pytest.mark.parametrize(
    ("asked", "label"),
    [
        ("STS-B", "stsb"),
        ("STS-B-train", "stsb-train"),
        (" stsb-test ", "stsb"),
        ("SICK-R", "sickr"),
        ("sick-r-dev", "sickr-dev"),
        ("sts-16", "sts16"),
        ("data/My-Pairs.TSV", "data/My-Pairs.TSV"),
        ("pairs.csv.gz", "pairs.csv.gz"),
        ("pairs.jsonl.gz", "pairs.jsonl.gz"),
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


def test_the_average_is_over_test_splits_and_over_all_pairs_where_there_is_no_test_split():
    names = task_names(["sts12", "sickr-all", "stsb-dev", "stsb", "stsb-all", "p.tsv"])
    assert [name.label for name in averaged(names)] == ["sts12", "sickr-all", "stsb"]


def test_each_kind_takes_its_names_and_the_tables_have_an_order_of_their_own(senteval):
    write_transfer(senteval)
    source = senteval / "STS/STSBenchmark/sts-test.csv"
    source.write_text(source.read_text() + "g\tf\t2012\t1\t5.000\tred cat\tred dog\n")
    suite = load_suite(["stsb-retrieval", "mr", "stsb", "mr-dev"], Options(senteval))
    labels = {kind.name: [name.label for name in read.names] for kind, read in suite.kinds}
    assert list(labels) == ["sts", "transfer", "retrieval"]
    assert labels["transfer"] == ["mr", "mr-dev"]
    assert [learned.splits for learned in suite.tasks("transfer")] == [("test", "dev")]


def test_a_folder_that_is_not_there_stops_everything_before_the_work(senteval, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "corpus.tsv").write_text("d1\tred cat\n")
    (own / "queries.tsv").write_text("q1\tcat\n")
    (own / "qrels.tsv").write_text("q1\td1\t1\n")
    gone = Options(senteval / "gone")
    assert load_suite([str(own)], gone).tasks("retrieval")
    for task in ("stsb", "mr", "stsb-retrieval"):
        with pytest.raises(DataError, match=r"no folder \S+gone \(--data-dir\)"):
            load_suite([str(own), task], gone)
