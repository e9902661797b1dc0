"""Measures of an encoder for the cells of tables: correlations, accuracies, geometry, retrieval."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import ConfigError
from contrasent.evaluation.embed import DescribedEncoder, Embeddings, EncoderUse, Scores
from contrasent.evaluation.geometry import (
    Geometry,
    influences,
    measure,
    rating_range,
    read_geometry,
    write_geometry,
)
from contrasent.evaluation.protocols import TransferProtocol
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.evaluation.suite import Suite, load_suite
from contrasent.evaluation.task_names import STS, STS_TASKS, TRANSFER, TRANSFER_TASKS, TaskName
from contrasent.evaluation.task_types import Options
from contrasent.files import write_text, writing
from contrasent.reproduce.papers import OF_TEXTS

PAIRS = "stsb>4"
"""Of alignment and uniformity, unless a column says otherwise: SimCSE, section 3."""

DEV_PRESET = "dev"
"""SentEval's quick settings, by which the papers' scripts score the dev parts."""

_GROUPED = ("group", "deviation")
_GEOMETRY = ("alignment", "uniformity", "partition_ratio", "mean_cosine", "spectrum", *_GROUPED)

Value = float | str


class CachedEncoder:
    """An encoder under the name of its row, that computes each sentence once."""

    def __init__(self, encoder: DescribedEncoder, name: str) -> None:
        """Wrap ``encoder`` under the ``name`` of its row."""
        self.name = name
        self._encoder = encoder
        self._rows: dict[str, int] = {}
        self._embeddings: list[Embeddings] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    @property
    def pooler(self) -> str:
        """How token states became the embedding."""
        return self._encoder.pooler

    def encode(
        self, sentences: list[str], *, precision: str = "fp32", show_progress: bool = False
    ) -> np.ndarray:
        """Embed N sentences, ``(N, D)``."""
        new = list(dict.fromkeys(it for it in sentences if it not in self._rows))
        if new:
            rows = self._encoder.encode(new, precision=precision, show_progress=show_progress)
            self._rows.update({it: len(self._rows) + k for k, it in enumerate(new)})
            self._embeddings = [np.concatenate([*self._embeddings, rows])]
        whole = self._embeddings[0]
        return np.ascontiguousarray(whole[[self._rows[it] for it in sentences]])


def measure_of(value: str) -> str:
    """The measure that gives a column's value.

    ========================  ===========================================================
    ``sts12``, ``sts``        Spearman on a test split, and the mean of the seven; after a
                              slash the aggregation of subsets, such as ``sts/wmean``
    ``stsb-dev``              the same on a dev split
    ``mr``, ``transfer``      accuracy, and the mean of the seven; ``transfer-dev`` of dev parts
    ``alignment:PAIRS``       also uniformity, partition_ratio, mean_cosine; ``spectrum``, the mean
                              singular value over the largest; ``group:4-5`` and
                              ``deviation:4-5``, of the cosines of pairs of a rating
    ``recall@1``              of the paraphrase of an STS-B test sentence
    ``neighbours:Q@C``        sentences of the corpus C that are nearest to queries Q
    ``parameters``            their number; ``layers`` and ``width``
    ``examples``, ``overlap`` of a training text: its number, its mean lexical overlap
    ``pairs:dev``             the number of rated pairs of a task
    ========================  ===========================================================

    ConfigError if there is no such value.
    """
    name, _, rest = value.partition(":")
    task = name.partition("/")[0]
    if name in _GEOMETRY:
        pairs = rest.partition(":")[2] if name in _GROUPED else rest
        return f"geometry:{pairs or PAIRS}"
    if name in ("neighbours", "pairs"):
        return value
    if task in _MEASURE_OF:
        return _MEASURE_OF[task]
    raise ConfigError(f"unknown value of a column: {value!r}")


_MEASURE_OF = {
    **dict.fromkeys((*STS_TASKS, "sts"), "sts"),
    **{f"{task}-dev": "sts-dev" for task in STS_TASKS},
    **dict.fromkeys((*TRANSFER_TASKS, "transfer"), "transfer"),
    "transfer-dev": "transfer-dev",
    **{f"recall@{k}": "retrieval" for k in (1, 5, 10)},
    **dict.fromkeys(("parameters", "layers", "width"), "size"),
    **dict.fromkeys(OF_TEXTS, "text"),
}


def is_score(value: str) -> bool:
    """Whether a value is in [-1, 1] and printed x 100."""
    return measure_of(value).startswith(("sts", "transfer", "retrieval", "text")) and (
        value != "examples"
    )


def is_by_example(name: str) -> bool:
    """Whether what a measure gives is kept by example too, for intervals of differences."""
    return name.startswith(("sts", "transfer", "geometry", "retrieval"))


@dataclass(frozen=True, slots=True)
class Measured:
    """What one measure gave."""

    values: dict[str, Value]  # by the names that columns use; correlations and accuracies in [0, 1]
    # of scores, with how they were computed
    records: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # what could not be computed, and why
    seconds: float = 0.0  # how long it took
    scale: str = ""  # at which its encoder was made

    def write(self, path: Path) -> None:
        """Write the result, whole or not at all."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Read what :meth:`write` wrote."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class MeasureContext:
    """On what encoders are measured, and where results go."""

    data_dir: str | None  # SentEval's folder
    preset: str  # SentEval's settings of the transfer tasks' classifiers
    path: Path  # of the result, without its suffix
    argument: str = ""  # the file that the measure reads, if it reads one
    seed: int | None = None  # of the training run that made the encoder


def measure_encoder(name: str, encoder: DescribedEncoder, context: MeasureContext) -> Measured:
    """Measure an encoder; what it says of each example, and geometry, are written beside it.

    ContrasentError if data is missing or damaged, or the encoder cannot be scored.
    """
    use = EncoderUse(encoder, seed=context.seed)
    kind, _, rest = name.partition(":")
    return _MEASURES[kind](use, rest, context)


def examples_of(path: Path) -> Mapping[str, np.ndarray]:
    """What a result says of each example, by task or value; ``path`` is without its suffix.

    Cosines of the pairs of an STS task; how much each example moves an accuracy or a recall, and
    each rated pair a number of geometry; nothing of other measures.
    """
    path = path.with_name(f"{path.name}.npz")
    if not path.exists():
        return {}
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _write_examples(context: MeasureContext, examples: Mapping[str, np.ndarray]) -> None:
    path = context.path.with_name(f"{context.path.name}.npz")
    arrays = {name: each.astype(np.float32) for name, each in examples.items()}
    with writing(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def geometry_of(path: Path) -> Geometry:
    """The geometry that was written beside a result."""
    return read_geometry(path.with_name(f"{path.name}.jsonl"))[0]


def sts_suite(data_dir: str | None, split: str, names: tuple[str, ...] = STS) -> Suite:
    """The STS tasks, read once in a process."""
    return _suite(names, data_dir, split, DEV_PRESET)


@cache
def _suite(names: tuple[str, ...], data_dir: str | None, split: str, preset: str) -> Suite:
    options = Options(data_dir, (split,), learning=TransferProtocol(preset=preset))
    return load_suite(names, options)


def _scores(suite: Suite, use: EncoderUse) -> tuple[Scores, list[str]]:
    scores = suite.records(use)
    return scores, [f"{it.task}: {it.message}" for it in (*suite.problems, *scores.problems)]


def _sts(use: EncoderUse, task: str, context: MeasureContext, split: str = "test") -> Measured:
    names = (task,) if task else (STS if split == "test" else ("stsb", "sickr"))
    scores, problems = _scores(sts_suite(context.data_dir, split, names), use)
    suffix = "" if split == "test" else "-dev"
    values: dict[str, Value] = {}
    for record in scores.records:
        if record.metric == "spearman" and not record.subset:
            way = "" if record.aggregation == "all" else f"/{record.aggregation}"
            values[f"{record.task}{suffix}{way}"] = record.value
    for way in ("", "/wmean", "/mean"):
        if split == "test":
            values |= _mean(values, [f"{name}{way}" for name in STS], f"sts{way}")
    cosines = {label: np.concatenate(columns) for label, columns in scores.similarities.items()}
    _write_examples(context, cosines)
    records = [asdict(it) for it in scores.records if it.metric == "spearman" and not it.subset]
    return Measured(values, records, problems)


def _transfer(use: EncoderUse, _: str, context: MeasureContext, split: str = "test") -> Measured:
    preset = context.preset if split == "test" else DEV_PRESET
    scores, problems = _scores(_suite(TRANSFER, context.data_dir, split, preset), use)
    suffix = "" if split == "test" else "-dev"
    found = [it for it in scores.records if (it.metric, it.split) == ("accuracy", split)]
    values: dict[str, Value] = {f"{it.task}{suffix}": it.value for it in found}
    values |= _mean(values, [f"{name}{suffix}" for name in TRANSFER], f"transfer{suffix}")
    moves = {
        name.label: it.influence for (name, of), it in scores.ratios.items() if of == "accuracy"
    }
    _write_examples(context, moves)
    return Measured(values, [asdict(it) for it in found], problems)


def _mean(values: Mapping[str, Value], parts: list[str], name: str) -> dict[str, Value]:
    """The mean under its name; nothing if a part is missing."""
    known = [float(values[part]) for part in parts if part in values]
    return {name: sum(known) / len(known)} if len(known) == len(parts) else {}


def _geometry(use: EncoderUse, pairs: str, context: MeasureContext) -> Measured:
    rated = RatedPairs.read(pairs, context.data_dir)
    geometry = measure(use, rated)
    suffix = "" if pairs == PAIRS else f":{pairs}"
    values: dict[str, Value] = {f"{it.metric}{suffix}": it.value for it in geometry.records}
    values["spectrum" + suffix] = float(geometry.spectrum.mean())
    cosines = {it.label: it.cosines for it in geometry.groups}
    values |= {f"group:{label}{suffix}": float(it.mean()) for label, it in cosines.items()}
    low, high = rating_range(rated.gold)
    cosines[f"{low:g}-{high:g}"] = np.concatenate([*cosines.values()])
    values |= {f"deviation:{label}{suffix}": float(it.std()) for label, it in cosines.items()}
    write_geometry(context.path.with_name(f"{context.path.name}.jsonl"), [geometry])
    moves = influences(rated.embed(use), rated)
    _write_examples(context, {f"{name}{suffix}": each for name, each in moves.items()})
    return Measured(values, [asdict(it) for it in geometry.records])


def _retrieval(use: EncoderUse, _: str, context: MeasureContext) -> Measured:
    scores, problems = _scores(
        _suite(("stsb-retrieval",), context.data_dir, "test", DEV_PRESET), use
    )
    values: dict[str, Value] = {it.metric: it.value for it in scores.records}
    _write_examples(context, {of: ratio.influence for (_, of), ratio in scores.ratios.items()})
    return Measured(values, [asdict(it) for it in scores.records], problems)


def _neighbours(use: EncoderUse, asked: str, context: MeasureContext) -> Measured:
    from contrasent.evaluation.neighbours import find_neighbours, read_corpus, read_queries

    queries, _, source = asked.partition("@")
    corpus = read_corpus(context.argument or source, data_dir=context.data_dir)
    found = find_neighbours(use, corpus, read_queries(queries, (), corpus))
    lines = [
        f"{query.text} -> " + "; ".join(f"{it.text} ({it.score:.2f})" for it in query.nearest)
        for query in found.queries
    ]
    return Measured({f"neighbours:{asked}": " | ".join(lines)})


def _size(use: EncoderUse, _: str, __: MeasureContext) -> Measured:
    encoder: Any = use.encoder
    values: dict[str, Value] = {"parameters": sum(it.numel() for it in encoder.parameters())}
    backbone = encoder.backbone
    values |= {"width": backbone.width, "layers": backbone.depth}
    return Measured(values)


_MEASURES: dict[str, Callable[[EncoderUse, str, MeasureContext], Measured]] = {
    "sts": _sts,
    "sts-dev": partial(_sts, split="dev"),
    "transfer": _transfer,
    "transfer-dev": partial(_transfer, split="dev"),
    "geometry": _geometry,
    "retrieval": _retrieval,
    "neighbours": _neighbours,
    "size": _size,
}


def measure_data(name: str, data: str, context: MeasureContext) -> Measured:
    """Measure a training text, or the pairs of a task.

    ContrasentError if it is missing or damaged.
    """
    kind, _, split = name.partition(":")
    if kind == "pairs":
        from contrasent.evaluation.sts_data import load

        splits = STS_TASKS[data].splits
        if split not in splits:
            return Measured({name: "N/A"})
        return Measured({name: len(load(TaskName(data, split), context.data_dir).gold)})
    from contrasent.data.build import f1
    from contrasent.data.examples import open_examples

    count, total, scored = 0, 0.0, 0
    for sentences in open_examples(data):
        count += 1
        overlap = f1(sentences[0], sentences[1]) if len(sentences) > 1 else None
        if overlap is not None:
            total, scored = total + overlap, scored + 1
    values: dict[str, Value] = {"examples": count}
    return Measured(values | ({"overlap": total / scored} if scored else {}))
