"""A run that is cut off anywhere and resumed ends with the bits of one that was not."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from helpers.interrupted import CutError, bits, cut, cut_after, metrics

from contrasent.errors import CheckpointError, ConfigError
from contrasent.recipe import to_yaml
from contrasent.train import run as run_module
from contrasent.train.run import train


@pytest.mark.parametrize(
    ("function", "calls"),
    [("save_state", 1), ("save_state", 3), ("save_state", 5)]
    + [("_step_values", n) for n in (1, 3, 4, 9)],
)
def test_a_resumed_run_is_bit_equal(function, calls, tmp_path, recipe, monkeypatch):
    settings = recipe(train__epochs=2)
    whole = train(settings, tmp_path / "whole")
    with monkeypatch.context() as patched:
        if function == "_step_values":
            patched.setattr(run_module.log, "step_values", counted_values(calls))
        else:
            cut_after(patched, function, calls)
        with pytest.raises(CutError):
            train(settings, tmp_path / "cut")
    train(settings, tmp_path / "cut", resume=True)
    assert bits(tmp_path / "cut") == bits(whole.last.parent)
    assert metrics(tmp_path / "cut") == metrics(whole.last.parent)


@pytest.mark.parametrize(
    "changes",
    [
        {"train__gradcache_chunk": 5},
        {"train__gradient_checkpointing": True},
        {"train__gradcache_chunk": 5, "train__gradient_checkpointing": True},
        {"objective__head": "batchnorm"},
        {"objective__head": "batchnorm", "train__gradcache_chunk": 5},
        {"train__optimizer": "rmsprop", "train__schedule": "steps", "train__rate_steps": {5: 1e-4}},
        {"train__bias_correction": False, "train__betas": [0.9, 0.9], "train__clip": None},
        {"encoder__freeze_embeddings": True, "train__warmup_share": 0.3},
    ],
    ids=str,
)
def test_a_resumed_run_is_bit_equal_with_other_settings(changes, tmp_path, recipe, monkeypatch):
    settings = recipe(train__epochs=2, **changes)
    whole = train(settings, tmp_path / "whole")
    with monkeypatch.context() as patched:
        cut_after(patched, "save_state", 3)
        with pytest.raises(CutError):
            train(settings, tmp_path / "cut")
    train(settings, tmp_path / "cut", resume=True)
    assert bits(tmp_path / "cut") == bits(whole.last.parent)
    assert metrics(tmp_path / "cut") == metrics(whole.last.parent)


def counted_values(calls):
    original, left = run_module.log.step_values, [calls]

    def counted(*args):
        left[0] -= 1
        if left[0] == 0:
            raise CutError
        return original(*args)

    return counted


def test_a_run_that_stopped_early_does_not_go_on(tmp_path, recipe, monkeypatch):
    settings = recipe(
        train__epochs=4, evaluation__every=1, evaluation__patience=1, train__learning_rate=1e-12
    )
    whole = train(settings, tmp_path / "whole")
    assert whole.steps < 20
    with monkeypatch.context() as patched:
        patched.setattr(run_module._Session, "finish", cut)
        with pytest.raises(CutError):
            train(settings, tmp_path / "cut")
    resumed = train(settings, tmp_path / "cut", resume=True)
    assert resumed.steps == whole.steps
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")


def test_a_complete_run_is_left_alone(tmp_path, recipe):
    train(recipe(), tmp_path / "run")
    before = bits(tmp_path / "run")
    assert train(recipe(), tmp_path / "run", resume=True) is None
    assert bits(tmp_path / "run") == before


def test_other_settings_cannot_be_resumed(tmp_path, recipe):
    train(recipe(), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"train.seed is 42 there, 7 now"):
        train(recipe(train__seed=7), tmp_path / "run", resume=True)


def test_other_data_cannot_be_resumed(tmp_path, recipe, text_file, monkeypatch):
    with monkeypatch.context() as patched:
        cut_after(patched, "save_state", 1)
        with pytest.raises(CutError):
            train(recipe(), tmp_path / "run")
    with text_file.open("a", encoding="utf-8") as file:
        file.write("one more dog\n")
    with pytest.raises(ConfigError, match="the training data has changed"):
        train(recipe(), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 64}, r"\(threads 64 then, \d+ now\), .* bits .*; OMP_NUM_THREADS"),
        ({"versions": {"torch": "1.0"}}, r"\(torch 1.0 then, \S+ now\), .* cut off$"),
        ({}, None),
    ],
    ids=str,
)
def test_a_resumed_run_says_what_changes_its_bits(
    change, said, tmp_path, recipe, monkeypatch, caplog
):
    with monkeypatch.context() as patched:
        cut_after(patched, "save_state", 1)
        with pytest.raises(CutError):
            train(recipe(), tmp_path / "run")
    kept = tmp_path / "run" / "environment.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **change}))
    train(recipe(), tmp_path / "run", resume=True)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (said is not None)
    assert said is None or re.search(said, warnings[0])


def test_a_damaged_state_is_refused(tmp_path, recipe, monkeypatch):
    with monkeypatch.context() as patched:
        cut_after(patched, "save_state", 1)
        with pytest.raises(CutError):
            train(recipe(), tmp_path / "run")
    (weights,) = (tmp_path / "run" / "state").glob("*/encoder.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot resume from"):
        train(recipe(), tmp_path / "run", resume=True)


@pytest.mark.acceptance
@pytest.mark.minutes
def test_ten_kills_at_random_moments_change_no_bit(tmp_path, recipe):
    settings = recipe(train__epochs=40, evaluation__every=5)
    (tmp_path / "recipe.yaml").write_text(to_yaml(settings), encoding="utf-8")
    command = [sys.executable, "-m", "contrasent", "train", str(tmp_path / "recipe.yaml")]
    start = time.perf_counter()
    subprocess.run([*command, "--output", str(tmp_path / "whole")], check=True, capture_output=True)
    whole = time.perf_counter() - start

    draw, kills = random.Random(0), 0
    resumed = [*command, "--output", str(tmp_path / "cut"), "--resume"]
    while kills < 10:
        process = subprocess.Popen(resumed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=draw.uniform(0.3, 0.9) * whole)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        else:
            assert process.returncode == 0
            if bits(tmp_path / "cut") != bits(tmp_path / "whole"):
                break
            shutil.rmtree(tmp_path / "cut")
    subprocess.run(resumed, check=True, capture_output=True)
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
