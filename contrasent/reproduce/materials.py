"""What a user brings, cut to the scale of a run."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from contrasent.data.readers import lines
from contrasent.errors import DataError
from contrasent.files import sha256_of, writing
from contrasent.model.hub import resolve
from contrasent.reproduce.plan import Material, Plan, Scale

_CUT = (".txt", ".csv")


@dataclass(frozen=True, slots=True)
class Brought:
    """One material as the rows of a table use it.

    Attributes:
        source: what the user named.
        path: what is read: that, or its beginning.
        sha256: of what is read.
        lines: of the beginning; None if all is read.
    """

    source: str
    path: str
    sha256: str
    lines: int | None


def bring(plan: Plan, scale: Scale, given: Mapping[str, str], folder: Path) -> dict[str, Brought]:
    """Find every material, and write the beginnings of long texts into ``folder``.

    Raises:
        CheckpointError: an encoder is not there.
        DataError: a text is not there, or has nothing in it.
    """
    return {
        name: _brought(plan.materials[name], scale.lines.get(name), source, folder / name)
        for name, source in given.items()
    }


def _brought(material: Material, limit: int | None, source: str, target: Path) -> Brought:
    if material.kind == "encoder":
        return Brought(source, source, _folder_sha256(resolve(source)), None)
    path = Path(source).expanduser()
    if not path.is_file():
        raise DataError(f"{source} is not there; it is to be {material.about}")
    if limit is None:
        return Brought(source, str(path), sha256_of(path), None)
    suffix = next((it for it in _CUT if path.name.removesuffix(".gz").endswith(it)), None)
    if suffix is None:
        known = ", ".join(_CUT)
        raise DataError(f"{source} cannot be cut at {limit} rows; bring one of {known}, also .gz")
    cut = target.with_suffix(suffix)
    taken = _rows(path, limit) if suffix == ".csv" else _beginning(path, limit, material.blocks)
    count = 0
    with writing(cut) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        for line in taken:
            file.write(line)
            count += 1
    if not count:
        raise DataError(f"{source} has no line; it is to be {material.about}")
    return Brought(source, str(cut), sha256_of(cut), count)


def _rows(path: Path, limit: int) -> Iterator[str]:
    """The first rows of a table, whose cells may hold line ends."""
    text = (line for _, line in lines(path))
    for row in islice(csv.reader(text), limit):
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerow(row)
        yield buffer.getvalue()


def _beginning(path: Path, limit: int, blocks: bool) -> Iterator[str]:
    """The first lines; of documents, those that end within them, and the first one whole."""
    held: list[str] = []
    taken = 0
    for _, line in lines(path):
        if not blocks:
            if taken == limit:
                return
            taken += 1
            yield f"{line.rstrip()}\n"
            continue
        held.append(f"{line.rstrip()}\n")
        if not line.strip():
            if taken and taken + len(held) > limit:
                return
            yield from held
            taken += len(held)
            held = []
    if blocks and (not taken or taken + len(held) <= limit):
        yield from held


def _folder_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path)}\n".encode())
    return digest.hexdigest()
