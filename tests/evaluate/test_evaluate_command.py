"""``contrasent evaluate`` through its command function, with the encoder of words."""

import json
from math import sqrt
from statistics import NormalDist

import pytest
from helpers.command_line import rows

from contrasent.cli.evaluate import evaluate
from contrasent.errors import ConfigError, ContrasentError, DataError
from contrasent.evaluation.suite import evaluate as evaluate_in_code
from contrasent.records import read_records


@pytest.fixture
def command(runner):
    return runner(evaluate)


def test_the_table_is_the_papers(command, encoder, senteval):
    result = command("org/model")
    assert result.exit_code == 0, result.output
    (heading, _, row), protocol = rows(result)
    assert heading == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R", "Avg."]
    records = evaluate_in_code(encoder, ["sts"], data_dir=senteval)
    values = [r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")]
    assert row == ["model", *(f"{100 * v:.2f}" for v in [*values, sum(values) / 7])]
    assert "Spearman" in protocol and "test split" in protocol and "aggregation all" in protocol
    assert "model: pooler mean, fp32, encoder org/model." in protocol
    assert "\x1b" not in result.output


def test_metric_and_aggregation_choose_what_the_table_shows(command, encoder, senteval):
    result = command("m", "--metric", "pearson", "--aggregation", "wmean", "--tasks", "STS12,sts13")
    (heading, _, row), protocol = rows(result)
    assert heading == ["STS12", "STS13", "Avg."]
    records = evaluate_in_code(encoder, ["sts12", "sts13"], data_dir=senteval)
    values = [r.value for r in records if (r.metric, r.aggregation) == ("pearson", "wmean")]
    assert row[1:3] == [f"{100 * v:.2f}" for v in values]
    assert "Pearson" in protocol and "weighted by their pairs (aggregation wmean)" in protocol
    assert "Avg. over 2 tasks" in protocol


def test_every_model_is_a_row(command):
    result = command("a/one", "b/two", "b/two", "c/one", "--tasks", "stsb,sickr")
    assert [row[0] for row in rows(result)[0][2:]] == ["a/one", "two", "c/one"]
    assert [name for name, _, _ in command.loaded] == ["a/one", "b/two", "c/one"]


def test_pooler_and_head_are_handed_on(command):
    command("m", "--tasks", "stsb", "--pooler", "cls", "--head", "none")
    assert command.loaded == [("m", "cls", "none")]


def test_json_to_a_file_has_every_record(command, encoder, senteval, tmp_path):
    path = tmp_path / "new" / "scores.jsonl"
    result = command("some/words", "--tasks", "sts12,stsb", "--splits", "dev,test", "--json", path)
    assert result.exit_code == 0
    expected = evaluate_in_code(
        encoder, ["sts12", "stsb"], data_dir=senteval, splits=["dev", "test"]
    )
    assert read_records(path) == expected
    assert {record.split for record in expected} == {"dev", "test"}
    assert "STS-B dev" in result.stdout


def test_json_to_standard_output_replaces_the_table(command, encoder, senteval):
    result = command("some/words", "--tasks", "stsb", "--json", "-")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["value"] for line in lines] == [
        record.value for record in evaluate_in_code(encoder, ["stsb"], data_dir=senteval)
    ]


def test_a_users_file_stands_beside_the_average(command, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\tscore\nred cat\tred dog\t3\nold\tnew\t1\nnew cat\told house\t0\n")
    result = command("m", "--tasks", f"stsb,{pairs},sickr")
    (heading, _, _), _ = rows(result)
    assert heading == ["STS-B", "SICK-R", "Avg.", "pairs.tsv"]
    assert (
        f"{pairs}: a as first sentence, b as second sentence, score as score (in" in result.stderr
    )


def test_a_users_file_needs_no_other_data(command, monkeypatch, tmp_path):
    monkeypatch.setenv("CONTRASENT_DATA", str(tmp_path / "gone"))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("red cat\tred dog\t3\nold\tnew\t1\nnew cat\told house\t0\n")
    result = command("m", "--tasks", str(pairs))
    assert result.exit_code == 0
    assert rows(result)[0][0] == ["pairs.tsv"]
    assert "SentEval" not in result.stdout


def test_a_task_without_data_is_a_dash_and_so_is_the_average(command, senteval):
    path = senteval / "STS/STS13-en-test/STS.gs.OnWN.txt"
    path.unlink()
    result = command("m")
    assert result.exit_code == 0
    (_, _, row), _ = rows(result)
    assert [number for number, cell in enumerate(row) if cell == "-"] == [2, 8]
    assert f"sts13 is left out: {path} is missing" in result.stderr
    assert "contrasent data fetch" in result.stderr
    without = command("m", "--tasks", "sts12,sts14")
    assert "-" not in rows(without)[0][2]


def test_no_data_at_all_is_an_error_before_a_model_is_loaded(command, tmp_path):
    (tmp_path / "empty").mkdir()
    result = command("m", "--data-dir", str(tmp_path / "empty"))
    assert isinstance(result.exception, DataError)
    assert "no task has data to score" in str(result.exception)
    assert (result.stdout, command.loaded) == ("", [])


@pytest.mark.parametrize(
    ("bad", "said"),
    [("gone", "gone: 'gone' is no folder here"), ("constant", "every score is 1")],
)
def test_a_bad_model_costs_its_row_only(command, bad, said):
    result = command("good", bad, "--tasks", "stsb,sts12")
    cells, _ = rows(result)
    assert "-" not in cells[2]
    assert cells[3] == [bad, "-", "-", "-"]
    assert said in str(result.exception)


@pytest.mark.parametrize("bad", ["gone", "constant"])
def test_a_bad_model_alone_prints_no_table(command, bad, tmp_path):
    result = command(bad, "--tasks", "stsb", "--json", str(tmp_path / "scores.jsonl"))
    assert isinstance(result.exception, ContrasentError)
    assert result.stdout == ""
    assert not (tmp_path / "scores.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--precision", "fp23"], "Did you mean 'fp32'?"),
        (["--aggregation", "wmeen"], "Did you mean 'wmean'?"),
        (["--metric", "spearmen"], "Did you mean 'spearman'?"),
        (["--tasks", "sts122"], "Did you mean 'sts12', '"),
        (["--tasks", ","], "no task to score: an empty list"),
        (["--splits", "tests"], "Did you mean 'test'?"),
        (["--json", "."], ". is a folder"),
        (["--protocol", "simsce"], "Did you mean 'simcse', '"),
        (["--confidence", "95"], "confidence must be between 0 and 1, such as 0.95, not 95"),
        (["--compare"], "--compare needs two models or more"),
        (["--tasks", "stsb,mr", "--columns", "a,b,c"], "none is named: stsb, mr; leave it out"),
        (["--tasks", "stsb,classify:"], "'classify:' names nothing to read; give classify:FILE"),
        (["--tasks", "retrieve: "], "'retrieve:' names nothing to read; give retrieve:QUERIES+DO"),
        (["--classifier", "sklaern"], "Did you mean 'sklearn'?"),
        (["--preset", "fastest"], "Did you mean 'fasttest'?"),
        (["--tasks", "mr,mrcp"], "Did you mean 'mrpc'"),
        (["--tasks", "mr-train"], "no score on its train split"),
    ],
)
def test_a_wrong_option_is_explained_before_a_model_is_loaded(command, arguments, said):
    result = command("m", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
    assert (result.stdout, command.loaded) == ("", [])


def test_the_protocol_is_printed_and_kept(command, encoder, senteval, tmp_path):
    path = tmp_path / "r.jsonl"
    result = command("m", "--protocol", "flow", "--tasks", "sts12,stsb", "--json", str(path))
    (_, _, row), protocol = rows(result)
    records = evaluate_in_code(encoder, ["sts12", "stsb"], data_dir=senteval, protocol="flow")
    values = [r.value for r in records if r.protocol == "flow"]
    assert row[1:3] == [f"{100 * v:.2f}" for v in values]
    assert "Protocol flow (Li et al. 2020)." in protocol
    assert [r.value for r in read_records(path) if r.protocol] == values
    changed = command("m", "--protocol", "flow", "--tasks", "stsb", "--metric", "pearson")
    assert "Protocol flow with metric pearson (Li et al. 2020)." in changed.stdout


def test_a_protocol_with_both_metrics_has_a_table_for_each(command):
    result = command("m", "--protocol", "hill", "--tasks", "stsb,sickr")
    assert result.stdout.count("SICK-R") == 2
    assert result.stdout.index("Pearson correlation") < result.stdout.index("Spearman correlation")


def test_a_regressors_scores_are_said_to_be_its_own(command):
    result = command("m", "--protocol", "senteval", "--tasks", "sts12,stsb,sickr")
    said = "STS-B and SICK-R: no cosines, but scores predicted by SentEval's regressor, fitted to"
    assert said in result.stdout
    assert "(aggregation mean)" in result.stdout and "Pearson" in result.stdout
    assert said not in command("m", "--protocol", "bgt", "--tasks", "stsb").stdout
    without = command("m", "--protocol", "senteval", "--no-regressor", "--tasks", "stsb")
    assert said not in without.stdout
    assert "Protocol senteval with no regressor (Conneau & Kiela 2018)." in without.stdout


def test_what_mteb_does_otherwise_is_said(command):
    result = command("m", "--protocol", "mteb", "--tasks", "stsb,sickr")
    (heading, _, _), protocol = rows(result)
    assert heading == ["STS-B", "SICK-R", "all", "Avg."]
    assert "MTEB scores the text as it was written" in protocol


def test_intervals_stand_behind_the_values(command, encoder, senteval):
    result = command("m", "--tasks", "stsb,sickr", "--confidence", "0.8")
    table, _, protocol = result.stdout.partition("\n\n")
    records = evaluate_in_code(encoder, ["stsb", "sickr"], data_dir=senteval, confidence=0.8)
    shown = [r for r in records if (r.metric, r.aggregation) == ("spearman", "all")]
    for record in shown:
        found = record.interval
        said = f"{100 * record.value:.2f} [{100 * found.low:.2f}, {100 * found.high:.2f}]"
        assert said in table
    mean = sum(r.value for r in shown) / 2
    (covariance,) = shown[0].interval.covariances.values()
    assert covariance == shown[1].interval.covariances["stsb"]
    squares = sum(r.interval.error**2 for r in shown) + max(2 * covariance, 0)
    reach = NormalDist().inv_cdf(0.9) * sqrt(squares) / 2
    assert f"{100 * mean:.2f} [{100 * (mean - reach):.2f}, {100 * (mean + reach):.2f}]" in table
    assert "In brackets the 80 % interval: normal, from standard errors that count" in protocol


def test_every_model_is_compared_with_the_first(command, tmp_path):
    path = tmp_path / "r.jsonl"
    result = command("a", "b", "c", "--tasks", "stsb,sickr", "--compare", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "\nb minus a\n" in result.stdout and "\nc minus a\n" in result.stdout
    assert "Holm's adjustment is over these 2 tasks" in result.stdout
    compared = [r for r in read_records(path) if r.compared]
    assert [(r.encoder, r.compared.baseline) for r in compared] == [
        *[("b", "a")] * 2,
        *[("c", "a")] * 2,
    ]


def test_a_model_that_fails_is_not_compared(command):
    result = command("a", "gone", "b", "--tasks", "stsb", "--compare")
    assert "b minus a" in result.stdout and "gone minus a" not in result.stdout
    without = command("gone", "a", "b", "--tasks", "stsb", "--compare")
    assert "minus" not in without.stdout
    assert "gone: 'gone' is no folder here" in str(without.exception)


def test_columns_of_ones_own_file_can_be_named(command, tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("n,how,left,right\n1,3,red cat,red dog\n2,1,old,new\n3,0,new cat,old house\n")
    result = command("m", "--tasks", str(pairs), "--columns", "left,right,how")
    assert result.exit_code == 0, result.output
    assert "left as first sentence, right as second sentence, how as score" in result.stderr
