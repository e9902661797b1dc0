"""Alignment and uniformity over a training run, as its metrics.jsonl holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.errors import DataError
from contrasent.evaluation.embed import DescribedEncoder, EncoderUse
from contrasent.evaluation.rated_pairs import Position, RatedPairs

KEY = "geometry"
"""Under which a line of metrics.jsonl holds a measurement."""

_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A run in the plane of alignment and uniformity.

    Attributes:
        label: the name of the run's folder.
        pairs: what was measured, such as ``stsb-dev>4``.
        steps: updates made before each measurement, ascending.
        positions: what was measured then.
    """

    label: str
    pairs: str
    steps: tuple[int, ...]
    positions: tuple[Position, ...]


def measurement(encoder: DescribedEncoder, pairs: RatedPairs, precision: str) -> dict[str, Any]:
    """Alignment and uniformity with what they are of, as a value of a line of metrics.jsonl.

    The encoder's mode and the random generators stay as they are.

    Raises:
        CheckpointError: an embedding is zero or not finite.
    """
    position = pairs.position(pairs.embed(EncoderUse(encoder, precision)))
    return {
        "alignment": position.alignment,
        "uniformity": position.uniformity,
        "pairs": pairs.label,
        "positive_pairs": int(pairs.positive.sum()),
        "sentences": len(pairs.sentences),
        "precision": precision,
    }


def read_trajectory(path: str | Path) -> Trajectory:
    """Read a run's folder, or its ``metrics.jsonl``.

    Raises:
        DataError: it is not there, a line cannot be read, or no geometry was measured.
    """
    path = Path(path)
    file = path / _FILE if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{path} is no training run: it has no {_FILE}")
    found: dict[int, Mapping[str, Any]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            values = json.loads(line)
            if KEY in values:
                found[int(values["step"])] = values[KEY]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{file}:{number}: not a line of a run: {error}") from error
    if not found:
        raise DataError(
            f"{file} has no geometry: train with --evaluation.geometry_every 10 to have it measured"
        )
    return _trajectory(file, found)


def _trajectory(file: Path, found: Mapping[int, Mapping[str, Any]]) -> Trajectory:
    steps = sorted(found)
    try:
        return Trajectory(
            label=file.resolve().parent.name,
            pairs=str(found[steps[0]]["pairs"]),
            steps=tuple(steps),
            positions=tuple(
                Position(float(found[s]["alignment"]), float(found[s]["uniformity"])) for s in steps
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: a geometry in it cannot be read: {error}") from error
