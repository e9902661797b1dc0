"""The option --device, wherever an encoder is loaded."""

import pytest
import torch
from helpers.command_line import refused, worked

from contrasent.errors import CheckpointError
from contrasent.model.backbones.base import training_device
from contrasent.model.encoder import SentenceEncoder

FIT = ("--data", "text.txt", "--output", "fitted")
COMMANDS = {
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


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_encoder_is_loaded_where_the_option_says(name, monkeypatch):
    worked("index", "build", "tiny", "text.txt", "index")
    named = []

    def stop(*_, device=None, **__):
        named.append(device)
        raise CheckpointError("no more is asked")

    monkeypatch.setattr(SentenceEncoder, "load", stop)
    assert refused(*COMMANDS[name], "--device", "cpu") == "no more is asked"
    assert named == ["cpu"]


def test_the_accelerator_trains_unless_the_cpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert training_device(None).type == "cuda"
    assert training_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert training_device(None).type == "mps"
