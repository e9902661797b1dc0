"""The transfer tasks that a user names, and their data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contrasent.data.senteval import senteval_root
from contrasent.errors import ConfigError, DataError, pick
from contrasent.evaluate.read import MissingDataError
from contrasent.evaluate.sts import Problem
from contrasent.evaluate.tasks import SPLITS as ALL_SPLITS
from contrasent.evaluate.tasks import TRANSFER, TaskName
from contrasent.evaluate.transfer_read import TransferTask, load_transfer

SPLITS = ("dev", "test")
"""``dev`` is the accuracy that chose the penalty, ``test`` that of the test part."""

_NAME = re.compile(r"(.+?)(?:-(train|dev|test|all))?")
_LONG_NAMES = {"sst": "sst2"}


@dataclass(frozen=True, slots=True)
class LoadedTransfer:
    """What was asked for, what of it could be read, and why the rest could not.

    Attributes:
        names: what was asked for, each task and split once.
        tasks: what could be read.
        problems: why the rest could not.
    """

    names: tuple[TaskName, ...] = ()
    tasks: tuple[TransferTask, ...] = ()
    problems: tuple[Problem, ...] = ()


def transfer_names(
    asked: Sequence[str], splits: Sequence[str] = ("test",)
) -> tuple[list[TaskName], list[str]]:
    """Pick the transfer tasks out of what a user asked for.

    Args:
        asked: names of tasks: ``transfer`` (all seven), one such as ``mr`` or ``SST-2``, one with
            its split such as ``mr-dev``, and anything else.
        splits: splits of the tasks named without one; others than :data:`SPLITS` are left out.

    Returns:
        The transfer tasks, each with its split once in the order asked, and everything else.

    Raises:
        ConfigError: a split is unknown, or no split of a transfer task.
    """
    for asked_split in splits:
        pick("split", asked_split, ALL_SPLITS)
    found: list[TaskName] = []
    others: list[str] = []
    for text in asked:
        members, split = _understood(text)
        if not members:
            others.append(text)
            continue
        if split and split not in SPLITS:
            raise ConfigError(
                f"{text!r}: a transfer task has no score on its {split} split, only dev and test"
            )
        wanted = (split,) if split else [name for name in SPLITS[::-1] if name in splits]
        found += [TaskName(member, name) for name in wanted for member in members]
    if asked and not found and not others:
        raise ConfigError(
            f"no task to score: {', '.join(asked)} with split {', '.join(splits)} names none; "
            "transfer tasks have a dev and a test split"
        )
    return list(dict.fromkeys(found)), others


def load_transfers(names: Sequence[TaskName], data_dir: str | Path | None = None) -> LoadedTransfer:
    """Read the tasks whose data is there and in order; the others are problems.

    Args:
        names: as :func:`transfer_names` returns them.
        data_dir: as :func:`contrasent.evaluate.read.load`.

    Raises:
        DataError: the folder that was named is not there.
    """
    if not names:
        return LoadedTransfer()
    root = senteval_root(data_dir)
    found: list[TransferTask] = []
    problems: list[Problem] = []
    for name in dict.fromkeys(name.name for name in names):
        try:
            found.append(load_transfer(name, root))
        except MissingDataError as error:
            problems.append(Problem(name, f"{error.path} is missing", missing=True))
        except DataError as error:
            problems.append(Problem(name, str(error)))
    return LoadedTransfer(tuple(names), tuple(found), tuple(problems))


def _understood(text: str) -> tuple[tuple[str, ...], str | None]:
    """Tasks and split that ``text`` names; no tasks if it names none."""
    matched = _NAME.fullmatch(text.strip().lower())
    if matched is None:
        return (), None
    name = re.sub(r"[-_ ]", "", matched[1])
    name = _LONG_NAMES.get(name, name)
    members = TRANSFER if name == "transfer" else (name,) if name in TRANSFER else ()
    return members, matched[2]
