"""What the toolkit tells a user who asked for something it cannot do."""

import errno
import logging
import os
import re
import reprlib
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

logger = logging.getLogger("contrasent")  # of what is told on the way

_FEW = 8  # choices that a message lists as they are
_LONGEST = 100  # characters of a value in a message


class ContrasentError(Exception):
    """Parent of every error raised on purpose; the command line prints it without a traceback."""


class ConfigError(ContrasentError, ValueError):
    """A setting is unknown, out of range, or at odds with another setting."""


class DataError(ContrasentError, ValueError):
    """A data file does not hold what it should; the message names file and line."""


class CheckpointError(ContrasentError, ValueError):
    """A model, index or training state cannot be read, or does not fit what it is used for."""


class MissingExtraError(ContrasentError, ImportError):
    """A feature needs a package that is not installed; the message names the extra."""


def pick(kind: str, name: str, known: Iterable[str]) -> str:
    """Return ``name`` if it is known; ConfigError lists the choices, or of many the nearest."""
    choices = sorted(known)
    if name in choices:
        return name
    few = 0 < len(choices) <= _FEW
    listed = f"; choose one of {', '.join(choices)}." if few else "." if choices else ": none is."
    near = get_close_matches(str(name), choices, n=1 if few else 3, cutoff=0.5 if few else 0)
    hint = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
    raise ConfigError(f"unknown {kind} {name!r}{listed}{hint}")


def shown(value: object) -> str:
    """``repr`` of a value for a message, its middle left out if it is long or deep."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _LONGEST
    return short.repr(value)


def install_command(extra: str) -> str:
    """How to install an extra."""
    return f"pip install 'contrasent[{extra}]'"


def require_extra(what: str, extra: str, *modules: str) -> None:
    """MissingExtraError if a module of an extra, which ``what`` needs, is not installed."""
    absent = (name for name in modules if sys.modules.get(name) is None)
    if missing := [name for name in absent if find_spec(name) is None]:
        raise MissingExtraError(f"{what} needs {', '.join(missing)}: {install_command(extra)}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its class if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_NO_ROOM = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
# Libraries in Rust (safetensors, tokenizers) and C++ (faiss, Arrow) tell it in words only.
_NO_ROOM_MESSAGE = re.compile(
    rf"os error ({'|'.join(map(str, _NO_ROOM))})\b|" + "|".join(_NO_ROOM.values())
)


def is_disk_full(error: BaseException) -> bool:
    """True if an error of Python or of a library that writes files says that a disk is full."""
    full = getattr(error, "errno", None) in _NO_ROOM
    return full or (isinstance(error, Exception) and bool(_NO_ROOM_MESSAGE.search(str(error))))


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error of Python, torch or a driver says that there is no memory left."""
    names = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    words = "allocate memory|(out of|not enough) memory|bad_alloc|start new thread|a primitive$"
    matches = isinstance(error, Exception) and bool(re.search(words, str(error), re.IGNORECASE))
    return names or getattr(error, "errno", None) == errno.ENOMEM or matches


def warn(message: str) -> None:
    """Warn about something that may not be what the user meant, at the line that called us."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "contrasent":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
