"""How commands end: a user's mistake is one clear message and exit code 2, never a traceback."""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import typer
from typing_extensions import override

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
        try:
            with _speaking_on_stderr():
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
            _say("error", _explained(error))
            raise typer.Exit(_MISTAKE) from error
        except KeyboardInterrupt as error:
            how = f"; {error}" if str(error) else ""
            _say("stopped", f"interrupted; what was written is whole{how}")
            raise typer.Exit(_INTERRUPTED) from error
        return result

    return run


class _Stderr(logging.Handler):
    """Sends log lines where messages go."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        quiet = record.levelno < logging.WARNING
        _say("" if quiet else record.levelname.lower(), self.format(record))


@contextmanager
def _speaking_on_stderr() -> Iterator[None]:
    """Send log lines and warnings to standard error, one line each."""
    logger = logging.getLogger("contrasent")
    level, propagate, handler = logger.level, logger.propagate, _Stderr()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show
            if not sys.warnoptions:
                warnings.simplefilter("default", UserWarning)
                for category in (DeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", category)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    kind = "warning" if issubclass(category, UserWarning) else category.__name__
    _say(kind, str(message))


def _explained(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    remedy = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "; make room, and run the command again"
    return f"{place}{error.strerror}{remedy}"


def _say(kind: str, message: str) -> None:
    # Not typer.echo, which finds its way around the progress bar that sys.stderr is behind.
    sys.stderr.write(f"{kind}: {message}\n" if kind else f"{message}\n")
    sys.stderr.flush()
