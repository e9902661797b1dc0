"""Geometry of embeddings: how they lie in space, and how that changes over a training run.

Sensitivity to edits is what DiffCSE is to have more of (Chuang et al. 2022): every sentence is
edited once, in a way, at a place and of a size that are drawn. An embedding is sensitive if it
moves, and equivariant if its movement tells what the edit was: a classifier finds that from the
difference of the embeddings of the edited sentence and of the sentence.

Shapes: P pairs, N distinct sentences, D embedding width.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from contrasent import metrics
from contrasent.data.examples import open_examples
from contrasent.errors import DataError
from contrasent.evaluation.embed import DescribedEncoder, Embeddings, EncoderUse, Score
from contrasent.evaluation.intervals import normal_interval
from contrasent.evaluation.logistic_regression import LabelledFeatures, cross_validate
from contrasent.evaluation.protocols import preset_named
from contrasent.evaluation.sts_data import Position, RatedPairs
from contrasent.evaluation.task_names import STS_TASKS, TaskName
from contrasent.metrics import Matrix, Vector, directions, pair_cosines
from contrasent.model.protocol import Encoder
from contrasent.options import AnalysisOptions
from contrasent.records import Record, fields_of_kind, read_lines
from contrasent.settings import checked, takes

GROUPS = 5  # of ratings: 0-1, 1-2, 2-3, 3-4, 4-5 of STS-B
_LARGEST_RATING = 5.0
_ROWS = 1024
_TINY = 1e-12

KIND, _METRICS = "geometry", "metrics.jsonl"
"""The kind of a line; and under which one of metrics.jsonl holds a measurement."""

_DIGITS = 7
"""Significant digits of what figures are drawn from: those of float32, as the embeddings have."""

WAYS, PLACES, SIZES = ("replace", "delete", "insert"), ("first", "middle", "last"), (1, 2, 4)
"""What is done with words that stand together, in which third of a sentence, and to how many."""

_FEWEST_WORDS, _SENTENCES, _CONFIDENCE = 12, 3000, 0.95


@dataclass(frozen=True, slots=True)
class Edits:
    """Sentences, and each of them edited once."""

    name: str  # of their file
    sha256: str  # of the sentences
    sentences: tuple[str, ...]
    edited: tuple[str, ...]
    drawn: np.ndarray  # (N, 3), places in `WAYS`, `PLACES` and `SIZES`

    @classmethod
    def read(cls, file: str) -> "Edits":
        """Edit the first column of a text."""
        examples = open_examples(file)
        return cls.draw(file, examples.sha256, (first for first, *_ in examples))

    @classmethod
    def draw(cls, name: str, sha256: str, texts: Iterable[str], seed: int = 0) -> "Edits":
        """Edit the first 3,000 distinct sentences of twelve words or more.

        Words that are put in are drawn from the words of all of them. DataError if there are
        fewer than 100.
        """
        long = (it for it in dict.fromkeys(texts) if len(it.split()) >= _FEWEST_WORDS)
        sentences = tuple(sentence for sentence, _ in zip(long, range(_SENTENCES), strict=False))
        if len(sentences) < 100:
            few = f"{len(sentences)} distinct sentences have {_FEWEST_WORDS} words or more"
            raise DataError(f"{name}: {few}; edits need 100")
        random = np.random.default_rng(seed)
        drawn = random.integers((len(WAYS), len(PLACES), len(SIZES)), size=(len(sentences), 3))
        words = [word for sentence in sentences for word in sentence.split()]
        edited = []
        for sentence, (way, place, size) in zip(sentences, drawn.tolist(), strict=True):
            kept, count = sentence.split(), SIZES[size]
            third = len(kept) // 3
            start = place * third + int(random.integers(third - count + 1))
            new = [words[k] for k in random.integers(len(words), size=count)]
            end = start + (0 if WAYS[way] == "insert" else count)
            kept[start:end] = [] if WAYS[way] == "delete" else new
            edited.append(" ".join(kept))
        return cls(name, sha256, sentences, tuple(edited), drawn)


def measure_edits(use: EncoderUse, edits: Edits) -> tuple[Record, ...]:
    """Measure how far edits move an embedding, and how well each can be told, with intervals.

    ``edit_distance`` is 1 minus the cosine, by way and size; ``edit_accuracy`` of classifiers of
    five folds for ``way``, ``place`` and ``size``, where chance is a third.
    """
    before, after = (directions(use.embed(it)) for it in (edits.sentences, edits.edited))
    moved, count = 1 - pair_cosines(before, after), len(before)
    scores = list[Score]()
    for w, way in enumerate(WAYS):
        for s, size in enumerate(SIZES):
            moves = moved[(edits.drawn[:, 0] == w) & (edits.drawn[:, 2] == s)]
            mean, error = float(moves.mean()), float(moves.std(ddof=1)) / sqrt(len(moves))
            within = normal_interval(mean, error, _CONFIDENCE)
            known = len(moves), "subset", f"{way} {size}", within
            scores.append(Score("edit_distance", mean, *known))
    features = after - before
    features /= np.sqrt(np.square(features).mean()) or 1.0  # as large of every encoder
    for k, (label, values) in enumerate({"way": WAYS, "place": PLACES, "size": SIZES}.items()):
        part = {"all": LabelledFeatures(features.astype(np.float32), edits.drawn[:, k])}
        accuracy = cross_validate(part, len(values), preset_named("fasttest"), "cpu").test
        error = sqrt(accuracy * (1 - accuracy) / count)
        within = normal_interval(accuracy, error, _CONFIDENCE)
        scores.append(Score("edit_accuracy", accuracy, count, "subset", label, within))
    return tuple(score.record(TaskName(edits.name), edits.sha256, use) for score in scores)


@dataclass(frozen=True, slots=True)
class Group:
    """Cosines of the pairs whose rating is at least ``low`` and below ``high``."""

    low: float
    high: float
    cosines: Vector

    @property
    def label(self) -> str:
        """Such as ``0-1``."""
        return f"{self.low:g}-{self.high:g}"


@dataclass(frozen=True, slots=True)
class Geometry:
    """What was measured of one encoder, enough to draw every figure of it again."""

    pairs: str  # what was asked for, such as ``stsb-dev>4``
    source: str  # the task's heading, such as ``STS-B dev``
    rated: int  # P, how many pairs were rated
    sentences: int  # N
    # a number each: alignment (of the positive pairs), uniformity, mean cosine and partition ratio
    # (of the distinct sentences, every pair of two of them), and, where it exists, the Spearman
    # correlation of all P pairs
    records: tuple[Record, ...]
    spectrum: Vector  # ``(min(N, D),)`` singular values over the largest
    groups: tuple[Group, ...]  # cosines by rating; a group without a pair is not there
    edits: tuple[Record, ...] = ()  # how sensitive it is to them, where that was asked for

    @property
    def heading(self) -> str:
        """The source, with its split where a table leaves that out: ``STS-B test``."""
        first = self.records[0]
        several = first.task in STS_TASKS and len(STS_TASKS[first.task].splits) > 1
        return f"{self.source} test" if several and first.split == "test" else self.source

    def value(self, metric: str) -> float | None:
        """A number by its name in the records; None if it does not exist."""
        return next((it.value for it in self.records if it.metric == metric), None)


def measure(use: EncoderUse, pairs: RatedPairs, edits: Edits | None = None) -> Geometry:
    """Measure an encoder; every embedding is divided by its length first."""
    embeddings = pairs.embed(use)
    position = pairs.position(embeddings)
    cosines = pair_cosines(embeddings[pairs.first], embeddings[pairs.second])
    every = len(embeddings) * (len(embeddings) - 1) // 2
    scores = [
        Score("alignment", position.alignment, int(pairs.positive.sum()), subset=pairs.condition),
        Score("uniformity", position.uniformity, every),
        Score("mean_cosine", metrics.mean_cosine(embeddings), every),
        Score("partition_ratio", metrics.partition_ratio(embeddings), every),
    ]
    with suppress(DataError):  # of an encoder that puts all pairs at one cosine
        scores.append(Score("spearman", metrics.spearman(cosines, pairs.gold), len(pairs.gold)))
    task = pairs.task
    return Geometry(
        records=tuple(score.record(task.name, task.sha256, use) for score in scores),
        pairs=pairs.label,
        source=task.name.heading,
        rated=len(pairs.gold),
        sentences=len(embeddings),
        spectrum=_short(metrics.spectrum(embeddings)),
        groups=tuple(Group(a, b, _short(cosines[it])) for a, b, it in rating_groups(pairs.gold)),
        edits=measure_edits(use, edits) if edits else (),
    )


@takes(AnalysisOptions)
def analyze(
    encoder: str | Path | Encoder,
    pairs: str = "stsb>4",
    *,
    show_progress: bool = False,
    **options: Any,
) -> Geometry:
    """Measure how embeddings lie in space, as ``contrasent analyze`` does.

    Args:
        encoder: an encoder, or the name of one.
        pairs: a task or file of rated pairs, ``>`` or ``>=``, and a rating.
        show_progress: a progress bar on standard error.
        **options: by name.

    Returns:
        Records of alignment and uniformity (Wang and Isola 2020), mean cosine, partition ratio
        and rank correlation, the singular spectrum, cosines in groups of their ratings, and with
        ``edits`` how sensitive embeddings are to them.

    Example:
        >>> geometry = contrasent.analyze("runs/mine")  # doctest: +SKIP
        >>> geometry.value("alignment"), geometry.value("uniformity")  # doctest: +SKIP
    """
    chosen = checked(AnalysisOptions, {"pairs": pairs, **options})
    read = RatedPairs.read(chosen.pairs, chosen.data_dir, chosen.columns)
    edits = Edits.read(chosen.edits) if chosen.edits else None
    return measure(EncoderUse.by(chosen, encoder, None, show_progress), read, edits)


def geometry_influences(embeddings: Embeddings, pairs: RatedPairs) -> dict[str, Vector]:
    """How much each of P pairs moves a number of ``embeddings (N, D)``, ``(P,)``, by its name.

    The first-order effect of the pair's weight (Huber 1981); a sentence weighs what its pairs do on
    average. ``spectrum`` is the mean singular value over the largest; ``group:4-5`` and
    ``deviation:4-5`` are of the cosines of a group of ratings.
    """
    unit = directions(embeddings)
    cosines = pair_cosines(unit[pairs.first], unit[pairs.second])

    def of_mean(values: Vector, chosen: NDArray[np.bool_]) -> Vector:
        return np.asarray(np.where(chosen, values - values[chosen].mean(), 0.0) / chosen.sum())

    moves = {"alignment": of_mean(2 - 2 * cosines, pairs.positive)}
    every = *rating_range(pairs.gold), np.ones(len(cosines), dtype=bool)
    for low, high, chosen in (*rating_groups(pairs.gold), every):
        moves[f"group:{low:g}-{high:g}"] = of_mean(cosines, chosen)
        squares = np.square(cosines - cosines[chosen].mean())
        scale = 2 * sqrt(squares[chosen].mean()) or 1.0  # 0 where no pair moves anything
        moves[f"deviation:{low:g}-{high:g}"] = of_mean(squares, chosen) / scale
    shares = np.bincount(np.concatenate([pairs.first, pairs.second]))
    for name, of_sentences in _sentence_influences(unit).items():
        each = of_sentences / shares
        moves[name] = each[pairs.first] + each[pairs.second]
    return moves


def _sentence_influences(unit: Matrix) -> dict[str, Vector]:
    """How much each of N unit rows ``(N, D)`` moves a number of all of them, ``(N,)``."""
    size = len(unit)
    blocks = (unit[start : start + _ROWS] @ unit.T for start in range(0, size, _ROWS))
    near = np.concatenate([np.exp(4 * block - 4).sum(axis=1) for block in blocks]) - 1
    cosines = unit @ unit.sum(axis=0) - 1
    squares, axes = np.linalg.eigh(unit.T @ unit)
    values = np.sqrt(np.maximum(squares, 0))[::-1][: min(unit.shape)]
    # The weight of a row moves the square of a singular value by its own along the axis, squared.
    effects = np.square(unit @ axes[:, ::-1][:, : len(values)]) / (2 * np.maximum(values, _TINY))
    return {
        "uniformity": 2 * near / near.sum() - 2 / size,
        "mean_cosine": 2 * (cosines - cosines.mean()) / (size * (size - 1)),
        "spectrum": (effects.mean(axis=1) - effects[:, 0] * values.mean() / values[0]) / values[0],
    }


def rating_range(gold: Vector) -> tuple[float, float]:
    """The lowest and the highest of ratings ``(P,)``; of ratings from 0 to 5 these two."""
    low, high = float(gold.min()), float(gold.max())
    return (0.0, _LARGEST_RATING) if low >= 0 and 1 < high <= _LARGEST_RATING else (low, high)


def rating_groups(gold: Vector) -> Iterator[tuple[float, float, NDArray[np.bool_]]]:
    """The ends of each of five groups of ratings that has a pair, and which ``(P,)`` those are.

    Of STS and SICK 0-1 to 4-5, else equal parts of the range. An edge is in the group above it.
    """
    edges = np.linspace(*rating_range(gold), GROUPS + 1)
    edges[1:-1] = _short(edges[1:-1])  # else three fifths of 1 would be above 0.6
    number = np.searchsorted(edges[1:-1], gold, side="right")
    for k in np.unique(number):
        yield float(edges[k]), float(edges[k + 1]), number == k


def _short(numbers: Vector) -> Vector:
    return np.array([float(f"{number:.{_DIGITS}g}") for number in numbers])


def read_geometry(path: str | Path) -> list[Geometry]:
    """Read what `lines_of_kind` wrote; a DataError names file and line of anything else."""
    return read_lines(path, _geometry, "not a measured geometry")


def _geometry(values: Any) -> Geometry:
    fields = fields_of_kind(values, KIND)
    groups = fields.pop("groups")
    records = TypeAdapter(tuple[Record, ...])
    return Geometry(
        records=records.validate_python(fields.pop("records")),
        edits=records.validate_python(fields.pop("edits", ())),
        spectrum=np.array(fields.pop("spectrum"), dtype=np.float64),
        groups=tuple(Group(it["low"], it["high"], np.array(it["cosines"])) for it in groups),
        **fields,
    )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A run, named by its folder, in the plane of alignment and uniformity of ``pairs``."""

    label: str
    pairs: str
    steps: tuple[int, ...]
    positions: tuple[Position, ...]


def measurement(encoder: DescribedEncoder, pairs: RatedPairs, precision: str) -> dict[str, Any]:
    """Alignment and uniformity with what they are of, as a value of a line of metrics.jsonl."""
    position = pairs.position(pairs.embed(EncoderUse(encoder, precision)))
    return {
        **asdict(position),
        "pairs": pairs.label,
        "positive_pairs": int(pairs.positive.sum()),
        "sentences": len(pairs.sentences),
        "precision": precision,
    }


def read_trajectory(path: str | Path) -> Trajectory:
    """Read a run's folder, or its ``metrics.jsonl``."""
    path = Path(path)
    file = path / _METRICS if path.is_dir() else path
    if not file.is_file():
        raise DataError(f"{path} is no training run: it has no {_METRICS}")

    def position(values: Any) -> tuple[int, str, Position] | None:
        if KIND not in values:
            return None
        measured = values[KIND]
        place = Position(float(measured["alignment"]), float(measured["uniformity"]))
        return int(values["step"]), str(measured["pairs"]), place

    measured = {it[0]: it for it in read_lines(file, position, "not a line of a run") if it}
    if not measured:
        raise DataError(
            f"{file} has no geometry: train with --evaluation.geometry_every 10 to have it measured"
        )
    steps, pairs, positions = zip(*(measured[step] for step in sorted(measured)), strict=True)
    return Trajectory(file.resolve().parent.name, pairs[0], steps, positions)
