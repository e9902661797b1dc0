"""Settings of a recipe given on the command line, by their own options and by their names."""

import subprocess
import sys

import pytest
import yaml
from helpers.careless import PLAIN, prepare, train
from helpers.command_line import refused, tree, worked

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


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch, tiny_bert):
    """The folder one works in."""
    return prepare(tmp_path, monkeypatch, tiny_bert)


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


@pytest.mark.parametrize("words", [("--train.batch-size", "8"), ("--train.batch-size=8",)], ids=str)
def test_a_hyphen_in_the_name_of_a_setting_is_an_underscore(words):
    assert settings("train", "unsup-simcse", *words)["train"]["batch_size"] == 8
    assert (
        settings("train", "diffcse", "--objective.mask-rate", "0.2")["objective"]["mask_rate"]
        == 0.2
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--batch-size", "8", "--train.batch_size", "16"),
            "batch_size 8 and train.batch_size 16 are the same setting; give one of them",
        ),
        (
            ("--encoder.name", "other"),
            "encoder tiny and encoder.name other are the same setting; give one of them",
        ),
    ],
)
def test_a_setting_is_given_once(desk, words, said):
    before = tree(desk)
    assert refused(*train(*words)) == said
    assert tree(desk) == before


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


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("device", ["warp", "cuda:99", "meta"])
def test_a_device_that_is_not_here_is_refused(desk, command, device):
    before = tree(desk)
    words = ("--data", "text.txt", "--output", "out", "--device", device)
    encoder = () if command == "pretrain" else PLAIN[:2]
    message = refused(*COMMANDS[command], *encoder, *words)
    assert message.startswith(f"cannot compute on the device '{device}' here: ")
    assert message.endswith("; name another one, such as cpu, cuda or cuda:1, or leave it out")
    assert tree(desk) == before
