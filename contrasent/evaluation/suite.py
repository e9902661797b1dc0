"""Evaluation: tasks by their names, read once, and the records of any encoder on them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.data.senteval import how_to_get_data, senteval_root
from contrasent.errors import CheckpointError, ConfigError, DataError, warn
from contrasent.evaluation import labelled, retrieval, sts, transfer
from contrasent.evaluation.compare import Comparison
from contrasent.evaluation.embed import DescribedEncoder, EncoderUse, Problem, Scores
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.task_names import TaskName, refuse, require_names
from contrasent.evaluation.task_types import Options, TaskData, TaskText, TaskType
from contrasent.evaluation.vectors import RowLayout, load_or_open
from contrasent.options import EvaluationOptions, Measuring, takes
from contrasent.recipe import fields_of
from contrasent.records import Record
from contrasent.settings import checked

if TYPE_CHECKING:
    from rich.console import Console

TASK_TYPES: tuple[TaskType[Any], ...] = (
    sts.TASK_TYPE,
    transfer.TASK_TYPE,
    labelled.TASK_TYPE,
    retrieval.TASK_TYPE,
)
"""In the order of their tables. Names are offered to the last one first."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks read once, to be scored for any number of encoders.

    ``kinds`` is each type that was asked for, with its data, in the order of the tables.
    """

    kinds: tuple[tuple[TaskType[Any], TaskData[Any]], ...]
    options: Options

    @property
    def names(self) -> tuple[TaskName, ...]:
        """What was asked for."""
        return tuple(name for _, read in self.kinds for name in read.names)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why tasks could not be read."""
        return tuple(problem for _, read in self.kinds for problem in read.problems)

    @property
    def remedy(self) -> list[str]:
        """How to get the data where some is missing, else nothing."""
        return [how_to_get_data()] if any(it.missing for it in self.problems) else []

    @property
    def notes(self) -> list[str]:
        """How users' files were understood, where that had to be guessed."""
        notes = [kind.note(task) for kind, read in self.kinds for task in read.tasks]
        return [note for note in notes if note]

    def tasks(self, kind: str) -> tuple[Any, ...]:
        """The data of one type of tasks, by its name."""
        return tuple(t for known, read in self.kinds if known.name == kind for t in read.tasks)

    def row_layouts(self) -> list[RowLayout]:
        """What a matrix has to have rows for, of all tasks."""
        return [kind.row_layout(task) for kind, read in self.kinds for task in read.tasks]

    def texts(self) -> Iterator[TaskText]:
        """The text of all tasks."""
        for kind, read in self.kinds:
            for task in read.tasks:
                yield from kind.texts(task)

    def records(self, use: EncoderUse) -> Scores:
        """Every record of an encoder, in the order of the tables.

        Where it cannot be scored on one type of tasks, those of the others are kept.
        CheckpointError if the encoder cannot be scored on any type.
        """
        parts: list[Scores] = []
        failures: dict[str, CheckpointError] = {}
        for kind, read in self.kinds:
            if read.tasks:
                try:
                    parts.append(kind.records(read.tasks, use, self.options))
                except CheckpointError as error:
                    failures[", ".join(kind.named(task).label for task in read.tasks)] = error
        if failures and not parts:
            raise next(iter(failures.values()))
        problems = tuple(Problem(label, str(error)) for label, error in failures.items())
        return Scores.together([*parts, Scores(problems=problems)])

    def print_tables(self, console: Console, rows: Mapping[str, Sequence[Record]]) -> None:
        """Print the tables of encoders' records, which are given by a label for each encoder."""
        # Tables stand in a room above this one.
        tables = import_module("contrasent.report.scores_table").TABLES
        print_table = import_module("contrasent.report.table").print_table
        shown = [
            table
            for kind, read in self.kinds
            if read.tasks
            for table in tables[kind.name](rows, read, self.options)
        ]
        for number, table in enumerate(shown):
            if number:
                console.print()
            print_table(console, table.with_best())

    def compare(self, baseline: Scores, other: Scores, bootstrap: Bootstrap) -> list[Comparison]:
        """The second encoder's scores less the first one's, in the first metric of each type."""
        each = (
            kind.compare(read, (baseline, other), self.options, bootstrap)
            for kind, read in self.kinds
        )
        return [comparisons[0] for comparisons in each if comparisons]


def load_suite(
    tasks: Sequence[str],
    options: Options | None = None,
    types: Sequence[TaskType[Any]] = TASK_TYPES,
) -> Suite:
    """Read those tasks whose data is there and in order; the others are problems.

    ``tasks`` are named as `evaluate` takes them, and are of some of ``types``. Without
    ``options``, their test splits are scored by SimCSE's protocol. ConfigError if a task or split
    is unknown, or columns are chosen and no file is named. DataError if the folder that was named
    is not there, or no task could be read; the message then says why for each.
    """
    options = options or Options()
    if not tasks:
        raise ConfigError("no task to score: an empty list")
    named: dict[str, list[TaskName]] = {kind.name: [] for kind in types}
    for text in tasks:
        for kind in reversed(types):
            if (names := kind.names(text, options)) is not None:
                named[kind.name] += names
                break
        else:
            refuse(text)
    every = [name for names in named.values() for name in names]
    require_names(every, tasks, options.splits)
    public = [name.in_senteval for name in every]
    if any(public):
        senteval_root(options.data_dir)
    if options.columns is not None and all(public):
        raise ConfigError(
            f"--columns is of your own files, and none is named: {', '.join(tasks)}; leave it out"
        )
    kinds = [kind for kind in types if named[kind.name]]
    read = [kind.read(list(dict.fromkeys(named[kind.name])), options) for kind in kinds]
    suite = Suite(tuple(zip(kinds, read, strict=True)), options)
    if not any(part.tasks for part in read):
        reasons = [f"  {problem.task}: {problem.message}" for problem in suite.problems]
        raise DataError("\n".join(["no task has data to score:", *reasons, *suite.remedy]))
    return suite


class Records(list[Record]):
    """The records of one encoder on a suite, in the order of the tables.

    ``problems`` tells which tasks could not be read or scored and why, ``notes`` what is to be
    known of the records beside their numbers.
    """

    def __init__(self, suite: Suite, scores: Scores) -> None:
        super().__init__(scores.records)
        self.suite, self.notes = suite, scores.notes
        self.problems = (*suite.problems, *scores.problems)

    def __repr__(self) -> str:
        return f"<{len(self)} records of {self[0].encoder}>" if self else "<no records>"

    def table(self) -> str:
        """The tables that ``contrasent evaluate`` prints, with the protocol beneath."""
        from rich.console import Console

        text = io.StringIO()
        rows = {TaskName(self[0].encoder).heading: self} if self else {}
        self.suite.print_tables(Console(file=text, color_system=None), rows)
        return text.getvalue()

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: a row per record, a column per field of `Record`.

        ImportError if pandas is not installed.
        """
        pandas = import_module("pandas")
        return pandas.DataFrame([asdict(record) for record in self])


@takes(EvaluationOptions)
def evaluate(
    encoder: DescribedEncoder | str | Path,
    tasks: str | Sequence[str] | Suite = ("sts",),
    *,
    seed: int | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Records:
    """Score an encoder on similarity, transfer and retrieval tasks.

    By default STS as in SimCSE (Gao et al. 2021): Spearman correlation of cosines, one over all
    pairs of a task; transfer tasks as in SentEval (Conneau & Kiela 2018). The options are those of
    ``contrasent evaluate``.

    Args:
        encoder: a folder, a training run, a Hugging Face id or a file of vectors, or an object
            with ``name``, ``pooler`` and ``encode``, whose mode (training or not) stays as it is.
        tasks: names as the command takes them, in a list or between commas; or what `load_suite`
            read.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.
        **options: by name.

    Returns:
        A record per metric, aggregation, subset and split; correlations in [-1, 1] and accuracies
        in [0, 1], never multiplied by 100. Tasks that could not be scored are warned of, and are
        the ``problems`` of what is returned.

    Raises:
        ConfigError: a task, split, protocol or precision is unknown, or one of
            those of tasks is given with what `load_suite` read.
        DataError: a task's data is missing or damaged, or no task has a score; everything is read
            before the encoder is loaded.
        CheckpointError: the encoder cannot be loaded, or no embedding can be scored.
        MissingExtraError: scikit-learn or a data set of the hub is asked for, and its package is
            not installed.

    Example:
        >>> import contrasent
        >>> records = contrasent.evaluate("my-encoder", ["pairs.tsv"])
        >>> print(records.table())
        >>> {r.task: r.value for r in records if r.metric == "spearman" and r.aggregation == "all"}
    """
    if isinstance(tasks, Suite):
        if reading := sorted(set(options) - set(fields_of(Measuring))):
            raise ConfigError(f"a suite has its own {', '.join(reading)}; give it to load_suite")
        how, suite = checked(EvaluationOptions, options), tasks
    else:
        how = checked(EvaluationOptions, {"tasks": tasks, **options})
        suite = load_suite(how.tasks, Options.of(how))
        if suite.problems:
            raise DataError("; ".join([*(p.message for p in suite.problems), *suite.remedy]))
    if isinstance(encoder, str | Path):
        encoder = load_or_open(how, str(encoder), suite.row_layouts())
    resolve = getattr(encoder, "resolve_precision", str)
    precision = resolve(how.precision_name)
    scores = suite.records(EncoderUse(encoder, precision, seed, show_progress))
    if not scores.records:
        raise DataError("; ".join(problem.message for problem in scores.problems))
    records = Records(suite, scores)
    for problem in records.problems:
        warn(f"{problem.task} has no score: {problem.message}")
    return records
