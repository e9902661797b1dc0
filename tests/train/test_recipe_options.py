"""Settings of a recipe on the command line, and --device wherever an encoder is loaded."""

import re
import subprocess
import sys
from dataclasses import asdict
from itertools import filterfalse

import pytest
import torch
from helpers.command_line import PLAIN, refused, worked

from contrasent.errors import CheckpointError
from contrasent.model.backbones.base import training_device
from contrasent.model.encoder import SentenceEncoder
from contrasent.recipe import load_recipe, recipes
from contrasent.training import run
from contrasent.training.setup import start_encoder

SHORT = {
    "--batch-size": ("batch_size", 8),
    "--epochs": ("epochs", 3),
    "--learning-rate": ("learning_rate", 0.001),
    "--lr": ("learning_rate", 0.001),
    "--precision": ("precision", "fp32"),
    "--seed": ("seed", 7),
    "--max-steps": ("max_steps", 5),
}
OF_PAPERS = "-base|-large|infersent|is-bert|pretrain"  # these say what is above the pooler
COMMANDS = {"train": ("train", "unsup-simcse"), "pretrain": ("pretrain", "tiny")}

pytestmark = pytest.mark.usefixtures("desk")


@pytest.fixture
def settings(monkeypatch):
    def of_words(*words):
        recipes = []
        monkeypatch.setattr(run, "train", lambda recipe, *_, **__: recipes.append(recipe))
        worked(*words)
        return asdict(recipes[0])

    return of_words


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", SHORT)
def test_an_option_is_the_setting_of_its_name(command, option, settings):
    key, value = SHORT[option]
    usual = settings(*COMMANDS[command])
    assert usual["train"].pop(key) != value
    changed = settings(*COMMANDS[command], option, value)
    assert changed["train"].pop(key) == value
    assert changed == usual


def test_a_hyphen_in_the_name_of_a_setting_is_an_underscore(settings):
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


FIT = ("--data", "text.txt", "--output", "fitted")
LOADING = {
    "evaluate": ("evaluate", "tiny", "--tasks", "pairs.tsv"),
    "analyze": ("analyze", "tiny", "--pairs", "pairs.tsv>1"),
    "neighbours": ("neighbours", "tiny", "--corpus", "text.txt"),
    "encode": ("encode", "tiny", "text.txt", "rows.npy"),
    "similarity": ("similarity", "tiny", "a dog", "a cat"),
    "calibrate": ("calibrate", "tiny", "pairs.tsv>=2"),
    "index build": ("index", "build", "tiny", "text.txt", "other"),
    "index add": ("index", "add", "index", "text.txt"),
    "search": ("search", "index", "a dog"),
    "fit whitening": ("fit", "whitening", "tiny", *FIT, "--dimensions", 2),
    "fit flow": ("fit", "flow", "tiny", *FIT),
}


@pytest.mark.parametrize("name", LOADING)
def test_the_encoder_is_loaded_where_the_option_says(name, monkeypatch):
    worked("index", "build", "tiny", "text.txt", "index")
    named = []

    def stop(*_, device=None, **__):
        named.append(device)
        raise CheckpointError("no more is asked")

    monkeypatch.setattr(SentenceEncoder, "load", stop)
    assert refused(*LOADING[name], "--device", "cpu") == "no more is asked"
    assert named == ["cpu"]


def test_the_accelerator_trains_unless_the_cpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert training_device(None).type == "cuda"
    assert training_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert training_device(None).type == "mps"


@pytest.mark.parametrize("name", [*filterfalse(re.compile(OF_PAPERS).search, recipes())])
def test_a_finished_encoder_keeps_its_head_and_a_language_model_gets_none(
    name, tiny_bert, tmp_path
):
    SentenceEncoder.load(tiny_bert, pooler="mean", head="mlp", device="cpu").save(tmp_path / "own")
    for folder, pooler, head in ((tmp_path / "own", "mean", "mlp"), (tiny_bert, "cls", "none")):
        settings = load_recipe(name, {"encoder.name": str(folder)}).encoder
        encoder = start_encoder(settings)
        assert encoder.pooler == (settings.pooler or pooler) and encoder.head_name == head
