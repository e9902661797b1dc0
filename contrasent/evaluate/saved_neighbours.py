"""Nearest neighbours as JSON lines, from which a table is printed again without an encoder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contrasent.evaluate.neighbours import Neighbour, Neighbours, Query
from contrasent.files import write_text
from contrasent.records import read_lines

KIND = "neighbours"
FORMAT = 1


def neighbour_lines(found: Iterable[Neighbours]) -> str:
    """One JSON object a line and an encoder; every number in full precision."""
    return "".join(
        json.dumps({"kind": KIND, "format": FORMAT, **asdict(it)}, ensure_ascii=False) + "\n"
        for it in found
    )


def write_neighbours(path: str | Path, found: Iterable[Neighbours]) -> None:
    """Write neighbours as JSON lines, whole or not at all."""
    write_text(path, neighbour_lines(found))


def read_neighbours(path: str | Path) -> list[Neighbours]:
    """Read what :func:`write_neighbours` wrote.

    Raises:
        DataError: a line is not what it wrote; the message names file and line.
    """
    return read_lines(path, _neighbours, "no nearest neighbours")


def _neighbours(values: Any) -> Neighbours:
    if not isinstance(values, dict) or values.pop("kind", None) != KIND:
        raise TypeError(f"no JSON object of kind {KIND!r}")
    written = values.pop("format")
    if written != FORMAT:
        raise ValueError(f"its format is {written}, and only {FORMAT} can be read")
    queries = tuple(
        Query(
            text=query["text"],
            left_out=tuple(query["left_out"]),
            nearest=tuple(Neighbour(**it) for it in query["nearest"]),
        )
        for query in values.pop("queries")
    )
    return Neighbours(**values, queries=queries)
