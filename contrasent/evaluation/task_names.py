"""Names of tasks: the public ones, and a user's own files and data sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from contrasent.errors import ConfigError, pick
from contrasent.evaluation.transfer_data import TRANSFER_TASKS

CLASSIFY = "classify:"
"""Stands before sentences with labels, where their columns do not say that they are."""

RETRIEVE = "retrieve:"
"""Stands before queries, documents and relevance."""

CROPS, NEXT, HELD_OUT = "crops:", "next:", "held-out"
"""Stand before text without labels: halves of a text, or sentences of a document, find each other;
or before what is made of the text that a run holds out."""

STSB_RETRIEVAL = "stsb-retrieval"
"""DiffCSE's retrieval task, made of STS-B."""

ALL_SPLITS = ("train", "dev", "test")

SPLITS = ("all", *ALL_SPLITS)
"""``all`` is the pairs of the three together."""

_OWN_FILE = re.compile(r"\.((tsv|csv|jsonl|txt|qrels)(\.gz)?|parquet|npy)$", re.IGNORECASE)
_PAIRS_FILE = re.compile(r"\.((tsv|csv|jsonl)(\.gz)?|parquet)$", re.IGNORECASE)
_SPLIT = re.compile(rf"(.+)-({'|'.join(SPLITS)})")


@dataclass(frozen=True, slots=True)
class StsTask:
    """An STS task of SentEval's folder, as a row of :data:`STS_TASKS`.

    It has either a folder of subsets, which are its test split, or a tab-separated file per split.
    """

    name: str  # as ``--tasks`` takes it, such as ``stsb``; in lower case, without ``-`` and ``_``
    heading: str  # as tables name it, such as ``STS-B``
    folder: str = ""  # holds ``STS.input.SUBSET.txt`` and ``STS.gs.SUBSET.txt`` of every subset
    subsets: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    # where both sentences and the score are in a file, from 0
    columns: tuple[int, int, int] = (0, 1, 2)
    header: bool = False  # whether the first line of a file names its columns
    papers: bool = True  # one of the seven that ``sts`` stands for and that the papers average
    aliases: tuple[str, ...] = ()  # other names, written as ``name`` is

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that can be scored."""
        return ("test",) if self.subsets else SPLITS


STS_TASKS = {
    task.name: task
    for task in (
        StsTask(
            name="sts12",
            heading="STS12",
            folder="STS/STS12-en-test",
            subsets=("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
        ),
        # The SMT part of 2013 may not be redistributed; SentEval leaves it out too.
        StsTask("sts13", "STS13", "STS/STS13-en-test", ("FNWN", "headlines", "OnWN")),
        StsTask(
            name="sts14",
            heading="STS14",
            folder="STS/STS14-en-test",
            subsets=("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
        ),
        StsTask(
            name="sts15",
            heading="STS15",
            folder="STS/STS15-en-test",
            subsets=("answers-forums", "answers-students", "belief", "headlines", "images"),
        ),
        StsTask(
            name="sts16",
            heading="STS16",
            folder="STS/STS16-en-test",
            subsets=(
                *("answer-answer", "headlines", "plagiarism", "postediting"),
                "question-question",
            ),
        ),
        StsTask(
            name="stsb",
            heading="STS-B",
            files={split: f"STS/STSBenchmark/sts-{split}.csv" for split in ALL_SPLITS},
            columns=(5, 6, 4),
            aliases=("stsbenchmark",),
        ),
        StsTask(
            name="sickr",
            heading="SICK-R",
            files={
                "train": "SICK/SICK_train.txt",
                "dev": "SICK/SICK_trial.txt",
                "test": "SICK/SICK_test_annotated.txt",
            },
            columns=(1, 2, 3),
            header=True,
            aliases=("sickrelatedness",),
        ),
    )
}
"""The STS tasks, in the order of the papers' tables. To add one, add a row."""

STS = tuple(task.name for task in STS_TASKS.values() if task.papers)
"""The seven tasks that ``sts`` stands for."""

TRANSFER = tuple(task.name for task in TRANSFER_TASKS.values() if task.papers)
"""The seven tasks that ``transfer`` stands for."""


@dataclass(frozen=True, slots=True)
class TaskName:
    """One task and one of its :data:`SPLITS`; a user's file is ``test``.

    ``name`` is one of :data:`STS_TASKS` or :data:`TRANSFER_TASKS`, :data:`STSB_RETRIEVAL`, the path
    of a user's file or folder, or a data set's id.
    """

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
        if task := STS_TASKS.get(self.name) or TRANSFER_TASKS.get(self.name):
            name = task.heading
        elif self.name == STSB_RETRIEVAL:
            name = "STS-B retrieval"
        name += " (proxy)" if self.is_proxy else ""
        return name if self.split == "test" else f"{name} {self.split}"

    @property
    def is_proxy(self) -> bool:
        """Whether it is made of text without labels."""
        return self.name.startswith((CROPS, NEXT, f"{HELD_OUT} "))

    @property
    def in_senteval(self) -> bool:
        """Whether it is read from SentEval's folder."""
        return self.name in (*STS_TASKS, *TRANSFER_TASKS, STSB_RETRIEVAL)


def short_headings(names: Sequence[TaskName]) -> dict[TaskName, str]:
    """Headings of tasks; files of one name in several folders are told apart by their paths."""
    short = [name.heading for name in names]
    return {name: name.heading if short.count(name.heading) == 1 else name.label for name in names}


def known_tasks(text: str) -> tuple[tuple[str, ...], str | None]:
    """The tasks of SentEval's folder that a text names, and the split behind it.

    ``STS-B-dev`` names ``stsb`` and ``dev``, ``sts`` the seven and no split, ``mine.tsv`` no task.
    """
    name, split = _normalise(text)
    if name in ("sts", "transfer"):
        return (STS if name == "sts" else TRANSFER), split
    aliases: dict[str, tuple[str, ...]] = {STSB_RETRIEVAL: (STSB_RETRIEVAL.replace("-", ""),)}
    aliases |= {key: row.aliases for key, row in (STS_TASKS | TRANSFER_TASKS).items()}
    return tuple(key for key, others in aliases.items() if name in (key, *others)), split


def _normalise(text: str) -> tuple[str, str | None]:
    """A name in lower case without ``-``, ``_`` and spaces, and the split behind it."""
    name, split = text.strip().lower(), None
    if suffixed := _SPLIT.fullmatch(name):
        name, split = suffixed[1], suffixed[2]
    return re.sub(r"[-_ ]", "", name), split


def refuse(text: str) -> NoReturn:
    """Refuse what names no scored pairs, with the nearest names."""
    tasks, _ = known_tasks(text)
    if not tasks and _is_path(text):
        there = Path(text.strip()).expanduser().exists()
        found = "is no file of rated pairs by its name" if there else "is not there"
        raise ConfigError(
            f"{text!r} {found}: they are a .tsv, .csv, .jsonl or .parquet file of sentence, "
            f"sentence, score (or label). 'contrasent evaluate' scores text without labels as "
            f"crops:{text} or next:{text}"
        )
    if not tasks:
        form = (
            "task (a name, or a .tsv, .csv, .jsonl or .parquet file of sentence, sentence, score)"
        )
        choices = ("sts", "transfer", *STS_TASKS, *TRANSFER_TASKS, STSB_RETRIEVAL)
        pick(form, _normalise(text)[0], choices)
    kind = "retrieval" if tasks == (STSB_RETRIEVAL,) else "transfer"
    raise ConfigError(
        f"{text!r} is a {kind} task, which has no correlation; 'contrasent evaluate' and "
        "contrasent.evaluate score it"
    )


def _is_path(text: str) -> bool:
    """Whether a text looks like the path of a file or folder, or is one."""
    path = Path(text.strip()).expanduser()
    return bool(path.suffix) or len(path.parts) > 1 or path.exists()


def task_names(asked: Sequence[str], splits: Sequence[str] = ("test",)) -> list[TaskName]:
    """Resolve the names of scored pairs, each task and split once, in the order asked.

    They are ``sts`` (all seven), a task such as ``stsb`` or ``STS-B``, one with its split such as
    ``stsb-dev``, or a file or data set of sentence, sentence, score. Of the ``splits`` of tasks
    without one, those that a task does not have are left out. ConfigError if a name is unknown or
    a task has none of the splits.
    """
    names: list[TaskName] = []
    for text in asked:
        named = sts_names(text, splits)
        if named is None:
            refuse(text)
        names += named
    return list(dict.fromkeys(names))


def sts_names(text: str, splits: Sequence[str]) -> list[TaskName] | None:
    """The scored pairs that a text names; None if it names something else.

    A split that the task does not have is a ConfigError, and so is a task with none of ``splits``.
    """
    if _PAIRS_FILE.search(text.strip()) or _is_dataset(text.strip()):
        return [TaskName(text.strip())]
    tasks, split = known_tasks(text)
    if not tasks or tasks[0] not in STS_TASKS:
        return None
    wanted = splits if split is None else (split,)
    names = [TaskName(t, s) for s in wanted for t in tasks if s in STS_TASKS[t].splits]
    if not names and (split or len(tasks) == 1):
        missing = split or ", ".join(splits)
        raise ConfigError(f"{text!r}: {tasks[0]} has no {missing} split, only test")
    return names


def require_names(names: Sequence[TaskName], asked: Sequence[str], splits: Sequence[str]) -> None:
    """Refuse tasks of which nothing is left to be scored."""
    if not names:
        raise ConfigError(
            f"no task to score: {', '.join(asked)} with split {', '.join(splits)} names none; "
            "STS12-16 have a test split only, transfer tasks a dev and a test split"
        )


def averaged(names: Iterable[TaskName]) -> list[TaskName]:
    """The papers' STS tasks of ``names`` that an average is over: their test splits.

    Where the test split of a task is not there on its own, that is the pairs of all its splits.
    """
    names = list(names)
    tests = {name.name for name in names if name.split == "test"}
    return [
        name
        for name in names
        if (task := STS_TASKS.get(name.name))
        and task.papers
        and (name.split == "test" or (name.split == "all" and name.name not in tests))
    ]


def names_own_data(text: str) -> bool:
    """Whether a text names a user's file or a data set, by its form."""
    return bool(_OWN_FILE.search(text)) or _is_dataset(text)


def joined_sources(text: str) -> tuple[str, ...]:
    """What stands between the ``+`` of a name, each with its home folder written out.

    A ``+`` that is part of a file's name or of a data set's split is left alone: all pieces have to
    be files by their endings, or ids of data sets.
    """
    text = text.strip()
    pieces = [piece.strip() for piece in text.split("+")]
    if Path(text).expanduser().exists() or not all(map(names_own_data, pieces)):
        pieces = [text]
    return tuple(str(Path(piece).expanduser()) if piece else piece for piece in pieces)


def require_source(text: str, prefix: str, form: str) -> None:
    """Refuse a prefix with nothing of the form behind it."""
    if not text.removeprefix(prefix).strip():
        raise ConfigError(f"{text!r} names nothing to read; give {prefix}{form}")


def short_name(text: str) -> str:
    """A name of own data for tables: the last part of every path."""
    for prefix, words in ((CROPS, "crops of"), (NEXT, "next sentences of")):
        if text.startswith(prefix):
            return f"{words} {Path(text.removeprefix(prefix)).name}"
    named = text.removeprefix(CLASSIFY).removeprefix(RETRIEVE)
    return "+".join(Path(piece).name for piece in joined_sources(named))


def _is_dataset(text: str) -> bool:
    from contrasent.data.readers import dataset_parts

    return "/" in text and dataset_parts(text) is not None
