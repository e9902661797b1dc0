"""Verdicts on the papers' claims: whether a difference holds here, with the test that says so.

A claim is a set of comparisons of rows. A difference is judged by an interval that holds what
changes with the test pairs (their dyadic-robust error: pairs share sentences) and with the seeds
of training (paired over seeds): its half-width is the root of the sum of squares of both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

import numpy as np

from contrasent import evaluation
from contrasent.data import as_number
from contrasent.errors import DataError
from contrasent.evaluation import STS, STS_TASKS, TRANSFER, SeedError
from contrasent.report import ABSENT, Table, text_table
from contrasent.reproduce import papers
from contrasent.reproduce.cells import FilledRow, FilledTable, PaperCell, short_reason
from contrasent.reproduce.materials import read_suite
from contrasent.reproduce.papers import PaperColumn, PaperRow, PaperTable

HOLDS, CONTRARY, OPEN, WEAK = "holds", "does not hold", "cannot be told", "no power"
MARGIN = 1.0
"""Points within which two results are called alike: the papers' own runs differ by as much."""

_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """One comparison of a claim."""

    better: str  # the label of the row that is said to have the larger number
    other: str  # the label of the other row
    relation: str  # ``>``; ``>=``, not below by more than :data:`MARGIN`; ``~``, within it
    published: float | None  # the difference of the printed numbers; None where not printed
    column: str = ""  # its heading; empty where the claim is about one
    cells: tuple[PaperCell, PaperCell] = (PaperCell(), PaperCell())  # ours, of both
    # standard error of the difference over test pairs; None if it was not computed
    pair_error: float | None = None
    # over seeds; None if unknown, and where nothing tells how sure a difference is
    seed_error: SeedError | None = None

    @property
    def difference(self) -> float | None:
        """Ours."""
        first, second = (cell.mean for cell in self.cells)
        return None if first is None or second is None else first - second

    def reach(self, level: float) -> float | None:
        """Half the width of the interval of the difference; None where seeds tell nothing."""
        if self.seed_error is None:
            return None
        return self.seed_error.reach(self.pair_error or 0.0, level)

    def status(self, tests: int) -> str:
        """Its verdict; to be contrary it has to stand the correction for ``tests`` parts.

        No power is the verdict where the interval could not have shown the published difference,
        or that two results are alike. Without a published difference it is so only where the
        interval decides nothing, and could not have shown a difference of :data:`MARGIN`.
        """
        difference, reach = self.difference, self.reach(_LEVEL)
        corrected = self.reach(_LEVEL / tests)
        if difference is None or reach is None or corrected is None:
            return OPEN
        least = {"~": -MARGIN, ">=": -MARGIN, ">": 0.0}[self.relation]
        most = MARGIN if self.relation == "~" else inf
        status = OPEN
        if least < difference - reach and difference + reach < most:
            status = HOLDS
        elif difference + corrected < least or difference - corrected > most:
            status = CONTRARY
        smallest = abs(self.published or MARGIN) if self.relation == ">" else MARGIN
        is_decided = self.published is None and status != OPEN
        return WEAK if reach > smallest and not is_decided else status

    def described(self) -> str:
        """Labels, numbers and interval in a line."""
        shown = [cell.shown().text for cell in self.cells]
        line = f"{self.better} {shown[0]} {self.relation} {self.other} {shown[1]}"
        line = f"{self.column}, {line}" if self.column else line
        if self.difference is None:
            return line
        reach, digits = self.reach(_LEVEL), min(cell.digits for cell in self.cells)
        ends = f" ± {reach:.{digits}f}" if reach else ""
        printed = "" if self.published is None else f", published {self.published:+.{digits}f}"
        return f"{line}: {self.difference:+.{digits}f}{ends}{printed}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a claim here."""

    number: str  # such as ``S1``
    claim: str  # in words
    status: str  # holds, does not hold, no power, or cannot be told
    parts: tuple[ClaimPart, ...] = ()  # its comparisons
    note: str = ""  # why it cannot be told, and the likely cause of contradictions


def verdicts(tables: Sequence[FilledTable]) -> list[Verdict]:
    """Verdicts on the claims about tables."""
    judges = {it.table.name: _Judge(it) for it in tables}
    return [
        judges[claim["cells"]].verdict(number, claim)
        for number, claim in papers.read_plan("claims").items()
        if claim["cells"] in judges
    ]


def claim_columns(table: PaperTable, claim: Mapping[str, Any]) -> list[PaperColumn]:
    """The columns that a claim is about: one, several, or all."""
    asked = claim["column"] if isinstance(claim["column"], list) else [claim["column"]]
    return [it for it in table.columns if it.heading in asked or "*" in asked]


def comparisons(table: PaperTable, column: PaperColumn, says: Sequence[str]) -> Iterator[ClaimPart]:
    """The comparisons of a claim with their published difference."""
    rows = {row.label: row for row in table.rows}
    for text in says:
        relation = next(it for it in (">=", "~", ">") if f" {it} " in text)
        sides = text.split(f" {relation} ")
        others = [it for it in rows if it not in sides and "published" not in rows[it].raw]
        for better, other in product(*([*others] if it == "*" else [it] for it in sides)):
            pair = rows[better], rows[other]
            first, second = (as_number(table.printed(row, column.heading)) for row in pair)
            published = None if first is None or second is None else first - second
            yield ClaimPart(better, other, relation, published, column.heading)


class _Judge:
    def __init__(self, filled: FilledTable) -> None:
        self._filled, self._rows = filled, {row.label: row for row in filled.rows}

    def verdict(self, number: str, claim: Mapping[str, Any]) -> Verdict:
        """The verdict on a claim."""
        if "why" in claim:
            return Verdict(number, claim["claim"], OPEN, note=claim["why"])
        table = papers.load_tables()[claim["cells"]]
        columns = claim_columns(table, claim)
        pairs = {  # a claim may name a row beside all rows, which have it too
            (column.heading, part.better, part.other): (column, part)
            for column in columns
            for part in comparisons(table, column, claim["says"])
        }
        parts = [self.tested(table, *each) for each in pairs.values()]
        if len(columns) == 1:
            parts = [replace(part, column="") for part in parts]
        statuses = [part.status(len(parts)) for part in parts]
        status = next((it for it in (CONTRARY, OPEN, WEAK) if it in statuses), HOLDS)
        missing = [it for it in parts if it.difference is None]
        notes = list[str]()
        if self._filled.scale == papers.SMOKE:
            status, notes = OPEN, ["scale smoke: weights are random"]
        elif missing:
            notes = [f"{len(missing)} of {len(parts)} comparisons lack a number"]
            reasons = (short_reason(cell.reason) for it in missing for cell in it.cells)
            notes += filter(None, dict.fromkeys(reasons))
        elif any(part.seed_error is None for part in parts):
            notes = ["too few seeds, or no examples, to say how much a difference changes"]
        notes += [claim["cause"]] if "cause" in claim else []
        return Verdict(number, claim["claim"], status, tuple(parts), "; ".join(notes))

    def tested(self, table: PaperTable, column: PaperColumn, part: ClaimPart) -> ClaimPart:
        """A comparison with our numbers, and how sure their difference is."""
        rows = {row.label: row for row in table.rows}
        pair = rows[part.better], rows[part.other]
        first, second = cells = self._cells(pair, column)
        part = replace(part, cells=(first, second))
        if part.difference is None:
            return part
        pair_error = self.pair_error(pair, column)
        if pair_error is None and not column.text.startswith(("trace:", "overlap")):
            return part
        return replace(part, pair_error=pair_error, seed_error=self.seed_error(cells))

    def _cells(self, rows: Sequence[PaperRow], column: PaperColumn) -> list[PaperCell]:
        missing = FilledRow("", {}, ())
        cells = (self._rows.get(it.label, missing).cells.get(column.heading) for it in rows)
        return [it or PaperCell(reason="not in the records") for it in cells]

    def seed_error(self, cells: Sequence[PaperCell]) -> SeedError | None:
        """Paired over common seeds, None without; 0 where neither number depends on a seed."""
        if not any(cell.is_random for cell in cells):
            return SeedError(0.0, 1)
        seeds = len(self._filled.seeds)
        first, second = (cell.ours if cell.is_random else cell.ours * seeds for cell in cells)
        if not len(first) == len(second) == seeds > 1:
            return None
        return SeedError.of([a - b for a, b in zip(first, second, strict=True)])

    def pair_error(self, pair: Sequence[PaperRow], column: PaperColumn) -> float | None:
        """Standard error of a difference over test pairs or examples, of means over seeds.

        Pairs that share a sentence are dependent, within a task and across those of an average;
        examples of transfer tasks and of retrieval are not. None of what is not kept by example,
        such as the last step of a trajectory.
        """
        filled, cells = self._filled, self._cells(pair, column)
        value, _, aggregation = column.text.partition("/")
        split = "dev" if value.endswith("-dev") else "test"
        names = {"sts": STS, "transfer": TRANSFER}.get(column.task, (column.task,))
        ways = [row.system(filled.scale).aggregation or aggregation or "all" for row in pair]
        tasks, moves = list[Any](), list[np.ndarray]()
        for place, name in enumerate(names):
            label = name if split == "test" else f"{name}-dev"
            sides = [self._examples(cell, place, label) for cell in cells]
            if not all(sides):
                return None
            if name in STS_TASKS:
                (read,) = read_suite((name,), filled.data_dir, split).tasks("sts")
                tasks.append(read)
                *ends, count = np.cumsum([len(subset.gold) for subset in read.subsets])
                if {len(it) for side in sides for it in side} != {count}:
                    raise DataError(f"{label} has {count} pairs, the records others (--data-dir)")
                columns = [[(*np.split(it.astype(float), ends),) for it in side] for side in sides]
                first, second = (
                    np.mean([evaluation.influences(read, it, "spearman")[way] for it in of], axis=0)
                    for of, way in zip(columns, ways, strict=True)
                )
            else:
                first, second = (np.asarray(side, np.float64).mean(axis=0) for side in sides)
                if column.is_of_geometry:
                    pairs = column.measure.partition(":")[2]
                    tasks.append(evaluation.RatedPairs.read(pairs, filled.data_dir).task)
            moves.append(first - second)
        alone = np.diag([float(np.square(move).sum()) for move in moves])
        error = evaluation.mean_error(evaluation.joint_covariance(tasks, moves) if tasks else alone)
        return 100 * error if column.is_score else error

    def _examples(self, cell: PaperCell, place: int, label: str) -> list[np.ndarray]:
        results = (it[place if len(it) > 1 else 0] for it in cell.results)
        return [it[label] for it in map(self._filled.examples, results) if label in it]


def _smallest(verdict: Verdict) -> str:
    widest = max((part.reach(_LEVEL) or inf for part in verdict.parts), default=inf)
    return f"{widest:.2f}" if widest < inf else ABSENT


def verdict_table(judged: Sequence[Verdict], scale: str) -> Table:
    """Claims, verdicts and numbers."""
    rows = [
        (
            *(it.number, it.claim, it.status, _smallest(it)),
            "; ".join(part.described() for part in it.parts) or ABSENT,
            it.note,
        )
        for it in judged
    ]
    counts = ", ".join(
        f"{sum(it.status == status for it in judged)} {status}"
        for status in (HOLDS, CONTRARY, WEAK, OPEN)
    )
    headings = ("claim", "in words", "verdict", "can tell", "comparisons", "note")
    table = text_table(headings, rows, title=f"Verdicts on the claims (scale {scale})")
    notes = (
        f"{counts}.",
        "A comparison is the difference of means over the seeds, with its 95 % interval over test "
        "pairs, of which those that share a sentence are dependent, or over examples (the last "
        "step of a trajectory has none), and over seeds, paired. A claim holds if all its "
        "comparisons do, and does not if one is contrary after Bonferroni's correction; "
        f"two results are alike, and one does not fall below another, within {MARGIN:g} point. "
        "The smallest difference that all comparisons can tell is the widest interval's half: "
        "where it is above the published difference, or that point, there is no power, unless no "
        "difference is published and the interval leaves no doubt.",
    )
    return replace(table, notes=notes)
