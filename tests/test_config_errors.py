"""Wrong recipes and overrides: the message has the setting, the value, the remedy and the line.

The commonest stand in ``test_mistakes.py``.
"""

import dataclasses

import pytest

from contrasent.errors import ConfigError
from contrasent.recipe import Recipe, load_recipe, validate
from contrasent.settings import settings


def refused(said, name="unsup-simcse", overrides=None):
    with pytest.raises(ConfigError, match=said):
        load_recipe(name, overrides)


@pytest.fixture
def file(tmp_path):
    """Write a recipe file."""

    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"train": 1}, "'train' is a section; name one of its settings: --train.NAME VALUE"),
        ({"train.batch_size": "6.5"}, "train.batch_size cannot be 6.5: input should be a valid"),
        (
            {"train.learning_rate": ".inf"},
            "train.learning_rate cannot be inf: input should be a finite",
        ),
        ({"train.trackers": "[1]"}, "train.trackers.0 cannot be 1: input should be a valid string"),
        ({"encoder.name": "null"}, "encoder.name cannot be None"),
        (
            {"data.file": "C: odd"},
            "data.file cannot be {'C': 'odd'}: input should be a valid string",
        ),
    ],
    ids=str,
)
def test_a_wrong_override_is_explained(overrides, said):
    refused(said, overrides=overrides)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "train:\n  trackers:\n  - a\n  - 3\n",
            ":2: train.trackers.1 cannot be 3: input should be a valid string",
        ),
        (
            "# mine\ntrain: 3\n",
            ":2: train cannot be 3: a section holds settings, each as NAME: VALUE",
        ),
        (
            "\nobjective: simcse\n",
            ":2: objective cannot be 'simcse': input should be a valid dictionary",
        ),
        ("train:\n  seed: 1\n  seed: 2\n", ":3: train.seed is set twice, first at line 2"),
        ("train: {}\ndata: {}\ntrain: {}\n", ":3: train is set twice, first at line 1"),
        ("a: b: c\n", ":1: not YAML: mapping values are not allowed here"),
        (f"a: {'[' * 5000}", "cannot read .*mine.yaml: maximum recursion"),
        ("false", " must hold sections such as 'encoder:', not False"),
        ("a\x00b", "cannot read .*mine.yaml"),
        ("!!python/object/apply:os.getcwd []", ":1: not YAML: could not determine a constructor"),
    ],
    ids=str,
)
def test_a_wrong_recipe_file_is_explained_with_its_line(text, said, file):
    refused(f"mine.yaml{said}" if said[0] in ": " else said, file(text))


def test_a_wrong_file_is_not_saved_by_an_override(file):
    path = file("train:\n  epochs: 0\n")
    refused("mine.yaml:2: train.epochs cannot be 0", path, {"train.epochs": 1})


@pytest.mark.parametrize("text", ["", "# nothing\n", "train:\n", "train:\ndata: null\n", "{}"])
def test_what_is_left_out_is_the_default(text, file):
    assert load_recipe(file(text)) == Recipe()
    assert load_recipe(file(text), {"train.epochs": "4"}).train.epochs == 4


def test_a_file_may_start_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.yml").write_bytes(b"\xef\xbb\xbftrain:\n  epochs: 4\n")
    assert load_recipe(tmp_path / "a.yml").train.epochs == 4


def test_settings_of_ones_own_are_checked_in_the_same_way():
    @settings
    class Own:
        """Own settings."""

        size: int = 3
        """A size."""

    assert validate(Own, {"size": 4}, "objective") == Own(size=4)
    with pytest.raises(ConfigError, match=r"unknown setting of 'objective': 'siz'; .*'size'"):
        validate(Own, {"siz": 4}, "objective")
    with pytest.raises(
        ConfigError, match=r"objective\.size cannot be 'x': input should be a valid"
    ):
        validate(Own, {"size": "x"}, "objective")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Own().size = 4
