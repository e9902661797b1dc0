"""Measures of an encoder for the cells of tables: correlations, accuracies, geometry, retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.evaluation.embed import DescribedEncoder, Embeddings, EncoderUse, Scores
from contrasent.evaluation.geometry import Geometry, influences, measure, rating_range
from contrasent.evaluation.protocols import TransferProtocol
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.evaluation.suite import Suite, load_suite
from contrasent.evaluation.task_names import STS, STS_TASKS, TRANSFER, TaskName
from contrasent.evaluation.task_types import Options
from contrasent.reproduce.papers import PAIRS

DEV_PRESET = "dev"
"""SentEval's quick settings, by which the papers' scripts score the dev parts."""

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


@dataclass(frozen=True, slots=True)
class Measured:
    """What one measure gave; examples and geometry are kept in files of their own."""

    values: dict[str, Value]  # by the names that columns use; correlations and accuracies in [0, 1]
    # of scores, with how they were computed
    records: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # what could not be computed, and why
    seconds: float = 0.0  # how long it took
    scale: str = ""  # at which its encoder was made
    # by task or value: cosines of the pairs of an STS task; how much each example moves an accuracy
    # or a recall, and each rated pair a number of geometry
    examples: Mapping[str, np.ndarray] | None = None
    geometry: Geometry | None = None


def examples_of(path: Path) -> Mapping[str, np.ndarray]:
    """What a result says of each example; nothing of other measures."""
    if not path.exists():
        return {}
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def sts_suite(data_dir: str | None, split: str, names: tuple[str, ...] = STS) -> Suite:
    """The STS tasks, read once in a process."""
    return _suite(names, data_dir, split, DEV_PRESET)


@cache
def _suite(names: tuple[str, ...], data_dir: str | None, split: str, preset: str) -> Suite:
    options = Options(data_dir, (split,), learning=TransferProtocol(preset=preset))
    return load_suite(names, options)


def measure_encoder(
    name: str, use: EncoderUse, data_dir: str | None, preset: str, argument: str = ""
) -> Measured:
    """Measure an encoder.

    Args:
        name: of the measure, as :class:`~contrasent.reproduce.papers.PaperQuantity` has it.
        use: the encoder.
        data_dir: SentEval's folder.
        preset: SentEval's settings of the transfer tasks' classifiers, of test parts.
        argument: the file that the measure reads, if it reads one.

    Raises:
        ContrasentError: data is missing or damaged, or the encoder cannot be scored.
    """
    kind, _, rest = name.partition(":")
    split = "dev" if kind.endswith("-dev") else "test"
    match kind.removesuffix("-dev"):
        case "sts":
            names = (rest,) if rest else STS if split == "test" else ("stsb", "sickr")
            return _sts(use, sts_suite(data_dir, split, names), split)
        case "transfer":
            preset = preset if split == "test" else DEV_PRESET
            return _transfer(use, _suite(TRANSFER, data_dir, split, preset), split)
        case "geometry":
            return _geometry(use, rest, data_dir)
        case "retrieval":
            scores, problems = _scores(
                _suite(("stsb-retrieval",), data_dir, "test", DEV_PRESET), use
            )
            moves = {of: ratio.influence for (_, of), ratio in scores.ratios.items()}
            values: dict[str, Value] = {it.metric: it.value for it in scores.records}
            records = [asdict(it) for it in scores.records]
            return Measured(values, records, problems, examples=moves)
        case "neighbours":
            return _neighbours(use, rest, argument, data_dir)
    encoder: Any = use.encoder
    parameters = sum(it.numel() for it in encoder.parameters())
    backbone = encoder.backbone
    size = {"parameters": parameters, "width": backbone.width, "layers": backbone.depth}
    return Measured(dict(size))


def _scores(suite: Suite, use: EncoderUse) -> tuple[Scores, list[str]]:
    scores = suite.records(use)
    return scores, [f"{it.task}: {it.message}" for it in (*suite.problems, *scores.problems)]


def _sts(use: EncoderUse, suite: Suite, split: str) -> Measured:
    scores, problems = _scores(suite, use)
    suffix = "" if split == "test" else "-dev"
    found = [it for it in scores.records if it.metric == "spearman" and not it.subset]
    values: dict[str, Value] = {}
    for record in found:
        way = "" if record.aggregation == "all" else f"/{record.aggregation}"
        values[f"{record.task}{suffix}{way}"] = record.value
    for way in ("", "/wmean", "/mean"):
        if split == "test":
            values |= _mean(values, [f"{name}{way}" for name in STS], f"sts{way}")
    cosines = {label: np.concatenate(columns) for label, columns in scores.similarities.items()}
    return Measured(values, [asdict(it) for it in found], problems, examples=cosines)


def _transfer(use: EncoderUse, suite: Suite, split: str) -> Measured:
    scores, problems = _scores(suite, use)
    suffix = "" if split == "test" else "-dev"
    found = [it for it in scores.records if (it.metric, it.split) == ("accuracy", split)]
    values: dict[str, Value] = {f"{it.task}{suffix}": it.value for it in found}
    values |= _mean(values, [f"{name}{suffix}" for name in TRANSFER], f"transfer{suffix}")
    accuracies = {name.label: it for (name, of), it in scores.ratios.items() if of == "accuracy"}
    moves = {label: it.influence for label, it in accuracies.items()}
    return Measured(values, [asdict(it) for it in found], problems, examples=moves)


def _mean(values: Mapping[str, Value], parts: list[str], name: str) -> dict[str, Value]:
    """The mean under its name; nothing if a part is missing."""
    known = [float(values[part]) for part in parts if part in values]
    return {name: sum(known) / len(known)} if len(known) == len(parts) else {}


def _geometry(use: EncoderUse, pairs: str, data_dir: str | None) -> Measured:
    rated = RatedPairs.read(pairs, data_dir)
    geometry = measure(use, rated)
    suffix = "" if pairs == PAIRS else f":{pairs}"
    values: dict[str, Value] = {f"{it.metric}{suffix}": it.value for it in geometry.records}
    values["spectrum" + suffix] = float(geometry.spectrum.mean())
    cosines = {it.label: it.cosines for it in geometry.groups}
    values |= {f"group:{label}{suffix}": float(it.mean()) for label, it in cosines.items()}
    low, high = rating_range(rated.gold)
    cosines[f"{low:g}-{high:g}"] = np.concatenate([*cosines.values()])
    values |= {f"deviation:{label}{suffix}": float(it.std()) for label, it in cosines.items()}
    moves = {f"{name}{suffix}": it for name, it in influences(rated.embed(use), rated).items()}
    records = [asdict(it) for it in geometry.records]
    return Measured(values, records, examples=moves, geometry=geometry)


def _neighbours(use: EncoderUse, asked: str, argument: str, data_dir: str | None) -> Measured:
    from contrasent.evaluation.neighbours import find_neighbours, read_corpus, read_queries

    queries, _, source = asked.partition("@")
    corpus = read_corpus(argument or source, data_dir=data_dir)
    found = find_neighbours(use, corpus, read_queries(queries, (), corpus))
    lines = [
        f"{query.text} -> " + "; ".join(f"{it.text} ({it.score:.2f})" for it in query.nearest)
        for query in found.queries
    ]
    return Measured({f"neighbours:{asked}": " | ".join(lines)})


def measure_data(name: str, data: str, data_dir: str | None) -> Measured:
    """Measure a training text, or the pairs of a task.

    ContrasentError if it is missing or damaged.
    """
    kind, _, split = name.partition(":")
    if kind == "pairs":
        from contrasent.evaluation.sts_data import load

        if split not in STS_TASKS[data].splits:
            return Measured({name: "N/A"})
        return Measured({name: len(load(TaskName(data, split), data_dir).gold)})
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
