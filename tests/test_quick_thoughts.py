"""Quick-Thoughts: the formula in loops, who is whose neighbour, and its batches."""

import dataclasses

import pytest
import torch
from helpers import oracles

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.functional import neighbours
from contrasent.model.protocol import Encoded


def built(batch_size=None, **settings):
    return objectives.build(
        "quick_thoughts", settings, width=4, data_views=1, batch_size=batch_size
    )


def batch_of(places, rows=None):
    """Sentences of different texts and lengths, one of a single token, at these places."""
    rows = rows or [[n + 10] * (1 + n % 3) for n in range(len(places))]
    return dataclasses.replace(pack(rows), columns={Need.POSITIONS: torch.tensor(places)})


def near_of(places, context=1):
    return [[0 < abs(a - b) <= context for b in places] for a in places]


PLACES = {
    "one document": [3, 4, 5, 6, 7],
    "a border": [3, 4, 105, 106, 107],
    "a document of one": [3, 104, 205, 206, 207],
    "not in order": [5, 3, 7, 4, 6],
}


@pytest.mark.parametrize("own_score", [True, False])
@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_the_loss_and_its_gradients_are_those_of_the_formula(
    places, left_out, context, own_score, rng
):
    first, second = rng(5, 4).requires_grad_(), rng(5, 4).requires_grad_()
    near = near_of(places, context)
    excluded = [[i == j or {i, j} == {0, 3} for j in range(5)] for i in range(5)]
    mask = torch.tensor(excluded) if left_out else None
    loss, right = neighbours(first, second, torch.tensor(near), own_score=own_score, excluded=mask)
    expected, found = oracles.neighbours(
        first, second, near, own_score, excluded if left_out else None
    )
    torch.testing.assert_close(loss, expected)
    assert right.item() == pytest.approx(found)
    oracles.equal_gradients(loss, expected, [first, second])


def test_it_is_the_cross_entropy_of_the_authors_code(rng):
    """S2V: the diagonal of the scores is 0, the targets are rows of two bands that sum to 1."""
    first, second = rng(6, 4), rng(6, 4)
    scores = (first @ second.T).fill_diagonal_(0.0)
    targets = torch.diag(torch.ones(5), 1) + torch.diag(torch.ones(5), -1)
    targets = targets / targets.sum(1, keepdim=True)
    assert targets[2, 1] == targets[2, 3] == 0.5 and targets[0, 1] == 1
    expected = torch.nn.functional.cross_entropy(scores, targets)
    ours, _ = neighbours(first, second, targets > 0)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("own_score", [True, False])
def test_without_any_neighbour_there_is_nothing_to_learn(own_score, rng):
    first, second = rng(3, 4).requires_grad_(), rng(3, 4).requires_grad_()
    loss, right = neighbours(first, second, torch.zeros(3, 3).bool(), own_score=own_score)
    loss.backward()
    assert loss == 0 and right == 0
    assert not first.grad.any() and not second.grad.any()


def test_the_first_view_looks_for_the_second(rng):
    objective, pooled = built(), rng(2, 5, 4)
    batch = objective.prepare(batch_of(PLACES["a border"]))
    terms = objective(Encoded(pooled, {}), batch)
    expected, found = oracles.neighbours(*pooled, near_of(PLACES["a border"]), True)
    torch.testing.assert_close(terms["neighbours"], expected)
    assert terms.measures["neighbour_accuracy"].item() == pytest.approx(found)
    assert terms.measures["with_neighbour"] == 1
    alone = objective.prepare(batch_of(PLACES["a document of one"]))
    share = objective(Encoded(pooled, {}), alone).measures["with_neighbour"]
    assert share.item() == pytest.approx(3 / 5)


@pytest.mark.parametrize("repeated", [False, True])
def test_repeated_sentences_are_no_negatives(repeated, rng):
    """Sentence 4 has the text of 0 (so it is none to 0, nor to 1, whose neighbour 0 is)."""
    rows = [[7], [8, 8], [9], [8], [7]]
    places, pooled = [0, 1, 2, 3, 4], rng(2, 5, 4)
    objective = built(exclude_duplicates=not repeated)
    terms = objective(Encoded(pooled, {}), objective.prepare(batch_of(places, rows)))
    left_out = [[False] * 5 for _ in range(5)]
    for i, j in ((0, 4), (4, 0), (1, 4), (3, 0)):
        left_out[i][j] = True
    expected, _ = oracles.neighbours(*pooled, near_of(places), True, None if repeated else left_out)
    torch.testing.assert_close(terms["neighbours"], expected)
