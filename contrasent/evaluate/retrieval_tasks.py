"""The retrieval tasks that a user names, and their data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contrasent.errors import ConfigError, DataError, pick
from contrasent.evaluate.read import MissingDataError
from contrasent.evaluate.retrieval_read import RetrievalTask, read_folder, stsb_retrieval
from contrasent.evaluate.sts import Problem
from contrasent.evaluate.tasks import ALL_SPLITS, SPLITS, STSB_RETRIEVAL, TaskName

_NAME = re.compile(r"(.+?)(?:-(train|dev|test|all))?")


@dataclass(frozen=True, slots=True)
class LoadedRetrieval:
    """What was asked for, what of it could be read, and why the rest could not.

    Attributes:
        names: what was asked for, each task and split once.
        tasks: what could be read.
        problems: why the rest could not.
    """

    names: tuple[TaskName, ...] = ()
    tasks: tuple[RetrievalTask, ...] = ()
    problems: tuple[Problem, ...] = ()


def retrieval_names(
    asked: Sequence[str], splits: Sequence[str] = ("test",)
) -> tuple[list[TaskName], list[str]]:
    """Pick the retrieval tasks out of what a user asked for.

    Args:
        asked: names of tasks: ``stsb-retrieval``, it with its split such as
            ``stsb-retrieval-dev``, a folder as :func:`read_folder` takes it, and anything else.
        splits: splits of the tasks named without one; ``all`` is none of them.

    Returns:
        The retrieval tasks, each with its split once in the order asked, and everything else.

    Raises:
        ConfigError: a split is unknown, or no split of a retrieval task.
    """
    for asked_split in splits:
        pick("split", asked_split, SPLITS)
    wanted = [split for split in ALL_SPLITS[::-1] if split in splits]
    found: list[TaskName] = []
    others: list[str] = []
    for text in asked:
        name, split = _understood(text)
        if name is None:
            others.append(text)
        elif split == "all" or not (split or wanted):
            raise ConfigError(
                f"{text!r}: a retrieval task is scored on one split at a time: train, dev or test"
            )
        else:
            found += [TaskName(name, chosen) for chosen in ([split] if split else wanted)]
    return list(dict.fromkeys(found)), others


def load_retrievals(
    names: Sequence[TaskName], data_dir: str | Path | None = None
) -> LoadedRetrieval:
    """Read the tasks whose data is there and in order; the others are problems.

    Args:
        names: as :func:`retrieval_names` returns them.
        data_dir: as :func:`contrasent.evaluate.read.load`.

    Raises:
        DataError: the folder that was named is not there.
    """
    found: list[RetrievalTask] = []
    problems: list[Problem] = []
    for name in names:
        try:
            known = name.name == STSB_RETRIEVAL
            found.append(stsb_retrieval(name, data_dir) if known else read_folder(name))
        except MissingDataError as error:
            problems.append(Problem(name.label, f"{error.path} is missing", missing=True))
        except DataError as error:
            problems.append(Problem(name.label, str(error)))
    return LoadedRetrieval(tuple(names), tuple(found), tuple(problems))


def _understood(text: str) -> tuple[str | None, str | None]:
    """The retrieval task that ``text`` names, None if it names none, and its split."""
    folder = Path(text.strip()).expanduser()
    # A folder named without a slash may only by chance be called as a task is.
    is_path = folder.name != text.strip() or any(folder.glob("corpus.*"))
    matched = _NAME.fullmatch(text.strip().lower())
    if matched and re.sub(r"[-_ ]", "", matched[1]) == "stsbretrieval":
        return STSB_RETRIEVAL, matched[2]
    if text.strip() and folder.is_dir() and is_path:
        return str(folder if folder.name else folder.resolve()), None
    return None, None
