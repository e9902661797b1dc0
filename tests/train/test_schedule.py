"""The learning rate of every update, against the formulas and against transformers' schedules."""

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from contrasent.settings import TrainSettings
from contrasent.training.loop import learning_rate

STEPS = 20


def rates(**settings):
    made = TrainSettings(learning_rate=1.0, **settings)
    return [learning_rate(made, STEPS, step) for step in range(STEPS)]


def test_linear_with_a_warm_up_is_that_of_transformers():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_linear_schedule_with_warmup(optimizer, 2, STEPS)
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert rates(warmup_share=0.1) == pytest.approx(expected)
    assert rates(warmup_steps=2) == rates(warmup_share=0.1)


def test_constant_stays_after_the_warm_up():
    assert rates(schedule="constant", warmup_steps=4) == [0, 0.25, 0.5, 0.75] + [1.0] * 16


def test_steps_change_at_their_updates():
    found = rates(schedule="steps", rate_steps={5: 0.8, 10: 0.6, 12: 0.2})
    assert found == [1.0] * 5 + [0.8] * 5 + [0.6] * 2 + [0.2] * 8


def test_the_slanted_triangle_is_its_formula():
    """Howard and Ruder 2018, eq. 3: eta_max (1 + p (ratio - 1)) / ratio."""
    cut, expected = 2, []
    for t in range(STEPS):
        p = t / cut if t < cut else 1 - (t - cut) / (STEPS - cut)
        expected.append((1 + p * 31) / 32)
    assert rates(schedule="slanted_triangular", warmup_share=0.1) == pytest.approx(expected)
    assert max(expected) == 1.0 and expected[0] == 1 / 32
