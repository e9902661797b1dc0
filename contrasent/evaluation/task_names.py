"""Names of tasks: the public ones, and a user's own files and data sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrasent.data.hub_datasets import dataset_parts
from contrasent.errors import ConfigError, pick

CLASSIFY = "classify:"
"""Stands before sentences with labels, where their columns do not say that they are."""

RETRIEVE = "retrieve:"
"""Stands before queries, documents and relevance."""

OWN_FILE = re.compile(r"\.((tsv|csv|jsonl|txt|qrels)(\.gz)?|parquet|npy)$", re.IGNORECASE)


def joined_sources(text: str) -> tuple[str, ...]:
    """What stands between the ``+`` of a name, each with its home folder written out.

    A ``+`` that is part of a file's name or of a data set's split is left alone: all pieces have to
    be files by their endings, or ids of data sets.
    """
    text = text.strip()
    pieces = [piece.strip() for piece in text.split("+")]
    if Path(text).expanduser().exists() or not all(map(_is_source, pieces)):
        pieces = [text]
    return tuple(str(Path(piece).expanduser()) if piece else piece for piece in pieces)


def require_source(text: str, prefix: str, form: str) -> None:
    """Make sure that something stands behind a prefix.

    Args:
        text: what a user named, without white space around it.
        prefix: what it begins with.
        form: what is to stand behind it.

    Raises:
        ConfigError: nothing does.
    """
    if not text.removeprefix(prefix).strip():
        raise ConfigError(f"{text!r} names nothing to read; give {prefix}{form}")


def short_name(text: str) -> str:
    """A name of own data for tables: the last part of every path."""
    named = text.removeprefix(CLASSIFY).removeprefix(RETRIEVE)
    return "+".join(Path(piece).name for piece in joined_sources(named))


def _is_source(piece: str) -> bool:
    return bool(OWN_FILE.search(piece) or ("/" in piece and dataset_parts(piece)))


SUBSETS: dict[str, tuple[str, ...]] = {
    "sts12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    # The SMT part of 2013 may not be redistributed; SentEval leaves it out too.
    "sts13": ("FNWN", "headlines", "OnWN"),
    "sts14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "sts15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "sts16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
"""Parts of the SemEval tasks of 2012-2016, which have a test split only."""

STS = (*SUBSETS, "stsb", "sickr")
"""The seven tasks, in the order of the papers' tables."""

TRANSFER = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
"""The transfer tasks, in the order of the papers' tables."""

STSB_RETRIEVAL = "stsb-retrieval"
"""DiffCSE's retrieval task, made of STS-B."""

SENTEVAL = (*STS, *TRANSFER, STSB_RETRIEVAL)
"""All that is read of SentEval's data."""

ALL_SPLITS = ("train", "dev", "test")

SPLITS = ("all", *ALL_SPLITS)
"""``all`` is the pairs of the three together."""

_HEADINGS = {
    "stsb": "STS-B",
    "sickr": "SICK-R",
    "sst2": "SST-2",
    STSB_RETRIEVAL: "STS-B retrieval",
}
_LONG_NAMES = {
    "stsbenchmark": "stsb",
    "sickrelatedness": "sickr",
    "stsbretrieval": STSB_RETRIEVAL,
}
_FILE = re.compile(r"\.((tsv|csv|jsonl)(\.gz)?|parquet)$", re.IGNORECASE)
_SPLIT = re.compile(rf"(.+)-({'|'.join(SPLITS)})")


@dataclass(frozen=True, slots=True)
class TaskName:
    """One task and one split of it.

    Attributes:
        name: one of :data:`STS` or :data:`TRANSFER`, :data:`STSB_RETRIEVAL`, the path of a user's
            file or folder, or a data set's id.
        split: one of :data:`SPLITS`; a user's file is ``test``.
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
        known = self.name in SENTEVAL
        name = _HEADINGS.get(self.name, self.name.upper()) if known else short_name(self.name)
        return name if self.split == "test" else f"{name} {self.split}"


def task_names(asked: Iterable[str], splits: Sequence[str] = ("test",)) -> list[TaskName]:
    """Resolve what a user asked for, each task and split once, in the order asked.

    Args:
        asked: ``sts`` (all seven), a task such as ``stsb`` or ``STS-B``, a task with its split
            such as ``stsb-dev``, a ``.tsv``, ``.csv``, ``.jsonl`` (each also with ``.gz``) or
            ``.parquet`` file of sentence, sentence, score, or such a data set on the hub,
            ``org/name[:config][@split]``.
        splits: splits of the tasks asked for without one. Those that a task does not have are
            left out, as STS12-16 have a test split only.

    Raises:
        ConfigError: a name or split is unknown, a task has no such split, or nothing is left.
    """
    for split in splits:
        pick("split", split, SPLITS)
    asked = list(asked)
    found = [name for text in asked for name in _resolve(text.strip(), splits)]
    if not found:
        named = f"{', '.join(asked)} with split {', '.join(splits)}" if asked else "an empty list"
        raise ConfigError(f"no task to score: {named} names none; STS12-16 have a test split only")
    return list(dict.fromkeys(found))


def averaged(names: Iterable[TaskName]) -> list[TaskName]:
    """The named tasks that an average is over: their test splits.

    Where the test split of a task is not there on its own, that is the pairs of all its splits.
    """
    names = list(names)
    tests = {name.name for name in names if name.split == "test"}
    return [
        name
        for name in names
        if name.name in STS
        and (name.split == "test" or (name.split == "all" and name.name not in tests))
    ]


def _resolve(text: str, splits: Sequence[str]) -> list[TaskName]:
    if _FILE.search(text) or ("/" in text and dataset_parts(text)):
        return [TaskName(text)]
    name, wanted = text.lower(), splits
    suffixed = _SPLIT.fullmatch(name)
    if suffixed:
        name, wanted = suffixed[1], (suffixed[2],)
    name = re.sub(r"[-_ ]", "", name)
    kind = "task (a name, or a .tsv, .csv, .jsonl or .parquet file of sentence, sentence, score)"
    known = ("sts", "transfer", *SENTEVAL)
    name = pick(kind, _LONG_NAMES.get(name, name), known)
    if name in ("transfer", *TRANSFER):
        raise ConfigError(
            f"{text!r} is a transfer task, which has no correlation; 'contrasent evaluate' and "
            "evaluate_transfer score it"
        )
    if name == STSB_RETRIEVAL:
        raise ConfigError(
            f"{text!r} is a retrieval task, which has no correlation; 'contrasent evaluate' and "
            "evaluate_retrieval score it"
        )
    members = STS if name == "sts" else (name,)
    found = [TaskName(m, s) for s in wanted for m in members if s == "test" or m not in SUBSETS]
    if suffixed and not found:
        raise ConfigError(f"{text!r}: {name} has no {wanted[0]} split, only test")
    return found
