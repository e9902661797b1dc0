"""From a text file to answers, through the command line: each command takes what the last made."""

import json
import re

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.run_files import logged_losses
from helpers.tiny_sentences import SENTENCES, sentence, write
from helpers.tiny_sts import spearman
from safetensors.torch import load_file

from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records


def test_train_prints_scores_before_and_after_and_where_the_encoder_is(unsupervised, tiny_bert):
    folder, said = unsupervised
    result = json.loads((folder / "result.json").read_text())
    best = f"best dev Spearman {100 * result['best_score']:.2f} at step {result['best_step']}"
    assert "training: 13 steps of 16 examples in fp32 on " in said.err
    assert re.search(r"\nstep 5: .*pairs\.tsv Spearman -?\d+\.\d\d \*\n", said.err)
    lines = said.out.splitlines()
    assert lines[0] == best
    assert lines[-1] == f"encoder: {folder / 'best'}"
    scores = read_records(folder / "scores.jsonl")
    before, after = spearman(scores, tiny_bert), spearman(scores, folder / "best")
    assert before != after
    table = [line.split() for line in lines if line.startswith(("before ", "after "))]
    assert table == [["before", f"{100 * before:.2f}"], ["after", f"{100 * after:.2f}"]]


def test_search_finds_the_nearest_in_the_order_of_plain_cosines(unsupervised, shelf, tmp_path):
    asked, index = SENTENCES[3], tmp_path / "index"
    words = ("index", "build", unsupervised[0], shelf / "text.txt", index)
    said = worked(*words, "--precision", "fp32")
    assert said.out == ""
    assert f"{index}: {len(SENTENCES)} texts of 16 dimensions" in said.err
    encoder = SentenceEncoder.load(unsupervised[0] / "best", device="cpu")
    rows = encoder.encode(SENTENCES, precision="fp32")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit[3]
    said = worked("search", index, asked, "--top-k", 5, "--json")
    hits = [json.loads(line) for line in said.out.splitlines()]
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5]
    assert hits[0]["text"] == asked
    nearest = np.sort(cosines)[::-1][:5]
    np.testing.assert_allclose([hit["score"] for hit in hits], nearest, atol=2e-6)
    for hit in hits:
        assert SENTENCES[int(hit["id"])] == hit["text"]
        assert cosines[int(hit["id"])] == pytest.approx(hit["score"], abs=2e-6)
    table = worked("search", index, asked, "--top-k", 5).out.splitlines()
    assert table[0].endswith(asked) and len(table) == 5


def scored(*words):
    found = [json.loads(line) for line in worked(*words, "--json", "-").out.splitlines()]
    (record,) = (r for r in found if (r["metric"], r["aggregation"]) == ("spearman", "all"))
    return record


def test_the_trained_head_is_stored_and_used(arguments, shelf, tmp_path):
    folder, final = tmp_path / "supervised", ("--evaluation.final", shelf / "pairs.tsv")
    said = worked(*arguments("sup-simcse", "triplets.csv", folder, *final))
    assert "hard negative" in said.err
    assert "after: pooler cls, head mlp" in said.out
    command = ("evaluate", folder, "--tasks", shelf / "pairs.tsv")
    kept, left = scored(*command), scored(*command, "--head", "none")
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
