"""Training runs that die at a chosen call, and the files of a run to compare."""

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

import pytest

from contrasent.training import run as run_module


@dataclass(frozen=True)
class RunFiles:
    """The digest of every weight that a run saved, by path, and what it logged of each step."""

    weights: dict
    metrics: list

    @classmethod
    def read(cls, folder):
        """The files of a run, or of a whole folder of them."""
        saved = [path for kind in ("best", "last") for path in folder.glob(f"{kind}*/**/*")]
        weights = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in saved
            if path.suffix == ".safetensors"
        }
        assert weights
        return cls(weights, metrics(folder))


def metrics(folder):
    """What a run logged, without what depends on the clock."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    values = [json.loads(line) for line in lines]
    return [{k: v for k, v in line.items() if k != "sentences_per_second"} for line in values]


class CutError(BaseException):
    """Ends a run the way a killed process ends: nothing of ours is run after it."""


def cut(*_args):
    """Stand in for a function that the run does not survive."""
    raise CutError


@contextmanager
def kill_after(function, calls=1):
    """Let a training run die once a function of ``train.run`` has been called so often.

    A dot leads into a module or a class that ``train.run`` imports: ``log.step_values``.
    """
    *path, name = function.split(".")
    owner = attrgetter(".".join(path))(run_module) if path else run_module
    original, left = getattr(owner, name), calls

    def counted(*args, **kwargs):
        nonlocal left
        result = original(*args, **kwargs)
        left -= 1
        if left == 0:
            raise CutError
        return result

    with pytest.MonkeyPatch.context() as patched, pytest.raises(CutError):
        patched.setattr(owner, name, counted)
        yield
