"""Scores as the tables of a report, from records alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from contrasent.evaluation.protocols import PROTOCOLS, Protocol
from contrasent.evaluation.task_names import SPLITS, STS, STS_TASKS, TRANSFER, TaskName, averaged
from contrasent.evaluation.transfer_data import TRANSFER_TASKS
from contrasent.metrics import METRICS
from contrasent.records import Record
from contrasent.report.html.columns import (
    Chosen,
    Column,
    Named,
    choose,
    headings,
    metric_heading,
    scores_grid,
)
from contrasent.report.html.contents import PageRow
from contrasent.report.html.grid import Cell, Grid, score
from contrasent.report.html.mteb import is_mteb, mteb_grids
from contrasent.report.intervals import CORRELATION, said_of_intervals
from contrasent.report.tables import AVERAGE, Layout, described, protocol
from contrasent.report.transfer import transfer_protocol

_AGGREGATIONS = {"all": "", "mean": ", mean of subsets", "wmean": ", weighted mean of subsets"}


def score_grids(rows: Sequence[PageRow]) -> list[Grid]:
    """Similarity, transfer, then everything else; of each kind a table per protocol."""
    return [*sts_grids(rows), *transfer_grids(rows), *other_grids(rows), *mteb_grids(rows)]


def sts_grids(rows: Sequence[PageRow]) -> list[Grid]:
    """Correlations: one table for each metric and aggregation that a protocol asked for."""
    found = []
    for number, basis in enumerate(_bases(rows)):
        chosen = choose(rows, basis.holds)
        names = _in_order(name for line in chosen.values() for name, _ in line)
        short = headings(names)
        columns = [Column(short[n], ((n, basis.metric),)) for n in averaged(names)]
        if len(columns) > 1:
            columns.append(Column(AVERAGE, tuple(key for it in columns for key in it.keys)))
        rest = [name for name in names if name not in averaged(names)]
        columns += [Column(short[n], ((n, basis.metric),)) for n in rest]
        layout = Layout(names, basis.metric, basis.aggregation, protocol=basis.protocol())
        notes = protocol({label: list(line.values()) for label, line in chosen.items()}, layout)
        heading = f"{CORRELATION[basis.metric]} correlation{_AGGREGATIONS[basis.aggregation]}"
        name = "sts" if number == 0 else f"sts-{number + 1}"
        mean = f"STS {AVERAGE}{_fewer(len(averaged(names)), STS)}"
        summed = mean if basis.plain else f"{mean} {heading}"
        named = Named(name, f"Similarity: {heading}", summed, CORRELATION[basis.metric])
        found.append(scores_grid(named, columns, chosen, notes))
    return found


def transfer_grids(rows: Sequence[PageRow]) -> list[Grid]:
    """Accuracies of transfer tasks: one table for each way to learn them."""
    ways: dict[tuple[object, ...], None] = {}
    for record in _all(rows):
        if _is_transfer(record):
            ways.setdefault(_way(record))
    found = []
    for number, way in enumerate(ways):
        chosen = choose(rows, partial(_is_learned, way=way))
        names = [name for line in chosen.values() for name, _ in line]
        place = {task: number for number, task in enumerate(TRANSFER_TASKS)}
        ordered = sorted(set(names), key=lambda it: (it.split != "test", place[it.name]))
        columns = _transfer_columns(ordered, chosen)
        notes = transfer_protocol(
            {label: list(line.values()) for label, line in chosen.items()}, ordered
        )
        name = "transfer" if number == 0 else f"transfer-{number + 1}"
        tests = sum(it.split == "test" and it.name in TRANSFER for it in ordered)
        summed = f"Transfer {AVERAGE}{_fewer(tests, TRANSFER)}"
        named = Named(name, "Transfer: accuracy", summed, "accuracy")
        found.append(scores_grid(named, columns, chosen, notes))
    return found


def other_grids(rows: Sequence[PageRow]) -> list[Grid]:
    """Retrieval, and what users measured of their own: a table for each task."""
    names = dict.fromkeys(
        TaskName(record.task, record.split)
        for record in _all(rows)
        if not (_is_sts(record) or _is_transfer(record) or is_mteb(record))
    )
    found = []
    for number, name in enumerate(names):
        chosen = choose(rows, partial(_is_of, name=name))
        keys = dict.fromkeys(key for line in chosen.values() for key in line)
        columns = [Column(metric_heading(metric), ((name, metric),)) for _, metric in keys]
        some = next(record for line in chosen.values() for record in line.values())
        if "@" in some.metric:
            kind, over = "Retrieval", f"{some.pairs:,} queries"
        else:
            kind, over = "Own data", f"{some.pairs:,} examples"
        how = "by cosine, mean over queries; " if kind == "Retrieval" else ""
        notes = [f"{name.heading}, {name.split} split: {how}{over}; x 100."]
        shown = [record for line in chosen.values() for record in line.values()]
        notes += dict.fromkeys(_learned(it.classifier) for it in shown if it.classifier)
        notes += said_of_intervals(shown, (f"the {over.partition(' ')[2]}", ""))
        notes += _described(chosen)
        summed = f"{name.heading} {columns[0].heading}"
        named = Named(f"task-{number + 1}", f"{kind}: {name.heading}", summed)
        found.append(scores_grid(named, columns, chosen, notes))
    return found


@dataclass(frozen=True, slots=True)
class _Basis:
    """What a table of correlations shows.

    Attributes:
        metric: one of :data:`METRICS`.
        aggregation: of the subsets.
        fitted: tasks that are scored by a regressor.
        protocols: names of those whose numbers these are.
    """

    metric: str
    aggregation: str
    fitted: frozenset[TaskName] = frozenset()
    protocols: tuple[str, ...] = ()

    def holds(self, record: Record) -> bool:
        wanted = (self.metric, self.aggregation)
        if not _is_sts(record) or (record.metric, record.aggregation) != wanted:
            return False
        return bool(record.regressor) == (TaskName(record.task, record.split) in self.fitted)

    @property
    def plain(self) -> bool:
        """It is what most papers report."""
        return (self.metric, self.aggregation, self.fitted) == ("spearman", "all", frozenset())

    def protocol(self) -> Protocol | None:
        """The one that was asked for, with the names of all."""
        known = PROTOCOLS.get(self.protocols[0].partition(" with ")[0]) if self.protocols else None
        return replace(known, name=", ".join(self.protocols)) if known else None


def _bases(rows: Sequence[PageRow]) -> list[_Basis]:
    """What protocols asked for; else what there is, Spearman and ``all`` first."""
    whole = [record for record in _all(rows) if _is_sts(record) and not record.subset]
    fitted: dict[tuple[str, str, str], set[TaskName]] = {}
    for record in whole:
        if record.protocol:
            tasks = fitted.setdefault((record.metric, record.aggregation, record.protocol), set())
            if record.regressor:
                tasks.add(TaskName(record.task, record.split))
    merged: dict[_Basis, list[str]] = {}
    for (metric, aggregation, name), tasks in fitted.items():
        merged.setdefault(_Basis(metric, aggregation, frozenset(tasks)), []).append(name)
    if merged:
        return [replace(basis, protocols=tuple(names)) for basis, names in merged.items()]
    kinds = {(record.metric, record.aggregation) for record in whole if not record.regressor}
    first = sorted(kinds, key=lambda it: (it != ("spearman", "all"), it))[:1]
    return [_Basis(metric, aggregation) for metric, aggregation in first]


def _transfer_columns(names: Sequence[TaskName], chosen: Chosen) -> list[Column]:
    """The papers' tasks of each split, their average, then others and metrics such as F1."""
    columns = []
    for split in SPLITS[::-1]:
        tasks = {n: Column(n.heading, ((n, "accuracy"),)) for n in names if n.split == split}
        papers = [column for name, column in tasks.items() if name.name in TRANSFER]
        columns += papers
        if len(papers) > 1:
            heading = AVERAGE if split == "test" else f"{AVERAGE} {split}"
            columns.append(Column(heading, tuple(key for it in papers for key in it.keys)))
        columns += [column for column in tasks.values() if column not in papers]
    rest = dict.fromkeys(key for line in chosen.values() for key in line if key[1] != "accuracy")
    columns += [Column(f"{n.heading} {metric_heading(m)}", ((n, m),)) for n, m in rest]
    return columns


def _fewer(tasks: int, of: Sequence[str]) -> str:
    """How many tasks an average is over, where that is not all that papers have."""
    return "" if tasks == len(of) else f" of {tasks}"


def _learned(how: Mapping[str, str | int]) -> str:
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in how.items())
    return f"Classifier on frozen embeddings: {told}."


def _described(chosen: Chosen) -> list[str]:
    return [
        f"{label}: {described(label, next(iter(line.values())))}." for label, line in chosen.items()
    ]


def _in_order(names: Iterable[TaskName]) -> list[TaskName]:
    """Test splits before the others, the papers' tasks in their order before files."""
    place = {name: number for number, name in enumerate(STS_TASKS)}
    return sorted(
        dict.fromkeys(names),
        key=lambda it: (SPLITS[::-1].index(it.split), place.get(it.name, len(place))),
    )


def _all(rows: Sequence[PageRow]) -> Iterable[Record]:
    return (record for row in rows for record in row.records)


def _is_sts(record: Record) -> bool:
    return record.metric in METRICS and not is_mteb(record)


def _is_transfer(record: Record) -> bool:
    return record.classifier is not None and record.task in TRANSFER_TASKS


def _is_learned(record: Record, way: tuple[object, ...]) -> bool:
    return _is_transfer(record) and _way(record) == way


def _is_of(record: Record, name: TaskName) -> bool:
    known = _is_sts(record) or is_mteb(record)
    return TaskName(record.task, record.split) == name and not known


def _way(record: Record) -> tuple[object, ...]:
    how = record.classifier or {}
    return how.get("name"), how.get("preset"), how.get("seed")


def every_grid(rows: Sequence[PageRow]) -> Grid:
    """All records, a row each."""
    columns = ("encoder", "task", "split", "subset", "metric", "aggregation", "value", "pairs")
    cells = [
        (
            Cell(row.label),
            *map(Cell, (it.task, it.split, it.subset, it.metric, it.aggregation)),
            score(it.value, it.interval),
            Cell(f"{it.pairs:,}", it.pairs),
            Cell(it.protocol or ""),
        )
        for row in rows
        for it in row.records
    ]
    texts = frozenset({1, 2, 3, 4, 5, 8})
    return Grid("records", "All numbers", (*columns, "protocol"), tuple(cells), texts=texts)
