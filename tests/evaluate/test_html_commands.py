"""``--html`` of evaluate and analyze, through the command line's functions."""

from pathlib import Path

import pytest
from helpers.html_reader import grid, read

from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records


@pytest.fixture
def command(runner, monkeypatch, tmp_path):
    """Run one of the two commands in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return runner("evaluate", "analyze")


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
