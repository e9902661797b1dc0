"""One measured number with everything needed to compare it; JSON lines in and out."""

import json
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import TypeAdapter

from contrasent import __version__
from contrasent.errors import DataError

T = TypeVar("T")


class Saved:
    """A dataclass that is read from a file, where pydantic refuses a field that is not known."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval(Saved):
    """Where a value would lie with other pairs, sentences or queries of the same kind."""

    low: float
    high: float
    error: float  # the standard error
    confidence: float  # the share of samples whose interval is to hold the true value
    # of a bootstrap, of which ``low`` and ``high`` are percentiles; None if the error is computed
    # by a formula, as of correlations
    resamples: int | None = None
    seed: int | None = None  # of the bootstrap
    # of this value's error with those of other tasks scored together, by their labels; None if they
    # are not known, and then the tasks are taken as independent
    covariances: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared(Saved):
    """A value beside that of another encoder on the same pairs, drawn again for both alike."""

    baseline: str
    difference: float  # this value minus that of ``baseline``, the other encoder
    interval: Interval | None  # of the difference; None if there are too few pairs for one
    p_value: float  # two-sided, of the difference being 0
    p_holm: float  # adjusted by Holm's method for all ``tests`` tasks that were compared
    tests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage(Saved):
    """An encoder, how it was used, and by which command and packages."""

    encoder: str  # the name or folder that was evaluated
    pooler: str  # how token states became the embedding
    head: str | None = None  # ``mlp`` or ``none``, the map after the pooler; None if not known
    # the map after the head, and the text it was fitted on, in words; None without
    transform: str | None = None
    max_tokens: int | None = None  # longer sentences were cut there; None if not known
    # what was put before sentences: by ``default``, and in retrieval before ``query`` and
    # ``document``; None for nothing
    prompts: dict[str, str] | None = None
    dimensions: int | None = None  # leading ones that were kept of an embedding; None for all
    engine: str | None = None  # what computed the transformer where that was not torch
    # how embeddings are compared, ``dot``, ``euclidean`` or ``manhattan``; None for cosines
    similarity: str | None = None
    precision: str  # ``fp32``, ``bf16``, or ``int8`` with that engine
    seed: int | None = None  # of the training run that made the encoder; None if not known
    # the command line that measured; None where there was none, or in older files
    command: str | None = field(default=None, compare=False)
    versions: dict[str, str]  # of the packages that computed


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Usage):
    """A score that can stand in a table beside another paper's."""

    task: str  # such as ``sts12``, ``stsb`` or ``stsb-retrieval``
    subset: str = ""  # the part of the task, such as ``MSRpar``; empty for the whole task
    split: str
    metric: str  # such as ``spearman``, ``accuracy`` or ``recall@10``
    # ``all`` (subsets concatenated), ``mean``, ``wmean`` (weighted by pairs), or ``subset`` for the
    # score of one subset
    aggregation: str
    value: float  # in [-1, 1] for a correlation; never multiplied by 100
    pairs: int  # how many scored sentence pairs, or queries, the value rests on
    protocol: str | None = None  # whose number this is, such as ``simcse``; None if not asked for
    # what was fitted to the training split to predict the scores, as ``senteval``; None for cosines
    regressor: str | None = None
    interval: Interval | None = None  # how sure the value is; None if not asked for
    compared: Compared | None = None
    # how a transfer task was learned: classifier, preset and its settings, folds and the seed of
    # training and folds (not of nested ones with ``senteval``); None for what needs no classifier
    classifier: dict[str, str | int] | None = None
    # how much of the task stands in the text that the encoder was trained on: its ``file``, and of
    # how many ``sentences`` and ``pairs`` how many are ``sentences_seen`` and ``pairs_together``,
    # in letters and digits; None where that was not looked for
    overlap: dict[str, str | int] | None = None
    data_sha256: str  # of the evaluation files that were read, one after the other


@cache
def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that have a part in a score."""
    versions = {"python": platform.python_version(), "contrasent": __version__}
    for package in ("torch", "transformers", "tokenizers", "numpy", "scipy"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


FORMAT = 1
"""Of lines that name their kind."""


def lines_of_kind(kind: str, results: Iterable[Any]) -> str:
    """Dataclasses of one kind as JSON lines in full precision."""
    named = {"kind": kind, "format": FORMAT}
    dumps = partial(json.dumps, ensure_ascii=False, default=lambda array: array.tolist())
    return "".join(dumps({**named, **asdict(it)}) + "\n" for it in results)


def fields_of_kind(values: Any, kind: str) -> dict[str, Any]:
    """The fields in a JSON value that `lines_of_kind` wrote.

    A KeyError, TypeError or ValueError if the format or the kind is another.
    """
    if not isinstance(values, dict) or values.pop("kind", None) != kind:
        raise TypeError(f"no JSON object of kind {kind!r}")
    if (written := values.pop("format")) != FORMAT:
        raise ValueError(f"its format is {written}, and only {FORMAT} can be read")
    return values


def json_lines(records: Iterable[Record]) -> str:
    """Records as JSON lines in full precision."""
    return "".join(json.dumps(asdict(record)) + "\n" for record in records)


def read_records(path: str | Path) -> list[Record]:
    """Read what `json_lines` wrote; a DataError names file and line of anything else."""
    return read_lines(path, TypeAdapter(Record).validate_python, "not a record")


def read_lines(path: str | Path, parse: Callable[[Any], T], otherwise: str) -> list[T]:
    """What ``parse`` makes of the JSON value of each line.

    DataError if a line is no JSON, or ``parse`` raises ``KeyError``, ``TypeError`` or
    ``ValueError``; the message names file and line, and calls it ``otherwise``.
    """
    results = []
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                results.append(parse(json.loads(line)))
            except (KeyError, TypeError, ValueError) as error:
                reason = "; ".join(part.strip() for part in str(error).splitlines()[:3])
                raise DataError(f"{path}:{number}: {otherwise}: {reason}") from error
    return results
