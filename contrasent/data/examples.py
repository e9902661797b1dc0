"""Examples of V sentences each, from a file, a data set or Python, some of them with numbers."""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import add
from pathlib import Path
from typing import Any

from contrasent.data.columns import ColumnMap, sentence_columns
from contrasent.data.readers import TEXT_KINDS, Trouble, source_kind, stop
from contrasent.data.readers import clean as cleaned_rows
from contrasent.data.rows import (
    HubSource,
    SourceRows,
    TableSource,
    as_text,
    open_rows_of,
    open_source,
    require_cell,
    score_of,
    scores_of,
)
from contrasent.data.tokenizer import sentences_of
from contrasent.errors import ConfigError, DataError, shown
from contrasent.files import default_cache, exclusive, writing

_PATIENCE = 600.0  # seconds that another process may take to keep its rows
# A portion is bounded both ways: short sentences are many, long ones are large.
_SENTENCES_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 20


class Examples:
    """Examples of V sentences each, read anew from the source by every iteration.

    ``columns`` says in one line what was understood. In a text of ``is_lines``, ``documents`` says
    whether blank lines end them, None that the text has to tell. With ``with_ids`` the second
    column holds ids, and with ``side`` the last a number, or one for each sentence after the first.
    ``prompts`` are put before the sentences of an example. Known after a whole pass are how many
    rows were ``skipped`` for an empty sentence, ``blank`` and ``unlabelled`` ones, what was
    ``cleaned``, None if nothing is, and the ``numbers`` of all examples, by their need.
    """

    is_lines = with_ids = False
    documents: bool | None = None
    cleaned: Counter[str] | None = None
    prompts: Sequence[str] = ()
    skipped = blank = unlabelled = 0

    def __init__(self, rows: SourceRows, views: int, side: "SideColumn | None" = None) -> None:
        self.source, self.columns = rows.source, rows.described
        self.rows, self.views, self._side = rows, views, side
        self.numbers: Mapping[str, Sequence[float]] = {}

    @property
    def sha256(self) -> str:
        """Hexadecimal hash of the source's content, its reading and the chosen columns."""
        reader, layout, content = self.rows, self.rows.chosen, self.rows.sha256
        chosen: object = reader.names if reader.named else layout.positions
        quoted = isinstance(reader, TableSource) and reader.quoted
        parts = [f"{content}\n{chosen!r}"]
        if self._side is not None:  # the same bytes may be quoted cells or cells between tabs
            parts = [content, self.columns, self._side.content, *["quoted"] * quoted]
        elif isinstance(reader, HubSource) and self.cleaned is None:
            return content
        elif isinstance(reader, TableSource):
            chosen = (reader.number if layout.header else 0, chosen)
            # What else the same bytes may be read as: the first column alone of a table as lines.
            if quoted or (len(reader.first) > 1 and layout.positions == (0,)):
                chosen = (*chosen, "quoted" if quoted else "tabs")
            parts = [f"{content}\n{chosen!r}"]
        parts += ["cleaned"] * (self.cleaned is not None)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Examples with where they stand; unreadable rows are left to ``trouble``."""
        rows = self._read(trouble)
        if self.cleaned is not None:
            rows, self.cleaned = cleaned_rows(rows, 1 if self.with_ids else self.views)
        return rows

    def _read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        side, skipped, without = self._side, 0, 0
        numbers: array[Any] = array("B" if side is None else side.kind)
        parse = None if side is None else side.parser(self.rows)
        for where, cells in self.rows.rows(trouble):
            number: float | list[float] | None = 0
            try:
                if parse is not None:
                    number = parse(cells[-1], where)
                    sentences = tuple([as_text(cell, where) for cell in cells[:-1]])
                else:
                    sentences = tuple([self._text(cell, where) for cell in cells])
            except DataError as error:
                trouble(error)
                continue
            if number is None:
                without += 1
            elif all(sentences):
                numbers.extend(number if isinstance(number, list) else [number])
                yield where, tuple(map(add, self.prompts, sentences)) if self.prompts else sentences
            else:
                skipped += 1
        self.skipped, self.blank, self.unlabelled = skipped, self.rows.blank, without
        self.numbers = {} if side is None else {side.name: numbers}

    def _text(self, cell: Any, where: str) -> str:
        if self.with_ids and isinstance(cell, int) and not isinstance(cell, bool):
            return str(cell)
        require_cell(cell, where)
        return (cell or "").strip()

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
    ``.txt`` end documents, else the text tells; ``clean`` leaves dirt out. DataError if the source
    is missing or cannot be understood by its first rows; ConfigError if ``columns`` does not fit.
    """
    kind, problem = source_kind(source, TEXT_KINDS), ""
    if kind == ".txt" and columns is not None and list(columns) != ["0"]:
        problem = "has no columns to choose; name a table .csv or .tsv"
    elif documents and kind != ".txt":
        problem = "has a text in every row; documents are read from a .txt"
    if problem:
        raise ConfigError(f"{source} {problem}")
    rows = open_source(source, kind)
    if kind == ".txt":
        rows.choose(lambda _: ColumnMap((0,), False, "1 sentence per line", "order"))
    else:
        below = rows.sample() if isinstance(rows, TableSource) and not with_ids else ()
        how: Any = {"where": rows.where, "named": rows.named, "below": below}
        rows.choose(partial(sentence_columns, columns=columns, **how))
    examples = Examples(rows, len(rows.names))
    examples.is_lines, examples.with_ids, examples.documents = kind == ".txt", with_ids, documents
    examples.cleaned = Counter() if clean else None
    return examples


Rows = Iterable[str | Sequence[str] | Mapping[str, Any]]
"""Examples given from Python: sentences, tuples of sentences, or mappings of columns."""


def keep_rows(rows: Rows) -> Path:
    r"""Write examples given from Python to a file, to be read as any other.

    The file lies in the cache and is named by its content, so that a resumed run finds it. Strings
    become the lines of a ``.txt``, an empty one ends a document; tuples and mappings a ``.jsonl``.
    """
    remaining = iter(sentences_of(rows, "the data", rows=True))
    first = next(remaining, "")
    is_text, folder, digest = isinstance(first, str), default_cache() / "rows", hashlib.sha256()
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, patience=_PATIENCE):
        written = folder / "rows"
        with writing(written) as part, part.open("w", encoding="utf-8", newline="\n") as file:
            for number, row in enumerate(chain([first], remaining), start=1):
                problem = "" if isinstance(row, str) == is_text else "the first is of another kind"
                try:
                    if isinstance(row, str):
                        text = " ".join(row.splitlines())
                    else:
                        plain = dict(row) if isinstance(row, Mapping) else list(row)
                        text = json.dumps(plain, ensure_ascii=False)
                    digest.update(f"{text}\n".encode())
                except (TypeError, ValueError) as error:
                    problem = str(error)
                if problem:
                    raise DataError(
                        f"row {number} of the data, {shown(row)}, cannot be written: {problem}; "
                        "give strings, tuples of strings or mappings, all of one kind"
                    )
                file.write(f"{text}\n")
        name = f"{digest.hexdigest()[:16]}.{'txt' if is_text else 'jsonl'}"
        return written.replace(folder / name)


def keep_data(data: str | Path | Rows | Mapping[str, Any]) -> Any:
    """The value of ``data.file``: rows, also those of several sources by name, in the cache."""
    if isinstance(data, Mapping):
        given = {n: it if isinstance(it, Mapping) else {"file": it} for n, it in data.items()}
        return [{"name": n, **it, "file": keep_data(it["file"])} for n, it in given.items()]
    return str(data if isinstance(data, str | Path) else keep_rows(data))


ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS = ("entailment", "neutral", "contradiction")
CLASSES = (CONTRADICTION, ENTAILMENT, NEUTRAL)  # as sentence-transformers' examples number them

_NLI = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), ENTAILMENT),
    **dict.fromkeys(("neutral", "n"), NEUTRAL),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), CONTRADICTION),
}
NO_LABEL = {"", "-", "-1", "none", "nan"}


class NliLabels:
    """Understands a source's labels: words, or numbers from 0, of its own names or in ``order``."""

    _as_numbers: bool | None = None

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

    def number(self, cell: object, where: str) -> int | None:
        """The place of the class in :data:`CLASSES`; None for a row without one.

        Numbers without names are taken as they are: a classifier does not ask for their order.
        """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SideColumn:
    """A number beside the sentences of each row, or one of each after the first, to be kept."""

    name: str  # of the need that it meets
    kind: str  # of the numbers in memory, as :class:`array.array` names it
    rows: str  # the kind of them: the sentences, then the cell of the number
    # makes a function of a source's cell and its place: the number, None to leave the row out
    parser: Callable[[SourceRows], Callable[[Any, str], float | list[float] | None]]
    content: str  # stands for the meaning of the numbers in the hash of the content


SIDE_COLUMNS = {
    "nli": SideColumn(
        name="LABELS",
        kind="B",
        rows="nli",
        parser=lambda rows: NliLabels(rows.source, rows.label_names).number,
        content=f"labels {CLASSES}",
    ),
    "scores": SideColumn(
        name="SCORES", kind="f", rows="rated_pairs", parser=lambda _: score_of, content="scores"
    ),
    "lists": SideColumn(
        name="CANDIDATE_SCORES",
        kind="f",
        rows="lists",
        parser=lambda rows: partial(scores_of, count=len(rows.names) - 2),
        content="scores of candidates",
    ),
}
"""The values of ``data.labels`` beside none; `settings` has their names and help."""


def open_training(
    source: str, labels: str = "none", columns: Sequence[str] | None = None
) -> Examples:
    """Understand a source as examples, or as those of :data:`SIDE_COLUMNS` with their numbers."""
    if labels == "none":
        return open_examples(source, columns)
    side = SIDE_COLUMNS[labels]
    rows = open_rows_of(source, side.rows, columns)
    return Examples(rows, len(rows.names) - 1, side)
