"""``--html`` of evaluate and analyze, through the command line's functions."""

from pathlib import Path

import pytest
from helpers.html_reader import grid, read

from contrasent.cli.evaluate import analyze, evaluate
from contrasent.errors import CheckpointError, ConfigError, ContrasentError
from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records


@pytest.fixture
def command(runner, monkeypatch, tmp_path):
    """Run one of the two commands in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return runner(evaluate, analyze)


def rows(path, name):
    _, found = grid(read(path.read_text(encoding="utf-8")).one("figure", id=name))
    return {label: row for label, (row,) in found.items()}


def test_evaluate_writes_what_its_records_say(command, tmp_path):
    html, saved = tmp_path / "r.html", tmp_path / "r.jsonl"
    options = ("--tasks", "stsb,sickr,sts12", "--confidence", "0.9", "--compare")
    result = command("evaluate", "a/one", "b/two", *options, "--html", html, "--json", saved)
    assert result.exit_code == 0, result.output
    assert str(html) in result.stderr
    records = read_records(saved)
    whole = [it for it in records if (it.metric, it.aggregation) == ("spearman", "all")]
    for it in whole:
        cell = rows(html, "sts")["one" if it.encoder == "a/one" else "two"]
        heading = {"stsb": "STS-B", "sickr": "SICK-R", "sts12": "STS12"}[it.task]
        assert float(cell[heading].attributes["data-value"]) == it.value
        assert cell[heading].one("small").text.startswith(f"[{100 * it.interval.low:.2f}, ")
        if it.compared:
            shown = rows(html, "compared-1")[f"{heading} Spearman"]["difference"]
            assert float(shown.attributes["data-value"]) == it.compared.difference
    assert sum(it.compared is not None for it in whole) == 3
    mean = {name: cell.text for name, cell in rows(html, "compared-1")["Avg. Spearman"].items()}
    (printed,) = [line.split() for line in result.stdout.splitlines() if mean["p"] in line][-1:]
    assert printed[0] == "Avg."
    assert mean["difference"] in printed
    again = command("analyze", "--from", saved, "--html", tmp_path / "again.html")
    assert again.exit_code == 0, again.output
    assert "Avg. Spearman" not in rows(tmp_path / "again.html", "compared-1")


def test_saved_scores_make_the_same_report(command, tmp_path):
    html, again, saved = (tmp_path / name for name in ("r.html", "again.html", "r.jsonl"))
    command("evaluate", "a/one", "b/two", "--tasks", "stsb,sts12", "--html", html, "--json", saved)
    assert command("analyze", "--from", saved, "--html", again).exit_code == 0
    assert again.read_text() == html.read_text()


def test_analyze_writes_everything_that_was_saved_and_measured(command, tmp_path):
    saved, html = tmp_path / "s.jsonl", tmp_path / "r.html"
    command("evaluate", "a/one", "--tasks", "stsb", "--json", saved)
    result = command("analyze", "a/one", "--pairs", "stsb-dev>2", "--from", saved, "--html", html)
    assert result.exit_code == 0, result.output
    root = read(html.read_text(encoding="utf-8"))
    assert len(list(root.one("section", id="figures").all("svg"))) == 3
    assert list(rows(html, "sts")) == list(rows(html, "geometry")) == ["one"]


@pytest.mark.parametrize("words", [("evaluate", "m"), ("analyze", "m", "--pairs", "stsb-dev>2")])
def test_an_old_report_is_kept_and_nothing_is_measured(command, words, tmp_path, monkeypatch):
    html = tmp_path / "r.html"
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


@pytest.mark.parametrize("words", [("evaluate",), ("analyze", "--pairs", "stsb-dev>2")])
def test_a_report_says_which_model_failed(command, words, tmp_path):
    html = tmp_path / "r.html"
    result = command(words[0], "m", "gone", *words[1:], "--html", html)
    assert isinstance(result.exception, ContrasentError)
    said = read(html.read_text(encoding="utf-8")).one("div", role="note").text
    assert "gone: 'gone' is no folder here" in said


def test_a_task_without_data_is_named_in_the_report(command, senteval, tmp_path):
    for file in (senteval / "STS").rglob("*"):
        if "STS12" in str(file) and file.is_file():
            file.unlink()
    html = tmp_path / "r.html"
    assert command("evaluate", "m", "--tasks", "sts12,stsb", "--html", html).exit_code == 0
    assert (
        "sts12 is left out" in read(html.read_text(encoding="utf-8")).one("div", role="note").text
    )


def test_nothing_is_written_where_the_only_model_fails(command, tmp_path):
    html = tmp_path / "r.html"
    assert isinstance(command("analyze", "gone", "--html", html).exception, CheckpointError)
    assert isinstance(command("evaluate", "gone", "--html", html).exception, CheckpointError)
    assert not html.exists()
