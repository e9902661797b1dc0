"""Columns of a table: which of them hold the sentences, labels and scores."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Literal

from contrasent.errors import ConfigError, DataError, pick

ALONE = ("text", "sentence", "sentences")
PAIRS = (
    ("anchor", "positive"),
    ("sent0", "sent1"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("premise", "entailment"),
    ("query", "positive"),
    ("query", "document"),
    ("query", "passage"),
    ("query", "answer"),
    ("question", "answer"),
    ("source", "target"),
)
_NEGATIVE = re.compile(r"(?:hard_)?neg(?:ative)?_?(\d*)|contradiction")
_LABEL = re.compile(
    r"(?:gold_|annotator_)?labels?_?\d*|(?:relatedness_|similarity_)?score|similarity|"
    r"is_duplicate|entailment_judgment"
)
_OTHER = re.compile(r"id|idx|index|row|(?:pair|prompt|caption)_?id|split|genre|category|file|year")
# These two names say that the second sentence is a positive; with the others a label may deny it.
_SURE = {"anchor", "positive", "sent0", "entailment"}
_SHOWN = 40

# An id, a number or a date; and a word of a script that has blanks between words.
_CODES = "ids, numbers or dates"
_NUMBERS = re.compile(r"[\d\s.,:/+$\u20ac%-]*\d[\d\s.,:/+$\u20ac%-]*(?:[AaPp][Mm])?")
_CODE = re.compile(rf"[!-~]*\d[!-~]*|{_NUMBERS.pattern}")
_WORD = re.compile(r"[!-\u0dff]*")
_NAME = re.compile(r"[^\W\d][\w()/#-]*(?: [\w()/#-]+){0,2}")
_MOSTLY = 0.9
_SENTENCE_WORDS = 4
"""A heading has at most three words; a column whose cells have more in the median is text."""
_FEWEST_ROWS, _MANY_ROWS = 3, 10


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """The columns of one source, a position for each role, counted from 0.

    ``header`` says that the first row of a table holds names, ``described`` what was understood,
    in one line, and ``by`` how the columns are known.
    """

    positions: tuple[int, ...]
    header: bool
    described: str
    by: Literal["name", "choice", "number", "order"]
    optional: int = 0  # columns, counted from the end, that a row may lack
    # chooses again from other names, where these decide
    choose: Callable[[Sequence[str]], ColumnMap] | None = field(default=None, compare=False)

    @classmethod
    def every(cls, names: Sequence[str]) -> ColumnMap:
        """All columns, below a row of their ``names``."""
        return cls(tuple(range(len(names))), True, "", "order")

    def would_take(self, names: Sequence[str], another: str) -> bool:
        """Whether other columns had been chosen if ``another`` name had stood behind ``names``."""
        try:
            return bool(self.choose and self.choose([*names, another]).positions != self.positions)
        except DataError:
            return True


def sentence_columns(
    first: Sequence[str],
    columns: Sequence[str] | None,
    where: str,
    *,
    named: bool = False,
    below: Sequence[Sequence[str]] = (),
) -> ColumnMap:
    """The sentences of a source, in the order anchor, positive, hard negatives.

    The first row of a table is a header if every cell is a known column name, whatever its case, or
    if ``columns`` gives names. Without a header, every column is a sentence, in the order of the
    file, unless the rows ``below`` tell otherwise: a first row of short names over longer text is a
    header, and ids, numbers, dates or single words are no sentences. Columns are chosen by name, or
    by digits that count from 0; ``named`` says that ``first`` certainly holds names. ``where`` is
    the place of ``first``, for messages. ConfigError if ``columns`` does not fit; DataError if the
    columns cannot be told without ``columns``, or one holds no sentences.
    """
    names = [cell.strip() for cell in first]
    known = [_is_known(name) for name in names]
    header = named or all(known)
    if columns is not None:
        chosen = _asked_columns(names, columns, where, header=header, named=named)
    elif header:
        chosen = _known_columns(names, where)
    else:
        chosen = _columns_in_order(names, known, below, where)
    _refuse_codes(chosen, names, below, where)
    return chosen


def _asked_columns(
    names: list[str], columns: Sequence[str], where: str, *, header: bool, named: bool
) -> ColumnMap:
    if not columns:
        raise ConfigError("--columns is empty; name at least one, or leave it out")
    if repeated := [column for column in columns if list(columns).count(column) > 1]:
        raise ConfigError(f"--columns names {repeated[0]!r} twice; every sentence is a column")
    positions = _positions(names, columns, where)
    shown = [names[position] for position in positions] if named else columns
    by, how = _choice(columns)
    if by == "number" and not named:
        how += f"; {'first row is a header' if header else 'no header'}"
    described = f"{_as_roles(shown, _roles(len(shown)))} ({how})"
    return ColumnMap(positions, header or by == "choice", described, by)


def _columns_in_order(
    names: list[str], known: list[bool], below: Sequence[Sequence[str]], where: str
) -> ColumnMap:
    """All columns, unless the first row may be a header of names that are not known."""
    count, headings = len(names), [name for name in names if _is_sentence(name.lower())]
    joined = re.split(r"[,;|:^~]+", names[0]) if count == 1 else []
    if any("\t" in name for name in names):
        raise DataError(f"{where}: cells are separated by tabs, not commas; name the file .tsv")
    if len(joined) > 1 and all(_is_known(cell.strip()) for cell in joined):
        raise DataError(
            f"{where}: {names[0]!r} looks like {len(joined)} names of columns; separate cells "
            "by commas in a .csv, and by tabs in a .tsv"
        )
    if headings:
        unknown = names[known.index(False)]
        raise DataError(
            f"{where}: is this a header? {headings[0]!r} is a column name, {unknown!r} is not; "
            "choose with --columns, by name if it is a header, by number if it is an example"
        )
    many = len(below) >= _FEWEST_ROWS
    texts = [name for name, *it in zip(names, *below, strict=True) if many and _is_text(it)]
    alike = all(map(_NAME.fullmatch, names)) and len(set(names)) == count
    if alike and texts:
        if count > 1:
            raise DataError(
                f"{where}: {', '.join(map(_shortened, names[:8]))} look like the names of columns, "
                f"but not all are known; name the sentences with --columns "
                f"{shlex.quote(','.join(texts[:2]))}, or, if this row is an example, by number "
                "from 0"
            )
        if len(names[0].split()) < min(len(row[0].split()) for row in below):
            described = f"{names[0]} as the sentence (the first row is a header, shorter than text)"
            return ColumnMap((0,), True, described, "order")
    what = "1 column" if count == 1 else f"{count} columns in the order of the file"
    described = f"{what}: {', '.join(_roles(count))} (no header)"
    return ColumnMap(tuple(range(count)), False, described, "order")


def _refuse_codes(
    chosen: ColumnMap, names: list[str], below: Sequence[Sequence[str]], where: str
) -> None:
    """Refuse columns of ids, numbers, dates or, in a table without names, single words."""
    columns = [
        [row[position] for row in below] or [names[position]] for position in chosen.positions
    ]
    few = len(below) < _FEWEST_ROWS
    kinds = [_certain_kind(cells) if few else kind_of(cells) for cells in columns]
    if chosen.by != "order" or len(below) < _MANY_ROWS or all(kinds):  # words may be all there is
        kinds = [kind if kind == _CODES else None for kind in kinds]
    if chosen.header and few and not below:
        return
    for position, cells, kind in zip(chosen.positions, columns, kinds, strict=True):
        if kind:
            name = repr(names[position]) if chosen.header else position
            shown = ", ".join(repr(_shortened(cell)) for cell in cells[:2])
            rest = [str(k) for k, it in zip(chosen.positions, kinds, strict=True) if not it]
            such = f", as {','.join(rest)}" if rest else ""
            raise DataError(
                f"{where}: column {name} holds {kind} ({shown}), no sentences; choose others with "
                f"--columns, by name, or by number from 0{such}"
            )


def _known_columns(names: Sequence[str], where: str) -> ColumnMap:
    """The sentence columns, picked by their names."""
    spelt = {name.lower(): name for name in names}
    remedy = f"choose with --columns, one or more of {', '.join(names)}"
    pairs = [pair for pair in PAIRS if set(pair) <= spelt.keys()]
    if len(pairs) > 1:
        candidates = " or ".join("+".join(pair) for pair in pairs)
        raise DataError(f"{where}: the pair could be {candidates}; {remedy}")
    if pairs:
        labels = [name for name in names if _LABEL.fullmatch(name.lower())]
        if labels and not _SURE & set(pairs[0]):
            raise DataError(
                f"{where}: column {labels[0]!r} says that not every {'+'.join(pairs[0])} is a "
                "positive pair; keep the rows that are, classify them with data.labels nli, or "
                f"{remedy}"
            )
        chosen = [*(spelt[name] for name in pairs[0]), *_negatives(spelt)]
    else:
        alone = [name for name in ALONE if name in spelt] or [*filter(_is_sentence, spelt)]
        if len(alone) != 1:
            raise DataError(f"{where}: cannot tell which column is the sentence; {remedy}")
        chosen = [spelt[alone[0]]]
    ignored = [name for name in names if name not in chosen]
    rest = f"; ignored: {', '.join(ignored)}" if ignored else ""
    described = f"{_as_roles(chosen, _roles(len(chosen)))} (by name{rest})"
    again = partial(_known_columns, where=where)
    return ColumnMap(tuple(map(names.index, chosen)), True, described, "name", choose=again)


def _negatives(spelt: dict[str, str]) -> list[str]:
    matches = [(match, spelt[name]) for name in spelt if (match := _NEGATIVE.fullmatch(name))]
    return [name for match, name in sorted(matches, key=lambda it: int(it[0][1] or 0))]


def _choice(columns: Sequence[str]) -> tuple[Literal["choice", "number"], str]:
    """How columns are chosen, also in words."""
    return ("number", "chosen by number") if _are_numbers(columns) else ("choice", "chosen by name")


def _are_numbers(columns: Sequence[str]) -> bool:
    return all(column.isascii() and column.isdecimal() for column in columns)


def _positions(names: list[str], columns: Sequence[str], where: str) -> tuple[int, ...]:
    """The columns that a user names, or numbers from 0."""
    if _are_numbers(columns):
        positions = tuple(map(int, columns))
        if max(positions) >= len(names):
            raise ConfigError(
                f"{where}: no column {max(positions)}; there are {len(names)}, counted from 0"
            )
        return positions
    lower = [name.lower() for name in names]
    chosen = []
    for column in columns:
        spelt, wanted = (names, column) if column in names else (lower, column.lower())
        if wanted not in spelt:
            pick(f"column of {where}", column, [_shortened(name) for name in names])
        if spelt.count(wanted) > 1:
            raise ConfigError(f"{where}: {column!r} heads more than one column; choose by number")
        chosen.append(spelt.index(wanted))
    return tuple(chosen)


def _as_roles(columns: Sequence[str], roles: Sequence[str]) -> str:
    """``columns``, each with its role; there may be more ``roles``."""
    return ", ".join(f"{column} as {role}" for column, role in zip(columns, roles, strict=False))


def _shortened(cell: str) -> str:
    return cell if len(cell) <= _SHOWN else f"{cell[: _SHOWN - 3]}..."


def _roles(count: int) -> list[str]:
    if count == 1:
        return ["the sentence"]
    hard = ["hard negative"] if count == 3 else [f"hard negative {k}" for k in range(1, count - 1)]
    return ["anchor", "positive", *hard]


def _is_known(name: str) -> bool:
    name = name.lower()
    return _is_sentence(name) or bool(_LABEL.fullmatch(name) or _OTHER.fullmatch(name))


def _is_sentence(name: str) -> bool:
    return name in ALONE or any(name in p for p in PAIRS) or bool(_NEGATIVE.fullmatch(name))


def _is_text(cells: Sequence[str]) -> bool:
    return kind_of(cells) is None and median(len(it.split()) for it in cells) >= _SENTENCE_WORDS


def _certain_kind(cells: Sequence[str]) -> str | None:
    """:func:`kind_of` a few cells: numbers and dates are none, but ``x1`` may be a sentence."""
    full = [cell.strip() for cell in cells if cell.strip()]
    return _CODES if full and all(map(_NUMBERS.fullmatch, full)) else None


def kind_of(cells: Sequence[str]) -> str | None:
    """What most of a column's cells are if they are no sentences: ids and the like, or words."""
    full = [cell.strip() for cell in cells if cell.strip()]
    for kind, pattern in ((_CODES, _CODE), ("single words", _WORD)):
        if full and sum(bool(pattern.fullmatch(it)) for it in full) >= _MOSTLY * len(full):
            return kind
    return None


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """What the rows of a kind of data have to hold."""

    roles: tuple[str, ...]  # what is looked for, in order: sentences, then a label or score
    # for each role the headings that are known for it, in lower case
    names: tuple[tuple[str, ...], ...]
    # roles of which the first known heading is taken; of others only one may be there
    ranked: tuple[str, ...] = ()
    optional: int = 0  # how many roles, counted from the end, may be absent
    # numbers of columns that are understood, in the order of the roles, without a header
    bare: tuple[int, ...] = ()
    numeric: bool = False  # the last role is a number, so that its name in a first row is a heading
    # what to do about a row that cannot be read
    mend: str = "mend the row, or leave such rows out with --skip-unreadable"
    otherwise: str = ""  # what to do with a source of another kind, where it is not understood
    option: str = "--columns {}"  # how the columns are asked for, with their names in place of {}

    def asked(self, columns: str) -> str:
        """How one asks for these columns."""
        return self.option.format(columns)


def choose_columns(
    first: Sequence[str],
    wanted: ColumnSpec,
    columns: Sequence[str] | None,
    where: str,
    *,
    named: bool,
) -> ColumnMap:
    """The columns of ``wanted``; arguments and errors are those of :func:`sentence_columns`."""
    names = [cell.strip() for cell in first]
    if columns is not None:
        _require_one_for_each(columns, wanted)
        positions, (by, how) = _positions(names, columns, where), _choice(columns)
        header = named or by == "choice" or _is_heading([names[it] for it in positions], wanted)
        return ColumnMap(positions, header, f"{_as_roles(columns, wanted.roles)} ({how})", by)
    known = _by_name(names, wanted, where)
    if len(known) >= len(wanted.roles) - wanted.optional:
        roles = _as_roles([names[position] for position in known], wanted.roles)
        again = partial(choose_columns, wanted=wanted, columns=None, where=where, named=named)
        optional = wanted.optional - (len(wanted.roles) - len(known))
        return ColumnMap(known, True, f"{roles} (by name)", "name", optional, again)
    if not named and len(names) in wanted.bare:
        positions = tuple(range(len(names)))
        header = _is_heading(names, wanted)
        shown = names if header else [f"column {position}" for position in positions]
        how = "in this order, below a header" if header else "no header"
        described = f"{_as_roles(shown, wanted.roles)} ({how})"
        return ColumnMap(positions, header, described, "order")
    raise DataError(_not_found(names, wanted, where, missing=wanted.roles[len(known)]))


def _is_heading(cells: Sequence[str], wanted: ColumnSpec) -> bool:
    """Whether cells of a first row, in the order of the roles, are names: all, or that of a number.

    Names of sentences are enough where a number has to follow.
    """
    lower = [cell.lower() for cell in cells]
    every = {name for names in wanted.names for name in names}
    if wanted.numeric and len(lower) == len(wanted.roles):
        *sentences, number = (it in names for it, names in zip(lower, wanted.names, strict=True))
        return number or all(sentences)
    return every.issuperset(lower)


def _by_name(names: list[str], wanted: ColumnSpec, where: str) -> tuple[int, ...]:
    """Positions of the roles that are known by name, up to the first that is not."""
    lower = [name.lower() for name in names]
    positions: list[int] = []
    for role, known in zip(wanted.roles, wanted.names, strict=True):
        present = [name for name in known if name in lower]
        if not present:
            break
        if len(present) > 1 and role not in wanted.ranked:
            raise DataError(
                f"{where}: the {role} could be column {' or '.join(present)}; "
                f"choose with {wanted.asked(_example(wanted))}"
            )
        positions.append(lower.index(present[0]))
    return tuple(positions)


def _require_one_for_each(columns: Sequence[str], wanted: ColumnSpec) -> None:
    most = len(wanted.roles)
    if not most - wanted.optional <= len(columns) <= most or len(set(columns)) < len(columns):
        raise ConfigError(
            f"{wanted.asked(','.join(columns))} does not name {_all(wanted)}; "
            f"give one column for each, as {wanted.asked(_example(wanted))}"
        )


def _not_found(names: list[str], wanted: ColumnSpec, where: str, *, missing: str) -> str:
    shown = ", ".join(_shortened(name) for name in names[:8])
    numbers = ",".join(str(number) for number in range(len(wanted.roles)))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (
        f"{where}: no column is known as the {missing}; there are {shown}{more}; "
        f"choose {_all(wanted)} with {wanted.option.split()[0]}, in this order: by name, "
        f"or by number from 0 if there is no header, as {wanted.asked(numbers)}"
        + (f"; {wanted.otherwise}" if wanted.otherwise else "")
    )


def _all(wanted: ColumnSpec) -> str:
    *others, last = wanted.roles
    return f"{', '.join(others)} and {last}"


def _example(wanted: ColumnSpec) -> str:
    return ",".join(known[0] for known in wanted.names)
