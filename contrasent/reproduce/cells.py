"""Cells of tables: published number, the study's, ours over the seeds, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from contrasent.errors import ContrasentError
from contrasent.evaluation.geometry import Trajectory, read_trajectory
from contrasent.evaluation.protocols import PROTOCOLS
from contrasent.evaluation.task_names import STS
from contrasent.recipe import load_recipe
from contrasent.report.table import ABSENT, Cell, Table, csv_text, number
from contrasent.reproduce.jobs import Measurement, Planner, Store
from contrasent.reproduce.measures import Value, is_score
from contrasent.reproduce.papers import PaperColumn, PaperRow, PaperTable, load_tables

_NARROW = 3
NOT_YET = "not made yet"


@dataclass(frozen=True, slots=True)
class PaperCell:
    """What a cell shows."""

    published: str | None  # as printed; None if the paper has no such number
    study: str | None  # the reproducibility study's
    # a number for each seed, in the units of the paper; one where no seed has a part
    ours: tuple[float, ...] = ()
    text: str = ""  # what is shown in place of a number
    reason: str = ""  # why there is none; empty if there is one
    failed: bool = False  # it was tried, and the reason is what went wrong
    precision: str = ""  # of the training that it comes from; empty without one
    is_out_of_reach: bool = False  # the reason is something that is not there

    @property
    def mean(self) -> float | None:
        """Over the seeds."""
        return fmean(self.ours) if self.ours else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; None of one."""
        return stdev(self.ours) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the published number."""
        printed = as_number(self.published)
        return None if self.mean is None or printed is None else self.mean - printed

    @property
    def digits(self) -> int:
        """After the point, of deviations and differences: 3 of geometry and other small numbers."""
        return 2 if abs(self.mean or 0.0) >= 5 else 3

    def shown(self) -> Cell:
        """Mean and deviation."""
        if self.mean is None:
            return Cell(self.text or ABSENT)
        spread = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return Cell(f"{_rounded(self.mean, self.published)}{spread}", self.mean)


def as_number(text: str | None) -> float | None:
    """A printed number; None of a word, and of nothing."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def short_reason(reason: str) -> str:
    """Without what a material has to hold, which the page of tables says too."""
    if not reason.startswith("needs "):
        return reason
    options = [part.partition(": ")[0] for part in f"; {reason}".split("; needs ")[1:]]
    return "; ".join(f"needs {option}" for option in options)


def _is_small(value: float | None) -> bool:
    return value is None or abs(value) < 1000


def _rounded(value: float, printed: str | None) -> str:
    """With the decimals of the printed number, two at least; small ones without it have three."""
    if abs(value) >= 1000 or (printed is not None and printed.isdecimal()):
        return f"{value:,.0f}"
    decimals = len((printed or "").partition(".")[2])
    if printed is None and abs(value) < 5:
        decimals = 3
    return f"{value:.{max(2, decimals)}f}" if abs(value) >= 0.01 or value == 0 else f"{value:g}"


@dataclass(frozen=True, slots=True)
class FilledRow:
    """A row with its cells by the heading of the column, and what is to be noted."""

    row: PaperRow
    cells: Mapping[str, PaperCell]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilledTable:
    """A table with its cells."""

    table: PaperTable  # of a paper
    scale: str  # at which it was made
    seeds: tuple[int, ...]  # that were asked for
    rows: tuple[FilledRow, ...]  # in the order of the table

    @property
    def heading(self) -> str:
        """With the scale."""
        return f"{self.table.heading} (scale {self.scale})"

    @property
    def name(self) -> str:
        """Of its files, without the ending."""
        return self.table.file_name

    def shown(self) -> Table:
        """The table as it is printed: few columns side by side, many in lines of their own."""
        columns = self.table.columns
        wide = len(columns) > _NARROW
        headings, rows = _wide(self) if wide else _narrow(self)
        texts = {len(headings) - 1}
        if all(
            not row.cells[c.heading].ours
            for row in self.rows
            for c in columns
            if c.heading in row.cells
        ):
            texts |= set(range(1, len(headings)))
        notes = [f"{self.table.note[0].upper()}{self.table.note[1:]}."] if self.table.note else []
        if precisions := sorted(
            {it.precision for row in self.rows for it in row.cells.values()} - {""}
        ):
            notes.append(f"Trained in {' and '.join(precisions)}, scored in fp32.")
        return Table(
            headings, tuple(rows), tuple(notes), self.heading, self.name, texts=frozenset(texts)
        )

    def numbers(self) -> str:
        """Every cell as a line of comma-separated values, in full precision."""
        head = ("table", "scale", "row", "column", "published", "study", "ours", "deviation")
        lines: list[Sequence[str]] = [(*head, "difference", "seeds", "reason", "trained in")]
        for row in self.rows:
            for heading, cell in row.cells.items():
                numbers = (cell.mean, cell.deviation, cell.difference)
                mean, spread, difference = ("" if it is None else repr(it) for it in numbers)
                lines.append(
                    (
                        *(self.table.name, self.scale, row.row.label, heading),
                        *(cell.published or "", cell.study or "", mean or cell.text, spread),
                        *(difference, " ".join(map(repr, cell.ours)), cell.reason, cell.precision),
                    )
                )
        return csv_text(lines)


def _narrow(filled: FilledTable) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Ours, published, study and difference beside one another."""
    headings, blocks = [""], list[list[Cell]]()
    for column in filled.table.columns:
        cells = [row.cells.get(column.heading, PaperCell(None, None)) for row in filled.rows]
        block = {column.heading: [cell.shown() for cell in cells]}
        if any(cell.published for cell in cells):
            block["published"] = [_printed(cell.published) for cell in cells]
        if any(cell.study for cell in cells):
            block["study"] = [_printed(cell.study) for cell in cells]
        if any(cell.difference is not None for cell in cells):
            block["difference"] = [_difference(cell) for cell in cells]
        headings += block
        blocks += block.values()
    rows = [
        (Cell(row.row.label), *(block[k] for block in blocks), Cell("; ".join(row.notes)))
        for k, row in enumerate(filled.rows)
    ]
    return (*headings, "note"), rows


def _wide(filled: FilledTable) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Lines of ours, published and study under one another, the difference of the last column."""
    columns = [column.heading for column in filled.table.columns]
    compared = any(
        row.cells.get(columns[-1], PaperCell(None, None)).published for row in filled.rows
    )
    rows = []
    for row in filled.rows:
        cells = [row.cells.get(heading, PaperCell(None, None)) for heading in columns]
        if any(cell.ours or cell.text or cell.reason for cell in cells):
            last = [_difference(cells[-1])] if compared else []
            shown = [cell.shown() for cell in cells]
            rows.append((Cell(row.row.label), *shown, *last, Cell("; ".join(row.notes))))
        for name, printed in (
            ("published", [cell.published for cell in cells]),
            ("study", [cell.study for cell in cells]),
        ):
            if any(printed):
                label = Cell(f"{row.row.label}, {name}")
                empty = [Cell("")] * (2 if compared else 1)
                rows.append((label, *map(_printed, printed), *empty))
    last_heading = [f"difference of {columns[-1]}"] if compared else []
    return ("", *columns, *last_heading, "note"), rows


def _difference(cell: PaperCell) -> Cell:
    return number(cell.difference, cell.digits if _is_small(cell.difference) else 0, sign="+")


def _printed(text: str | None) -> Cell:
    value = as_number(text)
    if value is not None and abs(value) >= 1000:
        return Cell(f"{value:,.0f}", value)
    return Cell(text or ABSENT, value)


class Filler:
    """Fills tables from a store."""

    def __init__(self, planner: Planner, store: Store, seeds: Sequence[int]) -> None:
        """Know where results are, and which were asked for."""
        self.planner, self.store, self.seeds = planner, store, tuple(seeds)
        self._plans: dict[tuple[int, str], tuple[list[list[Measurement]], str]] = {}

    def measurements(self, tables: Sequence[PaperTable]) -> Iterator[Measurement]:
        """What has to be measured for tables; what cannot be had is left out."""
        for table in tables:
            for row in table.rows:
                for column in table.columns_of(row):
                    for of_seed in self.plan(row, column)[0]:
                        yield from of_seed

    def plan(self, row: PaperRow, column: PaperColumn) -> tuple[list[list[Measurement]], str]:
        """The measurements of a cell by seed, and why there are none."""
        key = id(row), column.heading
        if key not in self._plans:
            self._plans[key] = self._new_plan(row, column)
        return self._plans[key]

    def _new_plan(self, row: PaperRow, column: PaperColumn) -> tuple[list[list[Measurement]], str]:
        system = row.system(self.planner.scale_name, column)
        if system.make == "cited":
            return [], system.note or "published only"
        if column.value.startswith(("setting:", "protocol:")):
            return [], ""
        try:
            of_seeds = [self.planner.jobs(row, column, seed) for seed in self.seeds]
        except ContrasentError as error:
            return [], str(error)
        distinct = {tuple(it.job.key for it in each): each for each in of_seeds}
        return list(distinct.values()), ""

    def table(self, table: PaperTable) -> FilledTable:
        """A table with what is in the store."""
        rows = [self._row(table, row) for row in table.rows]
        return FilledTable(table, self.planner.scale_name, self.seeds, tuple(rows))

    def cell(self, table: PaperTable, row: PaperRow, column: PaperColumn) -> PaperCell:
        """One cell."""
        empty = PaperCell(table.printed(row, column), table.printed_by_study(row, column))
        system = row.system(self.planner.scale_name, column)
        kind, _, rest = column.value.partition(":")
        if kind == "setting":
            section, _, key = rest.partition(".")
            part = getattr(load_recipe(system.recipe, system.settings), section)
            value = part[key] if isinstance(part, dict) else getattr(part, key)
            return replace(empty, ours=(float(value),))
        if kind == "protocol":
            return replace(empty, text=_protocol(system.data, rest))
        of_seeds, reason = self.plan(row, column)
        if reason:
            return replace(empty, reason=reason, is_out_of_reach=system.make != "cited")
        values: list[Value] = []
        reasons: list[str] = []
        for measurements in of_seeds:
            value, why = self._value(row, column, measurements)
            values += [] if value is None else [value]
            reasons += [why] if why else []
        numbers = [it for it in values if not isinstance(it, str)]
        texts = [it for it in values if isinstance(it, str)]
        reason = "; ".join(dict.fromkeys(reasons))
        failed = any(why != NOT_YET for why in reasons)
        if values and reasons:
            failures = [why for why in dict.fromkeys(reasons) if why != NOT_YET]
            reason = "; ".join([f"{len(values)} of {len(of_seeds)} seeds", *failures])
        text = "; ".join(texts[:1])
        precision = self._trained_in(of_seeds) if values else ""
        return PaperCell(
            empty.published, empty.study, tuple(numbers), text, reason, failed, precision
        )

    def _trained_in(self, of_seeds: Sequence[Sequence[Measurement]]) -> str:
        """The precision of the training runs that a cell comes from."""
        jobs = {job.key: job for each in of_seeds for it in each for job in it.job.chain()}
        made = (self.store.description(job) for job in jobs.values() if job.kind == "train")
        return " and ".join(sorted({str(it["precision"]) for it in made if "precision" in it}))

    def _value(
        self, row: PaperRow, column: PaperColumn, measurements: Sequence[Measurement]
    ) -> tuple[Value | None, str]:
        """A value in the units of the paper, and why there is none."""
        found: list[float] = []
        key, minus = column.value.removeprefix("generator:"), 0.0
        if key.startswith("delta:"):
            _, key, other, heading = key.split(":")
            original = load_tables()[other]
            printed = original.printed(row, PaperColumn(heading, key, {}))
            if printed is None:
                return None, f"{other} has no such number"
            minus = float(printed)
        aggregation = row.system(self.planner.scale_name).aggregation
        for measurement, task in zip(
            measurements, STS if len(measurements) > 1 else (key,), strict=True
        ):
            name = task if len(measurements) == 1 else key.replace("sts", task)
            name += f"/{aggregation}" if aggregation else ""
            value, reason = self._measured(measurement, name)
            if value is None or isinstance(value, str):
                return value, reason
            found.append(value)
        scale = 100.0 if _printed_in_hundreds(key) else 1.0
        return scale * fmean(found) - minus, ""

    def _measured(self, measurement: Measurement, name: str) -> tuple[Value | None, str]:
        job = measurement.job
        if name.startswith("machine:"):
            return self._machine(measurement, name.partition(":")[2])
        if name.startswith("trace:"):
            return self._trace(measurement, *name.split(":")[1:])
        result = self.store.result(measurement)
        if result is None:
            path = self.store.path(measurement)
            failed = path.with_name(f"{path.name}.failed.txt")
            why = failed.read_text("utf-8") if failed.is_file() else ""
            failures = (self.store.failure(it) for it in reversed(list(job.chain())))
            return None, why or next(filter(None, failures), NOT_YET)
        if name not in result.values:
            return None, "; ".join(result.problems) or f"{name} could not be measured"
        return result.values[name], ""

    def _trace(self, measurement: Measurement, metric: str, end: str) -> tuple[Value | None, str]:
        run = self.trajectory(measurement)
        if run is None:
            return None, self.store.failure(measurement.job) or NOT_YET
        place = run.positions[0 if end == "first" else -1]
        return float(getattr(place, metric)), ""

    def trajectory(self, measurement: Measurement) -> Trajectory | None:
        """Alignment and uniformity in training; None of a run that was not made."""
        made = self.store.is_made(measurement.job)
        return read_trajectory(self.store.folder(measurement.job) / "run") if made else None

    def _machine(self, measurement: Measurement, what: str) -> tuple[Value | None, str]:
        kept = self.store.description(measurement.job)
        if not kept:
            return None, self.store.failure(measurement.job) or NOT_YET
        machine, train = kept["environment"], kept["recipe"]["train"]
        hours, gigabytes = kept["seconds"] / 3600, kept["peak_memory"] / 1e9
        gpu = machine["gpu"] if kept.get("device", "cuda") == "cuda" else None
        values: dict[str, Value] = {
            "hardware": gpu or f"{machine['threads']} threads of {machine['cpu']}",
            "memory": "no GPU" if gpu is None else f"{gigabytes:.1f} GB",
            "hours": hours / train["epochs"],
            "trials": float(len(self.seeds)),
            "total": hours * len(self.seeds),
            "epochs": float(train["epochs"]),
        }
        return values[what], ""

    def _row(self, table: PaperTable, row: PaperRow) -> FilledRow:
        cells = {it.heading: self.cell(table, row, it) for it in table.columns_of(row)}
        system = row.system(self.planner.scale_name)
        runs = [
            it.job.run
            for column in table.columns_of(row)
            for of_seed in self.plan(row, column)[0]
            for it in of_seed
        ]
        scale = self.planner.scale.recipes
        capped = [scale.get(it.system.recipe, {}).get("train.max_steps") for it in runs]
        steps = [f"{it} steps" for it in capped if it]
        reasons = [short_reason(cell.reason) for cell in cells.values()]
        kept = [self.store.description(it).get("note", "") for it in runs]
        notes = dict.fromkeys(filter(None, [system.note, *steps, *reasons, *kept]))
        return FilledRow(row, cells, tuple(notes))


def _printed_in_hundreds(value: str) -> bool:
    return not value.startswith(("trace:", "machine:")) and is_score(value)


def _protocol(name: str, what: str) -> str:
    value = getattr(PROTOCOLS[name], what)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str) else " and ".join(it.capitalize() for it in value)
