"""Contrastive Tension, Quick-Thoughts and DeCLUTR: which sentences of a batch belong together."""

import dataclasses

import pytest
import torch
from helpers import oracles

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded


def tension(**settings):
    settings = {"negatives": 2, **settings}
    return objectives.build("contrastive_tension", settings, width=4, data_views=1)


def pairs_of(count, **settings):
    """Of a batch in which sentence n is ``[n + 10] * (1 + n % 3)``: its pairs, and what is made."""
    batch = tension(**settings).prepare(pack([[n + 10] * (1 + n % 3) for n in range(count)]))
    firsts = (batch.token_ids[batch.offsets[:-1]] - 10).view(2, -1).T
    return [tuple(pair) for pair in firsts.tolist()], batch


def test_negative_pairs_are_of_two_other_sentences_or_of_the_anchor():
    pairs, batch = pairs_of(10)
    assert pairs == [(0, 0), (1, 2), (3, 4), (5, 5), (6, 7), (8, 9)]
    assert batch.column(Need.LABELS).tolist() == [1, 0, 0, 1, 0, 0]
    assert (batch.views, batch.examples) == (2, 6)
    lengths = [[1 + n % 3 for n in side] for side in ((0, 1, 3, 5, 6, 8), (0, 2, 4, 5, 7, 9))]
    assert batch.lengths.view(2, -1).tolist() == lengths
    pairs, batch = pairs_of(6, negative_pairs="anchor")
    assert pairs == [(0, 0), (0, 1), (0, 2), (3, 3), (3, 4), (3, 5)]
    assert batch.column(Need.LABELS).tolist() == [1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [(0, 0)]), (2, [(0, 0)]), (3, [(0, 0), (1, 2)]), (7, [(0, 0), (1, 2), (3, 4)])],
)
def test_sentences_that_fill_no_group_are_left_out_unless_there_is_no_other(count, expected):
    assert pairs_of(count)[0] == expected


@pytest.mark.parametrize(("exclude", "label"), [(True, -1), (False, 0)])
def test_a_negative_pair_of_one_text_is_left_out(exclude, label):
    batch = tension(exclude_duplicates=exclude).prepare(pack([[7], [8], [8], [9], [7]]))
    assert batch.column(Need.LABELS).tolist() == [1, label, 0]


def near_of(places):
    return [[abs(a - b) == 1 for b in places] for a in places]


def neighbours(places, rows, rng, **settings):
    """The terms of sentences at these places of their documents, and the embeddings."""
    objective = objectives.build("quick_thoughts", settings, width=4, data_views=1)
    batch = dataclasses.replace(pack(rows), columns={Need.POSITIONS: torch.tensor(places)})
    pooled = rng(2, 5, 4)
    return objective(Encoded(pooled, {}), objective.prepare(batch)), pooled


def test_the_first_view_looks_for_the_second(rng):
    rows = [[n + 10] * (1 + n % 3) for n in range(5)]
    terms, pooled = neighbours([3, 4, 105, 106, 107], rows, rng)
    expected, found = oracles.neighbours(*pooled, near_of([3, 4, 105, 106, 107]), True)
    torch.testing.assert_close(terms["neighbours"], expected)
    assert terms.measures["neighbour_accuracy"].item() == pytest.approx(found)
    assert terms.measures["with_neighbour"] == 1
    terms, _ = neighbours([3, 104, 205, 206, 207], rows, rng)
    assert terms.measures["with_neighbour"].item() == pytest.approx(3 / 5)


@pytest.mark.parametrize("repeated", [False, True])
def test_repeated_sentences_are_no_negatives(repeated, rng):
    """Sentence 4 has the text of 0 (so it is none to 0, nor to 1, whose neighbour 0 is)."""
    rows, places = [[7], [8, 8], [9], [8], [7]], [0, 1, 2, 3, 4]
    terms, pooled = neighbours(places, rows, rng, exclude_duplicates=not repeated)
    left_out = [
        [not repeated and (i, j) in ((0, 4), (4, 0), (1, 4), (3, 0)) for j in range(5)]
        for i in range(5)
    ]
    expected, _ = oracles.neighbours(*pooled, near_of(places), True, left_out)
    torch.testing.assert_close(terms["neighbours"], expected)


def test_tokens_of_declutrs_anchors_alone_are_hidden(tiny_masked_lm):
    encoder = SentenceEncoder.load(tiny_masked_lm, pooler="mean", head="none", device="cpu")
    given = {"width": 16, "data_views": 1, "encoder": encoder}
    row = [2, *range(10, 30), 3]
    batch = pack([row] * 18, 6)
    torch.manual_seed(0)
    hidden = objectives.build("declutr", {"mask_rate": 0.5}, **given).prepare(batch)
    end = 2 * 3 * len(row)
    moved = hidden.token_ids != batch.token_ids
    assert moved[:end].view(6, -1).any(1).all() and not moved[end:].any()
    assert hidden.masked.chosen[:end].any() and not hidden.masked.chosen[end:].any()
    assert (hidden.views, hidden.examples) == (6, 3) and hidden.offsets.equal(batch.offsets)
    assert objectives.build("declutr", {"mlm_weight": 0.0}, **given).prepare(batch) is batch
