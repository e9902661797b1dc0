"""Transfer classifiers: the command from its options to its table."""

import numpy as np
import pytest

from benchmarks import transfer
from benchmarks.results import read
from contrasent.evaluation import protocols
from contrasent.evaluation.protocols import Preset
from contrasent.evaluation.transfer import Part, TransferData

TINY = Preset("test", 3, "adam", 16, 2, 2, max_epochs=12)


@pytest.fixture
def given(tiny_encoder, tmp_path, monkeypatch):
    """The options of a command on tiny tasks of all three kinds."""
    tiny_encoder.save(tmp_path / "encoder")
    names = {"cr": ("all",), "trec": ("train", "test"), "sst2": ("train", "dev", "test")}
    draw = np.random.default_rng(0)
    words = (("dog", "runs", "the"), ("cat", "sits", "the"))

    def load(name):
        parts = {}
        for part in names[name]:
            labels = np.arange(60) % 2
            texts = tuple(" ".join(draw.choice(words[label], 4)) for label in labels)
            parts[part] = Part(texts, labels)
        return TransferData(name, parts, 2, "0" * 64)

    loaded = {name: load(name) for name in names}
    monkeypatch.setattr(transfer.transfer, "load_transfer", loaded.__getitem__)
    monkeypatch.setitem(protocols.PRESETS, "test", TINY)
    paths = {"json": tmp_path / "found.json", "embeddings": tmp_path / "kept"}
    options = [f"--{name}={path}" for name, path in paths.items()]
    return [f"--encoder={tmp_path / 'encoder'}", "--tasks=cr,trec,sst2", "--seeds=1,2", *options]


def test_all_sides_reach_the_same(given, tmp_path, capsys):
    result = transfer.main([*given, "--contestants=contrasent,SentEval"])
    assert read(tmp_path / "found.json") == result
    ours, theirs = (
        [
            (each["task"], each["seed"], round(each["dev"], 12), each["test"])
            for each in entry.rounds
        ]
        for entry in result.entries
    )
    assert ours == theirs
    assert len(ours) == 6
    assert len(set(ours)) > 4
    for entry in result.entries:
        assert all(found["seconds"] == found["cpu seconds"] > 0 for found in entry.rounds)
    assert "| SentEval, accuracy | contrasent, accuracy |" in capsys.readouterr().out
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_a_command_goes_on_where_it_was_ended(given, monkeypatch):
    done = []

    def quick(parts, classes, preset, seed):
        done.append((len(parts), classes, preset, seed))
        if len(done) == 3:
            raise KeyboardInterrupt
        return 0.5, 0.25

    monkeypatch.setattr(transfer, "CONTESTANTS", {"SentEval": quick})
    with pytest.raises(KeyboardInterrupt):
        transfer.main(given)
    (entry,) = transfer.main(given).entries
    assert done == [(k, 2, "test", seed) for k, seed in [(1, 1), (2, 1), (3, 1)]] + [
        (k, 2, "test", seed) for k, seed in [(3, 1), (1, 2), (2, 2), (3, 2)]
    ]
    assert [(found["dev"], found["test"]) for found in entry.rounds] == [(0.5, 0.25)] * 6
