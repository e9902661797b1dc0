"""Measured geometry as JSON lines, from which every figure is drawn again without an encoder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.evaluate.geometry import Geometry, Group
from contrasent.files import write_text
from contrasent.records import read_lines, record_of

KIND = "geometry"
FORMAT = 1


def geometry_lines(found: Iterable[Geometry]) -> str:
    """One JSON object a line and an encoder; every number in full precision."""
    return "".join(json.dumps(_values(geometry)) + "\n" for geometry in found)


def write_geometry(path: str | Path, found: Iterable[Geometry]) -> None:
    """Write geometry as JSON lines, whole or not at all."""
    write_text(path, geometry_lines(found))


def read_geometry(path: str | Path) -> list[Geometry]:
    """Read what :func:`write_geometry` wrote.

    Raises:
        DataError: a line is not what it wrote; the message names file and line.
    """
    return read_lines(path, _geometry, "not a measured geometry")


def _values(geometry: Geometry) -> dict[str, Any]:
    return {
        "kind": KIND,
        "format": FORMAT,
        "pairs": geometry.pairs,
        "source": geometry.source,
        "rated": geometry.rated,
        "sentences": geometry.sentences,
        "records": [asdict(record) for record in geometry.records],
        "spectrum": geometry.spectrum.tolist(),
        "groups": [
            {"low": group.low, "high": group.high, "cosines": group.cosines.tolist()}
            for group in geometry.groups
        ],
    }


def _geometry(values: Any) -> Geometry:
    if not isinstance(values, dict) or values.get("kind") != KIND:
        raise TypeError(f"no JSON object of kind {KIND!r}")
    if values["format"] != FORMAT:
        raise ValueError(f"its format is {values['format']}, and only {FORMAT} can be read")
    if not values["records"]:
        raise ValueError("it has no record")
    return Geometry(
        records=tuple(record_of(record) for record in values["records"]),
        pairs=values["pairs"],
        source=values["source"],
        rated=values["rated"],
        sentences=values["sentences"],
        spectrum=np.array(values["spectrum"], dtype=np.float64),
        groups=tuple(
            Group(it["low"], it["high"], np.array(it["cosines"], dtype=np.float64))
            for it in values["groups"]
        ),
    )
