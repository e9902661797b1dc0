"""What an index folder says about itself.

The manifest is replaced last and as a whole: a segment that it does not list does not exist.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from contrasent.errors import CheckpointError
from contrasent.files import write_text

FILE = "manifest.json"
_FORMAT = "contrasent-index-1"
_REBUILD = "restore the folder from a copy or build the index again"


@dataclass(frozen=True, slots=True)
class Maker:
    """The encoder whose vectors the index holds.

    Attributes:
        name: the name or absolute folder it was loaded from.
        fingerprint: see :meth:`contrasent.model.encoder.SentenceEncoder.fingerprint`.
        pooler: how token states became an embedding.
        head: the map after the pooler, ``none`` or ``mlp``.
        width: D, numbers in a vector.
        precision: what matrix products ran in, as it was asked for.
        engine: what computed the transformer.
    """

    name: str
    fingerprint: str
    pooler: str
    head: str
    width: int
    precision: str
    engine: str = "torch"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that were added together.

    Attributes:
        name: stem of the segment's files.
        rows: number of rows.
    """

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index holds.

    Attributes:
        encoder: what made the vectors.
        segments: where they are, in the order of their rows.
        numbered: whether every id is the number of its row.
    """

    encoder: Maker
    segments: tuple[Segment, ...]
    numbered: bool

    @property
    def rows(self) -> int:
        """Rows of all segments."""
        return sum(segment.rows for segment in self.segments)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make ``manifest`` what the folder holds, at once."""
    described = {"format": _FORMAT, **asdict(manifest)}
    write_text(folder / FILE, json.dumps(described, indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Read what :func:`write_manifest` wrote.

    Raises:
        CheckpointError: there is no index in ``folder``, or its manifest is damaged or of
            another version.
    """
    path = folder / FILE
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else f"holds no {FILE}"
        raise CheckpointError(
            f"there is no index at {folder}: it {what}; make one with: "
            f"contrasent index build MODEL INPUT {folder}"
        )
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}); {_REBUILD}") from error
    if not isinstance(read, dict) or read.get("format") != _FORMAT:
        found = read.get("format") if isinstance(read, dict) else None
        raise CheckpointError(
            f"{path} has format {found!r}, but this version reads {_FORMAT!r}; build it again"
        )
    try:
        segments = tuple(_typed(Segment, segment) for segment in read["segments"])
        manifest = Manifest(_typed(Maker, read["encoder"]), segments, bool(read["numbered"]))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {_REBUILD}") from error
    if not segments or min(segment.rows for segment in segments) < 1:
        raise CheckpointError(f"{path} lists a segment without rows, or none; {_REBUILD}")
    return manifest


def _typed(kind: type[Any], read: Any) -> Any:
    """A dataclass from its JSON form, refusing fields that are missing, unknown, or mistyped."""
    made = kind(**read)
    for field in fields(kind):
        value = getattr(made, field.name)
        if type(value).__name__ != field.type:
            raise TypeError(f"{field.name} is {value!r}, not {field.type}")
    return made
