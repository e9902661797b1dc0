"""SentEval's regressor against the same procedure in torch, with its layers and its optimiser."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr

from contrasent.errors import DataError
from contrasent.evaluation import sts
from contrasent.evaluation.sts import RELATEDNESS, fit, pair_features, sentevals_order


def pairs(seed, size, width=6):
    draw = np.random.default_rng(seed)
    first = draw.normal(size=(size, width)).astype(np.float32)
    second = (first + draw.normal(size=(size, 1)) * draw.normal(size=(size, width))).astype("f4")
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / lengths
    return pair_features(first, second), np.clip(5 * cosines + draw.normal(size=size), 0, 5)


def looped_spread(gold):
    shares = np.zeros((len(gold), 5), np.float32)
    for row, score in enumerate(gold):
        for k in range(5):
            if k + 1 == np.floor(score) + 1:
                shares[row, k] = score - np.floor(score)
            if k + 1 == np.floor(score):
                shares[row, k] = np.floor(score) - score + 1
    return shares


def fitted_by_torch(train, dev, seed, between, most):
    """Autograd, torch's Adam, and the rule to stop in SentEval's words."""
    torch.manual_seed(seed)
    order = np.random.RandomState(seed)
    features, targets = (torch.from_numpy(train[0]), torch.from_numpy(looped_spread(train[1])))
    model = torch.nn.Sequential(torch.nn.Linear(features.shape[1], 5), torch.nn.Softmax(dim=-1))
    optimizer = torch.optim.Adam(model.parameters())
    best, kept, idle, epochs = -1, None, 0, 0
    while idle < 4 and epochs <= most:
        for _ in range(between):
            shuffled = order.permutation(len(features))
            for place in range(0, len(shuffled), 64):
                rows = shuffled[place : place + 64]
                loss = torch.nn.functional.mse_loss(model(features[rows]), targets[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epochs += between
        with torch.no_grad():
            expected = model(torch.from_numpy(dev[0])).numpy() @ np.arange(1, 6)
        reached = pearsonr(expected, dev[1])[0]
        if reached > best:
            best, kept = reached, copy.deepcopy(model)
        else:
            idle += 1
    return kept


@pytest.mark.parametrize("seed", [1111, 3])
def test_it_is_what_torch_fits(seed, monkeypatch):
    train, dev, test = pairs(0, 100), pairs(1, 40), pairs(2, 30)
    short = replace(RELATEDNESS, epoch_size=10, max_epochs=60)
    monkeypatch.setattr(sts, "RELATEDNESS", short)
    expected = fitted_by_torch(train, dev, seed, 10, 60)
    found = fit(train, dev, seed)
    with torch.no_grad():
        shares = expected(torch.from_numpy(test[0])).numpy()
    assert found(test[0]) == pytest.approx(shares @ np.arange(1, 6), abs=1e-4)


@pytest.mark.parametrize("score", [-0.1, 5.5])
def test_a_score_that_the_classes_cannot_tell_is_an_error(score):
    with pytest.raises(DataError, match=r"scores from .* are not within 0 to 5"):
        fit(*[(np.ones((2, 4), np.float32), np.array([1.0, score]))] * 2)


def test_the_features_are_sentevals():
    first, second = np.random.default_rng(0).normal(size=(2, 5, 3))
    expected = [
        [
            *(abs(a - b) for a, b in zip(u, v, strict=True)),
            *(a * b for a, b in zip(u, v, strict=True)),
        ]
        for u, v in zip(first.tolist(), second.tolist(), strict=True)
    ]
    assert pair_features(first, second) == pytest.approx(np.array(expected), abs=1e-6)


def test_pairs_are_ordered_by_words_then_by_score_and_else_stay():
    first = ["a b", "a", "c", "d", "e"]
    second = ["a", "a b", "b", "c", "d"]
    gold = np.array([1.0, 1.0, 3.0, 2.0, 2.0])
    assert sentevals_order(first, second, gold) == [3, 4, 2, 1, 0]


def test_equal_embeddings_predict_nothing():
    same = np.ones((9, 8), np.float32), np.arange(9) / 2
    with pytest.raises(DataError, match="predicts the same score for every dev pair"):
        fit(same, same)
