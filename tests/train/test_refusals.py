"""Packages, encoders and hubs that are missing or damaged; test_mistakes.py has the rest."""

import json
import shutil

import pytest
import torch
from helpers.careless import prepare, train
from helpers.command_line import refused, worked


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch, tiny_bert):
    """The folder one works in."""
    return prepare(tmp_path, monkeypatch, tiny_bert)


def test_a_tracker_that_is_not_installed_is_told_with_its_package(desk, monkeypatch):
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    message = refused(*train("--train.trackers", "wandb"))
    assert message == "tracker 'wandb' needs its package: pip install wandb"
    assert not (desk / "out").exists()


# The encoder


@pytest.fixture
def copied(desk, tiny_bert):
    return shutil.copytree(tiny_bert, desk / "copied")


# Launchers


def test_selecting_by_a_test_split_is_warned_of(desk, monkeypatch):
    folder = desk / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    rows = ["g\tf\ty\t1\t5\ta dog\tthe dog", "g\tf\ty\t2\t1\ta cat\tsad", "g\tf\ty\t3\t2\tred\tno"]
    (folder / "sts-test.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("CONTRASENT_DATA", str(desk / "senteval"))
    said = worked(*train("--evaluation.task", "stsb"))
    assert "warning: the best step is selected by the test split of STS-B" in said.err


def test_out_of_memory_names_the_ways_out(monkeypatch):
    def full(*_args, **_settings):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr("contrasent.training.loop.embedding", lambda *_, **__: full)
    message = refused(*train())
    assert message.startswith("out of memory: --train.gradcache_chunk 128 takes the same gradient")
    assert "--train.gradient_checkpointing true" in message
    assert "--batch-size (now 64) or --data.max_tokens (now 32)" in message
    assert "--train.gradcache_chunk 4 " in refused(
        *train("--train.gradcache_chunk", "8", "--overwrite")
    )


def test_views_that_nothing_tells_apart_are_told(copied):
    config = json.loads((copied / "config.json").read_text())
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    (copied / "config.json").write_text(json.dumps({**config, **rates}))
    said = worked(*train("--encoder", str(copied)))
    assert "so both views of a sentence are equal; set encoder.dropout" in said.err
    said = worked(*train("--encoder", str(copied), "--encoder.dropout", "0.1", "--overwrite"))
    assert "views of a sentence are equal" not in said.err


def test_a_prompt_that_training_leaves_out_is_told(desk):
    worked(*train("--output", "plain"))
    path = desk / "plain" / "last" / "config_sentence_transformers.json"
    use = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **use}))
    said = worked(*train("--encoder", "plain/last", "--max-steps", "1"))
    assert "puts 'query: ' before every sentence that it encodes, but not in training" in said.err
