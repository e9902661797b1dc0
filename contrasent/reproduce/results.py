"""What lies in the folder of a table: a line for each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.evaluation.geometry import Geometry, read_geometry
from contrasent.evaluation.task_names import STS, STS_TASKS, TRANSFER
from contrasent.evaluation.transfer_data import TRANSFER_TASKS
from contrasent.records import Record, read_records
from contrasent.reproduce.plan import Cited, PlanRow
from contrasent.reproduce.tables import DONE, GEOMETRY, RECORDS, ROWS, RowResult

COLUMNS = {
    **{name: task.heading for name, task in STS_TASKS.items()},
    **{name: task.published or task.heading for name, task in TRANSFER_TASKS.items()},
}
"""The columns of published tables by task."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table.

    Attributes:
        name: of the row.
        row: how it is made.
        records: what was measured here; empty of a row that was not made.
        geometry: alignment and uniformity; None if they were not measured.
        published: by ``sts``, ``transfer`` and ``study``.
        run: what was kept of the run: recipe, seconds, problems, environment; None if not made.
        missing: why it was not made; empty if it was.
    """

    name: str
    row: PlanRow
    records: tuple[Record, ...]
    geometry: Geometry | None
    published: Mapping[str, Cited]
    run: Mapping[str, Any] | None
    missing: str

    def value(self, task: str) -> float | None:
        """Correlation (Spearman, all) or accuracy on the test split, x 100; None without."""
        metric = "spearman" if task in STS else "accuracy"
        for record in self.records:
            of_task = (record.task, record.split, record.metric) == (task, "test", metric)
            if of_task and (task in TRANSFER or record.aggregation == "all"):
                return 100 * record.value
        return None

    def average(self, tasks: Sequence[str]) -> float | None:
        """Mean over tasks; None if one has no value."""
        return mean([self.value(task) for task in tasks])

    def published_value(self, task: str) -> float | None:
        """What the paper has for the task."""
        found = self.published.get("sts" if task in STS else "transfer")
        return None if found is None else found.values.get(COLUMNS[task])

    def published_average(self, tasks: Sequence[str], of: str) -> float | None:
        """The paper's mean over these tasks: as printed where they are all seven."""
        found = self.published.get(of)
        if found is None:
            return None
        whole = set(tasks) in (set(STS), set(TRANSFER))
        if whole and "Avg" in found.values:
            return found.values["Avg"]
        return mean([found.values.get(COLUMNS[task]) for task in tasks])


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is missing, or all are."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there and len(there) == len(values) else None


def read_lines(outcome: RowResult, output: Path) -> list[TableRow]:
    """The lines of a table, those of rows that were not made too.

    Raises:
        DataError: a file is damaged.
    """
    return [_line(outcome, name, output / ROWS / name) for name in outcome.rows]


def _line(outcome: RowResult, name: str, folder: Path) -> TableRow:
    row = outcome.plan.rows[name]
    cited = row.citations
    if row.make == "cited":
        return TableRow(name, row, (), None, cited, None, row.note or "published numbers only")
    if name in outcome.lacking:
        needs = " and ".join(f"--{material}" for material in sorted(outcome.lacking[name]))
        return TableRow(name, row, (), None, cited, None, f"not made: it needs {needs}")
    if name in outcome.failed:
        return TableRow(name, row, (), None, cited, None, f"not made: {outcome.failed[name]}")
    run = json.loads((folder / DONE).read_text(encoding="utf-8"))
    geometry = next(iter(read_geometry(folder / GEOMETRY)), None)
    return TableRow(name, row, tuple(read_records(folder / RECORDS)), geometry, cited, run, "")
