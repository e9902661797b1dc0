"""One measured number with everything needed to compare it; JSON lines in and out."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from contrasent import __version__
from contrasent.errors import DataError
from contrasent.files import write_text

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Where a value lies when its pairs are drawn again with replacement.

    Attributes:
        low: lower end of the percentile interval.
        high: upper end.
        error: standard deviation over the resamples.
        confidence: the share of samples whose interval is to hold the true value, such as 0.95.
        resamples: how often pairs were drawn.
        seed: of the draws.
    """

    low: float
    high: float
    error: float
    confidence: float
    resamples: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A value beside that of another encoder on the same pairs, drawn again for both alike.

    Attributes:
        baseline: the other encoder.
        difference: this value minus the other.
        interval: of the difference; None if there are too few pairs for one.
        p_value: two-sided, of the difference being 0.
        p_holm: adjusted by Holm's method for all tasks that were compared.
        tests: how many those are.
    """

    baseline: str
    difference: float
    interval: Interval | None
    p_value: float
    p_holm: float
    tests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A score that can stand in a table beside another paper's.

    Attributes:
        task: what was measured, such as ``sts12``, ``stsb`` or ``stsb-retrieval``.
        subset: the part of the task, such as ``MSRpar``; empty for the whole task.
        split: ``train``, ``dev`` or ``test``.
        metric: such as ``spearman``, ``accuracy`` or ``recall@10``.
        aggregation: ``all`` (subsets concatenated), ``mean``, ``wmean`` (weighted by pairs), or
            ``subset`` for the score of one subset.
        value: in [-1, 1] for a correlation; never multiplied by 100.
        pairs: how many scored sentence pairs, or queries, the value rests on.
        encoder: the name or folder that was evaluated.
        pooler: how token states became the embedding.
        head: ``mlp`` or ``none``, the map after the pooler; None if the encoder does not say.
        transform: the map after the head, and the text it was fitted on, in words; None without.
        max_tokens: longer sentences were cut there; None if the encoder does not say.
        engine: what computed the transformer where that was not torch, such as ``onnx``.
        precision: ``fp32``, ``bf16``, or ``int8`` with that engine.
        seed: the seed of the training run that made the encoder; None if it is not known.
        protocol: the protocol whose number this is, such as ``simcse``; None if it was not asked
            for.
        regressor: what was fitted to the task's training split to predict the scores, such as
            ``senteval``; None for cosines.
        interval: how sure the value is; None if it was not asked for or there is none.
        compared: the value beside that of another encoder, where that was asked for.
        classifier: how a transfer task was learned: classifier, preset and its settings, folds and
            the seed of folds and training; None for what needs no classifier.
        overlap: how much of the task stands in the text that the encoder was trained on: its
            ``file``, and of how many ``sentences`` and ``pairs`` how many are ``sentences_seen``
            and ``pairs_together``, in letters and digits; None where that was not looked for.
        command: the command line that measured it, which is not compared; None where there was
            none, or in older files.
        data_sha256: hash of the evaluation files that were read, one after the other.
        versions: versions of the packages that computed the value.
    """

    task: str
    subset: str = ""
    split: str
    metric: str
    aggregation: str
    value: float
    pairs: int
    encoder: str
    pooler: str
    head: str | None = None
    transform: str | None = None
    max_tokens: int | None = None
    engine: str | None = None
    precision: str
    seed: int | None = None
    protocol: str | None = None
    regressor: str | None = None
    interval: Interval | None = None
    compared: Compared | None = None
    classifier: dict[str, str | int] | None = None
    overlap: dict[str, str | int] | None = None
    command: str | None = field(default=None, compare=False)
    data_sha256: str
    versions: dict[str, str]


_COMPUTED_BY = {"onnx": "onnxruntime", "openvino": "openvino"}


def installed_versions(engine: str | None = None) -> dict[str, str]:
    """Versions of Python and of the packages that have a part in a score made with ``engine``."""
    return dict(_versions(engine))


@cache
def _versions(engine: str | None) -> dict[str, str]:
    versions = {"python": platform.python_version(), "contrasent": __version__}
    computing = [_COMPUTED_BY[engine]] if engine in _COMPUTED_BY else []
    for package in ("torch", "transformers", "tokenizers", "numpy", "scipy", *computing):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def json_lines(records: Iterable[Record]) -> str:
    """Records as JSON lines in full precision."""
    return "".join(json.dumps(asdict(record)) + "\n" for record in records)


def write_records(path: str | Path, records: Iterable[Record]) -> None:
    """Write records as JSON lines, whole or not at all."""
    write_text(path, json_lines(records))


def read_records(path: str | Path) -> list[Record]:
    """Read what :func:`write_records` wrote.

    Raises:
        DataError: a line is not a record; the message names file and line.
    """
    return read_lines(path, record_of, "not a record")


def read_lines(path: str | Path, parse: Callable[[Any], T], otherwise: str) -> list[T]:
    """What ``parse`` makes of the JSON value of each line.

    Args:
        path: the file.
        parse: raises ``KeyError``, ``TypeError`` or ``ValueError`` for what it cannot take.
        otherwise: what the message then calls the line.

    Raises:
        DataError: a line is no JSON, or ``parse`` does not take it; the message names file and
            line.
    """
    found = []
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(parse(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"{path}:{number}: {otherwise}: {error}") from error
    return found


def record_of(values: Any) -> Record:
    """A record from what JSON made of it.

    Raises:
        TypeError: it is no JSON object, or has other fields than a record.
    """
    if not isinstance(values, dict):
        raise TypeError("no JSON object")
    compared = values.get("compared")
    if compared:
        values = {**values, "compared": Compared(**_with_interval(compared))}
    return Record(**_with_interval(values))


def _with_interval(values: dict[str, Any]) -> dict[str, Any]:
    interval = values.get("interval")
    return {**values, "interval": Interval(**interval)} if interval else values
