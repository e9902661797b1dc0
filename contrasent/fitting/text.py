"""Texts that maps are fitted on, and their embeddings.

Shapes: N sentences of a text, n of a batch, D width.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrasent.data.batch import pack
from contrasent.data.examples import Examples, open_examples
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.evaluation.sts_data import Task, load
from contrasent.evaluation.task_names import STS_TASKS, TaskName, known_tasks, task_names
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.encoding import token_ids
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


class FittingText:
    """Sentences read anew by every iteration, all those of a row one after the other."""

    def __init__(self, files: Sequence[Examples], tasks: Sequence[Task]) -> None:
        self._files = files
        self._tasks = tasks

    def __iter__(self) -> Iterator[str]:
        for examples in self._files:
            for sentences in examples:
                yield from sentences
        for task in self._tasks:
            yield from task.sentences

    def __len__(self) -> int:
        """The number of sentences; the first call reads everything."""
        return sum(origin.sentences for origin in self.origins)

    @cached_property
    def origins(self) -> tuple[Origin, ...]:
        """The origins of the sentences."""
        origins = []
        for text in self._files:
            name = Path(text.source).name if Path(text.source).exists() else text.source
            count = sum(map(len, text))
            origins.append(Origin(name, count, text.columns, text.sha256, target=False))
        for task in self._tasks:
            count = sum(1 for _ in task.sentences)
            origins.append(Origin(task.name.heading, count, "", task.sha256, target=True))
        return tuple(origins)

    @property
    def is_target(self) -> bool:
        """Whether text of evaluation tasks is among it."""
        return bool(self._tasks)

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
    files = []
    for name in names:
        if not Path(name).exists() and is_task(name):
            tasks.update(dict.fromkeys(task_names([name], ("all", "test"))))
        else:
            files.append(open_examples(name, columns))
    if columns is not None and not files:
        raise ConfigError(f"--columns {','.join(columns)} is of files, but none is named by --data")
    whole = {task.name for task in tasks if task.split == "all"}
    once = [task for task in tasks if task.split == "all" or task.name not in whole]
    text = FittingText(files, [load(task, data_dir) for task in once])
    if not len(text):
        raise DataError(f"{', '.join(names)}: there is no sentence to fit on")
    return text


def is_task(name: str) -> bool:
    """Whether ``name`` is an STS task, with or without a split."""
    tasks, _ = known_tasks(name)
    return bool(tasks) and tasks[0] in STS_TASKS


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
