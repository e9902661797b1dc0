"""The stack of classifiers against one classifier after the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.tiny_transfer import separable
from sklearn.model_selection import StratifiedKFold

from benchmarks.jobs.senteval import Classifier
from contrasent.errors import CheckpointError
from contrasent.evaluation import logistic_regression
from contrasent.evaluation.logistic_regression import Fold, Problems, stratified_folds
from contrasent.evaluation.protocols import Preset

TINY = Preset("tiny", 3, "adam", 16, 2, 3, max_epochs=30)
DECAYS = [1e-4, 1e-2, 1.0]


def folds_of(labels, sizes):
    """Random folds that train on so many rows each."""
    draw = np.random.default_rng(1)
    orders = [draw.permutation(len(labels)) for _ in sizes]
    return [
        Fold(o[:n], o[n : n + 20 + i]) for i, (o, n) in enumerate(zip(orders, sizes, strict=True))
    ]


def problems(features, labels, classes):
    return Problems(torch.from_numpy(features), torch.from_numpy(labels), classes)


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
            best = alone.fit(features[fold.train], labels[fold.train], held)
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
    ours = stratified_folds(labels, folds, seed)
    for (train, test), (their_train, their_test) in zip(ours, theirs, strict=True):
        assert (train == their_train).all() and (test == their_test).all()
