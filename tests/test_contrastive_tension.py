"""Contrastive Tension: the formula, the pairs of a batch, and sentence-transformers' loss."""

import copy

import pytest
import torch
from helpers import oracles
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import ContrastiveTensionLoss

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.functional import contrastive_tension
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded


def built(batch_size=None, **settings):
    return objectives.build(
        "contrastive_tension", settings, width=4, data_views=1, batch_size=batch_size
    )


def sentences(count):
    """A batch in which sentence n is ``[n + 10] * (1 + n % 3)``."""
    return pack([[n + 10] * (1 + n % 3) for n in range(count)])


def pairs_of(prepared):
    """Numbers of the sentences of each pair, of a batch made by :func:`sentences`."""
    firsts = (prepared.token_ids[prepared.offsets[:-1]] - 10).view(2, -1).T
    return [tuple(pair) for pair in firsts.tolist()]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_and_its_gradients_are_those_of_the_formula(reduction, rng):
    first, second = rng(6, 4).requires_grad_(), rng(6, 4).requires_grad_()
    same = [1, 0, 0, -1, 1, 0]
    loss, right = contrastive_tension(first, second, torch.tensor(same), reduction=reduction)
    expected, hits = oracles.contrastive_tension(first, second, same, reduction)
    torch.testing.assert_close(loss, expected)
    assert right.item() == pytest.approx(hits)
    oracles.equal_gradients(loss, expected, [first, second], rtol=1.3e-6, atol=1e-5)


def test_negative_pairs_are_of_two_other_sentences():
    batch = built(negatives=2).prepare(sentences(10))
    assert pairs_of(batch) == [(0, 0), (1, 2), (3, 4), (5, 5), (6, 7), (8, 9)]
    assert batch.column(Need.LABELS).tolist() == [1, 0, 0, 1, 0, 0]
    assert (batch.views, batch.examples) == (2, 6)
    lengths = [[1 + n % 3 for n in side] for side in ((0, 1, 3, 5, 6, 8), (0, 2, 4, 5, 7, 9))]
    assert batch.lengths.view(2, -1).tolist() == lengths


def test_negative_pairs_may_be_of_the_anchor():
    batch = built(negatives=2, negative_pairs="anchor").prepare(sentences(6))
    assert pairs_of(batch) == [(0, 0), (0, 1), (0, 2), (3, 3), (3, 4), (3, 5)]
    assert batch.column(Need.LABELS).tolist() == [1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [(0, 0)]), (2, [(0, 0)]), (3, [(0, 0), (1, 2)]), (7, [(0, 0), (1, 2), (3, 4)])],
)
def test_sentences_that_fill_no_group_are_left_out_unless_there_is_no_other(count, expected):
    assert pairs_of(built(negatives=2).prepare(sentences(count))) == expected


def test_a_negative_pair_of_one_text_is_left_out():
    rows = [[7], [8], [8], [9], [7]]
    batch = pack(rows)
    assert built(negatives=2).prepare(batch).column(Need.LABELS).tolist() == [1, -1, 0]
    kept = built(negatives=2, exclude_duplicates=False).prepare(batch)
    assert kept.column(Need.LABELS).tolist() == [1, 0, 0]


def test_it_is_the_loss_of_sentence_transformers(tiny_bert, tmp_path):
    """The same pairs through the same two encoders: theirs is the sum, and the paper's the mean.

    Theirs drops out while training and keeps the second encoder; here that is off, and the recipe
    keeps the better one. Without dropout, the sums are equal, and so are the gradients.
    """
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    encoder.save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    loss = ContrastiveTensionLoss(theirs).eval()
    texts = ["a dog runs", "the old man", "music", "one bird sings , two birds", "horse"]
    batch = pack([*encoder.tokenizer.ids(texts, None)[0]])
    one, two = copy.deepcopy(encoder), copy.deepcopy(encoder)
    objective = built(negatives=2, reduction="sum")
    pairs = objective.prepare(batch)
    pooled = torch.cat([one(pairs.view(0)).pooled, two(pairs.view(1)).pooled])
    ours = objective(Encoded(pooled, {}), pairs)["tension"]
    sides = [texts[0], texts[1], texts[3]], [texts[0], texts[2], texts[4]]
    expected = loss([theirs.preprocess(side) for side in sides])
    torch.testing.assert_close(ours, expected)
    mean = built(negatives=2)(Encoded(pooled, {}), pairs)["tension"]
    torch.testing.assert_close(3 * mean, expected)
    ours.backward()
    expected.backward()
    name = "embeddings.word_embeddings.weight"
    for mine, other in ((one, loss.model1), (two, loss.model2)):
        a = dict(mine.backbone.model.named_parameters())[name].grad
        b = next(p.grad for n, p in other.named_parameters() if n.endswith(name))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
