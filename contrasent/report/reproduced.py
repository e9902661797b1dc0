"""A table of systems beside their published numbers, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from contrasent.report.tables import ABSENT

Cells = Sequence[str]


def markdown_table(headings: Cells, rows: Sequence[Cells], left: int = 1) -> str:
    """A table in GitHub's Markdown.

    Args:
        headings: of the columns.
        rows: cells of each row.
        left: how many of the first columns are aligned to the left, the others to the right.
    """
    rules = [":---" if number < left else "---:" for number in range(len(headings))]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in (headings, rules, *rows))


def number(value: float | None, digits: int = 2, sign: str = "") -> str:
    """Such as ``71.30``; a dash for nothing."""
    return ABSENT if value is None else f"{value:{sign}.{digits}f}"


def difference(value: float | None, other: float | None) -> str:
    """``value`` less ``other``, with its sign; a dash if one is missing."""
    return ABSENT if value is None or other is None else number(value - other, sign="+")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
