"""The loop: its learning rate, its updates against torch's own, and what it refuses to keep."""

import pytest
import torch
from helpers.tiny_runs import TINY
from transformers import get_linear_schedule_with_warmup

from contrasent.data.batch import pack
from contrasent.errors import ContrasentError
from contrasent.functional import alignment, uniformity
from contrasent.objectives import Terms
from contrasent.settings import TrainSettings
from contrasent.training import loop
from contrasent.training.run import train

STEPS = 20


def rates(**settings):
    made = TrainSettings(learning_rate=1.0, **settings)
    return [loop.learning_rate(made, STEPS, step) for step in range(STEPS)]


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


def test_constant_stays_after_the_warm_up_and_steps_change_at_their_updates():
    assert rates(schedule="constant", warmup_steps=4) == [0, 0.25, 0.5, 0.75] + [1.0] * 16
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


SHAPES = [(300, 16), (16,), (16, 16), (1,)]


def parameters(rng, size):
    made = [torch.nn.Parameter(rng(*shape)) for shape in SHAPES]
    for parameter in made:
        parameter.grad = size * rng(*parameter.shape)
    return made


@pytest.mark.parametrize("size", [1e-4, 0.1, 30.0])
def test_the_norm_is_that_of_all_gradients_together(size, rng):
    found = parameters(rng, size)
    expected = torch.cat([p.grad.double().flatten() for p in found]).norm()
    torch.testing.assert_close(loop.gradient_norm(found).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@pytest.mark.parametrize("size", [1e-4, 30.0])
@pytest.mark.parametrize("clip", [1.0, None])
def test_updates_are_torchs_after_clipping(name, size, clip, rng):
    settings = TrainSettings(optimizer=name, betas=[0.0, 0.9], eps=1e-7, weight_decay=0.01)
    ours = parameters(rng, size)
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    optimizer = loop.optimizer_of(settings, ours)
    kind, given = torch.optim.AdamW, {"betas": (0.0, 0.9)}
    if name == "rmsprop":
        kind, given = torch.optim.RMSprop, {"alpha": 0.9}
    expected = kind(theirs, lr=1.0, eps=1e-7, weight_decay=0.01, **given)
    for step in range(3):
        rate = 0.01 / (step + 1)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = size * rng(*a.shape)
            b.grad = a.grad.clone()
        loop.set_rate(optimizer, settings, rate, step)
        loop.update(optimizer, loop.gradient_norm(ours), clip)
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        expected.param_groups[0]["lr"] = rate
        expected.step()
        assert all(a.grad is None for a in ours)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(("shape", "decay_all"), [((5,), True), ((5,), False), ((5, 1), False)])
def test_adamw_is_its_formula_with_and_without_bias_correction(corrected, shape, decay_all, rng):
    """Loshchilov and Hutter 2019, algorithm 2, number by number; t counts from 1."""
    settings = TrainSettings(
        betas=[0.8, 0.9], eps=1e-2, weight_decay=0.1, bias_correction=corrected, decay_all=decay_all
    )
    decay = 0.1 if decay_all or len(shape) > 1 else 0.0
    parameter, other = torch.nn.Parameter(rng(5)), torch.nn.Parameter(rng(2))
    theta = parameter.detach().double().tolist()
    means, squares = [0.0] * 5, [0.0] * 5
    parameter.data = parameter.data.view(shape)
    optimizer = loop.optimizer_of(settings, [parameter, other])
    for step in range(4):
        rate, t = 0.1 / (step + 1), step + 1
        gradient = rng(5)
        for i, g in enumerate(gradient.double().tolist()):
            means[i] = 0.8 * means[i] + 0.2 * g
            squares[i] = 0.9 * squares[i] + 0.1 * g * g
            m = means[i] / (1 - 0.8**t) if corrected else means[i]
            v = squares[i] / (1 - 0.9**t) if corrected else squares[i]
            theta[i] -= rate * (m / (v**0.5 + 1e-2) + decay * theta[i])
        parameter.grad = gradient.clone().view(shape)
        loop.set_rate(optimizer, settings, rate, step)
        loop.update(optimizer, loop.gradient_norm([parameter]), clip=None)
        assert parameter.flatten().tolist() == pytest.approx(theta, rel=1e-5, abs=1e-6)


def test_alignment_is_of_the_first_two_views_and_uniformity_of_the_first(rng):
    first, second, third = pooled = rng(3, 5, 4)
    found = loop._geometry(pooled, aligned=True)
    assert found == {"alignment": alignment(first, second), "uniformity": uniformity(first)}
    assert alignment(first, second) != alignment(first, third)
    assert uniformity(first) not in (uniformity(second), uniformity(third))
    assert set(loop._geometry(pooled, aligned=False)) == {"uniformity"}
    assert loop._geometry(pooled[:1], aligned=True) == {}


def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_to_do(trained):
    with pytest.raises(ContrasentError, match=r"step \d: the loss is .*learning_rate"):
        trained(train__learning_rate=1e30, train__epochs=3)


@pytest.mark.parametrize(
    ("name", "changes", "kept"),
    [
        ("unsup-simcse", {"learning_rate": 1e38, "max_steps": 1}, []),
        ("pretrain-mlm", {"learning_rate": 1e38, "max_steps": 1}, []),
        ("unsup-simcse", {"schedule": "steps", "rate_steps": {2: 1e38}, "max_steps": 3}, [2]),
    ],
)
def test_an_update_that_ruins_the_weights_is_not_saved(name, changes, kept, tmp_path, tiny_starts):
    changes = {f"train.{key}": value for key, value in changes.items()}
    recipe = TINY[name].load(tmp_path, tiny_starts, {"train.checkpoint_every": 1, **changes})
    with pytest.raises(ContrasentError, match="gives numbers that are not finite; nothing was"):
        train(recipe, tmp_path / "run", device="cpu")
    states = tmp_path / "run" / "state"
    assert [path.name for path in states.glob("*")] == [f"step-{step:09}" for step in kept]
    assert not (tmp_path / "run" / "last").exists()


BATCH = pack([[1, 2]] * 16, views=2)


def measured(number, loss=None):
    values = [torch.tensor(number + share) for share in (0.0, 0.25, 0.5, 0.75)]
    values[0] = values[0] if loss is None else torch.tensor(loss)
    terms = {"contrast": values[0], "rtd": torch.tensor(2.0)}
    return *values[:2], Terms(terms, {"alignment": values[2], "uniformity": values[3]})


class Event:
    """As torch.cuda.Event: what was copied may be read after waiting for it."""

    waited = 0

    def record(self):
        pass

    def synchronize(self):
        Event.waited += 1


@pytest.fixture
def on_accelerator(monkeypatch):
    """Readings of a device that has to be waited for."""
    Event.waited = 0
    monkeypatch.setattr(loop, "_sent", lambda values: (values, Event()))


@pytest.mark.usefixtures("on_accelerator")
def test_an_accelerator_is_asked_for_a_step_when_the_next_is_under_way():
    found, taken = loop.MetricsReader(), []
    for number in range(4):
        found.send(number, 1e-5, BATCH, *measured(number))
        taken.append([step.number for step in found.take(everything=number == 2)])
    assert taken == [[], [0], [1, 2], []]
    assert Event.waited == 3
    assert [step.number for step in found.take(everything=True)] == [3]


@pytest.mark.usefixtures("on_accelerator")
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_told_by_its_step(loss):
    found = loop.MetricsReader()
    found.send(7, 1e-5, BATCH, *measured(7, loss))
    assert found.take(everything=False) == []
    found.send(8, 1e-5, BATCH, *measured(8))
    with pytest.raises(ContrasentError, match=r"step 7: the loss is (nan|inf) and the gradient"):
        found.take(everything=False)
