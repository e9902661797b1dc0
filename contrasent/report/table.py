"""Tables: built once, printed on a terminal or as Markdown."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from contrasent.progress import printable
from contrasent.records import Interval

ABSENT = "-"
AVERAGE = "Avg."


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table."""

    text: str  # what is printed
    # the number in full precision, by which rows are sorted; None for text
    value: float | None = None
    interval: Interval | None = None  # of the number
    best: bool = False  # it is the best of its column

    @property
    def absent(self) -> bool:
        """Nothing was measured."""
        return self.text == ABSENT

    @property
    def between(self) -> str:
        """The printed interval x 100, or nothing."""
        ends = self.interval
        return f"[{100 * ends.low:.2f}, {100 * ends.high:.2f}]" if ends else ""

    @property
    def plain(self) -> str:
        """The text, followed by the interval if it has one."""
        return f"{self.text} {self.between}" if self.interval else self.text


def number(value: float | None, digits: int = 2, sign: str = "") -> Cell:
    """A number with so many decimals; absent if there is none."""
    return Cell(ABSENT if value is None else f"{value:{sign}.{digits}f}", value)


def score(value: float | None, interval: Interval | None = None, sign: str = "") -> Cell:
    """A score in [-1, 1], printed x 100 with two decimals; absent if there is none."""
    if value is None:
        return Cell(ABSENT)
    return Cell(f"{100 * value:{sign}.2f}", value, interval)


Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is printed on a terminal, in a page or as Markdown."""

    headings: tuple[str, ...]  # of the columns, that of the row labels too
    rows: tuple[Row, ...]  # cells; the first of a row is its label
    notes: tuple[str, ...] = ()  # how the numbers were measured, beneath the table
    title: str = ""  # above it
    name: str = ""  # in links of a page
    key: int = 1  # the column that a summary shows
    texts: frozenset[int] = frozenset()  # columns that hold text, beside the first

    def with_best(
        self, judged: Collection[int] | None = None, lower: Collection[int] = ()
    ) -> "Table":
        """Mark the best value of each column that has two or more; in ``lower`` it is the lowest.

        Without ``judged``, all columns have a best value.
        """
        best = {}
        for k, column in enumerate(zip(*self.rows, strict=True)):
            values = [cell.value for cell in column if cell.value is not None]
            if len(values) > 1 and (judged is None or k in judged):
                best[k] = (min if k in lower else max)(values)
        rows = tuple(
            tuple(replace(it, best=k in best and it.value == best[k]) for k, it in enumerate(row))
            for row in self.rows
        )
        return replace(self, rows=rows)

    def markdown(self) -> str:
        """The table in GitHub's Markdown, without title and notes."""
        rules = [":---" if k == 0 or k in self.texts else "---:" for k in range(len(self.headings))]
        lines = [self.headings, rules, *([cell.plain for cell in row] for row in self.rows)]
        safe = ([text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines)
        return "".join(f"| {' | '.join(line)} |\n" for line in safe)


def text_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], name: str = "", title: str = ""
) -> Table:
    """A table of text alone."""
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    columns = frozenset(range(1, len(headings)))
    return Table(tuple(headings), cells, title=title, name=name, texts=columns)


DYADIC = (
    "normal, from standard errors that count pairs sharing a sentence as dependent, within a task "
    "and across those of an average (dyadic-robust)"
)


def rich_table(content: Table, *, upright: bool = False) -> RichTable:
    """The best of a column is bold; ``upright`` makes the rows columns."""
    grid = [[Text(), *(Text(printable(it)) for it in content.headings[1:])]]
    grid += [
        [Text(printable(it.plain), "bold" if it.best else "") for it in row] for row in content.rows
    ]
    if upright:
        grid = [list(column) for column in zip(*grid, strict=True)]
    shown = RichTable(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )
    for k, heading in enumerate(grid[0]):
        is_text = k == 0 or (k in content.texts and not upright)
        whole = k == 0 or not (upright or is_text)
        shown.add_column(
            heading, justify="left" if is_text else "right", no_wrap=whole, overflow="fold"
        )
    for row in grid[1:]:
        shown.add_row(*row)
    return shown


def print_table(console: Console, content: Table) -> None:
    """Print title, table and notes.

    Where a terminal is too narrow, text is wrapped, and rows of numbers are columns.
    """
    if content.title:
        console.print(Text(printable(content.title)), soft_wrap=True)
    shown, unbounded = rich_table(content), console.options.update(width=1_000_000)
    width = Measurement.get(console, unbounded, shown).maximum
    if not console.is_terminal:
        console.width = max(width, 1)
    elif width > console.width and len(content.texts) < len(content.headings) - 1:
        shown = rich_table(content, upright=True)
    console.print(shown)
    console.print()
    for line in content.notes:
        console.print(Text(printable(line)), soft_wrap=not console.is_terminal)
