"""SentEval's transfer tasks: sentences, or pairs of them, to classify."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrasent.errors import ConfigError
from contrasent.evaluate.described import Encoder
from contrasent.evaluate.kinds.base import OneByOne, Options, Text, Use
from contrasent.evaluate.sts import Scores
from contrasent.evaluate.tasks import TRANSFER, TaskName
from contrasent.evaluate.transfer import score_transfer
from contrasent.evaluate.transfer_presets import Protocol
from contrasent.evaluate.transfer_read import TransferTask, load_transfer
from contrasent.evaluate.transfer_sklearn import logistic_regression
from contrasent.evaluate.vectors import Given, Side
from contrasent.records import Record

SPLITS = ("dev", "test")
"""``dev`` is the accuracy that chose the penalty, ``test`` that of the test part."""

_NAME = re.compile(r"(.+?)(?:-(train|dev|test|all))?")
_LONG_NAMES = {"sst": "sst2"}


@dataclass(frozen=True, slots=True)
class Learned:
    """A task, and the splits that are to have records."""

    task: TransferTask
    splits: tuple[str, ...]


class Transfer(OneByOne[Learned]):
    """Accuracies of classifiers on frozen embeddings."""

    name = "transfer"
    place = 20

    def names(self, asked: Sequence[str], options: Options) -> tuple[list[TaskName], list[str]]:
        """Pick the transfer tasks out of what a user asked for.

        Args:
            asked: names of tasks: ``transfer`` (all seven), one such as ``mr`` or ``SST-2``, one
                with its split such as ``mr-dev``, and anything else.
            options: splits other than :data:`SPLITS` are left out.

        Raises:
            ConfigError: a transfer task is named with another split, or none is left.
        """
        found: list[TaskName] = []
        others: list[str] = []
        for text in asked:
            members, split = _understood(text)
            if not members:
                others.append(text)
                continue
            if split and split not in SPLITS:
                raise ConfigError(
                    f"{text!r}: a transfer task has no score on its {split} split, only dev and "
                    "test"
                )
            wanted = (split,) if split else [n for n in SPLITS[::-1] if n in options.splits]
            found += [TaskName(member, name) for name in wanted for member in members]
        if asked and not found and not others:
            raise ConfigError(
                f"no task to score: {', '.join(asked)} with split {', '.join(options.splits)} "
                "names none; transfer tasks have a dev and a test split"
            )
        return list(dict.fromkeys(found)), others

    def sources(self, names: Sequence[TaskName]) -> list[list[TaskName]]:
        """A task's splits come of the same files and the same classifiers."""
        tasks = dict.fromkeys(name.name for name in names)
        return [[name for name in names if name.name == task] for task in tasks]

    def load(self, names: Sequence[TaskName], options: Options) -> Learned:
        """Read one task.

        Raises:
            MissingExtraError: scikit-learn is asked for and not installed.
        """
        if options.learning.classifier == "sklearn":
            logistic_regression()
        task = load_transfer(names[0].name, options.data_dir)
        return Learned(task, tuple(name.split for name in names))

    def score(self, task: Learned, use: Use, options: Options) -> Scores:
        """Accuracy of every split, and F1 of MRPC's test part."""
        return score_transfer(task.task, task.splits, use, options)

    def averaged(self, names: Sequence[TaskName]) -> list[TaskName]:
        """The test parts."""
        return [name for name in names if name.split == "test"]

    def named(self, task: Learned) -> TaskName:
        """The task, whatever its splits."""
        return TaskName(task.task.name)

    def texts(self, task: Learned) -> Iterator[Text]:
        """The parts that the accuracies are of."""
        parts = [part for split in task.splits for part in _part(task.task, split)]
        for name in dict.fromkeys(parts):
            texts = task.task.parts[name].texts
            half = len(texts) // 2
            pairs = zip(texts[:half], texts[half:], strict=True) if task.task.of_pairs else ()
            yield Text(task.task.name, name, texts, list(pairs))

    def given(self, task: Learned) -> Given:
        """The sentences of all files; of pairs all first ones, then all second ones."""
        heading = TaskName(task.task.name).heading
        sides = tuple(zip(*task.task.given, strict=True))
        said = ("first sentences", "second sentences") if len(sides) == 2 else ("sentences",)
        return Given(heading, tuple(map(Side, said, sides)))


KIND = Transfer()


def evaluate_transfer(  # noqa: PLR0913 - what the command takes, by name
    encoder: Encoder,
    tasks: Sequence[str] = ("transfer",),
    data_dir: str | Path | None = None,
    *,
    precision: str = "fp32",
    splits: Sequence[str] = ("test",),
    seed: int | None = None,
    protocol: Protocol | None = None,
    show_progress: bool = False,
) -> list[Record]:
    """Score an encoder on SentEval's transfer tasks.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        tasks: as :meth:`Transfer.names` takes them.
        data_dir: as :func:`contrasent.evaluate.run.evaluate`.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        protocol: classifier, preset and seed; SentEval's preset ``test`` by default.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: a name is no transfer task, or a precision is unknown.
        DataError: a task's data is missing, damaged or too small.
        CheckpointError: an embedding has a NaN or infinite number, or all are the same.
        MissingExtraError: scikit-learn is asked for and not installed.
    """
    use = Use(encoder, precision, seed, show_progress)
    options = Options(data_dir, splits, learning=protocol or Protocol())
    return KIND.evaluate(use, tasks, options)


def _understood(text: str) -> tuple[tuple[str, ...], str | None]:
    """Tasks and split that ``text`` names; no tasks if it names none."""
    matched = _NAME.fullmatch(text.strip().lower())
    if matched is None:
        return (), None
    name = re.sub(r"[-_ ]", "", matched[1])
    name = _LONG_NAMES.get(name, name)
    members = TRANSFER if name == "transfer" else (name,) if name in TRANSFER else ()
    return members, matched[2]


def _part(task: TransferTask, split: str) -> list[str]:
    """The part that a split's accuracy is of: the one of that name, or what stands in for it."""
    wanted = ("test", "all") if split == "test" else ("dev", "train", "all")
    return [part for part in wanted if part in task.parts][:1]
