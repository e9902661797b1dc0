"""Tables of differences between encoders, with intervals and p-values, and what they say."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from textwrap import shorten

from contrasent.evaluation.compare import SeedScores
from contrasent.evaluation.judgement import METRIC, Judgement
from contrasent.evaluation.task_names import short_name
from contrasent.progress import one_line
from contrasent.records import Compared
from contrasent.report.contents import Contents, Identity, PageRow, identity, rows_of
from contrasent.report.scores_table import Column, metric_heading, quantity, scores_table
from contrasent.report.table import ABSENT, AVERAGE, DYADIC, Cell, Table, number, score, text_table

_WIDTH = 72  # of an example's text


def _baseline(row: PageRow, compared: Compared, rows: Mapping[Identity, PageRow]) -> str:
    """The label of the row that ``row`` was compared with; its name where several could be it."""
    named = [it for it in rows.values() if it.like.encoder == compared.baseline]
    alike = [it for it in named if it.like.pooler == row.like.pooler]
    known = named if len(named) == 1 else alike
    return known[0].label if len(known) == 1 else compared.baseline


def comparison_tables(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Table]:
    """A table for each encoder and its baseline, a row for each task and metric."""
    by_title: dict[str, dict[str, list[tuple[str, Compared]]]] = {}
    measured = [
        (row, quantity(it)[0].heading, it.metric, it.compared)
        for row in rows.values()
        for it in row.records
        if it.compared
    ]
    means = ((rows[identity(it.like)], AVERAGE, it.metric, it.compared) for it in contents.means)
    for row, of, metric, compared in (*measured, *means):
        title = f"{row.label} minus {_baseline(row, compared, rows)}"
        of_metric = by_title.setdefault(title, {}).setdefault(metric, [])
        of_metric.append((f"{of} {metric_heading(metric)}", compared))
    tables = []
    for place, (title, of_metrics) in enumerate(by_title.items(), start=1):
        lines = [line for of_metric in of_metrics.values() for line in of_metric]
        cells = []
        for heading, one in lines:
            ends = (one.interval.low, one.interval.high) if one.interval else (None, None)
            differences = (score(it, sign="+") for it in (one.difference, *ends))
            holm = number(one.p_holm, 4) if one.tests > 1 else Cell(ABSENT)
            cells.append((Cell(heading), *differences, number(one.p_value, 4), holm))
        headings = ("task", "difference", "low", "high", "p", "p (Holm)")
        note = f"Differences x 100. {_procedure([one for _, one in lines])}"
        tables.append(Table(headings, tuple(cells), (note,), title, f"compared-{place}"))
    return tables


def _procedure(rows: Sequence[Compared]) -> str:
    tests = max(one.tests for one in rows)
    holm = f"; Holm's adjustment is over the {tests} tasks of a metric" if tests > 1 else ""
    intervals = [one.interval for one in rows if one.interval]
    ways = []
    if computed := [it for it in intervals if not it.resamples]:
        ways.append(f"{100 * computed[0].confidence:g} % intervals, paired: {DYADIC}")
    if resampled := [it for it in intervals if it.resamples]:
        first = resampled[0]
        ways.append(
            "Paired bootstrap: the same pairs, sentences or queries are drawn again for both, "
            f"{100 * first.confidence:g} % percentile interval over {first.resamples} resamples "
            f"(seed {first.seed})"
        )
    return f"{'. '.join(ways) or 'Too little data for an interval'}; p is two-sided{holm}."


def seeds_table(seeds: Iterable[int], scores: Iterable[SeedScores]) -> Table:
    """The scores of runs that differ in their seed, x 100."""
    rows, names = [], [*map(str, seeds)]
    for one in scores:
        spread = "" if one.deviation is None else f" ± {100 * one.deviation:.2f}"
        ends = one.interval
        between = f"[{100 * ends[0]:+.2f}, {100 * ends[1]:+.2f}]" if ends else ABSENT
        rows.append(
            (
                Cell(f"{one.of} {metric_heading(one.metric)}".rstrip()),
                score(one.start),
                *map(score, one.values),
                Cell(f"{100 * one.mean:.2f}{spread}", one.mean),
                score(one.difference, sign="+"),
                Cell(between),
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


def judgement_lines(judged: Judgement) -> list[str]:
    """The facts of a text, and what its tasks tell."""
    of = {it.task: f"{it.pairs} queries" for it in judged.records}
    deciding = [f"{task}: {of[task]}" for task in judged.deciding]
    others = [f"{task} decides nothing: {why}" for task, why in judged.undecided.items()]
    return [*judged.facts.lines(), "", *judged.facts.cautions(), *deciding, *others, ""]


def judgement_tables(judged: Judgement) -> list[Table]:
    """Scores on the tasks of a text, and example queries with what was found."""
    rows = {it.label: it.records for it in rows_of(Contents(judged.records)).values()}
    of_metric = [it for it in judged.records if it.metric == METRIC]
    columns = [
        Column(name.name.partition(" ")[0], ((name, metric),))
        for name, metric in dict.fromkeys(map(quantity, of_metric))
    ]
    note = f"nDCG@10 x 100, {judged.sampled:,} texts, 95 % intervals by drawing queries again."
    notes = [note]
    if judged.weight is not None:
        notes += [f"BM25 in the fusion: {judged.weight:g}, chosen on other queries than scored."]
    tables = [scores_table(rows, columns, notes).with_best()]
    for it in judged.queries:
        hits = zip_longest(it.dense, it.words)
        cells = [
            [f"{'* ' * hit.right}{_cut(hit.text)}" if hit else "" for hit in row] for row in hits
        ]
        title = f"{it.task.partition(' ')[0]}: {_cut(it.query)}"
        headings = ("", short_name(judged.encoder), "BM25")
        tables.append(
            text_table(headings, [(f"#{n}", *row) for n, row in enumerate(cells, 1)], title=title)
        )
    return tables


def _cut(text: str) -> str:
    return shorten(one_line(text), _WIDTH, placeholder=" \u2026")
