"""One measured number with everything needed to compare it; JSON lines in and out."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from contrasent import __version__
from contrasent.errors import DataError
from contrasent.files import write_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A score that can stand in a table beside another paper's.

    Attributes:
        task: what was measured, such as ``sts12``, ``stsb`` or ``sickr``.
        subset: the part of the task, such as ``MSRpar``; empty for the whole task.
        split: ``train``, ``dev`` or ``test``.
        metric: ``spearman`` or ``pearson``.
        aggregation: ``all`` (subsets concatenated), ``mean``, ``wmean`` (weighted by pairs), or
            ``subset`` for the score of one subset.
        value: in [-1, 1] for a correlation; never multiplied by 100.
        pairs: how many scored sentence pairs the value rests on.
        encoder: the name or folder that was evaluated.
        pooler: how token states became the embedding.
        head: ``mlp`` or ``none``, the map after the pooler; None if the encoder does not say.
        max_tokens: longer sentences were cut there; None if the encoder does not say.
        engine: what computed the transformer where that was not torch, such as ``onnx``.
        precision: ``fp32``, ``bf16``, or ``int8`` with that engine.
        seed: the seed of the training run that made the encoder; None if it is not known.
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
    max_tokens: int | None = None
    engine: str | None = None
    precision: str
    seed: int | None = None
    data_sha256: str
    versions: dict[str, str]


_COMPUTED_BY = {"onnx": "onnxruntime", "openvino": "openvino"}


def installed_versions(engine: str | None = None) -> dict[str, str]:
    """Versions of Python and of the packages that have a part in a score made with ``engine``."""
    found = {"python": platform.python_version(), "contrasent": __version__}
    computing = [_COMPUTED_BY[engine]] if engine in _COMPUTED_BY else []
    for package in ("torch", "transformers", "tokenizers", "numpy", "scipy", *computing):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


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
    records = []
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Record(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}:{number}: not a record: {error}") from error
    return records
