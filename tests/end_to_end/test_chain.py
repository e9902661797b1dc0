"""From a text file to answers, through the command line: each command takes what the last made."""

import json
import re

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tiny_sentences import SENTENCES
from helpers.tiny_sts import spearman

from contrasent.model.encoder import SentenceEncoder
from contrasent.records import read_records


@pytest.fixture(scope="module")
def rows(unsupervised):
    """Embeddings of the text in fp32, by the Python interface."""
    encoder = SentenceEncoder.load(unsupervised[0] / "best", device="cpu")
    return encoder.encode(SENTENCES, precision="fp32")


@pytest.fixture(scope="module")
def index(unsupervised, shelf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search") / "index"
    words = ("index", "build", unsupervised[0], shelf / "text.txt", folder)
    said = worked(*words, "--precision", "fp32")
    assert said.out == ""
    assert f"{folder}: {len(SENTENCES)} texts of 16 dimensions" in said.err
    return folder


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


def test_search_finds_the_nearest_in_the_order_of_plain_cosines(index, rows):
    asked = SENTENCES[3]
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
