"""Names of tasks: the public ones, and a user's own files and data sets."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import yaml
from pydantic import TypeAdapter

from contrasent.data.readers import dataset_parts
from contrasent.errors import ConfigError, pick
from contrasent.records import Saved

CLASSIFY = "classify:"
"""Stands before sentences with labels, where their columns do not say that they are."""

RETRIEVE = "retrieve:"
"""Stands before queries, documents and relevance."""

HELD_OUT = "held-out"
"""Stands before what is made of the text that a run holds out."""

STSB_RETRIEVAL = "stsb-retrieval"
"""DiffCSE's retrieval task, made of STS-B."""

ALL_SPLITS = ("train", "dev", "test")

SPLITS = ("all", *ALL_SPLITS)
"""``all`` is the pairs of the three together."""

_FORM = ".tsv, .csv, .jsonl or .parquet file of sentence, sentence, score"
_OWN_FILE = re.compile(r"\.((tsv|csv|jsonl|txt|qrels)(\.gz)?|parquet)$", re.IGNORECASE)
_PAIRS_FILE = re.compile(r"\.((tsv|csv|jsonl)(\.gz)?|parquet)$", re.IGNORECASE)
_SPLIT = re.compile(rf"(.+?)(?:-({'|'.join(SPLITS)}))?")


@dataclass(frozen=True, slots=True)
class StsTask(Saved):
    """An STS task of SentEval's folder."""

    name: str  # as ``--tasks`` takes it, such as ``stsb``; in lower case, without ``-`` and ``_``
    heading: str  # as tables name it, such as ``STS-B``
    folder: str = ""  # holds ``STS.input.SUBSET.txt`` and ``STS.gs.SUBSET.txt`` of every subset
    subsets: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    # where both sentences and the score are in a file, from 0
    columns: tuple[int, int, int] = (0, 1, 2)
    header: bool = False  # whether the first line of a file names its columns
    papers: bool = True  # one of the seven that ``sts`` stands for and that the papers average

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that can be scored."""
        return ("test",) if self.subsets else SPLITS


@dataclass(frozen=True, slots=True)
class TransferTask(Saved):
    """A transfer task."""

    name: str  # as ``--tasks`` takes it, such as ``sst2``; in lower case, without ``-`` and ``_``
    heading: str  # as tables name it, such as ``SST-2``
    files: tuple[str, ...]  # in SentEval's folder, in the order of ``split``
    form: str = "polar"  # of its files, a key of `contrasent.evaluation.transfer.READERS`
    classes: int = 2
    # parts: one of all files, judged by nested cross-validation; or train and test, where folds of
    # train choose the penalty; or train, dev and test, where dev does
    split: tuple[str, ...] = ("all",)
    pairs: bool = False  # pairs of sentences are classified; they have an F1 of class 1 too
    papers: bool = True  # one of the seven that ``transfer`` stands for and that the papers average
    published: str = ""  # its column in published tables, where that is not ``heading``


ROWS = yaml.safe_load(Path(__file__).with_name("tasks.yaml").read_text(encoding="utf-8"))
STS_TASKS = {it.name: it for it in TypeAdapter(list[StsTask]).validate_python(ROWS["sts"])}
_TRANSFER = TypeAdapter(list[TransferTask]).validate_python(ROWS["transfer"])
TRANSFER_TASKS = {it.name: it for it in _TRANSFER}
"""The tasks of both kinds, in the order of the papers' tables, as ``tasks.yaml`` has them."""

STS = tuple(task.name for task in STS_TASKS.values() if task.papers)
"""The seven tasks that ``sts`` stands for."""

TRANSFER = tuple(task.name for task in TRANSFER_TASKS.values() if task.papers)
"""The seven tasks that ``transfer`` stands for."""


@dataclass(frozen=True, slots=True)
class TaskName:
    """One task and one of its :data:`SPLITS`; a user's file or data set is ``test``."""

    name: str
    split: str = "test"

    @property
    def label(self) -> str:
        """How the user names it: ``stsb``, ``stsb-dev`` or the path of a file."""
        return self.name if self.split == "test" else f"{self.name}-{self.split}"

    @property
    def heading(self) -> str:
        """How a table names it: ``STS-B``, ``STS-B dev`` or the name of a file."""
        name = short_name(self.name)
        if self.name.startswith(f"{HELD_OUT} "):  # made of text without labels
            name += " (proxy)"
        if task := STS_TASKS.get(self.name) or TRANSFER_TASKS.get(self.name):
            name = task.heading
        elif self.name == STSB_RETRIEVAL:
            name = "STS-B retrieval"
        return name if self.split == "test" else f"{name} {self.split}"

    @property
    def in_senteval(self) -> bool:
        """True if it is read from SentEval's folder."""
        return self.name in (*STS_TASKS, *TRANSFER_TASKS, STSB_RETRIEVAL)


@dataclass(frozen=True, slots=True)
class TaskText:
    """The sentences of a task's split, and the pairs of them that belong together."""

    task: str
    split: str
    sentences: Sequence[str]
    pairs: Sequence[tuple[str, str]]


def short_headings(names: Sequence[TaskName]) -> dict[TaskName, str]:
    """Headings of tasks; files of one name in several folders are told apart by their paths."""
    short = [name.heading for name in names]
    return {name: name.heading if short.count(name.heading) == 1 else name.label for name in names}


def known_tasks(text: str) -> tuple[tuple[str, ...], str | None]:
    """The tasks of SentEval's folder that a text names, and the split behind it."""
    name, split = _normalise(text)
    if name in ("sts", "transfer"):
        return (STS if name == "sts" else TRANSFER), split
    known = (*STS_TASKS, *TRANSFER_TASKS, STSB_RETRIEVAL)
    return tuple(task for task in known if name == task.replace("-", "")), split


def _normalise(text: str) -> tuple[str, str | None]:
    parsed = _SPLIT.fullmatch(text.strip().lower())
    name, split = parsed.groups() if parsed else ("", None)
    return re.sub(r"[-_ ]", "", name), split


def refuse(text: str) -> NoReturn:
    """Refuse what names no scored pairs, with the nearest names."""
    path = Path(text.strip()).expanduser()
    if not (known_tasks(text)[0] or path.exists() or path.suffix or len(path.parts) > 1):
        choices = ("sts", "transfer", *STS_TASKS, *TRANSFER_TASKS, STSB_RETRIEVAL)
        pick(f"task (a name, or a {_FORM})", _normalise(text)[0], choices)
    wrong = "cannot be read as rated pairs" if path.exists() else "is no file or scored pairs"
    remedy = "text without labels is for 'contrasent evaluate MODEL --text FILE'"
    raise ConfigError(f"{text!r} {wrong}; name a {_FORM}; {remedy}")


def task_names(asked: Sequence[str], splits: Sequence[str] = ("test",)) -> list[TaskName]:
    """Resolve the names of scored pairs, each task and split once, in the order asked.

    Of the ``splits`` of tasks named without one, those that a task does not have are left out.
    """
    named = ((text, sts_names(text, splits)) for text in asked)
    return list(dict.fromkeys(it for text, names in named for it in names or refuse(text)))


def sts_names(text: str, splits: Sequence[str]) -> list[TaskName] | None:
    """The scored pairs that a text names; None if it names something else."""
    if _PAIRS_FILE.search(text.strip()) or dataset_parts(text.strip()):
        return [TaskName(text.strip())]
    return public_names(text, splits, {task.name: task.splits for task in STS_TASKS.values()})


def public_names(
    text: str, splits: Sequence[str], tasks: Mapping[str, Sequence[str]]
) -> list[TaskName] | None:
    """Those of ``tasks``, each with the splits that it has, that a text names; None of others."""
    names, split = known_tasks(text)
    if not names or names[0] not in tasks:
        return None
    wanted = (split,) if split else splits
    matching = [TaskName(name, it) for it in wanted for name in names if it in tasks[name]]
    if not matching and (split or len(names) == 1):
        only = ", ".join(tasks[names[0]])
        raise ConfigError(f"{text!r} has no score on {', '.join(wanted)}, only on {only}")
    return matching


def averaged(names: Iterable[TaskName]) -> list[TaskName]:
    """The papers' STS tasks that an average is over: test splits, or else all pairs."""
    papers = [it for it in names if it.name in STS]
    tests = {it.name for it in papers if it.split == "test"}
    return [it for it in papers if it.split == ("test" if it.name in tests else "all")]


def names_own_data(text: str) -> bool:
    """True if a text names a user's file or a data set, by its form."""
    return bool(_OWN_FILE.search(text) or dataset_parts(text))


def joined_sources(text: str) -> tuple[str, ...]:
    """The sources between the ``+`` of a name, each with its home folder written out."""
    text = text.strip()
    pieces = [piece.strip() for piece in text.split("+")]
    if Path(text).expanduser().exists() or not all(map(names_own_data, pieces)):
        pieces = [text]
    return tuple(str(Path(piece).expanduser()) if piece else piece for piece in pieces)


def short_name(text: str) -> str:
    """A name of own data for tables: the last part of every path."""
    named = text.removeprefix(CLASSIFY).removeprefix(RETRIEVE)
    return "+".join(Path(piece).name for piece in joined_sources(named))
