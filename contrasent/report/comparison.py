"""Tables of differences between encoders, with intervals and p-values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from contrasent.evaluation.compare import Comparison, SeedScores
from contrasent.evaluation.suite import Suite
from contrasent.evaluation.task_names import TaskName, short_headings
from contrasent.evaluation.task_types import TaskData
from contrasent.records import Compared, Record
from contrasent.report.scores_table import (
    CORRELATION,
    TABLES,
    Layout,
    Rows,
    labelled_headings,
    metric_heading,
    sts_table,
)
from contrasent.report.table import ABSENT, AVERAGE, DYADIC, Cell, Table, number, score


def differences_table(
    rows: Iterable[tuple[str, Compared]], title: str, about: str, drawn: str
) -> Table:
    """Differences x 100 with intervals and p-values.

    ``rows`` were compared, by their headings; ``about`` says what the numbers are, ``drawn`` what
    is drawn again.
    """
    rows = list(rows)
    cells = tuple(
        (Cell(heading), score(one.difference, sign="+"), _interval(one), *_p_values(one, ""))
        for heading, one in rows
    )
    headings = ("task", "difference", "interval", "p", "p (Holm)")
    notes = (f"{about}. {_procedure([one for _, one in rows], drawn)}",) if rows else ()
    return Table(headings, cells, notes, title)


def differences_with_ends(rows: Sequence[tuple[str, Compared]], title: str, name: str) -> Table:
    """As :func:`differences_table`, the ends of each interval in columns of their own."""
    cells = []
    for heading, one in rows:
        ends = (one.interval.low, one.interval.high) if one.interval else (None, None)
        signed = (score(value, sign="+") for value in (one.difference, *ends))
        cells.append((Cell(heading), *signed, *_p_values(one, ABSENT)))
    headings = ("task", "difference", "low", "high", "p", "p (Holm)")
    note = _procedure([one for _, one in rows], "pairs, sentences or queries", " of a metric")
    return Table(headings, tuple(cells), (f"Differences x 100. {note}",), title, name)


def _interval(one: Compared) -> Cell:
    ends = one.interval
    return Cell(f"[{100 * ends.low:+.2f}, {100 * ends.high:+.2f}]" if ends else ABSENT)


def _p_values(one: Compared, single: str) -> tuple[Cell, Cell]:
    return number(one.p_value, 4), number(one.p_holm, 4) if one.tests > 1 else Cell(single)


def _procedure(rows: Sequence[Compared], drawn: str, of: str = "") -> str:
    tests = max(one.tests for one in rows)
    over = f"the {tests} tasks{of}" if of else f"these {tests} tasks"
    holm = f"; Holm's adjustment is over {over}" if tests > 1 else ""
    intervals = [one.interval for one in rows if one.interval]
    ways = []
    if computed := [it for it in intervals if not it.resamples]:
        ways.append(f"{100 * computed[0].confidence:g} % intervals, paired: {DYADIC}")
    if resampled := [it for it in intervals if it.resamples]:
        first = resampled[0]
        ways.append(
            f"Paired bootstrap: the same {drawn} are drawn again for both, "
            f"{100 * first.confidence:g} % percentile interval over {first.resamples} resamples "
            f"(seed {first.seed})"
        )
    if not ways:
        ways.append("Too little data for an interval")
    return f"{'. '.join(ways)}; p is two-sided{holm}."


def sts_differences(comparison: Comparison, title: str) -> Table:
    """Differences of correlations, that of the averages last."""
    headings = short_headings(list(comparison.tasks))
    rows = {headings[name]: one for name, one in comparison.tasks.items()}
    if rows and comparison.average:
        rows[AVERAGE] = comparison.average
    about = f"{CORRELATION[comparison.metric]} x 100, aggregation {comparison.aggregation}"
    return differences_table(rows.items(), title, about, "pairs")


def _transfer_differences(comparisons: Sequence[Comparison], title: str) -> Table:
    rows = {}
    for comparison in comparisons:
        for name, one in comparison.tasks.items():
            rows[f"{name.heading} F1" if comparison.metric == "f1" else name.heading] = one
        if comparison.average and comparison.metric == "accuracy":
            rows[AVERAGE] = comparison.average
    drawn = "test sentences or pairs"
    return differences_table(rows.items(), title, "Accuracy and F1 x 100", drawn)


def _by_metric(
    comparisons: Sequence[Comparison], headings: Mapping[TaskName, str]
) -> dict[str, Compared]:
    return {
        f"{headings[name]} {metric_heading(comparison.metric)}": one
        for comparison in comparisons
        for name, one in comparison.tasks.items()
    }


def _labelled_differences(
    comparisons: Sequence[Comparison], read: TaskData[Any], title: str
) -> list[Table]:
    short = labelled_headings(read)
    names = {name for comparison in comparisons for name in comparison.tasks}
    rows = _by_metric(comparisons, {name: short[name.name] for name in names})
    return [differences_table(rows.items(), title, "Accuracy and macro-F1 x 100", "test rows")]


def _retrieval_differences(
    comparisons: Sequence[Comparison], read: TaskData[Any], title: str
) -> list[Table]:
    rows = _by_metric(comparisons, short_headings([task.name for task in read.tasks]))
    return [differences_table(rows.items(), title, "Means over queries x 100", "queries")]


DIFFERENCES: dict[str, Callable[[Sequence[Comparison], TaskData[Any], str], list[Table]]] = {
    "sts": lambda comparisons, _, title: [sts_differences(it, title) for it in comparisons],
    "transfer": lambda comparisons, _, title: [_transfer_differences(comparisons, title)],
    "labelled": _labelled_differences,
    "retrieval": _retrieval_differences,
}
"""Tables of differences by the name of the task type."""


def before_and_after(suite: Suite, rows: Rows, difference: tuple[str, str]) -> list[Table]:
    """The start and the result of a run.

    ``difference`` has the labels of two rows; the second minus the first is a last row of
    correlations.
    """
    tables = []
    for kind, read in suite.kinds:
        if kind.name == "sts":
            shown = {label: _in(records, read.names) for label, records in rows.items()}
            tables.append(sts_table(shown, Layout(difference=difference)))
        else:
            tables += TABLES[kind.name](rows, read, suite.options)
    return tables


def _in(records: Sequence[Record], names: Sequence[TaskName]) -> list[Record]:
    return [record for record in records if TaskName(record.task, record.split) in names]


def seeds_table(seeds: Iterable[int], scores: Iterable[SeedScores]) -> Table:
    """The scores of runs that differ in their seed, x 100."""
    rows, names = [], [*map(str, seeds)]
    for one in scores:
        ends = one.interval
        spread = "" if one.deviation is None else f" ± {100 * one.deviation:.2f}"
        rows.append(
            (
                Cell(f"{one.of} {metric_heading(one.metric)}".rstrip()),
                score(one.start),
                *map(score, one.values),
                Cell(f"{100 * one.mean:.2f}{spread}", one.mean),
                score(one.difference, sign="+"),
                Cell(f"[{100 * ends[0]:+.2f}, {100 * ends[1]:+.2f}]" if ends else ABSENT),
            )
        )
    headings = ("score", "start", *names, "mean", "difference", "interval")
    note = (
        "All x 100; ± is the standard deviation over seeds. The difference is the mean less the "
        "start (the better one, if it was scored with two poolers), with its 95 % interval over "
        "seeds, paired with the start, and over test pairs, sentences or queries. The dev task "
        "chose the step, so its difference has none."
    )
    return Table(headings, tuple(rows), (note,), f"{len(names)} seeds")
