"""From a text file to answers, through the command line: each command takes what the last made."""

import json
import re

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tiny_sentences import SENTENCES
from pyarrow import parquet

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
    said = worked(
        "index", "build", unsupervised[0], shelf / "text.txt", folder, "--precision", "fp32"
    )
    assert said.out == ""
    assert f"{folder}: {len(SENTENCES)} texts of 16 dimensions" in said.err
    return folder


def spearman(records, encoder):
    (value,) = (
        record.value
        for record in records
        if (record.metric, record.aggregation, record.encoder) == ("spearman", "all", str(encoder))
    )
    return value


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
    assert table == [
        ["before", f"{100 * before:.2f}"],
        ["after", f"{100 * after:.2f}"],
    ]


def test_evaluate_of_a_run_is_the_dev_score_of_its_best(unsupervised, shelf, tmp_path):
    folder, _ = unsupervised
    result = json.loads((folder / "result.json").read_text())
    command = ("evaluate", folder, "--tasks", shelf / "pairs.tsv")
    said = worked(*command, "--json", "-")
    found = [json.loads(line) for line in said.out.splitlines()]
    (value,) = (
        record["value"]
        for record in found
        if (record["metric"], record["aggregation"]) == ("spearman", "all")
    )
    assert value == pytest.approx(result["best_score"], abs=1e-6)
    assert {(record["precision"], record["pairs"], record["pooler"]) for record in found} == {
        ("fp32", 24, "cls")
    }
    assert f"{100 * value:.2f}" in worked(*command, "--json", tmp_path / "r.jsonl").out
    stored = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    assert [{**it, "command": ""} for it in stored] == [{**it, "command": ""} for it in found]


def test_encode_writes_what_the_python_interface_gives(unsupervised, shelf, rows, tmp_path):
    command = ("encode", unsupervised[0], shelf / "text.txt")
    said = worked(*command, tmp_path / "rows.npy", "--precision", "fp32")
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), rows, atol=2e-6)
    assert said.out == ""
    assert f"text.txt: {len(SENTENCES)} sentences" in said.err
    worked(*command, tmp_path / "rows.parquet", "--precision", "fp32")
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table["text"].to_pylist() == SENTENCES
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), rows, atol=2e-6)


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


def test_similarity_is_the_cosine_of_both_rows(unsupervised, rows):
    expected = rows[0] @ rows[1] / (np.linalg.norm(rows[0]) * np.linalg.norm(rows[1]))
    command = ("similarity", unsupervised[0], SENTENCES[0], SENTENCES[1])
    assert worked(*command).out == f"{expected:.4f}\n"
    told = json.loads(worked(*command, "--json").out)
    assert told["cosine"] == pytest.approx(float(expected), abs=2e-6)
    assert (told["pooler"], told["head"], told["precision"]) == ("cls", "none", "fp32")
