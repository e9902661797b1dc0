"""A profile adds up, and does not change what it looks at."""

import gzip
import json

import pytest
import torch
from helpers.command_line import worked
from torch import nn

from contrasent.errors import ConfigError
from contrasent.profiling import profiled


def test_only_the_steps_after_the_first_three_are_recorded(tmp_path):
    layer, path, told = nn.Linear(3, 5), tmp_path / "trace.json.gz", []
    optimizer = torch.optim.SGD(layer.parameters())
    with profiled(path, told.append):
        for rows in range(2, 9):
            assert (rows > 7) == path.exists()
            layer(torch.zeros(rows, 3)).sum().backward()
            optimizer.step()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::linear" for event in events) == 3
    assert "aten::addmm" in told[0]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]
    with pytest.raises(ConfigError, match="exists already"), profiled(path, print):
        pass


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    animals, verbs = ("dog", "cat", "bird", "horse"), ("runs", "sits", "eats", "sees", "reads")
    path.write_text("".join(f"the {a} {v} .\n" for a in animals for v in verbs), encoding="utf-8")
    return path


def test_training_with_a_profile_gives_the_same_encoder(tiny_bert, text, tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    words = ["train", "unsup-simcse", "--encoder", tiny_bert, "--data", text]
    words += ["--train.batch_size", "2", "--evaluation.task", "none", "--evaluation.final", "none"]
    plain, profiled = tmp_path / "plain", tmp_path / "profiled"
    worked(*words, "--max-steps", "7", "--output", plain)
    said = worked(*words, "--max-steps", "7", "--output", profiled, "--profile")
    assert "aten::" in said.err and "trace.json.gz" in said.err
    assert (profiled / "profile" / "trace.json.gz").is_file()
    weights = [(run / "last" / "model.safetensors").read_bytes() for run in (plain, profiled)]
    assert weights[0] == weights[1]

    said = worked(*words, "--max-steps", "7", "--output", profiled, "--overwrite")
    assert not (profiled / "profile").exists()
    said = worked(*words, "--max-steps", "5", "--output", tmp_path / "short", "--profile")
    assert "no profile: it needs 6 steps" in said.err
