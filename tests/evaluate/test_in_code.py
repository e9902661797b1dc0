"""Evaluation and analysis from Python, as the command line does them."""

import pytest

from contrasent import evaluate
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.suite import load_suite
from contrasent.records import Record, json_lines

PAIRS = "red cat\tred dog\t5\nold\tnew\t1\ncat\thouse\t0\nred\told cat\t3\n"


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(PAIRS)
    return str(path)


def test_records_are_a_list_with_a_table(encoder, senteval, pairs):
    records = evaluate(encoder, ["stsb", pairs], data_dir=senteval)
    assert len(records) == 12 and isinstance(records[0], Record) and records[:2] == [*records][:2]
    assert {record.task for record in records} == {"stsb", pairs}
    assert json_lines(records).count("\n") == 12
    whole = {r.task: r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")}
    heading, _, row, *_ = records.table().splitlines()
    assert heading.split() == ["STS-B", "pairs.tsv"]
    assert row.split() == ["words", *(f"{100 * value:.2f}" for value in whole.values())]
    assert "Spearman" in records.table() and repr(records) == "<12 records of some/words>"


def test_records_become_a_data_frame(encoder, pairs):
    pytest.importorskip("pandas", reason="pandas is not installed")
    records = evaluate(encoder, pairs)
    frame = records.to_pandas()
    assert len(frame) == len(records) and frame["value"].tolist() == [r.value for r in records]


def test_a_suite_is_read_once_for_several_encoders(encoder, pairs):
    suite = load_suite([pairs])
    assert evaluate(encoder, suite, seed=3) == evaluate(encoder, [pairs], seed=3)
    assert {r.seed for r in evaluate(encoder, suite, seed=3)} == {3}
    with pytest.raises(ConfigError, match="a suite has its own confidence; give it to load_suite"):
        evaluate(encoder, suite, confidence=0.9)


def test_what_a_suite_could_not_read_is_a_problem_of_its_records(encoder, pairs, tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    suite = load_suite([pairs, str(tmp_path / "empty.tsv")])
    with pytest.warns(UserWarning, match=r"empty.tsv has no score: "):
        records = evaluate(encoder, suite)
    with pytest.raises(DataError, match=r"empty.tsv is empty"):
        evaluate(encoder, [pairs, str(tmp_path / "empty.tsv")])
    assert {record.task for record in records} == {pairs}
    assert records.problems == suite.problems != ()
