"""Queries and the documents that they are to find: DiffCSE's task, and users' own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from contrasent.errors import ConfigError
from contrasent.evaluate.described import Encoder
from contrasent.evaluate.kinds.base import OneByOne, Options, Text, Use
from contrasent.evaluate.own_names import RETRIEVE, joined_sources, require_source
from contrasent.evaluate.retrieval import score_retrieval
from contrasent.evaluate.retrieval_own import read_retrieval
from contrasent.evaluate.retrieval_read import RetrievalTask, stsb_retrieval
from contrasent.evaluate.sts import Scores
from contrasent.evaluate.tasks import ALL_SPLITS, STSB_RETRIEVAL, TaskName
from contrasent.evaluate.vectors import Given, Side
from contrasent.records import Record

_NAME = re.compile(r"(.+?)(?:-(train|dev|test|all))?")


class Retrieval(OneByOne[RetrievalTask]):
    """Rankings by cosine."""

    name = "retrieval"
    place = 30

    def names(self, asked: Sequence[str], options: Options) -> tuple[list[TaskName], list[str]]:
        """Pick the retrieval tasks out of what a user asked for.

        Args:
            asked: names of tasks: ``stsb-retrieval``, it with its split such as
                ``stsb-retrieval-dev``, a folder, or after
                :data:`contrasent.evaluate.own_names.RETRIEVE` anything that
                :func:`contrasent.evaluate.retrieval_own.read_retrieval` takes, and anything else.
            options: of the splits, ``all`` is none. Three files have no splits.

        Raises:
            ConfigError: no split of a retrieval task.
        """
        wanted = [split for split in ALL_SPLITS[::-1] if split in options.splits]
        found: list[TaskName] = []
        others: list[str] = []
        for text in asked:
            name, split = _understood(text)
            if name is None:
                others.append(text)
            elif split == "all" or not (split or wanted):
                raise ConfigError(
                    f"{text!r}: a retrieval task is scored on one split at a time: train, dev or "
                    "test"
                )
            else:
                found += [TaskName(name, chosen) for chosen in ([split] if split else wanted)]
        return list(dict.fromkeys(found)), others

    def load(self, names: Sequence[TaskName], options: Options) -> RetrievalTask:
        """Read one split."""
        (name,) = names
        if name.name == STSB_RETRIEVAL:
            return stsb_retrieval(name, options.data_dir)
        return read_retrieval(name)

    def score(self, task: RetrievalTask, use: Use, options: Options) -> Scores:
        """Every metric of the task."""
        return score_retrieval(task, use, options)

    def named(self, task: RetrievalTask) -> TaskName:
        """Its own name."""
        return task.name

    def texts(self, task: RetrievalTask) -> Iterator[Text]:
        """Queries and documents; a query and what it is to find are a pair."""
        pairs = [
            (query, task.corpus[row])
            for query, rows in zip(task.queries, task.relevant, strict=True)
            for row in rows
        ]
        sentences = [*task.queries, *task.corpus]
        yield Text(task.name.name, task.name.split, sentences, pairs)

    def given(self, task: RetrievalTask) -> Given:
        """All queries, those without a relevant document among them, then all documents."""
        sides = Side("queries", task.asked), Side("documents", task.corpus)
        return Given(task.name.heading, sides, apart=True)


KIND = Retrieval()


def evaluate_retrieval(
    encoder: Encoder,
    tasks: Sequence[str] = (STSB_RETRIEVAL,),
    data_dir: str | Path | None = None,
    *,
    precision: str = "fp32",
    splits: Sequence[str] = ("test",),
    seed: int | None = None,
    show_progress: bool = False,
) -> list[Record]:
    """Score an encoder on retrieval tasks.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        tasks: as :meth:`Retrieval.names` takes them.
        data_dir: as :func:`contrasent.evaluate.run.evaluate`.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: a name is no retrieval task, or a precision is unknown.
        DataError: a task's data is missing or damaged.
        CheckpointError: an embedding is zero or not finite.
    """
    use = Use(encoder, precision, seed, show_progress)
    return KIND.evaluate(use, tasks, Options(data_dir, splits))


def _understood(text: str) -> tuple[str | None, str | None]:
    """The retrieval task that ``text`` names, None if it names none, and its split."""
    if text.strip().startswith(RETRIEVE):
        require_source(
            text.strip(), RETRIEVE, "QUERIES+DOCUMENTS+RELEVANCE, a folder or a data set"
        )
        joined = len(joined_sources(text.strip().removeprefix(RETRIEVE))) > 1
        return text.strip(), "test" if joined else None
    folder = Path(text.strip()).expanduser()
    # A folder named without a slash may only by chance be called as a task is.
    is_path = folder.name != text.strip() or any(folder.glob("corpus.*"))
    matched = _NAME.fullmatch(text.strip().lower())
    if matched and re.sub(r"[-_ ]", "", matched[1]) == "stsbretrieval":
        return STSB_RETRIEVAL, matched[2]
    if text.strip() and folder.is_dir() and is_path:
        return str(folder if folder.name else folder.resolve()), None
    return None, None
