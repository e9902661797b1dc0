"""Texts that maps are fitted on, and their embeddings."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrasent.data.batch import pack
from contrasent.data.examples import open_examples
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import STS_TASKS, TaskName, known_tasks, task_names
from contrasent.model.encoder import SentenceEncoder, token_ids
from contrasent.model.precision import matrix_precision

_AT_ONCE = 8192
"""Sentences that are embedded at a time."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of sentences: a file, a data set, or a task with its split.

    ``columns`` says how those of a file were understood. A ``target`` is the text of a task, whose
    test sentences are seen that way.
    """

    source: str
    sentences: int
    columns: str
    sha256: str
    target: bool


@dataclass(frozen=True, slots=True)
class FittingText:
    """Sentences read anew by every iteration, all those of a row one after the other."""

    texts: Sequence[Iterable[Sequence[str]]]  # rows of sentences
    origins: tuple[Origin, ...]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chain.from_iterable(self.texts))

    def __len__(self) -> int:
        return sum(origin.sentences for origin in self.origins)

    @property
    def is_target(self) -> bool:
        """Whether text of evaluation tasks is among it."""
        return any(origin.target for origin in self.origins)

    @property
    def described(self) -> str:
        """The text, in words."""
        files = [origin.source for origin in self.origins if not origin.target]
        tasks = [origin.source for origin in self.origins if origin.target]
        target = f"target text ({', '.join(tasks)}): the test sentences were seen"
        return " and ".join([*files, *([target] if tasks else [])])

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """Its origins, as ``contrasent.json`` keeps them."""
        return [asdict(origin) for origin in self.origins]


def open_fitting_text(
    names: Sequence[str], columns: Sequence[str] | None = None, data_dir: str | Path | None = None
) -> FittingText:
    """Find the text that names stand for, as files if they exist as such.

    They are files and data sets, with the sentence ``columns`` of these, of which every sentence of
    a row is taken; or ``sts`` for the seven STS tasks, one of them, each with all its splits, or
    one with its split, such as ``stsb-dev``.
    """
    tasks: dict[TaskName, None] = {}
    texts: list[Iterable[Sequence[str]]] = []
    origins = []
    for name in names:
        if not Path(name).exists() and STS_TASKS.keys() & known_tasks(name)[0]:
            tasks.update(dict.fromkeys(task_names([name], ("all", "test"))))
            continue
        file = open_examples(name, columns)
        texts.append(file)
        source = Path(file.source).name if Path(file.source).exists() else file.source
        count = sum(map(len, file))
        origins.append(Origin(source, count, file.columns, file.sha256, target=False))
    if columns is not None and not texts:
        raise ConfigError(f"--columns {','.join(columns)} is of files, but none is named by --data")
    whole = {task.name for task in tasks if task.split == "all"}
    for task in tasks:
        if task.split == "all" or task.name not in whole:
            read = load(task, data_dir)
            sentences = list(read.sentences)
            texts.append([sentences])
            origins.append(Origin(task.heading, len(sentences), "", read.sha256, target=True))
    text = FittingText(texts, tuple(origins))
    if not len(text):
        raise DataError(f"{', '.join(names)}: there is no sentence to fit on")
    return text


def finite_rows(
    encoder: SentenceEncoder, text: Iterable[str], precision: str, show_progress: bool = False
) -> Iterator[NDArray[np.float32]]:
    """Embeddings before normalisation, block by block; one that is not finite is refused."""
    blocks = encoder.encode_stream(
        text, chunk=_AT_ONCE, normalize=False, precision=precision, show_progress=show_progress
    )
    done = 0
    for rows in blocks:
        damaged = ~np.isfinite(rows).all(axis=1)
        if damaged.any():
            raise CheckpointError(
                f"the embedding of sentence {done + int(damaged.argmax())} has a NaN or an "
                f"infinite number, so nothing can be fitted; is {encoder.name} damaged?"
            )
        done += len(rows)
        yield rows


class StoredRows:
    """All embeddings, made once and kept in a temporary file."""

    def __init__(
        self, encoder: SentenceEncoder, text: FittingText, precision: str, show_progress: bool
    ) -> None:
        self._device = encoder.device
        shape, done = (len(text), encoder.width), 0
        with tempfile.TemporaryFile() as file:  # lives as long as it is mapped
            self._rows = np.memmap(file, np.float32, "w+", shape=shape)
        for rows in finite_rows(encoder, text, precision, show_progress):
            self._rows[done : done + len(rows)] = rows
            done += len(rows)

    def batch(self, numbers: NDArray[np.int64], *, dropout: bool) -> Tensor:
        """``(n, D)`` embeddings of the sentences with these numbers; none has dropout."""
        del dropout
        return torch.from_numpy(self._rows[numbers]).to(self._device)


class DrawnRows:
    """Embeddings made anew whenever they are asked for, under new dropout masks."""

    def __init__(self, encoder: SentenceEncoder, text: FittingText, precision: str) -> None:
        self._encoder = encoder
        self._precision = encoder.resolve_precision(precision)
        prompt = encoder.conventions.resolve()
        self._ids: Sequence[NDArray[np.int64]]
        self._ids, _ = token_ids(encoder, list(text), 0, "truncate", prompt)

    def batch(self, numbers: NDArray[np.int64], *, dropout: bool) -> Tensor:
        """``(n, D)`` embeddings of the sentences with these numbers."""
        encoder, was_training = self._encoder, self._encoder.training
        batch = pack([self._ids[number] for number in numbers]).to(encoder.device)
        encoder.train(dropout)
        try:
            with torch.no_grad(), matrix_precision(self._precision, encoder.device):
                rows: Tensor = encoder(batch).pooled[0]
        finally:
            encoder.train(was_training)
        return rows
