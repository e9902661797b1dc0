"""Settings of a recipe given on the command line, by their own options and by their names."""

import subprocess
import sys

import pytest
import yaml
from helpers.careless import PLAIN
from helpers.command_line import worked

SHORT = {
    "--batch-size": ("batch_size", 8),
    "--epochs": ("epochs", 3),
    "--learning-rate": ("learning_rate", 0.001),
    "--lr": ("learning_rate", 0.001),
    "--precision": ("precision", "fp32"),
    "--seed": ("seed", 7),
    "--max-steps": ("max_steps", 5),
}
COMMANDS = {"train": ("train", "unsup-simcse"), "pretrain": ("pretrain", "tiny")}


pytestmark = pytest.mark.usefixtures("desk")


def settings(*words):
    return yaml.safe_load(worked(*words, "--settings").out)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", SHORT)
def test_an_option_is_the_setting_of_its_name(command, option):
    key, value = SHORT[option]
    usual = settings(*COMMANDS[command])
    assert usual["train"].pop(key) != value
    changed = settings(*COMMANDS[command], option, value)
    assert changed["train"].pop(key) == value
    assert changed == usual


def test_a_hyphen_in_the_name_of_a_setting_is_an_underscore():
    words = ("--train.batch-size=8", "--objective.mask-rate", "0.2")
    found = settings("train", "diffcse", *words)
    assert (found["train"]["batch_size"], found["objective"]["mask_rate"]) == (8, 0.2)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_path_is_told_before_torch_is_imported(name):
    encoder = PLAIN[:2] if name == "train" else ()
    words = [*COMMANDS[name], *encoder, "--data", "none.txt"]
    code = (
        "import sys\n"
        "from contrasent.cli.app import main\n"
        "sys.argv[0] = 'contrasent'\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'transformers', 'accelerate'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    message = "error: there is no file none.txt; look for a misspelling, or give a full path\n"
    assert (done.stdout, done.stderr) == ("[]\n", message)
