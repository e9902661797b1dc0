"""Transfer classifiers: the classifier in C, the command from its options to its table."""

import shutil

import numpy as np
import pytest

from benchmarks import transfer
from benchmarks.accuracies import by_task
from benchmarks.jobs import compiled, senteval
from benchmarks.results import Result, read
from benchmarks.rounds import Entry
from contrasent.errors import ConfigError
from contrasent.evaluation import protocols
from contrasent.evaluation.protocols import Preset
from contrasent.evaluation.transfer import Part, TransferData

TINY = Preset("test", 3, "adam", 16, 2, 2, max_epochs=12)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def made(count, classes, width=9):
    draw = np.random.default_rng(0)
    centres, labels = draw.normal(size=(classes, width)), draw.integers(0, classes, count)
    features = centres[labels] + 1.5 * draw.normal(size=(count, width))
    return features.astype(np.float32), labels


@needs_compiler
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("held_out", [True, False])
def test_the_classifier_in_c_is_the_one_in_torch(classes, held_out):
    x, y = made(150, classes)
    dev = (x[100:], y[100:]) if held_out else None
    rounds = set()
    for tenacity in (0, 2):
        preset = Preset("test", 3, "adam", 16, tenacity, 2, max_epochs=12)
        torchs = senteval.Classifier(9, classes, 1e-2, preset, 5)
        in_c = compiled.Classifier(9, classes, 1e-2, preset, 5)
        assert in_c.fit(x[:100], y[:100], dev) == torchs.fit(x[:100], y[:100], dev)
        rounds.add(torchs.rounds)
        expected = [torchs.layer.weight.detach().numpy(), torchs.layer.bias.detach().numpy()]
        np.testing.assert_allclose(in_c.weights[:, :9], expected[0], atol=1e-5)
        np.testing.assert_allclose(in_c.weights[:, 9], expected[1], atol=1e-5)
        assert in_c.predict(x).tolist() == torchs.predict(x).tolist()
        assert in_c.score(x, y) == torchs.score(x, y)
    assert len(rounds) == 2


def test_the_classifier_in_c_knows_adam_only():
    with pytest.raises(ValueError, match="Adam only, not rmsprop"):
        compiled.Classifier(9, 2, 1e-2, Preset("dev", 3, "rmsprop", 16, 2, 2), 5)


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
    monkeypatch.setattr(transfer, "load_transfer", loaded.__getitem__)
    monkeypatch.setitem(protocols.PRESETS, "test", TINY)
    paths = {"json": tmp_path / "found.json", "embeddings": tmp_path / "kept"}
    options = [f"--{name}={path}" for name, path in paths.items()]
    return [f"--encoder={tmp_path / 'encoder'}", "--tasks=cr,trec,sst2", "--seeds=1,2", *options]


@needs_compiler
def test_all_sides_reach_the_same(given, tmp_path, capsys):
    result = transfer.main([*given, "--contestants=contrasent,SentEval,SentEval in C"])
    assert read(tmp_path / "found.json") == result
    ours, theirs, in_c = (
        [
            (each["task"], each["seed"], round(each["dev"], 12), each["test"])
            for each in entry.rounds
        ]
        for entry in result.entries
    )
    assert ours == theirs == in_c
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
    with pytest.raises(ConfigError, match=r"found\.json has results of .* name another"):
        transfer.main([*given, "--clock=wall"])


def test_the_table_compares_what_both_have():
    def rounds(*rows):
        return [
            {"task": task, "seed": seed, "dev": 0, "test": test, "sentences": 1, "seconds": seconds}
            for task, seed, test, seconds in rows
        ]

    theirs = rounds(("cr", 1, 0.8, 40), ("cr", 2, 0.6, 20), ("mr", 1, 0.5, 100))
    ours = rounds(("cr", 1, 0.82, 1), ("cr", 2, 0.62, 2), ("cr", 3, 0.1, 9), ("sst2", 1, 0.9, 5))
    result = Result("transfer", {}, ["SentEval"], [Entry("ours", ours), Entry("SentEval", theirs)])
    assert by_task(result) == (
        "|  | SentEval, accuracy | ours, accuracy | SentEval, s | ours, s | ours, times as fast "
        "| seeds |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| CR | 70.00 | 72.00 | 30.0 | 1.5 | 20.0 | 2 |\n"
        "| SST2 |  | 90.00 |  | 5.0 |  | 0 |\n"
        "| MR | 50.00 |  | 100.0 |  |  | 0 |\n"
        "| all of them | 60.00 | 72.00 | 130.0 | 1.5 | 20.0 |  |\n"
    )
    result.references = []
    assert by_task(result).splitlines()[2] == "| CR | 51.33 | 70.00 | 4.0 | 30.0 |"
