"""The stack of classifiers, and the three procedures, against one classifier after the other."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.tiny_transfer import separable
from sklearn.model_selection import StratifiedKFold

from benchmarks.jobs import senteval
from benchmarks.jobs.senteval import Classifier
from contrasent.errors import CheckpointError
from contrasent.evaluation import logistic_regression, protocols
from contrasent.evaluation.protocols import Preset, preset_named

TINY = Preset("tiny", 3, "adam", 16, 2, 3, max_epochs=30)
DECAYS = [1e-4, 1e-2, 1.0]


def folds_of(labels, sizes):
    """Random folds that train on so many rows each."""
    draw = np.random.default_rng(1)
    orders = [draw.permutation(len(labels)) for _ in sizes]
    return [
        logistic_regression.Fold(o[:n], o[n : n + 20 + i])
        for i, (o, n) in enumerate(zip(orders, sizes, strict=True))
    ]


def problems(features, labels, classes):
    return logistic_regression.Problems(
        torch.from_numpy(features), torch.from_numpy(labels), classes
    )


SHORT = replace(TINY, max_epochs=4, tenacity=100)
RMSPROP = replace(TINY, optimiser="rmsprop")


@pytest.mark.parametrize(
    ("preset", "classes", "places"),
    [(TINY, 2, 100), (TINY, 4, 2), (RMSPROP, 2, 1), (RMSPROP, 4, 100), (SHORT, 2, 100)],
)
def test_every_classifier_is_the_one_trained_alone(classes, preset, places, monkeypatch):
    features, labels = separable(classes=classes)
    most, sizes, scores = places * preset.batch * 16 * 4, [], logistic_regression._scores
    for limit in ("_CPU_BATCH_BYTES", "_BATCH_BYTES"):
        monkeypatch.setattr(logistic_regression, limit, most)
    monkeypatch.setattr(
        logistic_regression, "_scores", lambda w, rows: sizes.append(rows.nbytes) or scores(w, rows)
    )
    folds = folds_of(labels, [80, 81, 80, 64])
    fitted = problems(features, labels, classes).fit(folds, [DECAYS] * 4, replace(preset, seed=5))
    assert max(sizes) <= most
    rounds = set()
    for number, fold in enumerate(folds):
        for which, decay in enumerate(DECAYS):
            alone = Classifier(7, classes, decay, preset, 5)
            held = features[fold.held_out], labels[fold.held_out]
            best = alone.fit((features[fold.train], labels[fold.train]), held)
            rounds.add(alone.rounds)
            assert fitted.accuracy[number, which] == pytest.approx(best, abs=1e-12)
            found = fitted.weights[number, which]
            torch.testing.assert_close(found[:, :7], alone.layer.weight.data, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(found[:, 7], alone.layer.bias.data, rtol=1e-3, atol=1e-5)
            assert not found[:, 8:].any()
    assert rounds == {2} if preset is SHORT else len(rounds) > 1


def test_the_same_seed_gives_the_same_bits_and_another_other_ones():
    features, labels = separable()
    folds = folds_of(labels, [80, 80])
    seeded = (replace(TINY, seed=seed) for seed in (1, 1, 2))
    fits = [problems(features, labels, 2).fit(folds, [DECAYS] * 2, it) for it in seeded]
    assert torch.equal(fits[0].weights, fits[1].weights)
    assert not torch.equal(fits[0].weights, fits[2].weights)


def test_embeddings_too_large_to_learn_from_are_explained():
    features, labels = separable()
    with pytest.raises(CheckpointError, match=r"numbers up to .*e\+30, too large for a classifier"):
        problems(features * np.float32(1e30), labels, 2)


@pytest.mark.parametrize("folds", [2, 5, 10])
@pytest.mark.parametrize("seed", [0, 1111])
@pytest.mark.parametrize("classes", [2, 6])
def test_folds_are_those_of_scikit_learn(folds, seed, classes):
    labels = np.random.default_rng(seed).permutation(np.arange(131) ** 2 % 97 % classes)
    theirs = StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels)
    ours = logistic_regression.stratified_folds(labels, folds, seed)
    for (train, test), (their_train, their_test) in zip(ours, theirs, strict=True):
        assert (train == their_train).all() and (test == their_test).all()


QUICK = {
    "test": Preset("test", 3, "adam", 16, 2, 2, max_epochs=16),
    "dev": Preset("dev", 2, "rmsprop", 32, 1, 2, max_epochs=16),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(protocols, "PRESETS", QUICK)


@pytest.mark.parametrize("preset", QUICK)
@pytest.mark.parametrize("seed", [1111, 3])
@pytest.mark.parametrize(
    ("names", "classes"), [("all", 2), ("train test", 2), ("train test", 4), ("train dev test", 2)]
)
def test_the_procedure_is_sentevals(names, classes, preset, seed):
    (features, labels), data = separable(180, classes=classes), {}
    for name, (start, end) in zip(names.split(), pairwise([0, 90, 130, 180]), strict=False):
        data[name] = logistic_regression.LabelledFeatures(features[start:end], labels[start:end])
    reached = logistic_regression.cross_validate(data, classes, preset_named(preset, seed), "cpu")
    pairs = [(part.features, part.labels) for part in data.values()]
    dev, test, predicted = senteval.procedure(pairs, classes, QUICK[preset], seed)
    assert (reached.dev, reached.test) == pytest.approx((dev, test), abs=1e-12)
    assert reached.predicted.tolist() == predicted.tolist()
    if names == "all":
        assert sorted(np.unique(reached.folds)) == list(range(QUICK[preset].folds))
        right = reached.predicted == data["all"].labels
        of_folds = [right[reached.folds == fold].mean() for fold in np.unique(reached.folds)]
        assert np.mean(of_folds) == pytest.approx(test, abs=1e-12)


@pytest.mark.parametrize(
    ("accuracies", "chosen"),
    [
        ([[0.5, 0.50004, 0.4]], 0),
        ([[0.5, 0.5001, 0.4]], 1),
        ([[0.6, 0.4], [0.4, 0.61]], 1),
        ([[0.6, 0.4], [0.4, 0.60006]], 0),
    ],
)
def test_means_that_round_to_the_same_hundredth_of_a_point_are_a_tie(accuracies, chosen):
    assert logistic_regression._best(np.array(accuracies)) == chosen
