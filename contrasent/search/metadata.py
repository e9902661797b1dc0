"""Rows of an index with their metadata, and conditions as `year >= 2020 and source = "faq"`.

Conditions have Python's grammar. Only what is named here is read, and nothing is evaluated:
``= != < <= > >=``, ``in ("a", "b")``, ``like "docs/%"``, ``is null``, ``and``, ``or``, ``not`` and
parentheses. As in SQL, a row without a value satisfies no comparison with it. Texts that are
compared with a number, such as the cells of a CSV, are read as numbers; of others there is none.
"""

import ast
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from contrasent.data.readers import stop
from contrasent.data.tokenizer import require_text, sentences_of
from contrasent.encode.shards import Sentences
from contrasent.errors import CheckpointError, ConfigError, DataError, first_line, pick, shown, warn

COLUMNS = ("id", "text")  # strings of a row, first in its table; others are its metadata
RESERVED = (*COLUMNS, "path", "_file")  # names that columns of a user's table do not get
Kind = Literal["null", "bool", "int64", "double", "string"]
"""The type of a column of metadata, as pyarrow calls it."""
_TOKEN = re.compile(
    r"""("[^"]*"|'[^']*')|(`[^`]+`|\b(?i:not\s+like)\b|\b[^\W\d]\w*(?:\.\w+)*)|<>|(?<![<>=!])=(?!=)|#"""
)
_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_COMMA = r"^\s*[+-]?[\d.]*\d,\d+\s*$"
_SPELT = {"<>": "!=", "=": "==", "#": "?"}  # no comment hides a part
_WORDS = {word: word for word in ("and", "or", "not", "in", "is")}
_WORDS |= {"true": "True", "false": "False", "null": "None", "like": "@", "not like": "%"}
_STEPS = 1_000  # 500 comparisons, each joined to others: Arrow overflows the stack at some 8,000
_TERM = ast.Call | ast.Constant  # what is read twice: a condition there would double the work
_FAULTS = SyntaxError, ValueError, LookupError, TypeError, OverflowError, RuntimeError, MemoryError
_SIGNS = ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE
_OPERATORS = operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge
_COMPARED: dict[type[ast.cmpop], Any] = dict(zip(_SIGNS, _OPERATORS, strict=True))


def read_filter(text: str) -> tuple[Any, dict[str, bool]]:
    """A condition for pyarrow, and by the columns that it names if it takes them for numbers."""
    try:
        tree = ast.parse(_TOKEN.sub(_in_python, text).strip(), mode="eval")
        columns = dict.fromkeys(_columns(tree), False)
        for node in ast.walk(tree):
            values = (getattr(part, "value", None) for part in ast.walk(node))
            if isinstance(node, ast.Compare) and {int, float} & {*map(type, values)}:
                columns |= dict.fromkeys(_columns(node), True)
        steps = sum(len(getattr(it, "values", getattr(it, "ops", ()))) for it in ast.walk(tree))
        return _expression(tree.body if steps <= _STEPS else tree), columns  # a tree is refused
    except _FAULTS as error:
        how = 'year >= 2020 and (source = "faq" or not `file name` in ("a", "b"))'
        how += ", with at most 500 conditions"
        raise ConfigError(f"the filter {shown(text)} cannot be read; write it as: {how}") from error


def _in_python(token: re.Match[str]) -> str:
    """A token as Python spells it; a text in parentheses, a column as a call with its name."""
    text, name = token[1], token[2]
    if name is None:
        return _SPELT[token[0]] if text is None else f" ({text[1:-1]!r}) "
    word = _WORDS.get(" ".join(name.lower().split()), f"column({name.strip('`')!r})")
    return f" {word} "


def _columns(node: ast.AST) -> list[str]:
    return [ast.literal_eval(it.args[0]) for it in ast.walk(node) if isinstance(it, ast.Call)]


def _expression(node: ast.AST) -> Any:
    """The expression of a part of the tree; ValueError if it is of another kind."""
    import pyarrow.compute as pc

    match node:
        case ast.BoolOp(op=joint, values=parts):
            joined = operator.and_ if isinstance(joint, ast.And) else operator.or_
            return reduce(joined, map(_expression, parts))
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return ~_expression(part)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return pc.scalar(-number)
        case ast.BinOp(left, ast.MatMult() | ast.Mod() as op, ast.Constant(str() as pattern)):
            matched = pc.match_like(_expression(left), pattern)
            return ~matched if isinstance(op, ast.Mod) else matched
        case ast.Compare(left, [ast.Is() | ast.IsNot() as op], [ast.Constant(None)]):
            matched = _expression(left).is_null()
            return matched if isinstance(op, ast.Is) else ~matched
        case ast.Compare(ast.Call() as left, [ast.In() | ast.NotIn() as op], [right]):
            column, values = _expression(left), getattr(right, "elts", None) or [right]
            known = column.isin([*map(ast.literal_eval, values)])  # false where there is none
            matched = pc.if_else(column.is_valid(), known, pc.scalar(None))
            return matched if isinstance(op, ast.In) else ~matched
        case ast.Compare(left, ops, [*inner, right]) if all(isinstance(it, _TERM) for it in inner):
            terms = pairwise(map(_expression, [left, *inner, right]))  # 2019 < year <= 2021
            compared = zip((_COMPARED[type(op)] for op in ops), terms, strict=True)
            return reduce(operator.and_, [compare(*pair) for compare, pair in compared])
        case ast.Call(func=ast.Name(), args=[ast.Constant(str() as name)]):
            return pc.field(name)
        case ast.Constant(bool() | int() | float() | str() as value):
            return pc.scalar(value)
    raise ValueError(ast.dump(node))


def matching_rows(
    table: Any, live: np.ndarray, condition: str, numbers: dict[str, Any]
) -> np.ndarray:
    """``(N,)`` bool: the live rows that satisfy a condition; ConfigError if it has no sense.

    Columns of texts that were once read as ``numbers`` are kept there.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    expression, names = read_filter(condition)
    matching, named = np.zeros(len(table), bool), table.select([])
    for name, is_number in names.items():
        column = table[pick("column", name, table.column_names)]
        if pa.types.is_null(column.type):
            column = column.cast("double" if is_number else "string")
        elif is_number and pa.types.is_string(column.type):
            if name not in numbers:
                patterns = (pc.match_substring_regex(column, it) for it in (_NUMBER, _COMMA))
                numeric, wrong = (live & pc.fill_null(it, False).to_numpy() for it in patterns)
                if not numeric.any():
                    wrong = live & column.is_valid().to_numpy()
                for cell in column.filter(pa.array(wrong)).slice(0, 1).to_pylist():
                    what = f"column {name!r} has {cell!r:.60}, which is no number such as 1330.69"
                    raise ConfigError(f"the filter {condition!r}: {what}")
                cells = pc.if_else(pa.array(numeric), pc.utf8_trim_whitespace(column), None)
                numbers[name] = cells.cast("double")
            column = numbers[name]
        named = named.append_column(name, column)
    try:
        rows = named.append_column("", pa.array(np.arange(len(table)))).filter(expression)
        matching[rows.column("").to_numpy()] = True
    except pa.ArrowException as error:
        how = "put quotes around texts, not around numbers, true or false"
        raise ConfigError(f"the filter {condition!r}: {first_line(error)}; {how}") from error
    return live & matching


def metadata_table(rows: Iterable[Mapping[str, Any]]) -> Any:
    """A table of metadata, a row for each mapping, with null where that has no value.

    A column of other values than texts, numbers and booleans, or of several types, is one of texts.
    DataError if a row is no mapping of names, or not in UTF-8.
    """
    import pyarrow as pa

    rows = list(rows)
    if wrong := [row for row in rows if not isinstance(row, Mapping)]:
        raise DataError(f"metadata map names to values for each text, not {wrong[0]!r}")
    names = dict.fromkeys(name for row in rows for name in row)
    if reserved := names.keys() & {*COLUMNS}:
        raise DataError(f"metadata cannot be called {reserved.pop()!r}; give it another name")
    require_text(names, "name of metadata")
    columns = {name: _metadata_column([row.get(name) for row in rows]) for name in names}
    return pa.table(columns | {"id": pa.nulls(len(rows))}).select([*names])  # counted if empty


def metadata_of(sentences: Sentences) -> list[dict[str, Any]] | None:
    """The cells beside each sentence of a table, by their columns; None where there is none."""
    table = sentences.examples.rows
    if len(table.first) == len(table.names) and not table.named:
        return None
    rows, places = table.beside(RESERVED), sentences.examples.read(stop)
    known = [next(cells for at, cells in rows if at == where) for where, _ in places]
    return known if any(known) else None


def _is_missing(value: object) -> bool:  # as None, and what a table of pandas has for it
    return not isinstance(value, str) and str(value) in ("None", "nan", "NaT", "<NA>")


def _metadata_column(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    require_text([it for it in values if isinstance(it, str)], "text of metadata")
    plain = (it.item() if isinstance(it, np.generic) else it for it in values)
    values = [None if _is_missing(value) else value for value in plain]
    with suppress(pa.ArrowException, OverflowError):
        column = pa.array(values)
        if str(column.type) in get_args(Kind):
            return column
    texts = ("" if v is None else str(v).lower() if isinstance(v, bool) else str(v) for v in values)
    return pa.array(texts, pa.string(), mask=np.array([it is None for it in values], bool))


def joint_columns(first: Mapping[str, Kind], metadata: Any, stored: Any = None) -> dict[str, Any]:
    """The columns of metadata of an index, ``stored``, that a table of new metadata is added to."""
    import pyarrow as pa

    joint: dict[str, Any] = {**first}
    for name in () if metadata is None else metadata.column_names:
        tables = [metadata.select([name]), *([stored.select([name])] if name in first else [])]
        joint[name] = "string"
        with suppress(pa.ArrowException):  # also of whole numbers that a double would round
            joint[name] = str(pa.concat_tables(tables, promote_options="permissive")[name].type)
        if joint[name] == "string" and first.get(name) in ("int64", "double", "bool"):
            warn(f"column {name!r} holds texts from now on, as not all values are {first[name]}")
    return joint


def typed(table: Any, columns: Mapping[str, Kind]) -> Any:
    """The ids, the texts and the ``columns`` of a table, null where it has none."""
    import pyarrow as pa

    cells = {name: table[name] for name in COLUMNS}
    for name, kind in columns.items():
        stored = table[name] if name in table.column_names else pa.nulls(len(table))
        cells[name] = stored.cast(pa.type_for_alias(kind), safe=False)
    return pa.table(cells)


@dataclass(frozen=True, slots=True)
class IndexRows:
    """``(N, D)`` vectors, and the table of their ids and texts."""

    vectors: np.ndarray
    table: Any

    @property
    def ids(self) -> list[str]:
        """The id of each row."""
        return list(self.table.column("id").to_pylist())

    @property
    def texts(self) -> list[str]:
        """The text of each row."""
        return list(self.table.column("text").to_pylist())


def numbered(
    blocks: Iterable[tuple[np.ndarray, Sequence[str]]],
    ids: Sequence[str] | None,
    similarity: str,
    metadata: Any = None,
    first: int = 0,
) -> Iterator[IndexRows]:
    """Rows, of length 1 for cosines, with one id each; without ids, numbers from ``first``.

    They are not on disk yet; ``metadata`` is a table of as many rows.
    """
    import pyarrow as pa

    aligned = {"ids": ids, "rows of metadata": metadata}
    counts, done = {name: len(rows) for name, rows in aligned.items() if rows is not None}, 0
    for rows, texts in blocks:
        length = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        if similarity != "cosine":
            length = np.ones_like(length)
        elif not (length > 0).all():  # nor NaN, of rows that others wrote
            row = int(length.argmin())
            what = "the encoder gives a vector without a direction (zeros) for text"
            raise CheckpointError(f"{what} {done + row}: {texts[row][:80]!r}; check the encoder")
        start, done = done, done + len(texts)
        if done > min(counts.values(), default=done):
            break
        names = map(str, range(first + start, first + done)) if ids is None else ids[start:done]
        table = pa.table([pa.array([*it], pa.string()) for it in (names, texts)], COLUMNS)
        for name in () if metadata is None else metadata.column_names:
            table = table.append_column(name, metadata[name].slice(start, done - start))
        yield IndexRows((rows / length).astype(np.float32), table)
    if not done or {done, *counts.values()} != {done}:
        few = " and ".join(f"{count} {name}" for name, count in counts.items())
        problem = f"there are {few}, but {done} texts"
        raise DataError(problem if done else "there is no text to index")


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts, none of them empty; else DataError."""
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"text {row} is no text: {text!r}; leave it out, with its id")
        yield text


def checked_ids(ids: Sequence[str | int] | None) -> list[str] | None:
    """The ids as texts, all different; else DataError."""
    if ids is None:
        return None
    given, first = sentences_of(ids, "ids"), dict[str, int]()
    names = ["" if _is_missing(name) else str(name) for name in given]
    require_text(names, "id of text")
    for row, name in enumerate(names):
        if not name.strip() or first.setdefault(name, row) != row:
            raise DataError(f"id {name!r} of text {row} is empty, or another text has it too")
    return names
