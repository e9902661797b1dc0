import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from contrasent import errors
from contrasent.errors import ConfigError, ContrasentError, pick, warn


def test_pick_returns_what_is_known():
    assert pick("pooler", "mean", ["cls", "mean"]) == "mean"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("meen", "unknown pooler 'meen'; choose one of cls, mean. Did you mean 'mean'?"),
        ("xyz", "unknown pooler 'xyz'; choose one of cls, mean."),
        ("", "unknown pooler ''; choose one of cls, mean."),
    ],
)
def test_pick_says_what_is_known_and_what_is_near(name, said):
    with pytest.raises(ConfigError) as caught:
        pick("pooler", name, {"mean": 1, "cls": 2})
    assert str(caught.value) == said


def test_of_many_choices_pick_says_the_three_nearest():
    with pytest.raises(ConfigError) as caught:
        pick("word", "ohne", ["one", "two", "three", "four", "five", "six", "seven", "eight", "on"])
    assert str(caught.value) == "unknown word 'ohne'. Did you mean 'one', 'on' or 'three'?"


def test_every_error_has_one_parent_and_is_also_what_python_would_raise():
    for name in ("ConfigError", "DataError", "CheckpointError"):
        assert issubclass(getattr(errors, name), ContrasentError)
        assert issubclass(getattr(errors, name), ValueError)
    assert issubclass(errors.MissingExtraError, ContrasentError)
    assert issubclass(errors.MissingExtraError, ImportError)


def test_a_warning_names_the_line_that_called():
    with pytest.warns(UserWarning, match="be careful") as caught:
        warn("be careful")
    assert caught[0].filename == __file__


def test_a_warning_from_our_own_program_needs_no_caller():
    code = "from contrasent.errors import warn\n__name__ = 'contrasent.x'\nwarn('be careful')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "UserWarning: be careful" in done.stderr


def test_warnings_can_be_silenced_by_the_caller():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            warn("be careful")


def test_only_one_function_says_how_an_extra_is_installed():
    package = Path(errors.__file__).parent
    texts = {path.name: path.read_text() for path in package.rglob("*.py")}
    assert [name for name, text in texts.items() if "pip install 'contrasent[" in text] == []
