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
_ALONE = "the sentence"

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

    ``header`` says that the first row of a table holds names, ``described`` how they were
    understood, in one line, and ``by`` how the columns are known.
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

    The first row of a table is a header if every cell is a known name, if ``columns`` gives names,
    or if it is short over the longer text ``below``. Without one, every column is a sentence; ids,
    numbers and dates are none. Columns are chosen by name, or by digits that count from 0;
    ``named`` says that ``first`` certainly holds names, and ``where`` is its place. ConfigError if
    ``columns`` does not fit; DataError if the columns cannot be told, or one holds no sentences.
    """
    names = [cell.strip() for cell in first]
    header = named or all(map(_is_known, names))
    if columns is not None:
        if not columns or len(set(columns)) < len(columns):
            raise ConfigError(f"--columns {','.join(columns)!r} must name one or more, each once")
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
    _refuse_codes(chosen, names, below, where)
    return chosen


def _columns_in_order(names: list[str], below: Sequence[Sequence[str]], where: str) -> ColumnMap:
    """All columns, unless the first row may be a header of names that are not known."""
    count = len(names)
    joined = re.split(r"[,;|:^~\t]+", names[0])
    if len(joined) > 1 and ("\t" in names[0] or all(_is_known(it.strip()) for it in joined)):
        raise DataError(
            f"{where}: {_shortened(names[0])!r} looks like {len(joined)} cells; separate cells by "
            "commas in a .csv, and by tabs in a .tsv"
        )
    if headings := [name for name in names if _is_sentence(name.lower())]:
        unknown = next(name for name in names if not _is_known(name))
        raise DataError(
            f"{where}: is this a header? {headings[0]!r} is a column name, {unknown!r} is not; "
            "choose with --columns, by name if it is a header, by number if it is an example"
        )
    many = len(below) >= _FEWEST_ROWS
    texts = [name for name, *it in zip(names, *below, strict=True) if many and _is_text(it)]
    if texts and all(map(_NAME.fullmatch, names)) and len(set(names)) == count:
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
    described = f"{what}: {', '.join(view_names(count, _ALONE))} (no header)"
    return ColumnMap(tuple(range(count)), False, described, "order")


def _refuse_codes(
    chosen: ColumnMap, names: list[str], below: Sequence[Sequence[str]], where: str
) -> None:
    """Refuse columns of ids, numbers, dates or, in a table without names, single words."""
    if chosen.header and not below:
        return
    columns = {it: [row[it] for row in below] or [names[it]] for it in chosen.positions}
    if len(below) < _FEWEST_ROWS:  # of few cells, `x1` may be a sentence
        full = {k: [it.strip() for it in cells if it.strip()] for k, cells in columns.items()}
        numbers = {k: it and all(map(_NUMBERS.fullmatch, it)) for k, it in full.items()}
        kinds = {k: _CODES if are_numbers else None for k, are_numbers in numbers.items()}
    else:
        kinds = {position: kind_of(cells) for position, cells in columns.items()}
    many = chosen.by == "order" and len(below) >= _MANY_ROWS
    words = many and not all(kinds.values())  # words may be all there is
    wrong = [it for it, kind in kinds.items() if kind == _CODES or (kind and words)]
    if wrong:
        name = repr(names[wrong[0]]) if chosen.header else wrong[0]
        shown = ", ".join(repr(_shortened(cell)) for cell in columns[wrong[0]][:2])
        rest = ",".join(str(it) for it in columns if it not in wrong)
        raise DataError(
            f"{where}: column {name} holds {kinds[wrong[0]]} ({shown}), no sentences; choose "
            f"others with --columns, by name, or by number from 0{f', as {rest}' if rest else ''}"
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
        matches = [(match, spelt[name]) for name in spelt if (match := _NEGATIVE.fullmatch(name))]
        negatives = sorted(matches, key=lambda it: int(it[0][1] or 0))
        chosen = [*(spelt[name] for name in pairs[0]), *(name for _, name in negatives)]
    else:
        alone = [name for name in ALONE if name in spelt] or [*filter(_is_sentence, spelt)]
        if len(alone) != 1:
            raise DataError(f"{where}: cannot tell which column is the sentence; {remedy}")
        chosen = [spelt[alone[0]]]
    ignored = [name for name in names if name not in chosen]
    rest = f"; ignored: {', '.join(ignored)}" if ignored else ""
    described = f"{_as_roles(chosen, view_names(len(chosen), _ALONE))} (by name{rest})"
    again = partial(_known_columns, where=where)
    return ColumnMap(tuple(map(names.index, chosen)), True, described, "name", choose=again)


def _positions(
    names: list[str], columns: Sequence[str], where: str
) -> tuple[tuple[int, ...], Literal["choice", "number"], str]:
    """The columns that a user names, or numbers from 0; how they are chosen, also in words."""
    if all(column.isascii() and column.isdecimal() for column in columns):
        positions = tuple(map(int, columns))
        if max(positions) >= len(names):
            raise ConfigError(
                f"{where}: no column {max(positions)}; there are {len(names)}, counted from 0"
            )
        return positions, "number", "chosen by number"
    lower = [name.lower() for name in names]
    chosen = []
    for column in columns:
        spelt, wanted = (names, column) if column in names else (lower, column.lower())
        if wanted not in spelt:
            pick(f"column of {where}", column, [_shortened(name) for name in names])
        if spelt.count(wanted) > 1:
            raise ConfigError(f"{where}: {column!r} heads more than one column; choose by number")
        chosen.append(spelt.index(wanted))
    return tuple(chosen), "choice", "chosen by name"


def _as_roles(columns: Sequence[str], roles: Sequence[str]) -> str:
    """``columns``, each with its role; there may be more ``roles``."""
    return ", ".join(f"{column} as {role}" for column, role in zip(columns, roles, strict=False))


def _shortened(cell: str) -> str:
    return cell if len(cell) <= _SHOWN else f"{cell[: _SHOWN - 3]}..."


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


def _is_text(cells: Sequence[str]) -> bool:
    return kind_of(cells) is None and median(len(it.split()) for it in cells) >= _SENTENCE_WORDS


def kind_of(cells: Sequence[str]) -> str | None:
    """The kind of most of a column's cells if they are no sentences: ids and the like, or words."""
    full = [cell.strip() for cell in cells if cell.strip()]
    for kind, pattern in ((_CODES, _CODE), ("single words", _WORD)):
        if full and sum(bool(pattern.fullmatch(it)) for it in full) >= _MOSTLY * len(full):
            return kind
    return None


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Columns that the rows of a kind of data have to hold."""

    roles: tuple[str, ...]  # the sentences in order, then a label or score
    # for each role the headings that are known for it, in lower case
    names: tuple[tuple[str, ...], ...]
    # roles of which the first known heading is taken; of others only one may be there
    ranked: tuple[str, ...] = ()
    optional: int = 0  # how many roles, counted from the end, may be absent
    # numbers of columns that are understood, in the order of the roles, without a header
    bare: tuple[int, ...] = ()
    numeric: bool = False  # the last role is a number, so that its name in a first row is a heading
    otherwise: str = ""  # the remedy for a source of another kind, where it is not understood


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
    roles, most = wanted.roles, len(wanted.roles)
    every = f"{', '.join(roles[:-1])} and {roles[-1]}"
    example = f"--columns {','.join(known[0] for known in wanted.names)}"
    if columns is not None:
        if not most - wanted.optional <= len(columns) <= most or len({*columns}) < len(columns):
            raise ConfigError(
                f"--columns {','.join(columns)} does not name {every}; give one column for each, "
                f"as {example}"
            )
        positions, by, how = _positions(names, columns, where)
        header = named or by == "choice" or _is_heading([names[it] for it in positions], wanted)
        return ColumnMap(positions, header, f"{_as_roles(columns, roles)} ({how})", by)
    lower = [name.lower() for name in names]
    known: list[int] = []
    for role, spellings in zip(roles, wanted.names, strict=True):
        present = [name for name in spellings if name in lower]
        if not present:
            break
        if len(present) > 1 and role not in wanted.ranked:
            raise DataError(
                f"{where}: the {role} could be column {' or '.join(present)}; choose with {example}"
            )
        known.append(lower.index(present[0]))
    if len(known) >= most - wanted.optional:
        described = f"{_as_roles([names[position] for position in known], roles)} (by name)"
        again = partial(choose_columns, wanted=wanted, columns=None, where=where, named=named)
        optional = wanted.optional - (most - len(known))
        return ColumnMap(tuple(known), True, described, "name", optional, again)
    if not named and len(names) in wanted.bare:
        header = _is_heading(names, wanted)
        cells = names if header else [f"column {position}" for position in range(len(names))]
        how = "in this order, below a header" if header else "no header"
        described = f"{_as_roles(cells, roles)} ({how})"
        return ColumnMap(tuple(range(len(names))), header, described, "order")
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    raise DataError(
        f"{where}: no column is known as the {roles[len(known)]}; there are "
        f"{', '.join(map(_shortened, names[:8]))}{more}; choose {every} with --columns, in this "
        f"order: by name, or by number from 0 if there is no header, as --columns "
        f"{','.join(map(str, range(most)))}" + (f"; {wanted.otherwise}" if wanted.otherwise else "")
    )


def _is_heading(cells: Sequence[str], wanted: ColumnSpec) -> bool:
    """Whether cells of a first row, in the order of the roles, are names: all, or that of a number.

    Names of sentences are enough where a number has to follow.
    """
    lower = [cell.lower() for cell in cells]
    if wanted.numeric and len(lower) == len(wanted.roles):
        *sentences, number = (it in names for it, names in zip(lower, wanted.names, strict=True))
        return number or all(sentences)
    return {name for names in wanted.names for name in names}.issuperset(lower)


_FIRST = ("sentence1", "sentence_1", "sentence_a", "text1", "text_a")
_SECOND = ("sentence2", "sentence_2", "sentence_b", "text2", "text_b")
_LABELS = (
    *("label", "class", "category", "coarse_label", "gold_label", "target"),
    *("sentiment", "intent", "topic", "emotion", "labels"),
)
_DOCUMENT_IDS = ("corpus-id", "corpus_id", "document_id", "doc_id", "docid", "pid", "did")

NLI = ColumnSpec(
    roles=("premise", "hypothesis", "label"),
    names=(
        ("sent0", "premise", "context", *_FIRST),
        ("sent1", "hypothesis", *_SECOND),
        ("gold_label", "label", "entailment_judgment"),
    ),
    ranked=("label",),
)

CAPTIONS = ColumnSpec(
    roles=("image", "caption"),
    names=(
        ("image", "image_id", "image_name", "file_name", "filename", "group"),
        ("caption", "comment", "text", "sentence"),
    ),
    bare=(2,),
)

DUPLICATES = ColumnSpec(
    roles=("first question", "second question", "label"),
    names=(
        ("question1", "#1 string", *_FIRST, "anchor", "sent0"),
        ("question2", "#2 string", *_SECOND, "positive", "sent1"),
        ("is_duplicate", "label", "quality"),
    ),
    ranked=("label",),
)

PARAPHRASES = ColumnSpec(
    roles=("reference", "paraphrase", "score"),
    names=(
        ("reference", "source", *_FIRST, "anchor", "sent0"),
        ("paraphrase", "target", *_SECOND, "positive", "sent1"),
        ("score", "similarity"),
    ),
    optional=1,
    bare=(2, 3),
    numeric=True,
)

RATED_PAIRS = ColumnSpec(
    roles=("first sentence", "second sentence", "score"),
    names=(
        (*_FIRST, "sent0", "first", "question1", "premise", "anchor", "query"),
        (*_SECOND, "sent1", "second", "question2", "hypothesis", "positive", "document"),
        (
            *("score", "similarity", "similarity_score", "relatedness_score", "gold", "rating"),
            *("label", "is_duplicate"),
        ),
    ),
    ranked=("score",),
    bare=(3,),
    numeric=True,
    otherwise="if it holds sentences with labels, name it classify:FILE",
)

SENTENCES = ColumnSpec(
    roles=("sentence", "class"),
    names=(
        (
            *("text", "sentence", "review", "question", "query", "comment", "tweet", "utterance"),
            *("content", "document", "headline", "title"),
        ),
        _LABELS,
    ),
    ranked=("sentence", "class"),
    bare=(2,),
)

SENTENCE_PAIRS = ColumnSpec(
    roles=("first sentence", "second sentence", "class"),
    names=(*RATED_PAIRS.names[:2], _LABELS),
    ranked=("class",),
    bare=(3,),
)

TEXTS = ColumnSpec(
    roles=("id", "text", "title"),
    names=(
        ("_id", "id", "query-id", "query_id", "qid", *_DOCUMENT_IDS, "passage_id"),
        ("text", "query", "question", "document", "passage", "contents", "content", "sentence"),
        ("title",),
    ),
    ranked=("id", "text"),
    optional=1,
    bare=(2,),
)
"""Queries or documents of retrieval."""

RELEVANCE = ColumnSpec(
    roles=("query's id", "document's id", "relevance"),
    names=(
        ("query-id", "query_id", "queryid", "qid", "query"),
        (*_DOCUMENT_IDS, "document-id", "passage_id", "document", "passage"),
        ("score", "relevance", "rel", "grade", "label"),
    ),
    ranked=("query's id", "document's id", "relevance"),
    bare=(3,),
    numeric=True,
)
