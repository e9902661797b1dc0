"""The losses of the first twenty steps stay what they were: a refactor must not move them.

Another processor adds in another order, so its numbers differ in the seventh digit, and Adam, which
divides by the size of a gradient however small, lets that grow. Between the instruction sets of one
machine it grew to 1e-6 in twenty steps; the tolerance leaves room for other mathematics libraries.
Every dropout mask is the same everywhere, because torch's generator draws integers, and what
changes the computation itself moves a loss by far more (the last test).
"""

import json

import pytest
from make_curves import CURVES, FILE, STEPS, curve

TOLERANCE = 2e-4


@pytest.fixture
def kept():
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_every_curve_is_kept(kept):
    assert {name: len(losses) for name, losses in kept.items()} == dict.fromkeys(CURVES, STEPS)


@pytest.mark.parametrize("name", CURVES)
def test_the_losses_are_those_that_were_kept(name, kept, tmp_path, tiny_starts):
    if name == "synonym":
        pytest.importorskip("nltk")
    assert curve(name, tmp_path, tiny_starts) == pytest.approx(kept[name], abs=TOLERANCE)


@pytest.mark.parametrize(
    "change",
    [
        {"train__seed": 43},
        {"encoder__dropout": 0.101},
        {"objective__temperature": 0.0501},
        {"train__learning_rate": 1.01e-3},
    ],
    ids=" ".join,
)
def test_a_small_change_is_more_than_the_tolerance(change, kept, tmp_path, tiny_starts):
    name = "unsupervised"
    losses = curve(name, tmp_path, tiny_starts, **change)
    far = [abs(a - b) for a, b in zip(losses, kept[name], strict=True)]
    assert max(far) > 5 * TOLERANCE
