"""Tables on a terminal or in a pipe."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.padding import PaddingDimensions
from rich.table import Table as RichTable
from rich.text import Text

from contrasent.profiling import StepProfile
from contrasent.report.table import Table

_NO_LIMIT = 1_000_000
_OPERATORS = 15


def plain_table(padding: PaddingDimensions = (0, 1, 0, 0)) -> RichTable:
    """A table without cells, in the form of all tables."""
    return RichTable(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding, header_style="bold"
    )


def rich_table(content: Table, *, upright: bool = False) -> RichTable:
    """A table with its cells; ``upright`` makes the rows columns, for narrow terminals."""
    grid = [list(content.headings), *([cell.plain for cell in row] for row in content.rows)]
    if upright:
        grid = [list(column) for column in zip(*grid, strict=True)]
    shown = plain_table()
    for k, heading in enumerate(["", *grid[0][1:]]):
        left = k == 0 or (k in content.texts and not upright)
        shown.add_column(
            Text(heading),
            justify="left" if left else "right",
            no_wrap=k == 0 or not upright,
            overflow="fold",
        )
    for row in grid[1:]:
        shown.add_row(*map(Text, row))
    return shown


def print_table(console: Console, content: Table) -> None:
    """Print a table and its notes, rows as columns where a terminal is too narrow."""
    shown = rich_table(content)
    if console.is_terminal and _width(console, shown) > console.width:
        shown = rich_table(content, upright=True)
    print_whole(console, shown)
    console.print()
    print_notes(console, content.notes)


def print_difference(console: Console, content: Table) -> None:
    """Print a table of differences under its title, after a blank line; nothing if it is empty."""
    if content.rows:
        console.print()
        console.print(Text(content.title), soft_wrap=True)
        print_table(console, content)


def print_notes(console: Console, notes: tuple[str, ...]) -> None:
    """Print lines, wrapped between words on a terminal."""
    for line in notes:
        console.print(Text(line), soft_wrap=not console.is_terminal)


def print_whole(console: Console, shown: RichTable) -> None:
    """Print a table, in a pipe as wide as it is."""
    if not console.is_terminal:
        width = max(_width(console, shown), 1)
        console = Console(file=console.file, width=width, color_system=None)
    console.print(shown)


def _width(console: Console, shown: RichTable) -> int:
    return Measurement.get(console, console.options.update(width=_NO_LIMIT), shown).maximum


def print_profile(console: Console, profile: StepProfile) -> None:
    """Print the operators of a profile, and where its trace is; or why there is none."""
    if profile.operators:
        console.print(profile_table(profile))
        message = f"profile: {profile.path} (open it at https://ui.perfetto.dev)"
    else:
        message = f"no profile: it needs {profile.needed} steps, and the work ended before"
    console.print(Text(message), soft_wrap=True)


def profile_table(profile: StepProfile) -> RichTable:
    """A row per operator; those that took less share one, and so does the time without any."""
    shown = plain_table((0, 1))
    shown.add_column("of a step", overflow="fold")
    for heading in ("ms", "share", "calls"):
        shown.add_column(heading, justify="right")
    first, others = profile.operators[:_OPERATORS], profile.operators[_OPERATORS:]
    spent = sum(operator.seconds for operator in profile.operators)
    rows = [(it.name, it.seconds, f"{it.calls / profile.recorded:g}") for it in first]
    rows.append((f"{len(others)} other operators", sum(it.seconds for it in others), ""))
    rows.append(("Python and waiting", max(0.0, profile.seconds - spent), ""))
    for name, seconds, calls in rows:
        milliseconds = f"{1000 * seconds / profile.recorded:.2f}"
        shown.add_row(Text(name), milliseconds, f"{seconds / profile.seconds:.1%}", calls)
    return shown
