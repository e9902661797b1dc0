import pytest

from contrasent import errors
from contrasent.errors import ConfigError, ContrasentError, pick, warn

KNOWN = {"mean": 1, "cls": 2}
MANY = ["one", "two", "three", "four", "five", "six", "seven", "eight", "on"]


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("meen", KNOWN, "unknown word 'meen'; choose one of cls, mean. Did you mean 'mean'?"),
        ("", KNOWN, "unknown word ''; choose one of cls, mean."),
        ("ohne", MANY, "unknown word 'ohne'. Did you mean 'one', 'on', 'three'?"),
    ],
)
def test_pick_says_what_is_known_and_what_is_near(name, known, said):
    assert pick("word", next(iter(known)), known) == next(iter(known))
    with pytest.raises(ConfigError) as caught:
        pick("word", name, known)
    assert str(caught.value) == said


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
