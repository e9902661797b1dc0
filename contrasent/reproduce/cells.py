"""Cells of tables: published number, the study's, ours over the seeds, or why there is none."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from contrasent.data import as_number, build
from contrasent.errors import ContrasentError, DataError
from contrasent.evaluation import PROTOCOLS, STS, read_trajectory
from contrasent.files import readable, writing
from contrasent.recipe import dotted, load_recipe, validate
from contrasent.report import ABSENT, Cell, Table, number
from contrasent.reproduce.jobs import Measurement, Planner, Store, Value
from contrasent.reproduce.materials import task_folder
from contrasent.reproduce.papers import PaperColumn, PaperRow, PaperTable, load_tables, published

_NARROW = 3
NOT_YET = "not made yet"


@dataclass(frozen=True, slots=True)
class PaperCell:
    """What a cell shows."""

    published: str | None = None  # as printed; None if the paper has no such number
    study: str | None = None  # the reproducibility study's
    # a number for each seed, in the units of the paper; one where no seed has a part
    ours: tuple[float, ...] = ()
    text: str = ""  # what is shown in place of a number
    reason: str = ""  # why there is none; empty if there is one
    failed: bool = False  # it was tried, and the reason is what went wrong
    precision: str = ""  # of the training that it comes from; empty without one
    is_random: bool = False  # another seed would give another number
    # names of the results that it is of, by seed: one, or one for each STS task
    results: tuple[tuple[str, ...], ...] = ()

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
        return 3 if self.mean is not None and abs(self.mean) < 5 else 2

    @property
    def decimals(self) -> int:
        """Those of the printed number, two at least; three of a small one without it."""
        small = self.published is None and self.mean is not None and abs(self.mean) < 5
        return max(2, 3 if small else len((self.published or "").partition(".")[2]))

    def shown(self, column: "Sequence[PaperCell]" = ()) -> Cell:
        """Mean and deviation, with as many decimals as any cell of its column; large ones none."""
        mean, printed = self.mean, self.published
        if mean is None:
            return Cell(self.text or ABSENT)
        alike = (self, *column)
        decimals, digits = max(it.decimals for it in alike), max(it.digits for it in alike)
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        text = f"{mean:.{decimals}f}" if abs(mean) >= 0.01 or mean == 0 else f"{mean:.3g}"
        if abs(mean) >= 1000 or (printed is not None and printed.isdecimal()):
            text = f"{mean:,.0f}"
        return Cell(f"{text}{spread}", mean)

    def comparison(self, name: str) -> Cell:
        """The ``published`` number, that of the ``study``, or the ``difference`` with its sign."""
        if name == "difference":
            small = self.difference is None or abs(self.difference) < 1000
            return number(self.difference, self.digits if small else 0, sign="+")
        text = self.published if name == "published" else self.study
        value = as_number(text)
        if value is not None and abs(value) >= 1000:
            return Cell(f"{value:,.0f}", value)
        return Cell(text or ABSENT, value)


def short_reason(reason: str) -> str:
    """Without what a material has to hold, which the page of tables says too."""
    if not reason.startswith("needs "):
        return reason
    options = [part.partition(": ")[0] for part in f"; {reason}".split("; needs ")[1:]]
    return "; ".join(f"needs {option}" for option in options)


@dataclass(frozen=True, slots=True)
class FilledRow:
    """A row with its cells by the heading of the column, and what is to be noted."""

    label: str
    cells: Mapping[str, PaperCell]
    notes: tuple[str, ...]


Examples = Callable[[str], Mapping[str, np.ndarray]]
"""Reads the numbers of a result by test pair or example, by task or value; none where not kept."""


@dataclass(frozen=True, slots=True)
class FilledTable:
    """A table with its cells, from a store or from records."""

    table: PaperTable  # of a paper
    scale: str  # at which it was made
    seeds: tuple[int, ...]  # that were asked for
    rows: tuple[FilledRow, ...]  # in the order of the table
    examples: Examples  # of the cells' results
    data_dir: str | None = None  # SentEval's folder

    @property
    def heading(self) -> str:
        """With the scale."""
        return f"{self.table.heading} (scale {self.scale})"

    @property
    def name(self) -> str:
        """Of its files, without the ending."""
        return self.table.name.replace("/", "-")

    @property
    def cells(self) -> list[PaperCell]:
        """All cells, row by row."""
        return [cell for row in self.rows for cell in row.cells.values()]

    def part(self, table: PaperTable) -> "FilledTable":
        """The rows and columns that ``table`` has too."""
        labels, names = ({row.label for row in table.rows}, {it.heading for it in table.columns})
        columns = tuple(it for it in self.table.columns if it.heading in names)
        rows = (
            replace(row, cells={k: it for k, it in row.cells.items() if k in names})
            for row in self.rows
            if row.label in labels
        )
        return replace(self, table=replace(self.table, columns=columns), rows=tuple(rows))

    def shown(self) -> Table:
        """The table as it is printed: few columns side by side, many in lines of their own."""
        headings, rows = self._wide() if len(self.table.columns) > _NARROW else self._narrow()
        any_number = any(cell.ours for cell in self.cells)
        texts = frozenset(range(len(headings) - 1 if any_number else 1, len(headings)))
        notes = [self.table.note] if self.table.note else []
        if precisions := sorted({cell.precision for cell in self.cells} - {""}):
            notes.append(f"Trained in {' and '.join(precisions)}, scored in fp32.")
        return Table(headings, tuple(rows), tuple(notes), self.heading, self.name, texts=texts)

    def _narrow(self) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
        headings, blocks = [""], list[list[Cell]]()
        for column in self.table.columns:
            cells = [row.cells.get(column.heading, PaperCell()) for row in self.rows]
            blocks.append([cell.shown(cells) for cell in cells])
            headings.append(column.heading)
            for name in ("published", "study", "difference"):
                if any(getattr(cell, name) not in (None, "") for cell in cells):
                    headings.append(name)
                    blocks.append([cell.comparison(name) for cell in cells])
        rows = [
            (Cell(row.label), *(block[k] for block in blocks), Cell("; ".join(row.notes)))
            for k, row in enumerate(self.rows)
        ]
        return (*headings, "note"), rows

    def _wide(self) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
        columns = [column.heading for column in self.table.columns]
        lines = [[row.cells.get(it, PaperCell()) for it in columns] for row in self.rows]
        compared = any(cells[-1].published for cells in lines)
        rows, stacks = [], list(zip(*lines, strict=True))
        for row, cells in zip(self.rows, lines, strict=True):
            if any(cell.ours or cell.text or cell.reason for cell in cells):
                last = [cells[-1].comparison("difference")] if compared else []
                shown = [cell.shown(of) for cell, of in zip(cells, stacks, strict=True)]
                rows.append((Cell(row.label), *shown, *last, Cell("; ".join(row.notes))))
            for name in ("published", "study"):
                if any(getattr(cell, name) for cell in cells):
                    printed = [cell.comparison(name) for cell in cells]
                    empty = [Cell("")] * (2 if compared else 1)
                    rows.append((Cell(f"{row.label}, {name}"), *printed, *empty))
        return ("", *columns, *[f"difference of {columns[-1]}"] * compared, "note"), rows

    def write_numbers(self, path: Path) -> None:
        """Write every cell as a line of comma-separated values, in full precision."""
        head = ("table", "scale", "row", "column", "published", "study", "ours", "deviation")
        lines = list[tuple[str, ...]]()
        for row in self.rows:
            for heading, cell in row.cells.items():
                numbers = (cell.mean, cell.deviation, cell.difference)
                mean, spread, difference = ("" if it is None else repr(it) for it in numbers)
                place = self.table.name, self.scale, row.label, heading
                printed = cell.published or "", cell.study or ""
                ours = mean or cell.text, spread, difference, " ".join(map(repr, cell.ours))
                lines.append((*place, *printed, *ours, cell.reason, cell.precision))
        build.write_rows(path, (*head, "difference", "seeds", "reason", "trained in"), lines)


ValueOrReason = tuple[Value | None, str]
"""A value, and why there is none."""


class Filler:
    """Fills tables from a store."""

    def __init__(self, planner: Planner, store: Store, seeds: Sequence[int]) -> None:
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
            system = row.system(self.store.scale, column)
            plan, reason = list[list[Measurement]](), ""
            try:
                if system.make == "cited":
                    reason = system.note or "published only"
                elif column.kind not in ("setting", "protocol"):
                    plan = [self.planner.jobs(row, column, seed) for seed in self.seeds]
            except ContrasentError as error:
                reason = str(error)
            distinct = {tuple(it.job.key for it in each): each for each in plan}
            self._plans[key] = list(distinct.values()), reason
        return self._plans[key]

    def table(self, table: PaperTable) -> FilledTable:
        """A table with what is in the store."""
        store, caps = self.store, self.planner.scale.recipes
        rows, scale = list[FilledRow](), store.scale
        for row in table.rows:
            columns = table.columns_of(row)
            cells = {it.heading: self.cell(table, row, it) for it in columns}
            plans = [of_seed for it in columns for of_seed in self.plan(row, it)[0]]
            runs = [it.job.run for of_seed in plans for it in of_seed]
            capped = [caps.get(it.system.recipe, {}).get("train.max_steps") for it in runs]
            notes = [
                row.system(scale).note,
                *(f"{it} steps" for it in capped if it),
                *(short_reason(cell.reason) for cell in cells.values()),
                *(self.store.description(it).get("note", "") for it in runs),
            ]
            rows.append(FilledRow(row.label, cells, tuple(dict.fromkeys(filter(None, notes)))))
        return FilledTable(table, scale, self.seeds, tuple(rows), store.examples, store.data_dir)

    def cell(self, table: PaperTable, row: PaperRow, column: PaperColumn) -> PaperCell:
        """One cell."""
        study = published("study", table.study).get(row.published, {}).get(column.heading)
        empty = PaperCell(table.printed(row, column.heading), study)
        system = row.system(self.store.scale, column)
        if column.kind == "setting":
            value = dotted(load_recipe(system.recipe, system.settings))[column.name]
            return replace(empty, ours=(float(value),))
        if column.kind == "protocol":
            of = getattr(PROTOCOLS[system.data], column.name)
            words = "yes" if of is True else "no" if of is False else of
            words = words if isinstance(words, str) else " and ".join(map(str.capitalize, words))
            return replace(empty, text=words)
        of_seeds, reason = self.plan(row, column)
        if reason:
            return replace(empty, reason=reason)
        results = tuple(tuple(it.result for it in of_seed) for of_seed in of_seeds)
        outcomes = [self._value(row, column, measurements) for measurements in of_seeds]
        values = [value for value, _ in outcomes if value is not None]
        reasons = list(dict.fromkeys(why for _, why in outcomes if why))
        failures = [why for why in reasons if why != NOT_YET]
        if values and reasons:
            reasons = [f"{len(values)} of {len(of_seeds)} seeds", *failures]
        jobs = {job.key: job for of in of_seeds for it in of for job in it.job.chain()}
        trained = [self.store.description(job) for job in jobs.values() if job.kind == "train"]
        precisions = sorted({str(it["precision"]) for it in trained if "precision" in it})
        return replace(
            empty,
            ours=tuple(it for it in values if not isinstance(it, str)),
            text=next((it for it in values if isinstance(it, str)), ""),
            reason="; ".join(reasons),
            failed=bool(failures),
            precision=" and ".join(precisions) if values else "",
            is_random=any(it.job.is_random for of_seed in of_seeds for it in of_seed),
            results=results,
        )

    def _value(
        self, row: PaperRow, column: PaperColumn, measurements: Sequence[Measurement]
    ) -> ValueOrReason:
        job = measurements[0].job.run
        if column.kind in ("machine", "trace"):
            if not (kept := self.store.description(job)):
                return None, self.store.failure(job) or NOT_YET
            if column.kind == "machine":
                return self._machine(kept, column.name), ""
            metric, end = column.name.split(":")
            positions = read_trajectory(self.store.folder(job) / "run").positions
            return float(getattr(positions[0 if end == "first" else -1], metric)), ""
        minus = 0.0
        if column.minus:
            table, heading = column.minus
            printed = load_tables()[table].printed(row, heading)
            if printed is None:
                return None, f"{table} has no such number"
            minus = float(printed)
        aggregation = row.system(self.store.scale).aggregation
        tasks, values = STS if len(measurements) > 1 else ("",), list[float]()
        for measurement, task in zip(measurements, tasks, strict=True):
            name = column.name.replace("sts", task) if task else column.name
            name += f"/{aggregation}" if aggregation else ""
            value, reason = self._measured(measurement, name)
            if value is None or isinstance(value, str):
                return value, reason
            values.append(value)
        return (100.0 if column.is_score else 1.0) * fmean(values) - minus, ""

    def _measured(self, measurement: Measurement, name: str) -> ValueOrReason:
        result = self.store.result(measurement)
        if result is None:
            failed = self.store.path(measurement, ".failed.txt")
            why = failed.read_text("utf-8") if failed.is_file() else ""
            failures = (self.store.failure(it) for it in reversed(list(measurement.job.chain())))
            return None, why or next(filter(None, failures), NOT_YET)
        if name not in result.values:
            return None, "; ".join(result.problems) or f"{name} could not be measured"
        return result.values[name], ""

    def _machine(self, kept: Mapping[str, Any], what: str) -> Value:
        machine, train = kept["environment"], kept["recipe"]["train"]
        hours, gigabytes = kept["seconds"] / 3600, kept["peak_memory"] / 1e9
        gpu = machine["gpu"] if kept.get("device", "cuda") == "cuda" else None
        each, total = hours / train["epochs"], hours * len(self.seeds)
        values: dict[str, Value] = {
            "hardware": gpu or f"{machine['threads']} threads of {machine['cpu']}",
            "memory": "no GPU" if gpu is None else f"{gigabytes:.1f} GB",
            "hours": each if gpu else f"{each:.2f} of a processor",
            "trials": float(len(self.seeds)),
            "total": total if gpu else f"{total:.2f} of a processor",
            "epochs": float(train["epochs"]),
        }
        return values[what]


_KEY = b"contrasent"


def write_records(path: Path, filled: FilledTable) -> None:
    """Write a table with the numbers by test pair or example that its intervals are of.

    From it a table is printed, and its claims are judged, without encoders and training text.
    """
    import pyarrow as pa
    from pyarrow import parquet

    content = {
        "table": filled.table.name,
        "scale": filled.scale,
        "seeds": filled.seeds,
        "rows": [asdict(row) for row in filled.rows],
    }
    results = {it for cell in filled.cells for of_seed in cell.results for it in of_seed}
    values = [
        {"result": result, "label": label, "values": numbers}
        for result in sorted(results)
        for label, numbers in filled.examples(result).items()
    ]
    types = {"result": pa.string(), "label": pa.string(), "values": pa.list_(pa.float32())}
    schema = pa.schema(types, metadata={_KEY: json.dumps(content)})
    with writing(path) as partial:
        parquet.write_table(pa.Table.from_pylist(values, schema), partial, compression="zstd")


def read_records(folder: Path, data_dir: str | None = None) -> dict[str, FilledTable]:
    """Read the tables of a folder by their names, in the order of the papers.

    DataError if there are none; other Parquet files are left out.
    """
    read = (_read(path, data_dir) for path in sorted(folder.glob("*.parquet")))
    tables = {it.table.name: it for it in read if it is not None}
    if not tables:
        raise DataError(f"{folder}: no records (.parquet), as 'contrasent reproduce' writes")
    return {name: tables[name] for name in load_tables() if name in tables}


def _read(path: Path, data_dir: str | None) -> FilledTable | None:
    from pyarrow import parquet

    with readable(path, "name a folder of whole records"):
        table = parquet.read_table(path)
    metadata = table.schema.metadata or {}
    if _KEY not in metadata:
        return None
    content = json.loads(metadata[_KEY])
    examples = defaultdict[str, dict[str, np.ndarray]](dict)
    for it in table.to_pylist():
        examples[it["result"]][it["label"]] = np.array(it["values"], np.float32)
    rows = tuple(validate(FilledRow, it, str(path)) for it in content["rows"])
    headings = {heading for row in rows for heading in row.cells}
    paper_table = load_tables()[content["table"]]
    columns = tuple(it for it in paper_table.columns if it.heading in headings)
    kept = replace(paper_table, columns=columns), content["scale"], tuple(content["seeds"]), rows
    data_dir = task_folder(content["scale"], data_dir)
    return FilledTable(*kept, lambda result: examples.get(result, {}), data_dir)
