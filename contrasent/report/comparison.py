"""Tables of differences between encoders, with intervals and p-values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from contrasent.evaluation.compare import Comparison, SeedScores
from contrasent.evaluation.suite import Suite
from contrasent.evaluation.task_names import TaskName, short_headings
from contrasent.evaluation.task_types import TaskData
from contrasent.records import Compared
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
    rows: Iterable[tuple[str, Compared]],
    title: str,
    about: str,
    drawn: str,
    *,
    name: str = "",
    of: str = "",
) -> Table:
    """Differences x 100 with intervals and p-values.

    Args:
        rows: what was compared, by its heading.
        title: above the table.
        about: what the numbers are.
        drawn: what is drawn again.
        name: of a table of a page, whose intervals have their ends in columns of their own.
        of: what several tasks share, such as `` of a metric``.
    """
    rows, cells = list(rows), []
    for heading, one in rows:
        ends = (one.interval.low, one.interval.high) if one.interval else None
        between = (score(end, sign="+") for end in ends or (None, None))
        interval = [Cell(_brackets(ends))] if not name else between
        holm = number(one.p_holm, 4) if one.tests > 1 else Cell(ABSENT if name else "")
        difference = score(one.difference, sign="+")
        cells.append((Cell(heading), difference, *interval, number(one.p_value, 4), holm))
    interval_headings = ("low", "high") if name else ("interval",)
    headings = ("task", "difference", *interval_headings, "p", "p (Holm)")
    notes = (f"{about}. {_procedure([one for _, one in rows], drawn, of)}",) if rows else ()
    return Table(headings, tuple(cells), notes, title, name)


def _brackets(ends: tuple[float, float] | None) -> str:
    return f"[{100 * ends[0]:+.2f}, {100 * ends[1]:+.2f}]" if ends else ABSENT


def _procedure(rows: Sequence[Compared], drawn: str, of: str) -> str:
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
    return f"{'. '.join(ways) or 'Too little data for an interval'}; p is two-sided{holm}."


def sts_differences(comparison: Comparison, title: str) -> Table:
    """Differences of correlations, that of the averages last."""
    headings = short_headings(list(comparison.tasks))
    rows = {headings[name]: one for name, one in comparison.tasks.items()}
    if rows and comparison.average:
        rows[AVERAGE] = comparison.average
    about = f"{CORRELATION[comparison.metric]} x 100, aggregation {comparison.aggregation}"
    return differences_table(rows.items(), title, about, "pairs")


_ABOUT = {
    "transfer": ("Accuracy and F1 x 100", "test sentences or pairs"),
    "labelled": ("Accuracy and macro-F1 x 100", "test rows"),
    "retrieval": ("Means over queries x 100", "queries"),
}


def differences(
    kind: str, comparisons: Sequence[Comparison], read: TaskData[Any], title: str
) -> list[Table]:
    """The tables of a task type: one for each comparison of correlations, else one of all."""
    if kind == "sts":
        return [sts_differences(it, title) for it in comparisons]
    compared = {name for comparison in comparisons for name in comparison.tasks}
    headings = {name: name.heading for name in compared}
    if kind == "labelled":
        short = labelled_headings(read)
        headings = {name: short[name.name] for name in compared}
    elif kind == "retrieval":
        headings = short_headings([task.name for task in read.tasks])
    rows = {}
    for comparison in comparisons:
        metric = metric_heading(comparison.metric)
        metric = "" if kind == "transfer" and metric == "accuracy" else metric
        for name, one in comparison.tasks.items():
            rows[f"{headings[name]} {metric}".rstrip()] = one
        if kind == "transfer" and comparison.average and not metric:
            rows[AVERAGE] = comparison.average
    return [differences_table(rows.items(), title, *_ABOUT[kind])]


def before_and_after(suite: Suite, rows: Rows, difference: tuple[str, str]) -> list[Table]:
    """The start and the result of a run.

    ``difference`` has the labels of two rows; the second minus the first is a last row of
    correlations.
    """
    tables = []
    for kind, read in suite.kinds:
        if kind.name == "sts":
            shown = {
                label: [it for it in records if TaskName(it.task, it.split) in read.names]
                for label, records in rows.items()
            }
            tables.append(sts_table(shown, Layout(difference=difference)))
        else:
            tables += TABLES[kind.name](rows, read, suite.options)
    return tables


def seeds_table(seeds: Iterable[int], scores: Iterable[SeedScores]) -> Table:
    """The scores of runs that differ in their seed, x 100."""
    rows, names = [], [*map(str, seeds)]
    for one in scores:
        spread = "" if one.deviation is None else f" ± {100 * one.deviation:.2f}"
        rows.append(
            (
                Cell(f"{one.of} {metric_heading(one.metric)}".rstrip()),
                score(one.start),
                *map(score, one.values),
                Cell(f"{100 * one.mean:.2f}{spread}", one.mean),
                score(one.difference, sign="+"),
                Cell(_brackets(one.interval)),
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
