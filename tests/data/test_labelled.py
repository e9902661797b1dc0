"""Labelled pairs and scored lists: what is read, left out, kept with the tokens, and refused."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.tables import write
from helpers.tiny_tokenizers import Letters

from contrasent.data.batch import Need
from contrasent.data.examples import open_training
from contrasent.data.loader import Loader, plain, tokenize
from contrasent.errors import DataError

ROWS = [
    ("a dog", "an animal", "entailment"),
    ("a dog", "a cat", "contradiction"),
    ("a dog", "a red dog", "-"),
    ("a man", "a sad man", "neutral"),
    ("", "nothing", "neutral"),
    ("one", "two", "contradiction"),
]
EXPECTED = [1, 0, 2, 0]


@pytest.fixture
def pairs(tmp_path):
    names = ("id", "sentence1", "sentence2", "gold_label")
    return lambda rows: open_training(write(tmp_path / "nli.csv", names=names, rows=rows), "nli")


def test_labels_lie_beside_the_tokens_and_reach_the_batch(pairs):
    rows = [*ROWS[:2], ("xx", "b", "neutral"), *ROWS[3:]]
    store = tokenize(pairs(rows), Letters(), None)
    assert store.manifest.tokenless == 1 and len(store) == 4
    again = tokenize(pairs(rows), Letters(), None)
    for found in (store, again):
        assert found.column(Need.LABELS).tolist() == EXPECTED
        assert found.column(Need.LABELS).dtype == np.int64
        assert found.manifest.columns == {"LABELS": "uint8"}
    labels = {Need.LABELS: store.column(Need.LABELS)}
    loader = Loader(replace(plain(store, 2), columns=labels), batch_size=4, seed=3)
    batch = loader.batch(0)
    view = batch.view(1)
    second = ["".join(map(chr, view.token_ids[a:b])) for a, b in pairwise(view.offsets.tolist())]
    kept = [row[1] for row in ROWS if row[2] != "-" and row[0]]
    known = dict(zip(kept, EXPECTED, strict=True))
    assert [known[text] for text in second] == batch.column(Need.LABELS).tolist()


def test_a_store_that_lost_labels_is_made_again(pairs):
    store = tokenize(pairs(ROWS), Letters(), None)
    (store.folder / "labels.bin").write_bytes(b"\x00")
    store = tokenize(pairs(ROWS), Letters(), None)
    assert store.column(Need.LABELS).tolist() == EXPECTED


LISTS = [
    ("a dog", "runs", "sits", "sings", [3, 1.5, -2]),
    ("xx", "one", "two", "three", [0, 0, 1]),
    ("a cat", "eats", "reads", "", [1, 2, 3]),
    ("a bird", "sings", "eats", "runs", [0, 1e-3, 7]),
]
NAMES = ("id", "query", "candidate_1", "candidate_3", "candidate_2", "scores")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_scores_of_lists_lie_beside_their_candidates(kind, tmp_path):
    rows = [it if kind in ("jsonl", "parquet") else (*it[:4], json.dumps(it[4])) for it in LISTS]
    path = write(tmp_path / f"lists.{kind}", names=NAMES, rows=rows)
    examples = open_training(path, "lists")
    assert next(iter(examples)) == ("a dog", "runs", "sings", "sits")
    store = tokenize(examples, Letters(), None)
    expected = np.array([[3, 1.5, -2], [0, 1e-3, 7]], np.float32)
    for found in (store, tokenize(open_training(path, "lists"), Letters(), None)):
        assert np.array_equal(found.column(Need.CANDIDATE_SCORES), expected)
    names = ("id", "scores", "negative_2", "negative", "positive", "query")
    rows = [tuple(row[n] for n in (4, 3, 2, 1, 0)) for row in rows[:1]]
    turned = open_training(write(tmp_path / f"t.{kind}", names=names, rows=rows), "lists")
    assert next(iter(turned)) == ("a dog", "runs", "sits", "sings")  # the right one is first
    chosen = open_training(path, "lists", ["query", "candidate_3", "candidate_1", "scores"])
    with pytest.raises(DataError, match=r":[12]: the scores are .*; there are 2 candidates"):
        chosen.require(1)
