"""Geometry of embeddings: alignment, uniformity, isotropy, spectrum, cosines of rated pairs.

Shapes: P pairs, N distinct sentences, D embedding width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import ConfigError, DataError, pick
from contrasent.evaluation.embed import (
    PRECISIONS,
    Described,
    DescribedEncoder,
    Embeddings,
    Places,
    distinct,
    encoded,
    require_usable,
)
from contrasent.evaluation.scores import Score
from contrasent.evaluation.sts_data import Task, load
from contrasent.evaluation.task_names import STS_TASKS, TaskName, task_names
from contrasent.files import write_text
from contrasent.metrics import (
    Vector,
    mean_cosine,
    pair_cosines,
    partition_ratio,
    spearman,
    spectrum,
)
from contrasent.records import Record, read_lines, record_of

_ASKED = re.compile(r"\s*(.+?)\s*(>=?)\s*(.*?)\s*")
_EXAMPLE = "such as stsb>4, stsb-dev>4, or FILE.tsv>0.8"


@dataclass(frozen=True, slots=True)
class Position:
    """Where an encoder stands in the plane of alignment and uniformity.

    Attributes:
        alignment: of the positive pairs, between 0 and 4; lower is closer.
        uniformity: of the distinct sentences, between -8 and 0; lower is more even.
    """

    alignment: float
    uniformity: float


@dataclass(frozen=True, slots=True)
class RatedPairs:
    """The pairs of a task, read once to be measured as often as one likes.

    Attributes:
        label: what was asked for, such as ``stsb-dev>4``.
        task: where the pairs come from.
        condition: which ratings make a pair positive, such as ``>4``.
        sentences: the N distinct sentences of all pairs.
        first: ``(P,)``, places in ``sentences``.
        second: ``(P,)``, those of the sentences they are paired with.
        gold: ``(P,)``, the ratings.
        positive: ``(P,)`` bool, whether the rating meets the condition.
    """

    label: str
    task: Task
    condition: str
    sentences: list[str]
    first: Places
    second: Places
    gold: Vector
    positive: NDArray[np.bool_]

    @classmethod
    def read(
        cls,
        asked: str,
        data_dir: str | Path | None = None,
        columns: Sequence[str] | None = None,
    ) -> RatedPairs:
        """Read the pairs.

        Args:
            asked: a task or a user's file, ``>`` or ``>=``, and a rating. A task named without a
                split is all its splits together: ``stsb>4`` is train, dev and test.
            data_dir: as :func:`contrasent.evaluation.sts_data.load` takes it.
            columns: of a user's file, as for :func:`contrasent.evaluation.sts_data.read_pairs`.

        Raises:
            ConfigError: ``asked`` cannot be read, or names no task or several; ``columns`` does
                not fit, or the task is no user's file.
            DataError: the data is missing or damaged, or no pair is rated so.
        """
        found = _ASKED.fullmatch(asked)
        if found is None:
            raise ConfigError(
                f"pairs {asked!r} need the rating above which they are positive, {_EXAMPLE}; in "
                "quotes, as > alone is the shell's"
            )
        name, sign, text = found.groups()
        threshold = _number(text, asked)
        chosen = _one_task(name)
        if columns is not None and chosen.name in STS_TASKS:
            raise ConfigError(f"--columns is of your own files, and {name} is a task; leave it out")
        task = load(chosen, data_dir, columns)
        gold = np.concatenate([subset.gold for subset in task.subsets])
        positive = gold >= threshold if sign == ">=" else gold > threshold
        condition = f"{sign}{threshold:g}"
        if not positive.any():
            raise DataError(
                f"{task.name.heading}: no pair is rated {condition}; its {len(gold)} ratings go "
                f"from {gold.min():g} to {gold.max():g}, so ask for a lower one"
            )
        sentences, places = distinct(
            [
                *(s for subset in task.subsets for s in subset.first),
                *(s for subset in task.subsets for s in subset.second),
            ]
        )
        first, second = np.split(places, 2)
        return cls(f"{name}{condition}", task, condition, sentences, first, second, gold, positive)

    def embed(
        self, encoder: DescribedEncoder, precision: str, show_progress: bool = False
    ) -> Embeddings:
        """Embeddings ``(N, D)`` of the distinct sentences.

        Raises:
            CheckpointError: one is zero or not finite, or their number is another.
        """
        found = encoded(encoder, self.sentences, precision=precision, show_progress=show_progress)
        require_usable(encoder.name, self.sentences, found, of=self.label)
        return found

    def position(self, embeddings: Embeddings) -> Position:
        """Alignment and uniformity, of ``embeddings (N, D)`` divided by their lengths."""
        import torch

        from contrasent.functional import alignment, uniformity

        with torch.no_grad():
            rows = torch.from_numpy(np.ascontiguousarray(embeddings, dtype=np.float32))
            chosen = [torch.from_numpy(side[self.positive]) for side in (self.first, self.second)]
            close = alignment(rows[chosen[0]], rows[chosen[1]])
            return Position(float(close), float(uniformity(rows)))


def _number(text: str, asked: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise ConfigError(f"pairs {asked!r}: {text!r} is not a number; name a rating, {_EXAMPLE}")
    return value


def _one_task(name: str) -> TaskName:
    """The task, with all splits where none is named and it has several."""
    names = task_names([name], ("all", "test"))
    if len({found.name for found in names}) > 1:
        raise ConfigError(f"pairs {name!r} are those of several tasks; name one, {_EXAMPLE}")
    return names[0]


SCALARS = ("alignment", "uniformity", "mean_cosine", "partition_ratio")
"""Metrics of the records, in the order of the table; Spearman follows where it exists."""

GROUPS = 5
"""Groups of ratings: 0-1, 1-2, 2-3, 3-4, 4-5 of STS-B."""

_LARGEST_RATING = 5.0

_DIGITS = 7
"""Significant digits of what figures are drawn from: those of float32, as the embeddings have."""


@dataclass(frozen=True, slots=True)
class Group:
    """Cosines of the pairs whose rating is at least ``low`` and below ``high``.

    The last group has its ``high`` too.
    """

    low: float
    high: float
    cosines: Vector

    @property
    def label(self) -> str:
        """Such as ``0-1``."""
        return f"{self.low:g}-{self.high:g}"


@dataclass(frozen=True, slots=True)
class Geometry:
    """What was measured of one encoder, enough to draw every figure of it again.

    Attributes:
        records: a number each: alignment (of the positive pairs), uniformity, mean cosine and
            partition ratio (of the distinct sentences, every pair of two of them), and, where it
            exists, the Spearman correlation of all P pairs.
        pairs: what was asked for, such as ``stsb-dev>4``.
        source: the task's heading, such as ``STS-B dev``.
        rated: P, how many pairs were rated.
        sentences: N.
        spectrum: ``(min(N, D),)`` singular values over the largest.
        groups: cosines by rating; a group without a pair is not there.
    """

    records: tuple[Record, ...]
    pairs: str
    source: str
    rated: int
    sentences: int
    spectrum: Vector
    groups: tuple[Group, ...]

    @property
    def encoder(self) -> str:
        """The name or folder of the encoder."""
        return self.records[0].encoder

    @property
    def heading(self) -> str:
        """The source, with its split where a table leaves that out: ``STS-B test``."""
        first = self.records[0]
        several = first.task in STS_TASKS and len(STS_TASKS[first.task].splits) > 1
        return f"{self.source} test" if several and first.split == "test" else self.source

    def value(self, metric: str) -> float | None:
        """A number by its name in the records; None if it does not exist."""
        return next((found.value for found in self.records if found.metric == metric), None)


def measure(
    encoder: DescribedEncoder,
    pairs: RatedPairs,
    *,
    precision: str = "fp32",
    seed: int | None = None,
    show_progress: bool = False,
) -> Geometry:
    """Measure an encoder; every embedding is divided by its length first.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        pairs: rated pairs, of which some are positive.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: no such precision.
        CheckpointError: an embedding is zero or not finite.
        DataError: there is one sentence only.
    """
    pick("precision", precision, PRECISIONS)
    embeddings = pairs.embed(encoder, precision, show_progress)
    if len(embeddings) < 2:
        raise DataError(f"{pairs.label}: uniformity needs two different sentences; there is one")
    position = pairs.position(embeddings)
    cosines = pair_cosines(embeddings[pairs.first], embeddings[pairs.second])
    every = len(embeddings) * (len(embeddings) - 1) // 2
    figures = [
        Score(pairs.condition, "alignment", "all", position.alignment, int(pairs.positive.sum())),
        Score("", "uniformity", "all", position.uniformity, every),
        Score("", "mean_cosine", "all", mean_cosine(embeddings), every),
        Score("", "partition_ratio", "all", partition_ratio(embeddings), every),
        *_correlation(cosines, pairs.gold),
    ]
    described = Described(encoder, precision, seed, None, None)
    return Geometry(
        records=tuple(described.record(pairs.task, figure) for figure in figures),
        pairs=pairs.label,
        source=pairs.task.name.heading,
        rated=len(pairs.gold),
        sentences=len(embeddings),
        spectrum=_short(spectrum(embeddings)),
        groups=grouped(_short(cosines), pairs.gold),
    )


def grouped(cosines: Vector, gold: Vector) -> tuple[Group, ...]:
    """Cosines ``(P,)`` by their ratings, in groups of equal width.

    The groups of ratings from 0 to 5, which STS and SICK have, are 0-1 to 4-5; those of others
    divide the range of the ratings. A rating on an edge is in the group above it.
    """
    low, high = float(gold.min()), float(gold.max())
    if low >= 0 and 1 < high <= _LARGEST_RATING:
        low, high = 0.0, _LARGEST_RATING
    edges = np.linspace(low, high, GROUPS + 1)
    number = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, GROUPS - 1)
    return tuple(
        Group(float(edges[k]), float(edges[k + 1]), cosines[number == k])
        for k in range(GROUPS)
        if (number == k).any()
    )


def _short(numbers: Vector) -> Vector:
    return np.array([float(f"{number:.{_DIGITS}g}") for number in numbers])


def _correlation(cosines: Vector, gold: Vector) -> list[Score]:
    """Spearman's; none of an encoder that puts all pairs at one cosine, as a collapsed one does."""
    try:
        return [Score("", "spearman", "all", spearman(cosines, gold), len(gold))]
    except DataError:
        return []


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
