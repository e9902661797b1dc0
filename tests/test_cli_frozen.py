"""The command line is a promise: commands and options may be added here on purpose, not by chance,
and none may go or change its name."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
import typer
from helpers.command_line import worked

import contrasent
from contrasent.cli.app import app
from contrasent.errors import ConfigError

PROMISED = Path(__file__).with_name("commands.txt").read_text(encoding="utf-8")
"""The arguments and options of every command; @ names several of them."""

_entries = {
    name: words.split()
    for name, words in re.findall(r"^(\S.*?):((?:.|\n )*)", PROMISED, re.MULTILINE)
}
COMMANDS = {
    name.replace("contrasent", ""): [it for word in words for it in _entries.get(word, [word])]
    for name, words in _entries.items()
    if not name.startswith("@")
}


def words(parameter):
    """How a user gives a parameter."""
    if parameter.param_type_name == "argument":
        return parameter.name.upper() + "..." * (parameter.nargs != 1)
    return "/".join([*parameter.opts, *parameter.secondary_opts])


def described(command, name=""):
    """Every command below ``command`` with its parameters, help left out."""
    parameters = [words(it) for it in command.params if "--help" not in it.opts]
    found = {name: parameters}
    for word in getattr(command, "commands", ()):
        found |= described(command.get_command(None, word), f"{name} {word}".strip())
    return found


def test_commands_and_options_are_those_that_were_promised():
    found = described(typer.main.get_command(app))
    assert {name: sorted(given) for name, given in found.items()} == {
        name: sorted(given) for name, given in COMMANDS.items()
    }
    assert worked("--version").out == f"contrasent {contrasent.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_eighty_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = worked(*name.split(), "--help")
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) <= 80
    for given in COMMANDS[name]:
        if given.startswith("--"):
            assert given.partition("/")[0] in said.out


def test_no_text_of_an_option_stands_twice():
    typer.main.get_command(app)
    folder = Path(contrasent.cli.app.__file__).parent
    modules = [import_module(f"contrasent.cli.{path.stem}") for path in folder.glob("*.py")]
    modules.append(import_module("contrasent.options"))
    texts = {}
    for cls in {it for module in modules for it in vars(module).values() if isinstance(it, type)}:
        for name in set(vars(cls).get("__annotations__", ())):
            field = vars(cls).get("__pydantic_fields__", {}).get(name)
            if field is not None and field.description:
                texts.setdefault(field.description, set()).add(f"{cls.__name__}.{name}")
    assert len(texts) > 150
    assert not {text: where for text, where in texts.items() if len(where) > 1}


OWN = {"show_progress", "objective", "on_step", "on_evaluation", "on_trial", "settings"}
"""What only a program can give."""


@pytest.mark.parametrize(
    "name", ["evaluate", "analyze", "train", "tune", "adapt", "data mine", "data synthesize"]
)
def test_keyword_arguments_are_the_options_of_the_command(name):
    command = typer.main.get_command(app)
    for word in name.split():
        command = command.get_command(None, word)
    function = getattr(contrasent, name.split()[-1])
    parameters, text = set(inspect.signature(function).parameters), inspect.getdoc(function)
    assert parameters - {"encoder", "seed"} - OWN <= {it.name for it in command.params}
    assert all(f"\n    {it}: " in text for it in parameters - {"settings"})


def test_a_wrong_keyword_argument_is_named():
    with pytest.raises(ConfigError, match="unknown option 'metrik'"):
        contrasent.evaluate("none", ["none.tsv"], metrik="pearson")
    with pytest.raises(ConfigError, match="margin cannot be 'wide': input should be"):
        contrasent.mine("none", "none.csv", margin="wide")
