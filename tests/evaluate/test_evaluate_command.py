"""``contrasent evaluate`` through its command function, with the encoder of words."""

from math import sqrt
from pathlib import Path
from statistics import NormalDist

import pytest
from helpers.command_line import rows

from contrasent import evaluate as evaluate_in_code
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records


@pytest.fixture
def command(runner):
    return runner("evaluate")


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


@pytest.mark.parametrize(
    ("bad", "said"), [("gone", "gone: 'gone' is no folder here"), ("constant", "every score is 1")]
)
def test_a_bad_model_costs_its_row_only(command, bad, said):
    result = command("good", bad, "--tasks", "stsb,sts12")
    cells, _ = rows(result)
    assert "-" not in cells[2]
    assert cells[3] == [bad, "-", "-", "-"]
    assert said in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--aggregation", "wmeen"], "Did you mean 'wmean'?"),
        (["--tasks", ","], "no task to score in an empty list"),
        (["--protocol", "simsce"], "Did you mean 'simcse', '"),
        (["--compare"], "name two or more"),
        (["--lines"], "are for --text FILE"),
        (["--preset", "fastest"], "Did you mean 'fasttest'?"),
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
    assert "Holm's adjustment is over the 2 tasks of a metric" in result.stdout
    compared = [r for r in read_records(path) if r.compared]
    assert [(r.encoder, r.compared.baseline) for r in compared] == [
        *[("b", "a")] * 2,
        *[("c", "a")] * 2,
    ]


@pytest.mark.parametrize("words", [("evaluate", "m"), ("analyze", "m", "--pairs", "stsb-dev>2")])
def test_an_old_report_is_kept_and_nothing_is_measured(runner, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, html = runner("evaluate", "analyze"), tmp_path / "r.html"
    html.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(SentenceEncoder, "load", lambda *_, **__: pytest.fail("work has begun"))
        patched.setattr("contrasent.model.loading.resolve", Path)
        result = command(*words, "--html", html)
    assert isinstance(result.exception, ConfigError)
    assert "add --overwrite" in str(result.exception)
    assert html.read_text() == "old"
    assert command(*words, "--html", html, "--overwrite").exit_code == 0
    assert "<title>m: contrasent report</title>" in html.read_text()
