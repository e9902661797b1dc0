"""The kinds of tasks: what holds for every file of their folder, and how names are shared out."""

import pytest
from helpers.tiny_transfer import write_transfer

from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.suite import load_suite


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


def test_wrong_ways_to_ask_are_refused():
    with pytest.raises(ConfigError, match="no task to score in an empty list"):
        load_suite([])
    with pytest.raises(ConfigError, match="Did you mean 'test'"):
        Options(splits=["tset"])
