"""Columns of a table: which of them hold the sentences, labels and scores."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any, Literal

from contrasent.data.readers import n_words
from contrasent.errors import ConfigError, DataError, pick, shown

_TABLE = json.loads(Path(__file__).with_name("columns.json").read_text(encoding="utf-8"))
ALONE, PAIRS = _TABLE["alone"], _TABLE["pairs"]
_NEGATIVE = re.compile(r"(?:hard_)?neg(?:ative)?_?(\d*)|contradiction")
_CANDIDATE = re.compile(r"positive|sent1|(?:candidate|(?:hard_)?neg(?:ative)?)_?(\d*)")
_LABEL = re.compile(
    r"(?:gold_|annotator_)?labels?_?\d*|(?:relatedness_|similarity_)?score|similarity|"
    r"is_duplicate|entailment_judgment"
)
_OTHER = re.compile(
    r"id|idx|index|row|(?:pair|prompt|caption)_?id|split|genre|category|kind|file|year"
)
# These two names say that the second sentence is a positive; with the others a label may deny it.
_SURE = {"anchor", "positive", "sent0", "entailment"}
_ALONE = "the sentence"

_NUMBERS = re.compile(r"[\d\s.,:/+$\u20ac%-]*\d[\d\s.,:/+$\u20ac%-]*(?:[AaPp][Mm])?")
_CODE = re.compile(rf"[!-~]*\d[!-~]*|{_NUMBERS.pattern}")
_NAME = re.compile(r"[^\W\d][\w()/#-]*(?: [\w()/#-]+){0,2}")
_MOSTLY = 0.9
_SENTENCE_WORDS = 4  # in the median of cells of text; a heading has at most three
_FEWEST_ROWS = 3


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """The columns of one source, a position for each role, and how they are known, in a line."""

    positions: tuple[int, ...]
    header: bool
    described: str
    by: Literal["name", "choice", "number", "order"]
    optional: int = 0  # columns, counted from the end, that a row may lack

    @classmethod
    def every(cls, names: Sequence[str]) -> "ColumnMap":
        """All columns, below a row of their ``names``."""
        return cls(tuple(range(len(names))), True, "", "order")


def sentence_columns(
    first: Sequence[str],
    columns: Sequence[str] | None,
    where: str,
    *,
    named: bool = False,
    below: Sequence[Sequence[str]] = (),
) -> ColumnMap:
    """The sentences of a source, in the order anchor, positive, hard negatives.

    The first row of a table is a header if every cell is a known name, if ``columns`` gives names,
    or if it is short over the longer text ``below``. Without one, every column is a sentence; ids,
    numbers and dates are none. ``named`` says that ``first``, at ``where``, certainly holds names.
    """
    names = [cell.strip() for cell in first]
    header = named or all(map(_is_known, names))
    if columns is not None:
        positions, by, how = _positions(names, columns, where)
        roles = [names[position] for position in positions] if named else columns
        if by == "number" and not named:
            how += f"; {'first row is a header' if header else 'no header'}"
        described = f"{_as_roles(roles, view_names(len(roles), _ALONE))} ({how})"
        chosen = ColumnMap(positions, header or by == "choice", described, by)
    elif header:
        chosen = _known_columns(names, where)
    else:
        chosen = _columns_in_order(names, below, where)
    if chosen.header and not below:
        return chosen
    for it in chosen.positions:
        cells = [row[it] for row in below] or [names[it]]
        few = len(names) > 1 and chosen.by == "order" and 4 * len(set(cells)) < len(cells)
        codes = _holds_codes(cells)
        if codes or (few and median(map(n_words, cells)) < _SENTENCE_WORDS):
            what = "ids, numbers or dates" if codes else "a few words again and again"
            name = repr(names[it]) if chosen.header else it
            what += f" ({', '.join(shown(cell) for cell in list(dict.fromkeys(cells))[:2])})"
            raise DataError(f"{where}: column {name} holds {what}; choose with --columns")
    return chosen


def _columns_in_order(names: list[str], below: Sequence[Sequence[str]], where: str) -> ColumnMap:
    """All columns, unless the first row may be a header of names that are not known."""
    count, unknown = len(names), [name for name in names if not _is_known(name)]
    joined = re.split(r"[,;|:^~\t]+", names[0])
    many = len(below) >= _FEWEST_ROWS
    texts, main = list[str](), list[str]()  # sentences, and what is not the same again and again
    for name, *cells in zip(names, *below, strict=True):
        plain = not _holds_codes(cells)
        texts += [name] * (many and plain and median(map(n_words, cells)) >= _SENTENCE_WORDS)
        main += [name] * (plain and 2 * len(set(cells)) > len(cells))
    short = all(_NAME.fullmatch(it) and n_words(it) < 2 * _SENTENCE_WORDS for it in names)
    like_names = texts and short and len(set(names)) == count
    alone = like_names and (count == 1 or (len(texts) == 1 and main == texts))
    at = names.index(texts[0]) if alone else None
    problem = ""
    if len(joined) > 1 and ("\t" in names[0] or all(_is_known(it.strip()) for it in joined)):
        what = f"{shown(names[0])} looks like {len(joined)} cells"
        problem = f"{what}; separate cells by commas in a .csv, by tabs in a .tsv"
    elif at is not None and n_words(names[at]) < min(n_words(row[at]) for row in below):
        ignored = ", ".join(name for name in names if name != names[at])
        rest = f"; others: {ignored}" if ignored else ""
        how = f"the first row is a header, shorter than text{rest}"
        return ColumnMap((at,), True, f"{names[at]} as the sentence ({how})", "order")
    elif any(_is_sentence(name.lower()) for name in names) or (like_names and count > 1):
        choice = shlex.quote(",".join((texts or names)[:2]))
        problem = (
            f"is this a header? {unknown[0]!r} is no known name; choose by name if it is, "
            f"as --columns {choice}, and by number from 0 if this row is an example"
        )
    if problem:
        raise DataError(f"{where}: {problem}")
    what = "1 column" if count == 1 else f"{count} columns in the order of the file"
    described = f"{what}: {', '.join(view_names(count, _ALONE))} (no header)"
    return ColumnMap(tuple(range(count)), False, described, "order")


def _known_columns(names: Sequence[str], where: str) -> ColumnMap:
    spelt = {name.lower(): name for name in names}
    pairs = [pair for pair in PAIRS if set(pair) <= spelt.keys()]
    labels = [name for name in names if _LABEL.fullmatch(name.lower())]
    alone = [name for name in ALONE if name in spelt] or [*filter(_is_sentence, spelt)]
    lower = [*filter(_is_sentence, map(str.lower, names))]
    problem = ""
    if twice := [name for name in lower if lower.count(name) > 1]:
        problem = f"{twice[0]!r} heads more than one column"
    elif len(pairs) > 1:
        problem = f"the pair could be {' or '.join('+'.join(pair) for pair in pairs)}"
    elif pairs and labels and not _SURE & set(pairs[0]):
        pair = "+".join(pairs[0])
        problem = f"column {labels[0]!r} says that not every {pair} is a positive pair"
    elif not pairs and len(alone) != 1:
        problem = "cannot tell which column is the sentence"
    if problem:
        there = ", ".join(names)
        raise DataError(f"{where}: {problem}; choose with --columns, one or more of {there}")
    matches = [(match, spelt[name]) for name in spelt if (match := _NEGATIVE.fullmatch(name))]
    negatives = [name for _, name in sorted(matches, key=lambda it: int(it[0][1] or 0))]
    chosen = [*(spelt[it] for it in pairs[0]), *negatives] if pairs else [spelt[alone[0]]]
    ignored = [name for name in names if name not in chosen]
    rest = f"; others: {', '.join(ignored)}" if ignored else ""
    described = f"{_as_roles(chosen, view_names(len(chosen), _ALONE))} (by name{rest})"
    return ColumnMap(tuple(map(names.index, chosen)), True, described, "name")


def _positions(
    names: list[str], columns: Sequence[str], where: str
) -> tuple[tuple[int, ...], Literal["choice", "number"], str]:
    """The columns that a user names, or numbers from 0; how they are chosen, also in words."""
    by_number = all(column.isascii() and column.isdecimal() for column in columns)
    known = list(map(str, range(len(names)))) if by_number else names
    lower = [name.lower() for name in known]
    chosen, problem = [], "" if columns else "is empty"
    for column in columns:
        spelt, wanted = (known, column) if column in known else (lower, column.lower())
        if wanted not in spelt:
            pick(f"column of {where}", column, (f"{it:.40}" for it in known))
        chosen.append(spelt.index(wanted))
        if spelt.count(wanted) > 1 or chosen.count(chosen[-1]) > 1:
            problem = f"names {column!r} twice, or it heads more than one column; choose by number"
    if problem:
        raise ConfigError(f"{where}: --columns {','.join(columns)!r} {problem}")
    by: Literal["choice", "number"] = "number" if by_number else "choice"
    return tuple(chosen), by, f"chosen by {'number' if by_number else 'name'}"


def _as_roles(columns: Sequence[str], roles: Sequence[str]) -> str:
    """``columns``, each with its role; there may be more ``roles``."""
    return ", ".join(f"{column} as {role}" for column, role in zip(columns, roles, strict=False))


def view_names(count: int, alone: str = "sentence") -> list[str]:
    """Names of the sentences of an example, if there are so many."""
    if count == 1:
        return [alone]
    hard = ["hard negative"] if count == 3 else [f"hard negative {k}" for k in range(1, count - 1)]
    return ["anchor", "positive", *hard]


def _is_known(name: str) -> bool:
    name = name.lower()
    return _is_sentence(name) or bool(_LABEL.fullmatch(name) or _OTHER.fullmatch(name))


def _is_sentence(name: str) -> bool:
    return name in ALONE or any(name in p for p in PAIRS) or bool(_NEGATIVE.fullmatch(name))


def _holds_codes(cells: Sequence[str]) -> bool:
    """True if most of a column's cells are ids, numbers or dates."""
    full = [cell.strip() for cell in cells if cell.strip()]
    # of few cells, `x1` may be a sentence
    pattern = _NUMBERS if len(full) < _FEWEST_ROWS else _CODE
    return bool(full) and sum(map(bool, map(pattern.fullmatch, full))) >= _MOSTLY * len(full)


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Columns that the rows of a kind of data have to hold."""

    roles: tuple[str, ...]  # the sentences in order, then a label or score
    # for each role the headings that are known for it, in lower case, between commas
    headings: tuple[str, ...]
    optional: int = 0  # how many roles, counted from the end, may be absent
    # the columns of the roles in rows that are understood without a header, up to their last one
    bare: Sequence[Sequence[int]] = ()
    numeric: bool = False  # the last role is a number, so that its name in a first row is a heading
    is_list: bool = False  # between the first role and the last there may be more candidates

    @property
    def names(self) -> list[list[str]]:
        """The headings of each role, of which the first one that is there counts."""
        return [known.split(",") for known in self.headings]

    def of(self, names: Sequence[str], columns: Sequence[str] | None) -> "ColumnSpec":
        """With a role for every candidate among the ``names``, or among the chosen ``columns``."""
        if not self.is_list:
            return self
        numbers = {it: match[1] for it in names if (match := _CANDIDATE.fullmatch(it.lower()))}
        candidates = sorted(numbers, key=lambda it: int(numbers[it] or -(numbers[it] is None)))
        candidates = [*columns[1:-1]] if columns else candidates
        candidates += [f"candidate_{k + 1}" for k in range(len(candidates), len(self.roles) - 2)]
        roles = [f"candidate {k + 1}" for k in range(len(candidates))]
        headings = (self.headings[0], *map(str.lower, candidates), self.headings[-1])
        return replace(self, roles=(self.roles[0], *roles, self.roles[-1]), headings=headings)


def choose_columns(
    first: Sequence[str], kind: str, columns: Sequence[str] | None, where: str, *, named: bool
) -> ColumnMap:
    """The columns of a kind of data; other arguments and errors: :func:`sentence_columns`."""
    names = [cell.strip() for cell in first]
    wanted = SPECS[kind].of(names, columns)
    roles, most = wanted.roles, len(wanted.roles)
    every = " and ".join(filter(None, (", ".join(roles[:-1]), roles[-1])))
    example = f"--columns {','.join(known[0] for known in wanted.names)}"
    if columns is not None:
        if not most - wanted.optional <= len(columns) <= most or len({*columns}) < len(columns):
            raise ConfigError(f"--columns {','.join(columns)} does not name {every}, as {example}")
        positions, by, how = _positions(names, columns, where)
        header = named or by == "choice" or _is_heading([names[it] for it in positions], wanted)
        return ColumnMap(positions, header, f"{_as_roles(columns, roles)} ({how})", by)
    lower = [name.lower() for name in names]
    present = ([lower.index(it) for it in spellings if it in lower] for spellings in wanted.names)
    known = [positions[0] for positions in takewhile(bool, present)]
    by_name = len(known) >= most - wanted.optional
    bare = next((it for it in wanted.bare if not named and it[-1] + 1 == len(names)), ())
    if by_name and (twice := [names[it] for it in known if lower.count(lower[it]) > 1]):
        problem = f"{twice[0]!r} heads more than one column"
    elif by_name:
        described = f"{_as_roles([names[position] for position in known], roles)} (by name)"
        optional = wanted.optional - (most - len(known))
        return ColumnMap(tuple(known), True, described, "name", optional)
    elif bare:
        header = _is_heading([names[it] for it in bare], wanted)
        cells = [names[it] if header else f"column {it}" for it in bare]
        how = "in this order, below a header" if header else "no header"
        return ColumnMap(tuple(bare), header, f"{_as_roles(cells, roles)} ({how})", "order")
    else:
        problem = f"no column is known as the {roles[len(known)]}"
    there = ", ".join(f"{it:.40}" for it in names[:8])
    how = f"choose {every} with --columns, by name or by number from 0"
    raise DataError(f"{where}: {problem}; there are {there}; {how}")


def _is_heading(cells: Sequence[str], wanted: ColumnSpec) -> bool:
    """True if cells are names: all, that of a number, or those before it."""
    lower = [cell.lower() for cell in cells]
    if wanted.numeric and len(lower) == len(wanted.roles):
        *sentences, number = (it in names for it, names in zip(lower, wanted.names, strict=True))
        return number or all(sentences)
    return {name for names in wanted.names for name in names}.issuperset(lower)


def _spec(roles: dict[str, str], **others: Any) -> ColumnSpec:
    headings = (known.format(**_TABLE["headings"]) for known in roles.values())
    return ColumnSpec(tuple(roles), tuple(headings), **others)


SPECS = {name: _spec(**row) for name, row in _TABLE["kinds"].items()}
"""Kinds of data by name: ``lists`` are of a query, its candidates, of which the first is the
positive, and the score of each; ``texts`` are the queries or documents of retrieval; ``wanted`` are
queries with what they are to find in an index."""
