"""How commands end: a user's mistake is one clear message and exit code 2, never a traceback."""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from contrasent.errors import ContrasentError

P = ParamSpec("P")
R = TypeVar("R")

_MISTAKE, _INTERRUPTED = 2, 130
_USERS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EFBIG,
)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command: messages to standard error, exit codes 0, 2 (mistake) and 130 (Ctrl-C)."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        _speak_on_stderr()
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except ContrasentError as error:
            _say("error", str(error))
            raise typer.Exit(_MISTAKE) from error
        except BrokenPipeError as error:
            # The reader of a pipe, such as head, has left: say nothing, also at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except OSError as error:
            if error.errno not in _USERS:
                raise
            place = f"{error.filename}: " if error.filename else ""
            _say("error", f"{place}{os.strerror(error.errno)}")
            raise typer.Exit(_MISTAKE) from error
        except KeyboardInterrupt as error:
            _say("stopped", "interrupted; what was written is whole")
            raise typer.Exit(_INTERRUPTED) from error
        return result

    return run


def _speak_on_stderr() -> None:
    """Send log lines and warnings to standard error, one line each."""
    logger = logging.getLogger("contrasent")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        kind = "warning" if issubclass(category, UserWarning) else category.__name__
        _say(kind, str(message))

    warnings.showwarning = show
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)


def _say(kind: str, message: str) -> None:
    typer.echo(f"{kind}: {message}", err=True)
