"""Labelled pairs: what is read, numbered, left out, kept with the tokens, and refused."""

import json
from itertools import pairwise

import numpy as np
import pytest
from helpers.tables import write
from helpers.tiny_tokenizers import Letters

from contrasent.data.batch import Need
from contrasent.data.examples import open_training
from contrasent.data.loader import Columns, Loader, TokenStore, WithNeeds, tokenize
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
    loader = Loader(WithNeeds(Columns(store, 2), labels), batch_size=4, seed=3)
    batch = loader.batch(0)
    view = batch.view(1)
    hypotheses = [
        "".join(map(chr, view.token_ids[a:b])) for a, b in pairwise(view.offsets.tolist())
    ]
    kept = [row[1] for row in ROWS if row[2] != "-" and row[0]]
    known = dict(zip(kept, EXPECTED, strict=True))
    assert [known[text] for text in hypotheses] == batch.column(Need.LABELS).tolist()


def test_a_store_that_lost_labels_is_made_again(pairs):
    store = tokenize(pairs(ROWS), Letters(), None)
    manifest = json.loads((store.folder / "manifest.json").read_text())
    assert manifest.pop("columns") == {"LABELS": "uint8"}
    former = json.dumps({**manifest, "labelled": True})
    (store.folder / "manifest.json").write_text(former)  # as releases before wrote it
    assert TokenStore(store.folder).column(Need.LABELS).tolist() == EXPECTED
    (store.folder / "labels.bin").write_bytes(b"\x00")
    store = tokenize(pairs(ROWS), Letters(), None)
    assert store.column(Need.LABELS).tolist() == EXPECTED


WRONG = [
    ([("a", "b", "entailment"), ("c", "d", "not_entailment")], ":3: unknown label 'not_entailm"),
    ([("a", "b", 0), ("c", "d", 3)], ":3: the label is .*3.*; all are words .* 0 to 2"),
    ([("a", "b", "neutral"), ("c", "d", 1)], ":3: .* '1'; all are words or all numbers"),
    ([("a", "b", "-")] * 3, "holds 0 examples"),
]


@pytest.mark.parametrize(("rows", "said"), WRONG)
def test_labels_that_do_not_do_are_told(rows, said, pairs):
    with pytest.raises(DataError, match=said):
        pairs(rows).require(2)
