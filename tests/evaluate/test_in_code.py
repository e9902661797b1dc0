"""Evaluation and analysis from Python, as the command line does them."""

import numpy as np
import pytest

import contrasent
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.geometry import measure
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.evaluation.suite import evaluate, load_suite
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
    assert {record.task for record in records} == {pairs}
    assert records.problems == suite.problems != ()


def test_an_encoder_is_loaded_by_its_name(tmp_path, pairs):
    rows = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    (record, *_) = evaluate(str(tmp_path / "rows.npy"), [pairs])
    assert (record.pooler, record.pairs) == ("vectors", 4)


def test_data_that_is_not_there_is_told_before_the_encoder_is_loaded(senteval, pairs):
    (senteval / "STS/STSBenchmark/sts-test.csv").unlink()
    with pytest.raises(DataError, match=r"sts-test.csv is missing; get SentEval's data with"):
        evaluate("no/such-encoder", ["stsb", pairs], data_dir=senteval)
    with pytest.raises(ConfigError, match="Did you mean 'simcse'"):
        evaluate("no/such-encoder", [pairs], protocol="simcsa")


def test_a_task_that_cannot_be_scored_is_a_warning(encoder, senteval, pairs):
    gold = senteval / "STS/STS13-en-test/STS.gs.FNWN.txt"
    gold.write_text("2.0\n" * 6)
    with pytest.warns(UserWarning, match="sts13 has no score: STS13 FNWN: no spearman"):
        records = evaluate(encoder, ["sts13", pairs], data_dir=senteval)
    assert {record.task for record in records} == {pairs}
    assert [problem.task for problem in records.problems] == ["sts13"]


def test_analysis_is_that_of_the_pairs(encoder, pairs):
    geometry = contrasent.analyze(encoder, f"{pairs}>4")
    expected = measure(EncoderUse(encoder), RatedPairs.read(f"{pairs}>4"))
    assert geometry.records == expected.records and geometry.value("alignment") is not None
