"""``contrasent evaluate`` through its command function, with the encoder of words."""

from pathlib import Path

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


def test_every_model_is_compared_with_the_first(command, tmp_path):
    path = tmp_path / "r.jsonl"
    result = command("a", "b", "c", "--tasks", "stsb,sickr", "--compare", "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "\nb minus a\n" in result.stdout and "\nc minus a\n" in result.stdout
    assert "Holm's adjustment is over the 2 tasks of a metric" in result.stdout
    compared = [r for r in read_records(path) if r.compared]
    against = [(r.encoder, r.compared.baseline) for r in compared]
    assert against == [("b", "a")] * 2 + [("c", "a")] * 2


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
