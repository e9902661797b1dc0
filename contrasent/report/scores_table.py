"""Tables of scores as the papers print them, the protocol beneath."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from contrasent.evaluation.embed import Scores
from contrasent.evaluation.mteb_encoder import PROTOCOL as MTEB
from contrasent.evaluation.protocols import Protocol
from contrasent.evaluation.retrieval import RetrievalTask
from contrasent.evaluation.suite import Suite
from contrasent.evaluation.task_names import (
    DEV_PART,
    NESTED_FOLDS,
    SPLITS,
    STS_TASKS,
    STSB_RETRIEVAL,
    TRANSFER_TASKS,
    TaskName,
    averaged,
    short_headings,
    short_name,
)
from contrasent.evaluation.task_types import Options, TaskData
from contrasent.evaluation.transfer import SPLITS as TRANSFER_SPLITS
from contrasent.evaluation.transfer_data import TransferData
from contrasent.metrics import METRICS
from contrasent.records import Record
from contrasent.report.contents import described
from contrasent.report.table import (
    AVERAGE,
    Cell,
    Table,
    averaged_interval,
    interval_notes,
    print_table,
    score,
)

if TYPE_CHECKING:
    from rich.console import Console

Rows = Mapping[str, Sequence[Record]]
"""Records of an encoder by the label of its row."""

CORRELATION = {"spearman": "Spearman", "pearson": "Pearson"}
_METRICS = {"ndcg": "nDCG", "mrr": "MRR", "f1": "F1", "macro_f1": "macro-F1", **CORRELATION}
_AGGREGATION = {
    "all": "one correlation over all pairs of a task (aggregation all)",
    "mean": "mean over the subsets of a task (aggregation mean)",
    "wmean": "mean over the subsets of a task, weighted by their pairs (aggregation wmean)",
}
_OPTIMISTIC = "Dev accuracies chose the L2 penalty, and they stop the training: optimistic."


@dataclass(frozen=True, slots=True)
class Quantity:
    """A task's split and the metric that it is scored by."""

    name: TaskName
    metric: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of scores: one, or the mean over several where all of them were measured."""

    heading: str
    of: tuple[Quantity, ...]

    def cell(self, line: Mapping[Quantity, Record]) -> Cell:
        """The score of one encoder, given its records."""
        records = [line[quantity] for quantity in self.of if quantity in line]
        if not records or len(records) < len(self.of):
            return score(None)
        if len(records) == 1:
            return score(records[0].value, records[0].interval)
        mean = sum(record.value for record in records) / len(records)
        labels = [TaskName(record.task, record.split).label for record in records]
        return score(mean, averaged_interval(mean, [it.interval for it in records], labels))


def quantity(record: Record) -> Quantity:
    """The task, split and metric of a record."""
    return Quantity(TaskName(record.task, record.split), record.metric)


def scores_table(rows: Rows, columns: Sequence[Column], notes: Iterable[str] = ()) -> Table:
    """Scores x 100, two decimals, one row per label; averages of unrounded values.

    Of two records with one task, split and metric the first is shown. A column without a record is
    shown as absent, and so is an average over it.
    """
    cells = []
    for label, records in rows.items():
        line: dict[Quantity, Record] = {}
        for record in records:
            line.setdefault(quantity(record), record)
        cells.append((Cell(label), *(column.cell(line) for column in columns)))
    means = [k for k, column in enumerate(columns, start=1) if len(column.of) > 1]
    headings = ("encoder", *(column.heading for column in columns))
    return Table(headings, tuple(cells), tuple(notes), key=means[0] if means else 1)


def averaged_columns(columns: Sequence[Column], split: str = "test") -> list[Column]:
    """The columns, and the average over them if there are two or more."""
    if len(columns) < 2:
        return list(columns)
    heading = AVERAGE if split == "test" else f"{AVERAGE} {split}"
    return [*columns, Column(heading, tuple(it for column in columns for it in column.of))]


def metric_heading(metric: str) -> str:
    """Such as ``nDCG@10``."""
    kind, at, k = metric.partition("@")
    return f"{_METRICS.get(kind, kind)}{at}{k}"


def encoder_notes(rows: Rows) -> list[str]:
    """How the encoder of each row was used."""
    return [
        f"{label}: {described(label, records[0])}." for label, records in rows.items() if records
    ]


def _choose(
    rows: Rows, holds: Callable[[Record], object]
) -> tuple[dict[str, list[Record]], list[Record]]:
    """The records of each row that a table shows, and all of them."""
    shown = {label: [it for it in records if holds(it)] for label, records in rows.items()}
    return shown, [record for records in shown.values() for record in records]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a table of correlations shows."""

    # its columns; a task without a record is shown as absent, and so is the average
    tasks: Sequence[TaskName] = ()
    metric: str = "spearman"  # ``spearman`` or ``pearson``
    aggregation: str = "all"  # ``all``, ``mean`` or ``wmean``
    # labels of two rows; a last row shows the second minus the first
    difference: tuple[str, str] | None = None
    # what is asked for, to be named beneath the table; None to leave it unnamed
    protocol: Protocol | None = None


def in_paper_order(names: Iterable[TaskName]) -> list[TaskName]:
    """Each name once: test splits first, the papers' tasks in their order before files."""
    places = {name: place for place, name in enumerate((*STS_TASKS, *TRANSFER_TASKS))}
    return sorted(
        dict.fromkeys(names),
        key=lambda it: (SPLITS[::-1].index(it.split), places.get(it.name, len(places))),
    )


def sts_table(rows: Rows, layout: Layout | None = None) -> Table:
    """Correlations: averaged tasks, their average, then files and other splits.

    Without a layout: all tasks of the records in the papers' order, Spearman, aggregation all.
    """
    layout = layout or Layout()
    if not layout.tasks:
        _, every = _choose(rows, lambda it: it.metric in METRICS)
        names = sorted({quantity(it).name for it in every}, key=lambda it: it.name)
        layout = replace(layout, tasks=in_paper_order(names))
    way = layout.metric, layout.aggregation
    shown, every = _choose(rows, lambda it: (it.metric, it.aggregation) == way)
    headings, named = short_headings(layout.tasks), averaged(layout.tasks)
    columns = {
        name: Column(headings[name], (Quantity(name, layout.metric),)) for name in layout.tasks
    }
    means = averaged_columns([columns[name] for name in named])
    rest = [column for name, column in columns.items() if name not in named]
    notes = [*_sts_notes(every, layout), *encoder_notes(rows)]
    table = scores_table(shown, [*means, *rest], notes)
    if layout.difference:
        of_label = {row[0].text: row for row in table.rows}
        before, after = (of_label[label] for label in layout.difference)
        changes = (
            None if a.value is None or b.value is None else b.value - a.value
            for a, b in zip(before[1:], after[1:], strict=True)
        )
        last = (Cell("difference"), *(score(change, sign="+") for change in changes))
        table = replace(table, rows=(*table.rows, last))
    return table


def _sts_notes(shown: Sequence[Record], layout: Layout) -> list[str]:
    """The protocol of correlations, so that they can be compared with others."""
    named, asked = averaged(layout.tasks), layout.protocol
    other = any(name.split != "test" for name in layout.tasks)
    parts = [
        f"{CORRELATION[layout.metric]} correlation of the {compared_by(shown, plural=True)} x 100",
        "test split unless the heading names another" if other else "test split",
        _AGGREGATION[layout.aggregation],
    ]
    if len(named) > 1:
        parts.append(f"{AVERAGE} over {len(named)} tasks")
    if any(name.name in STS_TASKS for name in layout.tasks):
        changed = "" if asked else " and protocol of SentEval as changed by SimCSE"
        parts.append(f"data{changed or ' of SentEval'}")
    notes = ["; ".join(parts) + "."]
    if asked:
        notes.append(f"Protocol {asked.name} ({asked.source}).")
        notes += [f"{asked.note}."] if asked.note else []
    predicted = dict.fromkeys(quantity(it).name.heading for it in shown if it.regressor)
    if predicted:
        notes.append(
            f"{' and '.join(predicted)}: no cosines, but scores predicted by SentEval's regressor, "
            "fitted to the training split."
        )
    return [*notes, *interval_notes(shown, "the pairs", "")]


def compared_by(shown: Iterable[Record], *, plural: bool = False) -> str:
    """The similarity of the encoders, as they state it."""
    others = dict.fromkeys(it.similarity or "cosine" for it in shown)
    if set(others) <= {"cosine"}:
        return "cosines" if plural else "cosine"
    return f"{'similarities' if plural else 'similarity'} of the encoder ({', '.join(others)})"


def transfer_table(rows: Rows, names: Sequence[TaskName]) -> Table:
    """Accuracies: of each split the papers' tasks, their average, others, and F1 of pairs."""
    splits = [it for it in TRANSFER_SPLITS[::-1] if any(name.split == it for name in names)]
    columns: list[Column] = []
    parts = ["Accuracy of a logistic regression on frozen embeddings x 100"]
    parts.append(" and ".join(f"{split} part" for split in splits))
    for split in splits:
        tasks = [
            (TRANSFER_TASKS[name.name], Column(name.heading, (Quantity(name, "accuracy"),)))
            for name in in_paper_order(names)
            if name.split == split
        ]
        papers = averaged_columns([column for task, column in tasks if task.papers], split)
        if len(papers) > 1:
            parts.append(f"{papers[-1].heading} over {len(papers) - 1} tasks")
        columns += [*papers, *(column for task, column in tasks if not task.papers)]
        columns += [
            Column(f"{column.heading} F1", (Quantity(TaskName(task.name), "f1"),))
            for task, column in tasks
            if task.pairs and split == "test"
        ]
    shown, every = _choose(rows, lambda record: record.classifier)
    notes = ["; ".join(parts) + "."]
    notes += dict.fromkeys(_senteval_procedure(it.classifier) for it in every if it.classifier)
    notes += [_OPTIMISTIC] if "dev" in splits else []
    more = (
        " with the trained classifiers as they are, those of all folds together; of the average, "
        "normal with the tasks independent; dev accuracies have none"
    )
    notes += interval_notes(every, "the test sentences or pairs", more)
    return scores_table(rows, columns, [*notes, *encoder_notes(shown)])


_SKLEARN = "Classifier: scikit-learn's logistic regression, C = 1 and no search for it"


def _solver(how: Mapping[str, str | int]) -> str:
    return (
        f"preset {how['preset']}: {how['optimiser']}, batch {how['batch']}, tenacity "
        f"{how['tenacity']}, epoch size {how['epoch_size']}"
    )


def _senteval_procedure(how: Mapping[str, str | int]) -> str:
    nested, by_dev = (
        [task.heading for task in TRANSFER_TASKS.values() if task.split == split]
        for split in (NESTED_FOLDS, DEV_PART)
    )
    *first, last = nested
    of_folds = f"{', '.join(first)} and {last}" if first else last
    if how["name"] == "sklearn":
        return (
            f"{_SKLEARN}; {how['folds']} folds for {of_folds}; seed {how['seed']}. Fast, and not "
            "the procedure of the papers' figures."
        )
    return (
        f"Classifier and data of SentEval, {_solver(how)}; the L2 penalty of 1e-5 to 1e-2 is "
        f"chosen by {how['folds']} folds (nested for {of_folds}; {' and '.join(by_dev)} by its dev "
        f"part); seed {how['seed']}."
    )


def labelled_table(rows: Rows, read: TaskData[TransferData]) -> Table:
    """Accuracy and macro-F1 on a user's labelled sentences."""
    headings = labelled_headings(read)
    columns = []
    for split in TRANSFER_SPLITS[::-1]:
        for task in (task for task in read.tasks if split in task.splits):
            for metric in ("accuracy", "macro_f1") if split == "test" else ("accuracy",):
                parts = [] if len(headings) == 1 else [headings[task.name]]
                parts += [] if split == "test" else [split]
                heading = " ".join([*parts, metric_heading(metric)])
                columns.append(Column(heading, (Quantity(TaskName(task.name, split), metric),)))
    shown, every = _choose(rows, lambda record: record.task in headings)
    notes = [
        "Logistic regression on frozen embeddings x 100: share of right classes, and the mean of "
        "the F1 of all classes."
    ]
    for task in read.tasks:
        judged = "folds of the training part choose the penalty"
        if "all" in task.parts:
            judged = "every fold is the test part once; accuracy is the mean over them"
        elif "dev" in task.parts:
            judged = "the dev part chooses the penalty"
        notes.append(f"{headings[task.name]}: {task.description}; {judged}.")
    notes += dict.fromkeys(_own_procedure(it.classifier, read) for it in every if it.classifier)
    notes += [_OPTIMISTIC] if any("dev" in task.splits for task in read.tasks) else []
    notes += interval_notes(every, "the test rows", ", the classifiers as they are")
    return scores_table(rows, columns, [*notes, *encoder_notes(shown)])


def labelled_headings(read: TaskData[TransferData]) -> dict[str, str]:
    """Headings of labelled tasks by their names."""
    headings = short_headings([TaskName(task.name) for task in read.tasks])
    return {name.name: heading for name, heading in headings.items()}


def _own_procedure(how: Mapping[str, str | int], read: TaskData[TransferData]) -> str:
    folds = ""
    if any("dev" not in task.parts for task in read.tasks):
        nested = any("all" in task.parts for task in read.tasks)
        folds = f"{how['folds']} folds{', nested without a test part' if nested else ''}; "
    solver = f"Classifier of SentEval, {_solver(how)}; L2 penalty of 1e-5 to 1e-2"
    return f"{_SKLEARN if how['name'] == 'sklearn' else solver}; {folds}seed {how['seed']}."


def retrieval_table(rows: Rows, tasks: Sequence[RetrievalTask]) -> Table:
    """Metrics of retrieval tasks."""
    headings = short_headings([task.name for task in tasks])
    columns = []
    for task in tasks:
        of_task = "" if len(tasks) == 1 else f"{headings[task.name]} "
        for metric in task.metrics:
            heading = f"{of_task}{metric_heading(metric)}"
            columns.append(Column(heading, (Quantity(task.name, metric),)))
    shown, every = _choose(rows, lambda record: quantity(record).name in headings)
    together = any(task.name.name == STSB_RETRIEVAL for task in tasks)
    more = f"{', both of a pair of STS-B together' if together else ''}; the documents stay"
    notes = [
        f"Retrieval by {compared_by(every)} x 100, mean over queries; of equal scores the "
        "less relevant is first.",
        *(f"{headings[task.name]}: {task.description}." for task in tasks),
        *interval_notes(every, "the queries", more),
        *encoder_notes(shown),
    ]
    return scores_table(rows, columns, notes)


_MTEB_STS = (
    "STS numbers of MTEB are not those of SentEval's protocol (contrasent evaluate): MTEB embeds "
    "the text as it was written, SentEval's STS12-16 are tokenised and partly in lower case."
)
_OF_MTEB_TASK = {
    "SICK-R": "SICK-R: 9,927 pairs, those of all splits; SentEval's test split has 4,927.",
    "STS12": "STS12: 206 pairs occur more than once, and count each time.",
    "STS14": "STS14: 68 pairs occur more than once, and count each time.",
    "STSBenchmark": "STSBenchmark: one pair occurs twice; STSBenchmark.v2 leaves such pairs out.",
}


def mteb_table(rows: Rows) -> Table:
    """Main scores of MTEB's tasks, as `contrasent.evaluation.mteb_encoder.run_mteb` has them."""
    main, every = _choose(rows, lambda record: record.protocol == MTEB)
    columns = [
        Column(f"{it.name.name} {it.name.split}".removesuffix(" test"), (it,))
        for it in dict.fromkeys(map(quantity, every))
    ]
    metrics = dict.fromkeys(f"{it.task} {it.metric}" for it in every)
    several = dict.fromkeys(it.task for it in every if it.aggregation == "mean")
    notes = [
        f"MTEB {every[0].versions['mteb']} (Muennighoff et al. 2023), main score of each task "
        f"x 100: {', '.join(metrics)}."
    ]
    if several:
        notes.append(f"Mean over the subsets of {', '.join(several)}.")
    if any(it.metric in ("cosine_spearman", "cosine_pearson") for it in every):
        notes.append(_MTEB_STS)
    tasks = dict.fromkeys(it.task for it in every)
    notes += [_OF_MTEB_TASK[task] for task in tasks if task in _OF_MTEB_TASK]
    return scores_table(main, columns, [*notes, *encoder_notes(main)])


TABLES: dict[str, Callable[[Rows, TaskData[Any], Options], list[Table]]] = {
    "sts": lambda rows, read, options: [
        sts_table(
            rows,
            Layout(read.names, metric, options.protocol.aggregation, protocol=options.protocol),
        )
        for metric in options.protocol.metrics
    ],
    "transfer": lambda rows, read, _: [transfer_table(rows, read.names)],
    "labelled": lambda rows, read, _: [labelled_table(rows, read)],
    "retrieval": lambda rows, read, _: [retrieval_table(rows, read.tasks)],
}
"""Tables by the name of the task type: one for each metric of the protocol, or one of all."""


def print_tables(console: Console, suite: Suite, rows: Rows) -> None:
    """Print the tables of encoders' records on a suite, a blank line between them."""
    shown = [
        table
        for kind, read in suite.kinds
        if read.tasks
        for table in TABLES[kind.name](rows, read, suite.options)
    ]
    for number, table in enumerate(shown):
        if number:
            console.print()
        print_table(console, table.with_best())


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
        rows = {short_name(self[0].encoder): self} if self else {}
        print_tables(Console(file=text, color_system=None), self.suite, rows)
        return text.getvalue()

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: a row per record, a column per field of `Record`.

        ImportError if pandas is not installed.
        """
        pandas = import_module("pandas")
        return pandas.DataFrame([asdict(record) for record in self])
