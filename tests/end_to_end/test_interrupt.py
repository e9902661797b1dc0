"""Ctrl-C at any moment: exit code 130, one line, nothing half-written, and a way to go on."""

import json
import re
import signal
import time

import numpy as np
import pytest
from helpers.command_line import call, started, worked
from helpers.run_files import weights
from helpers.tiny_sentences import SENTENCES

from contrasent.model.encoder import SentenceEncoder


def interrupted(process):
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "Traceback" not in err and out == ""
    return err.splitlines()[-1]


def saved_in(run):
    """What is said of a run that stopped after the step that was being made."""
    (state,) = (run / "state").iterdir()
    step = json.loads((state / "progress.json").read_text())["step"]
    how = "go on with the same command and --resume"
    steps = re.search(r"training: (\d+) steps", (run / "log.txt").read_text())[1]
    return f"saved after step {step} of {steps}; {how}"


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_an_interrupted_training_goes_on_to_the_same_bits(arguments, tmp_path):
    def command(folder, *more):
        return arguments("unsup-simcse", "text.txt", folder, "--train.epochs", 8, *more)

    process, end = started(*command(tmp_path / "cut")), time.monotonic() + 300
    while lines_of(tmp_path / "cut" / "metrics.jsonl") <= 12:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    assert interrupted(process) == (f"stopped: {saved_in(tmp_path / 'cut')}")
    assert not (tmp_path / "cut" / "result.json").exists()
    said = worked("train", "--resume", tmp_path / "cut")
    assert "resuming after " in said.err
    worked(*command(tmp_path / "whole"))
    for which in ("best", "last"):
        assert weights(tmp_path / "cut", which) == weights(tmp_path / "whole", which)
    cut, whole = (lines_of(tmp_path / it / "metrics.jsonl") for it in ("cut", "whole"))
    assert cut == whole


@pytest.fixture
def ctrl_c(monkeypatch):
    """Press Ctrl-C while sentences are embedded, at the call with this number."""

    def press(at):
        forward, calls = SentenceEncoder.forward, []

        def pressed(*args, **kwargs):
            calls.append(args)
            if len(calls) == at:
                signal.raise_signal(signal.SIGINT)
            return forward(*args, **kwargs)

        monkeypatch.setattr(SentenceEncoder, "forward", pressed)

    return press


def test_an_interrupted_encode_goes_on_where_it_was(unsupervised, shelf, tmp_path, ctrl_c):
    command = ("encode", unsupervised[0], shelf / "text.txt", tmp_path / "rows.npy")
    how = ("--shard-size", 40, "--precision", "fp32")
    ctrl_c(3)
    said = call(*command, *how)
    assert (said.code, said.out) == (130, "")
    assert said.err.splitlines()[-1] == "stopped: interrupted; what was written is whole"
    assert not (tmp_path / "rows.npy").exists()
    said = worked(*command, *how)
    assert "80 rows came from shards of an earlier run" in said.err
    expected = SentenceEncoder.load(unsupervised[0], device="cpu")
    rows = expected.encode(SENTENCES, precision="fp32")
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), rows, atol=2e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]


@pytest.mark.parametrize("words", [("evaluate",), ("index", "build")], ids=lambda it: it[-1])
def test_what_is_not_resumed_leaves_nothing(words, unsupervised, shelf, tmp_path, ctrl_c):
    ctrl_c(1)
    more = ("--tasks", shelf / "pairs.tsv", "--json", tmp_path / "scores.jsonl")
    if words[0] == "index":
        more = (shelf / "text.txt", tmp_path / "index")
    said = call(*words, unsupervised[0], *more)
    assert (said.code, said.out) == (130, "")
    assert said.err.splitlines()[-1] == "stopped: interrupted; what was written is whole"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", [1, 7])
def test_interrupting_the_first_steps_leaves_a_run_to_resume(arguments, tmp_path, ctrl_c, at):
    ctrl_c(at)
    said = call(*arguments("unsup-simcse", "text.txt", tmp_path / "run"))
    assert (said.code, said.out) == (130, "")
    assert said.err.endswith(f"stopped: {saved_in(tmp_path / 'run')}\n")
    worked("train", "--resume", tmp_path / "run")


def test_before_the_folder_is_taken_there_is_nothing_to_resume(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(
        SentenceEncoder, "load", lambda *_, **__: signal.raise_signal(signal.SIGINT)
    )
    said = call(*arguments("unsup-simcse", "text.txt", tmp_path / "run"))
    assert said.code == 130
    assert "stopped: interrupted; what was written is whole" in said.err
    assert list(tmp_path.iterdir()) == []
