"""Examples of V sentences each, from a file, a data set or Python; pairs may have a number each."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.data.clean import clean as cleaned_rows
from contrasent.data.columns import NLI, RATED_PAIRS, ColumnMap, ColumnSpec, sentence_columns
from contrasent.data.readers import TEXT_KINDS, Trouble, source_kind, stop
from contrasent.data.rows import (
    HubSource,
    SourceRows,
    TableSource,
    as_text,
    open_rows_of,
    open_source,
    require_text,
    score_of,
)
from contrasent.data.tokenizer import sentences_of
from contrasent.errors import ConfigError, DataError, shown
from contrasent.files import default_cache, exclusive, writing

if TYPE_CHECKING:
    from contrasent.data.batch import Need

_PATIENCE = 600.0  # seconds that another process may take to keep its rows
# A portion is bounded both ways: short sentences are many, long ones are large.
_SENTENCES_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 20


class Examples:
    """Examples of V sentences each, read anew from the source by every iteration.

    ``columns`` says in one line what was understood. In a text of ``is_lines``, ``documents`` says
    whether blank lines end them, None that the text has to tell. With ``with_ids`` the second
    column holds ids. Known after a whole pass are how many rows were ``skipped`` for an empty
    sentence, ``blank`` and ``unlabelled`` ones, what was ``cleaned``, None if nothing is, and the
    ``numbers`` of each example.
    """

    def __init__(
        self,
        rows: SourceRows,
        views: int,
        *,
        is_lines: bool = False,
        with_ids: bool = False,
        documents: bool | None = None,
        cleans: bool = False,
    ) -> None:
        self.source, self.columns = rows.source, rows.described
        self.rows, self.views = rows, views
        self.is_lines, self.with_ids, self.documents = is_lines, with_ids, documents
        self.cleaned: Counter[str] | None = Counter() if cleans else None
        self.skipped = self.blank = self.unlabelled = 0
        self.numbers: Mapping[Need, Sequence[float]] = {}

    @property
    def sha256(self) -> str:
        """Hexadecimal hash of the source's content, its reading and the chosen columns."""
        reader, layout, content = self.rows, self.rows.chosen, self.rows.sha256
        if isinstance(reader, HubSource):
            return content if self.cleaned is None else f"{content} cleaned"
        chosen: object = reader.names if reader.named else layout.positions
        if isinstance(reader, TableSource):
            chosen = (reader.number if layout.header else 0, chosen)
            # What else the same bytes may be read as: the first column alone of a table as lines.
            if reader.quoted or (len(reader.first) > 1 and layout.positions == (0,)):
                chosen = (*chosen, "quoted" if reader.quoted else "tabs")
        chosen = chosen if self.cleaned is None else (chosen, "cleaned")
        return hashlib.sha256(f"{content}\n{chosen!r}".encode()).hexdigest()

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Examples with where they stand; unreadable rows are left to ``trouble``."""
        rows = self._read(trouble)
        if self.cleaned is not None:
            rows, self.cleaned = cleaned_rows(rows, 1 if self.with_ids else self.views)
        return rows

    def _read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        skipped, checked = 0, self.rows.checked and not self.with_ids
        for where, row in self.rows.rows(trouble):
            cells = row
            if self.with_ids and isinstance(row[1], int) and not isinstance(row[1], bool):
                cells = [row[0], str(row[1])]
            try:
                for cell in () if checked else cells:
                    require_text(cell, where)
            except DataError as error:
                trouble(error)
                continue
            sentences = tuple([(cell or "").strip() for cell in cells])
            if all(sentences):
                yield where, sentences
            else:
                skipped += 1
        self.skipped, self.blank = skipped, self.rows.blank

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Yield V sentences at a time, without white space around them."""
        for _, sentences in self.read(stop):
            yield sentences

    def require(self, minimum: int) -> None:
        """Make sure that there are enough examples, reading no more of them than needed."""
        count = sum(1 for _ in islice(self, minimum))
        if count < minimum:
            few = f"{count} example{'s' if count != 1 else ''} without an empty sentence"
            raise DataError(f"{self.source} holds {few}, but at least {minimum} are needed")


def portions(examples: Iterable[tuple[str, ...]]) -> Iterator[list[str]]:
    """Sentences of whole examples, one example after the other, a bounded number at once."""
    portion: list[str] = []
    characters = 0
    for sentences in examples:
        portion += sentences
        characters += sum(map(len, sentences))
        if len(portion) >= _SENTENCES_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield portion
            portion, characters = [], 0
    if portion:
        yield portion


def open_examples(
    source: str,
    columns: Sequence[str] | None = None,
    *,
    with_ids: bool = False,
    documents: bool | None = None,
    clean: bool = False,
) -> Examples:
    """Understand a text file or a Hugging Face data set as examples.

    ``.txt`` holds a sentence per line, with blank lines between documents; ``.csv`` quoted cells
    between commas (or ``;``, ``|``); ``.tsv`` literal cells; ``.jsonl`` an object or an array of
    strings per line; each may be gzipped, in UTF-8. ``.parquet`` and a URL as ``s3://bucket/folder``
    hold text columns; ``org/name[:config][@split]`` is on the hub. What exists as a file is a file.
    ``columns`` are names or numbers from 0, in the order anchor, positive, hard negatives; None
    picks them by well-known names or, in a table without header, takes all. With ``with_ids`` the
    second holds ids, which are text or whole numbers. ``documents`` says whether blank lines of a
    ``.txt`` end documents, which the text tells else, and ``clean`` leaves out what
    :mod:`contrasent.data.clean` knows as dirt. DataError if the source is missing or cannot
    be understood by its first rows; ConfigError if ``columns`` does not fit.
    """
    kind = source_kind(source, TEXT_KINDS)
    if kind == ".txt" and columns is not None and list(columns) != ["0"]:
        raise ConfigError(f"{source} has no columns to choose; name a table .csv or .tsv")
    if documents and kind != ".txt":
        raise ConfigError(f"{source}: every row is a text; documents are read from a .txt")
    rows = open_source(source, kind)
    if kind == ".txt":
        rows.choose(lambda _: ColumnMap((0,), False, "1 sentence per line", "order"))
    else:
        below = rows.sample() if isinstance(rows, TableSource) and not with_ids else ()
        how: Any = {"where": rows.where, "named": rows.named, "below": below}
        rows.choose(partial(sentence_columns, columns=columns, **how))
    return Examples(
        rows,
        rows.width,
        is_lines=kind == ".txt",
        with_ids=with_ids,
        documents=documents,
        cleans=clean,
    )


Rows = Iterable[str | Sequence[str] | Mapping[str, Any]]
"""Examples given from Python: sentences, tuples of sentences, or mappings of columns."""


def keep_rows(rows: Rows) -> Path:
    r"""Write examples given from Python to a file, to be read as any other.

    The file lies in the cache and is named by its content, so that the same rows are the same file
    when a run is resumed. Strings become the lines of a ``.txt``, in which an empty one ends a
    document; tuples and mappings, also those of a ``datasets.Dataset``, those of a ``.jsonl``.
    """
    remaining = iter(sentences_of(rows, "the data", rows=True))
    first = next(remaining, "")
    is_text, folder, digest = isinstance(first, str), default_cache() / "rows", hashlib.sha256()

    def line_of(row: Any) -> str:
        if is_text:
            return " ".join(row.splitlines())
        if isinstance(row, str):
            raise TypeError("the first is no string")
        plain = dict(row) if isinstance(row, Mapping) else list(row)
        return json.dumps(plain, ensure_ascii=False)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder, patience=_PATIENCE):
            written = folder / "rows"
            with writing(written) as part, part.open("w", encoding="utf-8", newline="\n") as file:
                for number, row in enumerate(chain([first], remaining), start=1):
                    try:
                        line = f"{line_of(row)}\n"
                        digest.update(line.encode())
                    except (TypeError, ValueError, AttributeError, RecursionError) as error:
                        raise DataError(
                            f"row {number} of the data, {shown(row)}, cannot be written: {error}; "
                            "give strings, tuples of strings or mappings, all of one kind"
                        ) from error
                    file.write(line)
            kind = "txt" if is_text else "jsonl"
            return written.replace(folder / f"{digest.hexdigest()[:16]}.{kind}")
    except OSError as error:
        what = f"cannot keep the data in {folder}: {error}"
        raise ConfigError(f"{what}; name a folder in CONTRASENT_CACHE") from error


ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS = ("entailment", "neutral", "contradiction")
CLASSES = (CONTRADICTION, ENTAILMENT, NEUTRAL)
"""In the order of their numbers, which is that of sentence-transformers' NLI examples."""

_NLI = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), ENTAILMENT),
    **dict.fromkeys(("neutral", "n"), NEUTRAL),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), CONTRADICTION),
}
NO_LABEL = {"", "-", "-1", "none", "nan"}


class NliLabels:
    """Understands the labels of one source: words, or numbers with names from 0.

    The names are the data set's own or the user's ``order``: data sets differ in it.
    """

    def __init__(
        self, source: str, own_names: Sequence[str] | None, order: Sequence[str] | None = None
    ) -> None:
        own, asked = (
            [_NLI.get(name.strip().lower(), "") for name in names or ()]
            for names in (own_names, order)
        )
        own = [] if "" in own else own
        if order is not None and (sorted(asked) != sorted(LABELS) or (own or asked) != asked):
            expected = f"the data set's own order, {','.join(own)}" if own else ", ".join(LABELS)
            raise ConfigError(f"{source}: --labels {','.join(order)} does not name {expected}")
        self._source = source
        self.numbers = own or asked
        self.described = "words such as entailment, or their first letters"
        if self.numbers:
            listed = ", ".join(f"{number} = {name}" for number, name in enumerate(self.numbers))
            self.described = f"{listed} ({'the data set says so' if own else 'as asked for'})"

    def understood(self, label: Any, where: str) -> str | None:
        """One of :data:`LABELS`; None if the row has none, and an error if it is not known."""
        word = "" if label is None else str(label).strip().lower()
        if word in _NLI or word in NO_LABEL:
            return _NLI.get(word)
        is_number = word.isascii() and word.isdecimal()
        if is_number and not self.numbers:
            raise ConfigError(
                f"{where}: the label is the number {word}, and {self._source} does not say what it "
                "stands for; name the numbers, as --labels entailment,neutral,contradiction"
            )
        if not is_number or int(word) >= len(self.numbers):
            raise DataError(f"{where}: unknown label {label!r}; known are {', '.join(LABELS)}")
        return self.numbers[int(word)]


class NliClasses(NliLabels):
    """The number of the class that a cell names, words in the order of :data:`CLASSES`.

    Numbers without names are taken as they are: a classifier does not ask for their order.
    """

    _as_numbers: bool | None = None

    def __init__(self, rows: SourceRows) -> None:
        super().__init__(rows.source, rows.label_names)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each number, known once a row was read; the number itself if none says so."""
        return tuple(map(str, range(len(CLASSES)))) if self._as_numbers else CLASSES

    def __call__(self, cell: object, where: str) -> int | None:
        """The number; None for a row without a class."""
        word = "" if cell is None else str(cell).strip()
        is_number = word.isascii() and word.isdecimal() and not self.numbers
        understood = word if is_number else self.understood(cell, where)
        if understood is None:
            return None
        mixed = self._as_numbers not in (None, is_number)
        if mixed or (is_number and int(word) >= len(CLASSES)):
            raise DataError(f"{where}: the label is {cell!r}; all are words or all numbers, 0 to 2")
        self._as_numbers = is_number
        return int(word) if is_number else CLASSES.index(understood)


def require_classes(source: str, classes: Collection[int]) -> None:
    """Make sure that there are pairs of all classes."""
    if len(classes) < len(CLASSES):
        listed = ", ".join(f"{number} ({CLASSES[number]})" for number in sorted(classes))
        raise DataError(f"{source} has pairs of {listed} only, not of {', '.join(CLASSES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideColumn:
    """A number beside the two sentences of each row, to be kept with their tokens."""

    name: str  # of the need that it meets
    kind: str  # of the numbers in memory, as :class:`array.array` names it
    spec: ColumnSpec  # both sentences, then the cell of the number
    # makes a function from a cell of a source and its place to the number, or None for a row that
    # has none and is left out
    parser: Callable[[SourceRows], Callable[[Any, str], float | None]]
    content: str  # stands for the meaning of the numbers in the hash of the content
    read: str  # by an objective that needs it, in words
    wrongly: str  # would be taken by one that does not

    @property
    def need(self) -> Need:
        """The need that an objective declares to read it."""
        from contrasent.data.batch import Need

        return Need[self.name]


class PairExamples(Examples):
    """Both sentences of each row, and the number of a side column."""

    def __init__(self, rows: SourceRows, side: SideColumn) -> None:
        super().__init__(rows, views=2)
        self.parse = side.parser(rows)
        self._side = side

    @property
    def sha256(self) -> str:
        # The same bytes may be read as quoted cells or as cells between tabs.
        quoted = "\nquoted" if getattr(self.rows, "quoted", False) else ""
        content = f"{self.rows.sha256}\n{self.columns}\n{self._side.content}{quoted}"
        return hashlib.sha256(content.encode()).hexdigest()

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        numbers: array[Any] = array(self._side.kind)
        skipped = without = 0
        for where, (first, second, cell) in self.rows.rows(trouble):
            try:
                number = self.parse(cell, where)
                sentences = as_text(first, where), as_text(second, where)
            except DataError as error:
                trouble(error)
                continue
            if number is None:
                without += 1
            elif all(sentences):
                numbers.append(number)
                yield where, sentences
            else:
                skipped += 1
        self.skipped, self.unlabelled = skipped, without
        self.numbers = {self._side.need: numbers}

    def require(self, minimum: int) -> None:
        """Make sure that there are enough examples and, of labels, some of each class."""
        super().require(minimum)
        if isinstance(self.parse, NliClasses):
            classes: set[int] = set()
            for where, (_, _, cell) in self.rows.rows():
                number = self.parse(cell, where)
                classes |= set() if number is None else {number}
                if len(classes) == len(CLASSES):
                    return
            require_classes(self.source, classes)


SIDE_COLUMNS = {
    "nli": SideColumn(
        name="LABELS",
        kind="B",
        spec=NLI,
        parser=NliClasses,
        content=f"labels {CLASSES}",
        read="labels: premise, hypothesis, label",
        wrongly="contradictions for positives",
    ),
    "scores": SideColumn(
        name="SCORES",
        kind="f",
        spec=RATED_PAIRS,
        parser=lambda _: score_of,
        content="scores",
        read="scores: sentence1, sentence2, score",
        wrongly="every pair for a positive",
    ),
}
"""The values of ``data.labels`` beside none; `settings` has their names and help."""


def open_pairs(source: str, labels: str, columns: Sequence[str] | None = None) -> PairExamples:
    """Understand a source as pairs with a number of :data:`SIDE_COLUMNS`."""
    side = SIDE_COLUMNS[labels]
    return PairExamples(open_rows_of(source, side.spec, columns), side)
