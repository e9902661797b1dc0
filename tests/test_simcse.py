"""SimCSE: the loss with its head against loops, duplicates, and how many sentences it needs."""

import pytest
import torch
from helpers import oracles

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.protocol import Encoded

WIDTH = 8


def build(data_views=2, **settings):
    torch.manual_seed(0)
    return objectives.build("simcse", settings, width=WIDTH, data_views=data_views)


def batch_of(*views):
    """A batch from texts, one letter for a sentence: ``batch_of("abc", "abd")``."""
    return pack([[1, ord(letter), 2] for view in views for letter in view], views=len(views))


def loss_of(objective, pooled, batch):
    (term,) = objective(Encoded(pooled, {}), batch).values()
    return term


def looped(objective, pooled, views, *, alpha=1.0, exclude=False):
    """The same from the formula, head and duplicates included."""
    config = objective.config
    if config.head == "mlp":
        layer = objective.head.linear
        pooled = torch.tanh(pooled @ layer.weight.T + layer.bias)
    if config.head == "batchnorm":
        rows = pooled.flatten(0, 1).double()
        weights = [weight.double() for weight in objective.head.parameters()]
        pooled = oracles.batch_norm_head(rows, *weights).view(pooled.shape)
    anchor, *others = pooled.double()
    excluded = None
    if exclude:
        pairs = zip(views[0], views[1], strict=True)
        excluded = [[text in pair for text in "".join(views[1:])] for pair in pairs]
    temperature, similarity = config.temperature, oracles.cosine
    if config.similarity == "dot":
        temperature, similarity = 1.0, oracles.dot
    candidates = torch.cat(others)
    return oracles.info_nce(anchor, candidates, temperature, alpha, excluded, similarity)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("head", ["mlp", "batchnorm", "none"])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("views", ["abcd abcd", "abcd efgh ijkl", "ab cd ef gh"])
def test_the_loss_is_the_formula(views, temperature, head, similarity, rng):
    views = views.split()
    objective = build(len(views), head=head, temperature=temperature, similarity=similarity)
    pooled = rng(len(views), len(views[0]), WIDTH)
    expected = looped(objective, pooled, views)
    loss = loss_of(objective, pooled, batch_of(*views))
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)


DUPLICATES = [
    ("abab", "abab"),  # unsupervised, each sentence twice in the batch
    ("aaaa", "bcde"),  # one premise, several hypotheses: their texts differ
    ("abcd", "eeef"),  # one hypothesis of several premises
    ("abcd", "bade"),  # an anchor is the positive of another
    ("abc", "def", "dgh"),  # a hard negative is the anchor's own positive
    ("abc", "def", "agh"),  # a hard negative is the anchor itself
    ("abc", "def", "ggg"),  # hard negatives that repeat stay negatives
]
NO_DUPLICATES = [("aaaa", "bcde"), ("abc", "def", "ggg")]


@pytest.mark.parametrize("views", DUPLICATES, ids="-".join)
def test_the_anchors_and_the_positives_text_are_no_negatives(views, rng):
    pooled = rng(len(views), len(views[0]), WIDTH)
    masked = build(len(views), temperature=1.0)
    whole = build(len(views), temperature=1.0, exclude_duplicates=False)
    for objective, exclude in ((masked, True), (whole, False)):
        expected = looped(objective, pooled, views, exclude=exclude)
        loss = loss_of(objective, pooled, batch_of(*views))
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    same = loss_of(masked, pooled, batch_of(*views)) == loss_of(whole, pooled, batch_of(*views))
    assert same == (views in NO_DUPLICATES)


def test_how_many_sentences_of_an_example_are_used():
    of_all, of_none = [(n, None, max(n, 2)) for n in (1, 2, 3, 5)], [(n, 0, 2) for n in (1, 2, 3)]
    for data_views, hard_negatives, views in [*of_all, *of_none, (3, 1, 3), (4, 2, 4)]:
        assert build(data_views, hard_negatives=hard_negatives).views == views


@pytest.mark.parametrize("head", ["mlp", "batchnorm"])
def test_heads_start_as_the_authors_do(head):
    torch.manual_seed(0)
    state = objectives.build("simcse", {"head": head}, width=256, data_views=2).head.state_dict()
    matrices = [tensor for tensor in state.values() if tensor.ndim == 2]
    assert {tuple(matrix.shape) for matrix in matrices} == (
        {(256, 256)} if head == "mlp" else {(512, 256), (256, 512)}
    )
    for matrix in matrices:
        assert matrix.mean().item() == pytest.approx(0, abs=3e-4)
        assert matrix.std().item() == pytest.approx(0.02, rel=0.02)
    assert not any(tensor.any() for name, tensor in state.items() if name.endswith("bias"))
    assert build(head="none").state_dict() == {}


@pytest.mark.parametrize("exclude", [True, False])
def test_both_losses_are_that_of_the_data_and_that_of_the_anchors_twice(exclude, rng):
    views, weight = ("abca", "efgh", "ijbl"), 0.3
    settings = {"exclude_duplicates": exclude, "temperature": 0.1}
    both = build(3, unsupervised_weight=weight, **settings)
    batch = both.prepare(batch_of(*views))
    assert [it.token_ids.tolist() for it in (batch.view(3), batch.view(0))] == [
        batch_of(views[0]).token_ids.tolist()
    ] * 2
    pooled = rng(4, 4, WIDTH)
    terms = both(Encoded(pooled, {}), batch)
    expected = looped(both, pooled[:3], views, exclude=exclude)
    torch.testing.assert_close(terms["contrast"].double(), expected, rtol=1e-5, atol=1e-6)
    again = pooled[[0, 3]]
    masked = [[exclude and c in (a, p) for c in views[0]] for a, p in zip(*views[:2], strict=True)]
    layer = both.head.linear
    anchor, other = torch.tanh(again @ layer.weight.T + layer.bias).double()
    loss = oracles.info_nce(anchor, other, 0.1, 1.0, masked, oracles.cosine)
    torch.testing.assert_close(terms["unsupervised"].double(), weight * loss, rtol=1e-5, atol=1e-6)
