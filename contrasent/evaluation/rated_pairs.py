"""Rated pairs of sentences, of which those with a high rating are positive.

Shapes: P pairs, N distinct sentences, D embedding width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.embed import Embeddings, EncoderUse, Places, distinct
from contrasent.evaluation.sts_data import Task, load
from contrasent.evaluation.task_names import STS_TASKS, TaskName, task_names
from contrasent.metrics import Vector

_ASKED = re.compile(r"\s*(.+?)\s*(>=?)\s*(.*?)\s*")
_EXAMPLE = "such as stsb>4, stsb-dev>4, or FILE.tsv>0.8"


@dataclass(frozen=True, slots=True)
class Position:
    """Alignment of the positive pairs, 0 to 4, and uniformity of distinct sentences, -8 to 0."""

    alignment: float
    uniformity: float


@dataclass(frozen=True, slots=True)
class RatedPairs:
    """The pairs of a task, read once to be measured as often as one likes.

    Attributes:
        label: what was asked for, such as ``stsb-dev>4``.
        condition: which ratings make a pair positive, such as ``>4``.
        sentences: the N distinct sentences of all pairs.
        first: ``(P,)``, places in ``sentences`` of those that are paired with ``second``.
        gold: ``(P,)``, the ratings.
        positive: ``(P,)``, whether the rating meets the condition.
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
        """Read the pairs, as :func:`contrasent.evaluation.sts_data.load`.

        ``asked`` is a task or a user's file, ``>`` or ``>=``, and a rating. A task named without a
        split is all its splits together: ``stsb>4`` is train, dev and test.

        Raises:
            ConfigError: ``asked`` cannot be read, or names no task or several; ``columns`` does
                not fit, or the task is no user's file.
            DataError: the data is missing or damaged, or no pair is rated so.
        """
        parsed = _ASKED.fullmatch(asked)
        if parsed is None:
            raise ConfigError(
                f"pairs {asked!r} need the rating above which they are positive, {_EXAMPLE}; in "
                "quotes, as > alone is the shell's"
            )
        name, sign, text = parsed.groups()
        threshold = _number(text, asked)
        chosen = _one_task(name)
        if columns is not None and chosen.name in STS_TASKS:
            raise ConfigError(f"--columns is of your own files, and {name} is a task; leave it out")
        task = load(chosen, data_dir, columns)
        gold = task.gold
        positive = gold >= threshold if sign == ">=" else gold > threshold
        condition = f"{sign}{threshold:g}"
        if not positive.any():
            raise DataError(
                f"{task.name.heading}: no pair is rated {condition}; its {len(gold)} ratings go "
                f"from {gold.min():g} to {gold.max():g}, so ask for a lower one"
            )
        sentences, places = distinct([sentence for side in task.sides for sentence in side])
        first, second = np.split(places, 2)
        return cls(f"{name}{condition}", task, condition, sentences, first, second, gold, positive)

    def embed(self, use: EncoderUse) -> Embeddings:
        """Embeddings ``(N, D)`` of the distinct sentences; each has a direction."""
        return use.embed(self.sentences, of=self.label)

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
    if len({it.name for it in names}) > 1:
        raise ConfigError(f"pairs {name!r} are those of several tasks; name one, {_EXAMPLE}")
    return names[0]
