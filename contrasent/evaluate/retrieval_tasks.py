"""The retrieval tasks that a user names, and their data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrasent.errors import ConfigError, DataError, pick
from contrasent.evaluate.read import MissingDataError, load
from contrasent.evaluate.sts import Problem
from contrasent.evaluate.tasks import SPLITS as ALL_SPLITS
from contrasent.evaluate.tasks import STSB_RETRIEVAL, TaskName

SPLITS = ("train", "dev", "test")

_NAME = re.compile(r"(.+?)(?:-(train|dev|test|all))?")
_SAME = 5.0


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """Queries, documents, and which of these are to be found.

    Attributes:
        name: which task and split.
        corpus: N documents.
        queries: Q texts.
        relevant: for each query the rows of the relevant documents with their grades above 0.
        left_out: for each query the row of the document that is the query itself; None if it is no
            document.
        metrics: names such as ``recall@10``, in the order of the table.
        said: one line on what the queries and documents are.
        sha256: hash of the bytes of its files, one after the other.
    """

    name: TaskName
    corpus: tuple[str, ...]
    queries: tuple[str, ...]
    relevant: tuple[Mapping[int, int], ...]
    left_out: tuple[int | None, ...]
    metrics: tuple[str, ...]
    said: str
    sha256: str


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
            ``stsb-retrieval-dev``, and anything else.
        splits: splits of the tasks named without one; others than :data:`SPLITS` are left out.

    Returns:
        The retrieval tasks, each with its split once in the order asked, and everything else.

    Raises:
        ConfigError: a split is unknown, or no split of a retrieval task.
    """
    for asked_split in splits:
        pick("split", asked_split, ALL_SPLITS)
    wanted = [split for split in SPLITS[::-1] if split in splits]
    found: list[TaskName] = []
    others: list[str] = []
    for text in asked:
        matched = _NAME.fullmatch(text.strip().lower())
        if matched is None or re.sub(r"[-_ ]", "", matched[1]) != "stsbretrieval":
            others.append(text)
        elif matched[2] == "all" or not (matched[2] or wanted):
            raise ConfigError(
                f"{text!r}: a retrieval task is scored on one split at a time: train, dev or test"
            )
        else:
            chosen = [matched[2]] if matched[2] else wanted
            found += [TaskName(STSB_RETRIEVAL, split) for split in chosen]
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
            found.append(stsb_retrieval(name, data_dir))
        except MissingDataError as error:
            problems.append(Problem(name.label, f"{error.path} is missing", missing=True))
        except DataError as error:
            problems.append(Problem(name.label, str(error)))
    return LoadedRetrieval(tuple(names), tuple(found), tuple(problems))


def stsb_retrieval(name: TaskName, data_dir: str | Path | None = None) -> RetrievalTask:
    """DiffCSE, section 6.2: one sentence of a pair rated 5 is to find the other.

    Both sentences of every such pair are queries: only then 78.87 % is a share (153 of 194), which
    it is not of 97. A sentence that is in the split more than once is one document, and no query
    finds itself: the top three of the paper's Table 9 hold neither the other two copies of the
    query nor a sentence twice. Other sentences than the pair's own do not count as found.

    Raises:
        MissingDataError: the split is not there.
        DataError: it is damaged, or has no pair of two different sentences rated 5.
    """
    source = load(TaskName("stsb", name.split), data_dir)
    (pairs,) = source.subsets
    places: dict[str, int] = {}
    for first, second in zip(pairs.first, pairs.second, strict=True):
        places.setdefault(first, len(places))
        places.setdefault(second, len(places))
    same = [
        (first, second)
        for first, second, rating in zip(pairs.first, pairs.second, pairs.gold, strict=True)
        if rating == _SAME and first != second
    ]
    if not same:
        raise DataError(
            f"{source.name.heading} has no pair of two different sentences rated 5, so there is "
            "nothing to retrieve"
        )
    both = [*same, *((second, first) for first, second in same)]
    return RetrievalTask(
        name=name,
        corpus=tuple(places),
        queries=tuple(query for query, _ in both),
        relevant=tuple({places[other]: 1} for _, other in both),
        left_out=tuple(places[query] for query, _ in both),
        metrics=("recall@1", "recall@5", "recall@10"),
        said=(
            f"{len(both):,} queries, both sentences of the {len(same)} pairs rated 5; "
            f"{len(places):,} documents, the different ones of {2 * len(pairs.gold):,} sentences, "
            "the query left out (DiffCSE, Table 10)"
        ),
        sha256=source.sha256,
    )
