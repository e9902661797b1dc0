"""Training runs that die at a chosen call."""

from contextlib import contextmanager
from operator import attrgetter

import pytest

from contrasent.training import callbacks, loop, run_folder
from contrasent.training import run as run_module


class CutError(BaseException):
    """Ends a run the way a killed process ends: nothing of ours is run after it."""


def cut(*_args):
    """Stand in for a function that the run does not survive."""
    raise CutError


@contextmanager
def kill_after(function, calls=1):
    """Let a training run die once a function has been called so often.

    It is of the run, its loop, its folder or the callbacks; a dot leads into a class there:
    ``GeometryLog.after_update``.
    """
    *path, name = function.split(".")
    first = (*path, name)[0]
    module = next(it for it in (run_module, loop, run_folder, callbacks) if hasattr(it, first))
    owner = attrgetter(".".join(path))(module) if path else module
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
