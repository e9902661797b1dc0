"""``--html`` of evaluate and analyze, through the command line's functions."""

from pathlib import Path

import pytest

from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder


@pytest.fixture
def command(runner, monkeypatch, tmp_path):
    """Run one of the two commands in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return runner("evaluate", "analyze")


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
