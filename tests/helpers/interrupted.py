"""Training runs that die at a chosen call, and the files of a run to compare."""

import json

from contrasent.train import run as run_module

FILES = ["last/model.safetensors", "best/model.safetensors"]


def bits(folder):
    return [(folder / name).read_bytes() for name in FILES]


def metrics(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    values = [json.loads(line) for line in lines]
    return [{k: v for k, v in line.items() if k != "sentences_per_second"} for line in values]


class CutError(BaseException):
    """Ends a run the way a killed process ends: nothing of ours is run after it."""


def cut_after(monkeypatch, function, calls):
    """Make the run die when ``run_module.function`` has been called ``calls`` times."""
    left = [calls]
    original = getattr(run_module, function)

    def counted(*args, **kwargs):
        found = original(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            raise CutError
        return found

    monkeypatch.setattr(run_module, function, counted)


def cut(*_args):
    raise CutError
