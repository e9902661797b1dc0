"""Where SentEval's data lies, and whether it is the published one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from contrasent.errors import DataError
from contrasent.files import sha256_of

DATA_VARIABLE = "CONTRASENT_DATA"
"""Environment variable that names the folder where ``--data-dir`` does not."""

_INSIDE = (".", "downstream", "data/downstream")
_PARTS = ("STS", "SICK", "MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC")


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that is not the published one.

    Attributes:
        path: relative to SentEval's folder.
        what: ``missing`` or ``differs``.
        needed: whether one of the seven STS tasks reads it; else it is a licence text.
    """

    path: str
    what: str
    needed: bool


@cache
def manifest() -> dict[str, str]:
    """SHA-256 of every file of the seven STS tasks and of their licence texts, by path."""
    text = files("contrasent.data").joinpath("senteval.sha256").read_text(encoding="utf-8")
    pairs = (line.split("  ", maxsplit=1) for line in text.splitlines())
    return {path: sha256 for sha256, path in pairs}


def needed(path: str) -> bool:
    """Whether a file of the manifest is read by a task, and not only a licence text."""
    return "LICENSE" not in path


def differences(root: Path) -> list[Difference]:
    """Compare a folder with the published files, in the manifest's order."""
    found = []
    for path, sha256 in manifest().items():
        if not (root / path).is_file():
            found.append(Difference(path, "missing", needed(path)))
        elif sha256_of(root / path) != sha256:
            found.append(Difference(path, "differs", needed(path)))
    return found


def default_folder() -> Path:
    """The folder that ``contrasent data fetch`` fills if no other is named."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "contrasent" / "senteval"


def named_folder(data_dir: str | Path | None = None) -> Path:
    """``data_dir``, else what ``CONTRASENT_DATA`` names, else :func:`default_folder`."""
    named = data_dir or os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else default_folder()


def senteval_root(data_dir: str | Path | None = None) -> Path:
    """The folder that holds ``STS`` and ``SICK``.

    Args:
        data_dir: that folder, or one that holds it as ``downstream`` or ``data/downstream``; if
            None, as :func:`named_folder`.

    Raises:
        DataError: a folder was named, and it is not there.
    """
    folder = named_folder(data_dir)
    for inside in _INSIDE:
        if any((folder / inside / part).is_dir() for part in _PARTS):
            return folder / inside
    if not folder.is_dir() and folder != default_folder():
        origin = "--data-dir" if data_dir else DATA_VARIABLE
        raise DataError(
            f"no folder {folder} ({origin}); it must hold SentEval's data: STS and SICK, or "
            "downstream, or data/downstream. 'contrasent data fetch' downloads it"
        )
    return folder
