"""Contestants in processes of their own."""

import sys
import time
import types

import numpy as np
import pytest

from benchmarks.machine import high_water
from benchmarks.remote import Here, Process, Spec, started
from benchmarks.worker import Worker
from contrasent.errors import ContrasentError

COUNTING = "benchmarks.jobs.counting:Counting"


class Counting:
    """A job that needs nothing."""

    def __init__(self, size, needs=""):
        if needs:
            try:
                __import__(needs)
            except ImportError:
                raise ValueError(f"install {needs}") from None
        self.size = size

    def round(self, number):
        if number == 13:
            raise RuntimeError("an unlucky round")
        time.sleep(0.01)
        return {"sentences": self.size + number}

    def rows(self):
        return np.eye(self.size)


@pytest.fixture
def counting(monkeypatch):
    module = types.ModuleType("benchmarks.jobs.counting")
    module.Counting = Counting
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("counting")
def test_a_contestant_answers_and_its_mistakes_are_told(tmp_path):
    specs = [
        Spec("three", COUNTING, {"size": 3}),
        Spec("missing", COUNTING, {"size": 3, "needs": "no_such_package"}),
    ]
    with started(specs, Here) as ((contestant,), left_out):
        found = contestant.round(4)
        assert found["sentences"] == 7
        assert found["seconds"] >= 0.01
        contestant.rows(tmp_path / "rows.npy")
        assert np.load(tmp_path / "rows.npy").shape == (3, 3)
        with pytest.raises(ContrasentError, match="an unlucky round"):
            contestant.round(13)
        assert contestant.round(5)["sentences"] == 8
    assert left_out == {"missing": "No module named 'no_such_package'"}


@pytest.mark.usefixtures("counting")
def test_another_python_runs_what_this_one_lacks():
    asked = []

    class Elsewhere(Here):
        def __init__(self, python):
            super().__init__()
            self.python = python

        def ask(self, request):
            asked.append((self.python, request["do"]))
            if self.python == "first":
                return {"missing": "No module named 'x'"}
            return super().ask(request)

    spec = Spec("a", COUNTING, {"size": 1}, python="first", other_python="second")
    with started([spec], Elsewhere) as ((contestant,), left_out):
        contestant.round(1)
    assert asked == [("first", "start"), ("second", "start"), ("second", "round")]
    assert left_out == {}


def test_a_worker_is_a_process_with_a_memory_of_its_own():
    held = np.ones(40_000_000)  # 320 MB that are not the worker's
    link = Process(sys.executable)
    try:
        found = link.ask({"do": "peak_memory"})
        assert 1e6 < found["bytes"] < 100e6 < held.nbytes < high_water()
        assert found["device_bytes"] is None
        assert (
            "no_such_module"
            in link.ask({"do": "start", "job": "no_such_module:X", "settings": {}})["missing"]
        )
        assert "AttributeError" in link.ask({"do": "round", "number": 1})["error"]
    finally:
        link.close()
    with pytest.raises((ContrasentError, ValueError)):
        link.ask({"do": "peak_memory"})


def test_the_high_water_mark_stays_when_memory_is_given_back():
    before = high_water()
    np.ones(20_000_000 + before // 8)
    assert high_water() > before
    assert Worker().peak_memory()["bytes"] == high_water()
