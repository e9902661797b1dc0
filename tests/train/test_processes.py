"""Several processes train one run: each step is that of one process with the whole batch."""

import json
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.command_line import started
from helpers.run_files import RunFiles, logged_losses
from helpers.split_steps import CASES, differences
from helpers.tiny_models import SENTENCES, save_tiny_masked_lm
from helpers.tiny_sentences import write_pairs

from contrasent.data.batch import shares
from contrasent.model.encoder import SentenceEncoder
from contrasent.training.run import train

TOLERANCE = 1e-5


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """The differences of all cases in two processes, which are started once."""
    folder = tmp_path_factory.mktemp("two")
    return differences(2, save_tiny_masked_lm(folder / "lm"), folder), folder


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_one_process_and_of_one_chunk(case, two):
    for words, found in two[0][case].items():
        assert max(found[:2]) < TOLERANCE, f"{words}: {found}"


def test_each_process_embeds_a_share_and_all_have_all_rows(two):
    parts = [json.loads(f.read_text()) for f in two[1].glob("rows-*")]
    shares, rows, errors = zip(*parts, strict=True)
    assert sorted(shares) == [2, 3]
    assert rows[0] == rows[1] == [[n, -n] for n in range(5)]
    assert errors == ("of process 1",) * 2


def test_a_run_that_is_cut_off_and_resumed_is_bitwise_equal(two):
    whole, cut = (RunFiles.read(two[1] / name) for name in ("whole", "cut"))
    assert cut == whole
    assert len([values for values in whole.metrics if "loss" in values]) == 6


def test_every_process_gets_as_many_sentences_and_about_as_many_tokens():
    lengths = torch.randint(2, 33, (101,), generator=torch.Generator().manual_seed(0))
    dealt = shares(lengths, 4)
    assert torch.cat(dealt).sort().values.equal(torch.arange(101))
    assert [len(own) for own in dealt] == [26, 25, 25, 25]
    tokens = [int(lengths[own].sum()) for own in dealt]
    assert max(tokens) - min(tokens) <= 32
    assert [len(own) for own in shares(lengths[:2], 3)] == [1, 1, 0]


def test_torchrun_trains_and_scores_the_runs_of_one_process(
    recipe, text_file, triplet_file, tiny_bert, tmp_path
):
    pairs = str(write_pairs(tmp_path / "pairs.tsv"))
    changes = {"evaluation.task": pairs, "evaluation.final": pairs, "encoder.dropout": 0.0}
    changes |= {"train.max_steps": 6, "train.precision": "fp32", "evaluation.every": 3}
    changes |= {"evaluation.geometry_every": 3, "evaluation.geometry_pairs": f"{pairs}>3"}
    sources = [str(text_file), {"file": str(triplet_file), "objective": {"hard_negatives": 1}}]
    one = recipe(
        data__file=sources, **{key.replace(".", "__"): value for key, value in changes.items()}
    )
    train(one, tmp_path / "one")
    settings = [word for key, value in changes.items() for word in (f"--{key}", value)]
    words = ["train", "unsup-simcse", "--encoder", tiny_bert]
    words += [word for source in map(json.dumps, sources) for word in ("--data", source.strip('"'))]
    words += ["--device", "cpu", "--lr", 1e-3, "--batch-size", 8, "--output", tmp_path / "two"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "2", "-m", "contrasent"]
    command = [*launcher, *map(str, words + settings), "--seeds", "42,43"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert said.returncode == 0, said.stderr
    assert "2 processes: 4 examples in each" in said.stderr
    assert said.stderr.count("training: 6 steps") == 2
    assert len(re.findall("^encoder: ", said.stdout, re.MULTILINE)) == 1
    runs = [tmp_path / name for name in ("one", "two/seed-42", "two/seed-43")]
    losses = [logged_losses(run) for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] != pytest.approx(losses[0], rel=1e-2)
    for file in ("metrics.jsonl", "scores.jsonl"):
        alone, shared = (numbers_in(run / file) for run in runs[:2])
        # Two of the 24 pairs may change places, which moves Spearman by 0.02 at most.
        assert shared == pytest.approx(alone, abs=0.02)
    encoders = [SentenceEncoder.load(run / "last") for run in runs]
    rows = [encoder.encode(SENTENCES, precision="fp32") for encoder in encoders]
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-4)
    assert np.abs(rows[2] - rows[0]).max() > 1e-2


def numbers_in(file):
    """What was measured, line by line."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    found = [it.get("value") or it.get("evaluation", {}) | it.get("geometry", {}) for it in lines]
    return [number for it in found for number in (it.values() if isinstance(it, dict) else [it])]


def test_a_peer_that_never_joins_is_named_and_nothing_is_left(text_file, tiny_bert, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = ["--encoder", tiny_bert, "--data", text_file, "--output", tmp_path / "run"]
    words += ["--device", "cpu", "--train.max_steps", 2, "--evaluation.task", "none"]
    process = started("train", "unsup-simcse", *words, env={**alone, "CONTRASENT_TIMEOUT": "2"})
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 2 and "Traceback" not in said
    assert "process 0 of 2 did not meet the others within 2 seconds" in said
    assert "same MASTER_ADDR and MASTER_PORT, or wait longer with CONTRASENT_TIMEOUT" in said
    assert not (tmp_path / "run").exists()
