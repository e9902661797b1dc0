"""Tables of scores as the papers print them, the protocol beneath."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from math import sqrt
from typing import Any

from rich.console import Console

from contrasent.evaluation import task_names
from contrasent.evaluation.embed import Scores
from contrasent.evaluation.intervals import normal_interval
from contrasent.evaluation.mteb_encoder import PROTOCOL as MTEB
from contrasent.evaluation.protocols import PROTOCOLS, Protocol
from contrasent.evaluation.suite import Suite
from contrasent.evaluation.task_names import STS_TASKS, TRANSFER_TASKS, TaskName, averaged
from contrasent.evaluation.transfer import SPLITS as TRANSFER_SPLITS
from contrasent.metrics import METRICS
from contrasent.records import Record
from contrasent.report.contents import described
from contrasent.report.table import ABSENT, AVERAGE, DYADIC, Cell, Table, print_table, score

Rows = Mapping[str, Sequence[Record]]
"""Records of an encoder by the label of its row."""

Quantity = tuple[TaskName, str]
"""A task's split, and the metric that it is scored by."""

CORRELATION = {"spearman": "Spearman", "pearson": "Pearson"}
_METRICS = {"ndcg": "nDCG", "mrr": "MRR", "f1": "F1", "macro_f1": "macro-F1", **CORRELATION}
_AGGREGATION = {
    "all": "one correlation over all pairs of a task (aggregation all)",
    "mean": "mean over the subsets of a task (aggregation mean)",
    "wmean": "mean over the subsets of a task, weighted by their pairs (aggregation wmean)",
}
_CORRELATIONS = {"all": "", "mean": ", mean of subsets", "wmean": ", weighted mean of subsets"}
_OPTIMISTIC = "Dev accuracies chose the L2 penalty, and they stop the training: optimistic."
_GAPS = f"{ABSENT} was not measured; an average needs all of its tasks."


def interval_notes(records: Iterable[Record], drawn: str, more: str) -> list[str]:
    """An explanation of the brackets; nothing if there are none.

    ``drawn`` is what is drawn again, ``more`` what else there is to know of the intervals.
    """
    interval = next((record.interval for record in records if record.interval), None)
    if interval is None:
        return []
    how = (
        f"bootstrap interval: percentiles over {interval.resamples} resamples of {drawn} (seed "
        f"{interval.seed}){more}"
        if interval.resamples
        else f"interval: {DYADIC}"
    )
    return [f"In brackets the {100 * interval.confidence:g} % {how}."]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of scores: one, or the mean over several where all of them were measured."""

    heading: str
    of: tuple[Quantity, ...]

    def cell(self, line: Mapping[Quantity, Record]) -> Cell:
        """The score of one encoder, given its records.

        A mean has the normal interval, with the covariances of the tasks' errors, if every task has
        one. Tasks whose covariances are not known are taken as independent.
        """
        records = [line[quantity] for quantity in self.of if quantity in line]
        if not records or len(records) < len(self.of):
            return score(None)
        if len(records) == 1:
            return score(records[0].value, records[0].interval)
        mean = sum(record.value for record in records) / len(records)
        parts = [record.interval for record in records if record.interval]
        if len(parts) < len(records):
            return score(mean)
        labels = [TaskName(record.task, record.split).label for record in records]
        shared = sum(sum((part.covariances or {}).get(of, 0) for of in labels) for part in parts)
        error = sqrt(sum(part.error**2 for part in parts) + max(shared, 0)) / len(parts)
        return score(mean, normal_interval(mean, error, parts[0].confidence))


def quantity(record: Record) -> Quantity:
    """The task, split and metric of a record."""
    return TaskName(record.task, record.split), record.metric


def first_of_each(records: Sequence[Record]) -> dict[Quantity, Record]:
    """The first record of each task, split and metric."""
    return {quantity(record): record for record in reversed(records)}


def scores_table(rows: Rows, columns: Sequence[Column], notes: Iterable[str] = ()) -> Table:
    """Scores x 100, two decimals, one row per label; averages of unrounded values.

    Of two records with one task, split and metric the first is shown. A column without a record is
    shown as absent, and so is an average over it.
    """
    lines = {label: first_of_each(records) for label, records in rows.items()}
    cells = [(Cell(k), *(column.cell(line) for column in columns)) for k, line in lines.items()]
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
    return [f"{label}: {described(label, of[0])}." for label, of in rows.items() if of]


def sts_table(
    rows: Rows,
    metric: str = "spearman",
    aggregation: str = "all",
    protocol: Protocol | None = None,
    asked: Sequence[TaskName] = (),
) -> Table:
    """Correlations in the papers' order, averaged tasks first, the ``protocol`` beneath.

    A task that was ``asked`` for and has no record is shown as absent, and so is the average.
    """
    every = [it for records in rows.values() for it in records]
    tasks = _names(rows, asked)
    headings, named = task_names.short_headings(tasks), averaged(tasks)
    columns = {name: Column(headings[name], ((name, metric),)) for name in tasks}
    means = averaged_columns([columns[name] for name in named])
    rest = [column for name, column in columns.items() if name not in named]
    other = any(name.split != "test" for name in tasks)
    parts = [
        f"{CORRELATION[metric]} correlation of the {compared_by(every, plural=True)} x 100",
        "test split unless the heading names another" if other else "test split",
        _AGGREGATION[aggregation],
    ]
    if len(named) > 1:
        parts.append(f"{AVERAGE} over {len(named)} tasks")
    if any(name.name in STS_TASKS for name in tasks):
        changed = "" if protocol else " and protocol of SentEval as changed by SimCSE"
        parts.append(f"data{changed or ' of SentEval'}")
    notes = ["; ".join(parts) + "."]
    if protocol:
        notes.append(f"Protocol {protocol.name} ({protocol.source}).")
        notes += [f"{protocol.note}."] if protocol.note else []
    if predicted := dict.fromkeys(quantity(it)[0].heading for it in every if it.regressor):
        notes.append(
            f"{' and '.join(predicted)}: no cosines, but scores predicted by SentEval's regressor, "
            "fitted to the training split."
        )
    notes += [*interval_notes(every, "the pairs", ""), *encoder_notes(rows)]
    return scores_table(rows, [*means, *rest], notes)


def compared_by(shown: Iterable[Record], *, plural: bool = False) -> str:
    """The similarity of the encoders, as they state it."""
    others = dict.fromkeys(it.similarity or "cosine" for it in shown)
    if set(others) <= {"cosine"}:
        return "cosines" if plural else "cosine"
    return f"{'similarities' if plural else 'similarity'} of the encoder ({', '.join(others)})"


def transfer_table(rows: Rows, asked: Sequence[TaskName] = ()) -> Table:
    """Accuracies: of each split the papers' tasks, their average, others, and F1 of pairs."""
    every = [it for records in rows.values() for it in records]
    names = _names(rows, asked)
    splits = [it for it in TRANSFER_SPLITS[::-1] if any(name.split == it for name in names)]
    columns: list[Column] = []
    parts = ["Accuracy of a logistic regression on frozen embeddings x 100"]
    parts.append(" and ".join(f"{split} part" for split in splits))
    for split in splits:
        tasks = [
            (TRANSFER_TASKS[name.name], Column(name.heading, ((name, "accuracy"),)))
            for name in names
            if name.split == split
        ]
        papers = averaged_columns([column for task, column in tasks if task.papers], split)
        if len(papers) > 1:
            parts.append(f"{papers[-1].heading} over {len(papers) - 1} tasks")
        columns += [*papers, *(column for task, column in tasks if not task.papers)]
        columns += [
            Column(f"{column.heading} F1", ((TaskName(task.name), "f1"),))
            for task, column in tasks
            if task.pairs and split == "test"
        ]
    more = (
        " with the trained classifiers as they are, those of all folds together; of the average, "
        "normal with the tasks independent; dev accuracies have none"
    )
    notes = [
        "; ".join(parts) + ".",
        *_classifier_notes(every),
        *interval_notes(every, "the test sentences or pairs", more),
        *encoder_notes(rows),
    ]
    return scores_table(rows, columns, notes)


def _classifier_notes(shown: Sequence[Record]) -> list[str]:
    settings = (
        ", ".join(f"{part.replace('_', ' ')} {value}" for part, value in it.classifier.items())
        for it in shown
        if it.classifier
    )
    return [
        *dict.fromkeys(f"Classifier on frozen embeddings: {each}." for each in settings),
        *([_OPTIMISTIC] if any(it.split == "dev" and it.classifier for it in shown) else []),
    ]


def own_table(rows: Rows, about: str = "") -> Table:
    """Retrieval, or what users measured of their own: one task by one classifier."""
    shown = [record for records in rows.values() for record in records]
    shown.sort(key=lambda it: it.split != "test")
    columns = [_column(it, metric_heading(it.metric)) for it in shown]
    first, of_queries = shown[0], "@" in shown[0].metric
    drawn = "queries" if of_queries else "examples"
    how = f"by {compared_by(shown)}, mean over queries; " if of_queries else ""
    heading = TaskName(first.task).heading
    notes = [
        f"{heading}, {first.split} split: {how}{first.pairs:,} {drawn}; x 100.",
        *([f"{heading}: {about}."] if about else []),
        *_classifier_notes(shown),
        *interval_notes(shown, f"the {drawn}", "; the documents stay" if of_queries else ""),
        *encoder_notes(rows),
    ]
    return scores_table(rows, list(dict.fromkeys(columns)), notes)


def mteb_table(rows: Rows) -> Table:
    """Main scores of MTEB's tasks, as `contrasent.evaluation.mteb_encoder.run_mteb` has them."""
    every = [it for records in rows.values() for it in records]
    columns = dict.fromkeys(_column(it, it.task) for it in every)
    metrics = dict.fromkeys(f"{it.task} {it.metric}" for it in every)
    note = (
        f"MTEB {every[0].versions['mteb']} (Muennighoff et al. 2023), main score of each task "
        f"x 100: {', '.join(metrics)}."
    )
    return scores_table(rows, list(columns), [note, *encoder_notes(rows)])


def _column(record: Record, heading: str) -> Column:
    return Column(f"{heading} {record.split}".removesuffix(" test"), (quantity(record),))


def score_tables(
    rows: Rows,
    about: Mapping[str, str] | None = None,
    asked: Mapping[str, Sequence[TaskName]] | None = None,
) -> list[Table]:
    """Similarity, transfer, then everything else; of each kind a table per protocol.

    ``about`` describes tasks of users, by their names. With what was ``asked`` for, by kind, a task
    and a row without a record are shown as absent.
    """
    missing = {label for label, records in rows.items() if asked and not records}

    def choose(
        kind: str, key: Callable[[Record], object], value: object = True
    ) -> dict[str, list[Record]]:
        shown = {
            label: [it for it in records if _kind(it) == kind and key(it) == value]
            for label, records in rows.items()
        }
        kept = {label: of for label, of in shown.items() if of or label in missing}
        return kept if any(kept.values()) else {}

    every = [it for records in rows.values() for it in records]
    about, asked, tables = about or {}, asked or {}, list[Table]()
    ways = _ways([it for it in every if _kind(it) == "sts"])
    for place, (way, protocols) in enumerate(ways.items()):
        chosen = choose("sts", partial(_is_of_way, way))
        protocol = PROTOCOLS.get(protocols[0].partition(" with ")[0]) if protocols else None
        protocol = protocol and replace(protocol, name=", ".join(protocols))
        shown = sts_table(chosen, *way[:2], protocol, asked.get("sts", ()))
        title = f"Similarity: {CORRELATION[way[0]]} correlation{_CORRELATIONS[way[1]]}"
        tables.append(_entitled(shown, numbered("sts", place), title))
    for place, how in enumerate(dict.fromkeys(_how(it) for it in every if _kind(it) == "transfer")):
        shown = transfer_table(choose("transfer", _how, how), asked.get("transfer", ()))
        tables.append(_entitled(shown, numbered("transfer", place), "Transfer: accuracy"))
    for place, own in enumerate(dict.fromkeys(_own(it) for it in every if _kind(it) == "task"), 1):
        shown = own_table(choose("task", _own, own), about.get(own[0], ""))
        kind = "Retrieval" if "@" in shown.headings[1] else "Own data"
        tables.append(_entitled(shown, f"task-{place}", f"{kind}: {TaskName(own[0]).heading}"))
    if chosen := choose("mteb", lambda it: it.protocol, MTEB):
        tables.append(_entitled(mteb_table(chosen), "mteb", "MTEB: main score of each task"))
    return tables


def _kind(record: Record) -> str:
    if record.subset:
        return ""
    if "mteb" in record.versions:
        return "mteb"
    if record.metric in METRICS:
        return "sts"
    return "transfer" if record.classifier and record.task in TRANSFER_TASKS else "task"


Way = tuple[str, str, frozenset[TaskName]]
"""A metric, the aggregation, and tasks that are scored by a regressor."""


def _is_of_way(way: Way, it: Record) -> bool:
    return (it.metric, it.aggregation, bool(it.regressor)) == (*way[:2], quantity(it)[0] in way[2])


def _ways(records: Sequence[Record]) -> dict[Way, list[str]]:
    """The ways to compute correlations by the protocols that ask for them; else Spearman of all."""
    fitted: dict[tuple[str, str, str], set[TaskName]] = {}
    for it in records:
        if it.protocol:
            tasks = fitted.setdefault((it.metric, it.aggregation, it.protocol), set())
            tasks |= {quantity(it)[0]} if it.regressor else set()
    ways: dict[Way, list[str]] = {}
    for (metric, aggregation, name), tasks in fitted.items():
        ways.setdefault((metric, aggregation, frozenset(tasks)), []).append(name)
    if not ways:
        plain = {(it.metric, it.aggregation) for it in records if not it.regressor}
        for way in sorted(plain, key=lambda it: (it != ("spearman", "all"), it))[:1]:
            ways[(*way, frozenset())] = []
    return ways


def _entitled(table: Table, name: str, title: str) -> Table:
    gaps = any(cell.absent for row in table.rows for cell in row)
    notes = (*table.notes, _GAPS) if gaps else table.notes
    return replace(table.with_best(), name=name, title=title, notes=notes)


def numbered(kind: str, before: int) -> str:
    """The name of a table, with a number from the second of its kind on."""
    return f"{kind}-{before + 1}" if before else kind


def _names(rows: Rows, asked: Iterable[TaskName] = ()) -> list[TaskName]:
    """Each name once: test splits first, the papers' tasks in their order before files."""
    places = {name: place for place, name in enumerate((*STS_TASKS, *TRANSFER_TASKS))}
    return sorted(
        dict.fromkeys([*asked, *(quantity(it)[0] for of in rows.values() for it in of)]),
        key=lambda it: (task_names.SPLITS[::-1].index(it.split), places.get(it.name, len(places))),
    )


def _how(record: Record) -> tuple[object, ...]:
    how = record.classifier or {}
    return how.get("name"), how.get("preset"), how.get("seed")


def _own(record: Record) -> tuple[str, tuple[object, ...]]:
    return record.task, _how(record)


def suite_tables(suite: Suite, rows: Rows) -> list[Table]:
    """The tables of encoders' records on a suite."""
    about = {
        task.name if isinstance(task.name, str) else task.name.name: task.description
        for kind, read in suite.kinds
        for task in read.tasks
        if kind.name in ("labelled", "retrieval")
    }
    asked = {kind.name: read.names for kind, read in suite.kinds}
    return [replace(table, title="") for table in score_tables(rows, about, asked)]


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
        text = io.StringIO()
        rows = {task_names.short_name(self[0].encoder): self} if self else {}
        for table in suite_tables(self.suite, rows):
            print_table(Console(file=text, color_system=None), table)
        return text.getvalue()

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: a row per record, a column per field of `Record`.

        ImportError if pandas is not installed.
        """
        return import_module("pandas").DataFrame([asdict(record) for record in self])
