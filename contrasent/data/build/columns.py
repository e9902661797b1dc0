"""Which columns of a source hold what a kind of data is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contrasent.errors import ConfigError, DataError, pick

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the rows of a kind of data have to hold.

    Attributes:
        roles: what is looked for, in order: sentences, then a label or score.
        names: for each role the headings that are known for it, in lower case.
        ranked: roles of which the first known heading is taken; of others only one may be there.
        optional: how many roles, counted from the end, may be absent.
        bare: numbers of columns that are understood, in the order of the roles, without a header.
        mend: what to do about a row that cannot be read.
        otherwise: what to do with a source of another kind, where it is not understood.
        option: how the columns are asked for, with their names in place of {}.
    """

    roles: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    ranked: tuple[str, ...] = ()
    optional: int = 0
    bare: tuple[int, ...] = ()
    mend: str = "mend the row, or leave such rows out with --skip-unreadable"
    otherwise: str = ""
    option: str = "--columns {}"

    def asked(self, columns: str) -> str:
        """How one asks for these columns."""
        return self.option.format(columns)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns of one source.

    Attributes:
        positions: a column for each role, counted from 0; an optional one may be absent.
        header: the first row holds names.
        described: one line saying what was understood.
    """

    positions: tuple[int, ...]
    header: bool
    described: str


def choose_columns(
    first: Sequence[str], wanted: Wanted, columns: Sequence[str] | None, where: str, *, named: bool
) -> Chosen:
    """Understand a source by its first row or by its names.

    Args:
        first: the first row of a table, or the names of the columns.
        wanted: what to look for.
        columns: chosen names, or positions as digits, one for each role; None to know them by name.
        where: ``path:line`` of the first row.
        named: ``first`` certainly holds names.

    Raises:
        ConfigError: ``columns`` does not fit.
        DataError: the columns cannot be told without ``columns``.
    """
    names = [cell.strip() for cell in first]
    if columns is not None:
        return _asked(names, wanted, columns, where, named=named)
    found = _by_name(names, wanted, where)
    if len(found) >= len(wanted.roles) - wanted.optional:
        told = _described([names[position] for position in found], wanted)
        return Chosen(found, True, f"{told} (by name)")
    if not named and len(names) in wanted.bare:
        positions = tuple(range(len(names)))
        told = _described([f"column {position}" for position in positions], wanted)
        return Chosen(positions, False, f"{told} (no header)")
    raise DataError(_not_found(names, wanted, where))


def _by_name(names: list[str], wanted: Wanted, where: str) -> tuple[int, ...]:
    """Positions of the roles that are known by name, up to the first that is not."""
    lower = [name.lower() for name in names]
    positions: list[int] = []
    for role, known in zip(wanted.roles, wanted.names, strict=True):
        there = [name for name in known if name in lower]
        if not there:
            break
        if len(there) > 1 and role not in wanted.ranked:
            raise DataError(
                f"{where}: the {role} could be column {' or '.join(there)}; "
                f"choose with {wanted.asked(_example(wanted))}"
            )
        positions.append(lower.index(there[0]))
    return tuple(positions)


def _asked(
    names: list[str], wanted: Wanted, columns: Sequence[str], where: str, *, named: bool
) -> Chosen:
    most = len(wanted.roles)
    if not most - wanted.optional <= len(columns) <= most or len(set(columns)) < len(columns):
        raise ConfigError(
            f"{wanted.asked(','.join(columns))} does not name {_all(wanted)}; "
            f"give one column for each, as {wanted.asked(_example(wanted))}"
        )
    told = _described(columns, wanted)
    if not all(column.isdecimal() for column in columns):
        lower = [name.lower() for name in names]
        for column in columns:
            if column.lower() not in lower:
                pick(f"column of {where}", column, [_shortened(name) for name in names])
        positions = tuple(lower.index(column.lower()) for column in columns)
        return Chosen(positions, True, f"{told} (chosen by name)")
    positions = tuple(int(column) for column in columns)
    if max(positions) >= len(names):
        raise ConfigError(
            f"{where}: no column {max(positions)}; there are {len(names)}, counted from 0"
        )
    every = {name for known in wanted.names for name in known}
    header = named or all(names[position].lower() in every for position in positions)
    return Chosen(positions, header, f"{told} (chosen by number)")


def _not_found(names: list[str], wanted: Wanted, where: str) -> str:
    missing = wanted.roles[len(_by_name(names, wanted, where))]
    shown = ", ".join(_shortened(name) for name in names[:8])
    numbers = ",".join(str(number) for number in range(len(wanted.roles)))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (
        f"{where}: no column is known as the {missing}; there are {shown}{more}; "
        f"choose {_all(wanted)} with {wanted.option.split()[0]}, in this order: by name, "
        f"or by number from 0 if there is no header, as {wanted.asked(numbers)}"
        + (f"; {wanted.otherwise}" if wanted.otherwise else "")
    )


def _described(columns: Sequence[str], wanted: Wanted) -> str:
    pairs = zip(columns, wanted.roles, strict=False)
    return ", ".join(f"{column} as {role}" for column, role in pairs)


def _all(wanted: Wanted) -> str:
    *others, last = wanted.roles
    return f"{', '.join(others)} and {last}"


def _example(wanted: Wanted) -> str:
    return ",".join(known[0] for known in wanted.names)


def _shortened(cell: str) -> str:
    return cell if len(cell) <= _SHOWN else f"{cell[: _SHOWN - 3]}..."
