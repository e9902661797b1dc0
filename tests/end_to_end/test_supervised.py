"""Pairs, triplets and several hard negatives, through the command line; the head is kept."""

import json

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.run_files import logged_losses
from helpers.tiny_sentences import SENTENCES, sentence, write
from safetensors.torch import load_file


def spearman(*words):
    found = [json.loads(line) for line in worked(*words, "--json", "-").out.splitlines()]
    (record,) = (r for r in found if (r["metric"], r["aggregation"]) == ("spearman", "all"))
    return record


def test_the_trained_head_is_stored_and_used(supervised, shelf, tmp_path):
    folder, said = supervised
    assert "hard negative" in said.err
    assert "after: pooler cls, head mlp" in said.out
    command = ("evaluate", folder, "--tasks", shelf / "pairs.tsv")
    kept, left = spearman(*command), spearman(*command, "--head", "none")
    result = json.loads((folder / "result.json").read_text())
    assert kept["value"] == pytest.approx(result["best_score"], abs=1e-6)
    assert (kept["head"], left["head"]) == ("mlp", "none")
    assert kept["value"] != left["value"]
    for head in ("mlp", "none"):
        precision = ("--precision", "fp32", "--head", head)
        worked("encode", folder, shelf / "text.txt", tmp_path / f"{head}.npy", *precision)
    dense = load_file(folder / "best" / "2_Dense" / "model.safetensors")
    pooled = np.load(tmp_path / "none.npy")
    expected = np.tanh(pooled @ dense["linear.weight"].numpy().T + dense["linear.bias"].numpy())
    np.testing.assert_allclose(np.load(tmp_path / "mlp.npy"), expected, atol=2e-6)


def test_two_hard_negatives_are_twice_as_many_candidates(arguments, shelf, tmp_path):
    """Equal embeddings have the loss log C: an encoder that tells nothing apart shows C."""
    others = [
        f"{sentence(n, 4)},{sentence(n + 17)},{sentence(n + 31)}" for n in range(len(SENTENCES))
    ]
    rows = map(",".join, zip(SENTENCES, others, strict=True))
    write(tmp_path / "quads.csv", ["sent0,sent1,hard_neg1,hard_neg2", *rows])
    more = ("--objective.temperature", "1e6", "--max-steps", 1)
    for data, candidates in ((tmp_path / "quads.csv", 48), (shelf / "triplets.csv", 32)):
        output = tmp_path / f"run-{candidates}"
        worked(*arguments("sup-simcse", data, output, *more))
        assert logged_losses(output)[0] == pytest.approx(np.log(candidates), abs=1e-4)
