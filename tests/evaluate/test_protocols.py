"""Protocols by name, numbers against plain loops, and SentEval's regressor against torch."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.tiny_sts import sts_tasks
from scipy.stats import pearsonr

from contrasent import evaluate
from contrasent.errors import DataError
from contrasent.evaluation import sts
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import PROTOCOLS, protocol
from contrasent.evaluation.sts import RELATEDNESS, fit, pair_features, sentevals_order
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import METRICS, pair_cosines

# Regressor, metrics, aggregation, in the order of the table.
TABLE_B_1 = {
    "hill": (False, ("pearson", "spearman"), "all"),
    "infersent": (True, ("pearson",), "mean"),
    "senteval": (True, ("pearson",), "mean"),
    "sbert": (False, ("spearman",), "all"),
    "isbert": (False, ("spearman",), "all"),
    "flow": (False, ("spearman",), "wmean"),
    "whitening": (False, ("spearman",), "wmean"),
    "bgt": (False, ("pearson",), "mean"),
    "declutr": (False, ("spearman",), "mean"),
    "simcse": (False, ("spearman",), "all"),
}


def test_every_row_of_table_b_1_has_its_name():
    rows = {
        name: (it.regressor, it.metrics, it.aggregation)
        for name, it in PROTOCOLS.items()
        if name not in ("diffcse", "mteb")
    }
    assert rows == TABLE_B_1
    assert all(name == it.name for name, it in PROTOCOLS.items())


def embedded(encoder, task):
    (subset,) = task.subsets
    order = sentevals_order(subset.first, subset.second, subset.gold)
    first, second = (
        np.stack([encoder.embed(side[row]) for row in order])
        for side in (subset.first, subset.second)
    )
    return pair_features(first, second), subset.gold[order]


@pytest.mark.parametrize("name", ["stsb", "sickr"])
@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_regressor_is_fitted_to_train_and_scores_another_split(encoder, senteval, name, split):
    train, dev, scored = (
        embedded(encoder, load(TaskName(name, which), senteval))
        for which in ("train", "dev", split)
    )
    predicted = fit(train, dev)(scored[0])
    records = evaluate(encoder, [name], data_dir=senteval, splits=[split], protocol="senteval")
    for record in records:
        expected = METRICS[record.metric](predicted, scored[1])
        assert record.value == pytest.approx(expected, abs=1e-5)
        assert record.regressor == "senteval"
    named = {(r.metric, r.aggregation) for r in records if r.protocol}
    assert named == {("pearson", "mean")}


def test_the_training_split_has_no_score_by_regressor_and_the_others_are_kept(encoder, senteval):
    asked = protocol("senteval")
    loaded = sts_tasks(["stsb-train", "stsb", "sts12"], senteval, protocol=asked)
    scores = loaded.records(EncoderUse(encoder), protocol=asked)
    (problem,) = scores.problems
    assert problem.task == "stsb-train"
    assert "fitted to the training split, so it has no score there" in problem.message
    assert "--no-regressor" in problem.message
    assert {(r.task, r.split) for r in scores.records} == {("stsb", "test"), ("sts12", "test")}


def test_mteb_scores_all_pairs_of_sick(encoder, senteval):
    splits = [load(TaskName("sickr", it), senteval).subsets[0] for it in ("train", "dev", "test")]
    cosines = np.concatenate(
        [
            pair_cosines(*([encoder.embed(s) for s in side] for side in (part.first, part.second)))
            for part in splits
        ]
    )
    gold = np.concatenate([part.gold for part in splits])
    records = evaluate(encoder, ["sickr", "stsb"], data_dir=senteval, protocol="mteb")
    found = {
        (r.task, r.split): r for r in records if (r.metric, r.aggregation) == ("spearman", "all")
    }
    assert set(found) == {("sickr", "all"), ("stsb", "test")}
    sick = found["sickr", "all"]
    assert sick.value == pytest.approx(METRICS["spearman"](cosines, gold), abs=1e-12)
    assert (sick.pairs, sick.protocol) == (len(gold), "mteb")


def pairs(seed, size, width=6):
    draw = np.random.default_rng(seed)
    first = draw.normal(size=(size, width)).astype(np.float32)
    second = (first + draw.normal(size=(size, 1)) * draw.normal(size=(size, width))).astype("f4")
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / lengths
    return pair_features(first, second), np.clip(5 * cosines + draw.normal(size=size), 0, 5)


def fitted_by_torch(train, dev, seed, between, most):
    """Autograd, torch's Adam, and the rule to stop in SentEval's words."""
    torch.manual_seed(seed)
    order = np.random.RandomState(seed)
    features, targets = torch.from_numpy(train[0]), torch.zeros(len(train[1]), 5)
    for row, score in enumerate(train[1]):
        for k in range(5):
            if k + 1 == np.floor(score) + 1:
                targets[row, k] = score - np.floor(score)
            if k + 1 == np.floor(score):
                targets[row, k] = np.floor(score) - score + 1
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
    expected = [[*abs(u - v), *(u * v)] for u, v in zip(first, second, strict=True)]
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
