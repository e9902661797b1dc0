"""The option --device, wherever an encoder is loaded."""

from itertools import permutations

import pytest
import torch
from helpers.careless import prepare
from helpers.command_line import worked

from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import training_device

FIT = ("--data", "varied.txt", "--output", "fitted")
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


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch, tiny_bert):
    """The folder one works in, with an index."""
    folder = prepare(tmp_path, monkeypatch, tiny_bert)
    orders = permutations(["a dog", "the cat", "sad", "red", "green"])
    (folder / "varied.txt").write_text("".join(f"{' and '.join(words)}\n" for words in orders))
    worked("index", "build", "tiny", "text.txt", "index")
    return folder


@pytest.fixture
def devices(monkeypatch):
    """The devices that encoders were loaded to."""
    load, named = SentenceEncoder.load.__func__, []

    def spy(cls, name, *, device=None, **settings):
        named.append(device)
        return load(cls, name, device=device, **settings)

    monkeypatch.setattr(SentenceEncoder, "load", classmethod(spy))
    return named


@pytest.mark.parametrize("name", COMMANDS)
def test_the_encoder_is_loaded_where_the_option_says(name, devices):
    worked(*COMMANDS[name], "--device", "cpu")
    assert devices == ["cpu"]


def test_the_accelerator_trains_unless_the_cpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert training_device(None).type == "cuda"
    assert training_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert training_device(None).type == "mps"
