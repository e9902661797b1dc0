"""The three procedures against SentEval's, one classifier after the other."""

import numpy as np
import pytest
from helpers.tiny_transfer import separable

from benchmarks.jobs import senteval
from contrasent.evaluation import protocols
from contrasent.evaluation.logistic_regression import LabelledFeatures, _best, cross_validate
from contrasent.evaluation.protocols import Preset, preset_named

TINY = {
    "test": Preset("test", 3, "adam", 16, 2, 2, max_epochs=16),
    "dev": Preset("dev", 2, "rmsprop", 32, 1, 2, max_epochs=16),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(protocols, "PRESETS", TINY)


def parts(names, classes=2, sizes=(90, 40, 50)):
    found = {}
    features, labels = separable(sum(sizes), classes=classes)
    for name, end in zip(names, np.cumsum(sizes), strict=False):
        start = sum(len(part.labels) for part in found.values())
        found[name] = LabelledFeatures(features[start:end], labels[start:end])
    return found


@pytest.mark.parametrize("preset", TINY)
@pytest.mark.parametrize("seed", [1111, 3])
@pytest.mark.parametrize(
    ("names", "theirs", "classes"),
    [
        ("all", senteval.nested, 2),
        ("train test", senteval.by_folds, 2),
        ("train test", senteval.by_folds, 4),
        ("train dev test", senteval.by_dev_part, 2),
    ],
)
def test_the_procedure_is_sentevals(names, theirs, classes, preset, seed):
    data = parts(names.split(), classes)
    reached = cross_validate(data, classes, preset_named(preset, seed), "cpu")
    given = [(part.features, part.labels) for part in data.values()]
    rows = given[0] if names == "all" else given
    dev, test, predicted = theirs(*rows, classes, TINY[preset], seed)
    assert (reached.dev, reached.test) == pytest.approx((dev, test), abs=1e-12)
    assert reached.predicted.tolist() == predicted.tolist()
    if names == "all":
        assert sorted(np.unique(reached.folds)) == list(range(TINY[preset].folds))
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
    assert _best(np.array(accuracies)) == chosen
