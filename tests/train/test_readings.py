"""Step metrics: at once on a CPU, one step late on an accelerator, none lost."""

import pytest
import torch

from contrasent.data.batch import pack
from contrasent.errors import ContrasentError
from contrasent.objectives import Terms
from contrasent.training import loop as readings_module
from contrasent.training.loop import MetricsReader

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
    monkeypatch.setattr(readings_module, "_sent", lambda values: (values, Event()))


@pytest.mark.usefixtures("on_accelerator")
def test_an_accelerator_is_asked_for_a_step_when_the_next_is_under_way():
    found, taken = MetricsReader(), []
    for number in range(4):
        found.send(number, 1e-5, BATCH, *measured(number))
        taken.append([step.number for step in found.take(everything=number == 2)])
    assert taken == [[], [0], [1, 2], []]
    assert Event.waited == 3
    assert [step.number for step in found.take(everything=True)] == [3]


@pytest.mark.usefixtures("on_accelerator")
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_told_by_its_step(loss):
    found = MetricsReader()
    found.send(7, 1e-5, BATCH, *measured(7, loss))
    assert found.take(everything=False) == []
    found.send(8, 1e-5, BATCH, *measured(8))
    with pytest.raises(ContrasentError, match=r"step 7: the loss is (nan|inf) and the gradient"):
        found.take(everything=False)
