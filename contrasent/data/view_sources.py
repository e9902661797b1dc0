"""Sources of views: columns, edited words, next sentences, and the documents they stand in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from contrasent.data.batch import Need
from contrasent.data.examples import Examples
from contrasent.data.readers import Trouble, lines, stop
from contrasent.data.token_store import IndexArray, TextStore, TokenStore
from contrasent.data.tokenizer import Template, Tokenizer
from contrasent.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of N sentences that are numbered through.

    ``ends`` is ``(N,)`` int64: for each sentence the number after the last one of its document.
    """

    ends: IndexArray

    def with_next(self) -> IndexArray:
        """Numbers of the sentences that have a next one in their document, ascending."""
        numbers = np.arange(len(self.ends))
        return numbers[numbers + 1 < self.ends]

    def positions(self) -> IndexArray:
        """``(N,)`` int64 that grow by 1 within a document, and by more than N between two."""
        count = len(self.ends)
        document = np.unique(self.ends, return_inverse=True)[1]
        return np.arange(count) + document * count


def document_lengths(examples: Examples, trouble: Trouble = stop) -> IndexArray:
    """``(documents,)`` int64: sentences of each document, in the order of a ``.txt`` file.

    Blank lines at the start, at the end or next to each other separate nothing. ``trouble`` is
    called with the error of each line that cannot be read.
    """
    lengths, current = [], 0
    for _, line in lines(Path(examples.source), trouble):
        if line.strip():
            current += 1
        elif current:
            lengths.append(current)
            current = 0
    return np.array([*lengths, current] if current else lengths, dtype=np.int64)


def require_documents(examples: Examples, need: str) -> IndexArray:
    """:func:`document_lengths` of what must be text in documents, where ``need`` asks for them.

    DataError of another source than a ``.txt``, of lines without a blank one between them, and of
    text of which fewer than 2 sentences have a next one in their document.
    """
    lengths = document_lengths(examples) if examples.is_lines else np.zeros(0, np.int64)
    followed = int((lengths - 1).sum())
    problem = ""
    if not examples.is_lines:
        problem = "is no text in documents"
    elif len(lengths) == 1:
        problem = (
            f"has no blank line between its {lengths[0]} sentences, so nothing tells a shuffled "
            "file from a document"
        )
    elif followed < 2:
        problem = f"has {followed} of {lengths.sum()} sentences with another after them"
    if problem:
        raise DataError(
            f"{need}: {examples.source} {problem}; give a .txt (or .txt.gz) with the sentences of "
            "each document in order, one per line, and a blank line between documents"
        )
    return lengths


def documents_of(lengths: IndexArray, store: TokenStore) -> Documents:
    """The documents of the sentences that ``store`` holds: some may have been left out.

    ``lengths`` are those of the text that the store was made of, of one sentence per example.
    """
    owner = np.delete(np.repeat(np.arange(len(lengths)), lengths), store.tokenless())
    return Documents(np.searchsorted(owner, owner, side="right").astype(np.int64))


Packed = tuple[IndexArray, IndexArray]
"""``(T,)`` int64 token ids of S sentences end to end, and ``(S + 1,)`` int64 offsets."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of an epoch, each sentence by itself: no order of batches changes them."""

    seed: int
    epoch: int

    def of(self, example: int, view: int) -> Generator:
        """Random numbers of one view of one example."""
        return np.random.default_rng([self.seed, self.epoch, example, view + 1])


class ViewSource(ABC):
    """N examples of ``views`` sentences each."""

    views: int

    @abstractmethod
    def __len__(self) -> int:
        """N, the number of examples."""

    @abstractmethod
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        """V * B sentences, view by view, of the ``(B,)`` int64 ``examples``.

        ``draws`` gives what differs from epoch to epoch.
        """

    def next_sentences(self, examples: IndexArray) -> Packed | None:
        """The B sentences after the anchors, in their documents; None if they are not given."""
        return None

    def columns(self, examples: IndexArray) -> dict[Need, np.ndarray]:
        """``(B,)`` int64 or ``(B, D)`` float32 each, the numbers that an objective needs."""
        return {}


class Columns(ViewSource):
    """The sentences of a store as they are; one per example is given as every view.

    ``views`` is V, sentences per example that the objective takes. A store with one sentence per
    example gives it V times, for dropout to vary; of one with more than V the first V are used, as
    when hard negatives are left out. ConfigError if the store does not have so many.
    """

    def __init__(self, store: TokenStore, views: int) -> None:
        self._store, self.views = store, views
        self._chosen = (0,) * views if store.views == 1 else range(views)
        if store.views not in (1, views) and not 1 < views < store.views:
            remedy = f"choose {views} of its columns with data.columns"
            if store.views < views:
                remedy = "give data with more columns, such as sent0,sent1,hard_neg"
            raise ConfigError(
                f"the data has {example_of(store.views)}, but the objective takes "
                f"{example_of(views)}; {remedy}, or take another objective"
            )

    def __len__(self) -> int:
        return len(self._store)

    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        return self._store.gather(examples, self._chosen)


@dataclass(frozen=True, slots=True)
class EditedText(ViewSource):
    """A sentence, and edited copies of it, edited anew every epoch unless ``drawn_once``.

    The text is edited and then made tokens, so that the tokens are those of the edited text for
    any tokenizer. A copy whose words stayed, or are none to the tokenizer, is the sentence itself.
    """

    store: TokenStore
    texts: TextStore
    # ``(N,)`` int64, which of ``texts`` is the sentence of an example of ``store``
    numbers: IndexArray
    tokenizer: Tokenizer  # made the tokens of ``store``
    edit: Callable[[str, Generator], str]
    views: int
    anchors: bool = False  # edit the first view too
    drawn_once: bool = False

    def __len__(self) -> int:
        return len(self.store)

    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        copies = [
            (int(example), view)
            for view in range(0 if self.anchors else 1, self.views)
            for example in examples
        ]
        draws = replace(draws, epoch=0) if self.drawn_once else draws
        edited = [
            self.edit(self.texts[int(self.numbers[example])], draws.of(example, view))
            for example, view in copies
        ]
        ids, _ = self.tokenizer.ids(edited, self.store.manifest.max_tokens)
        pairs = zip(ids, copies, strict=True)
        rows = [row if len(row) else self.store.tokens(example, 0) for row, (example, _) in pairs]
        if not self.anchors:
            rows = [*(self.store.tokens(int(example), 0) for example in examples), *rows]
        return end_to_end(rows)


@dataclass(frozen=True, slots=True)
class EditedTokens(ViewSource):
    """A sentence, and copies of it with edited tokens, edited anew every epoch."""

    store: TokenStore
    template: Template  # the tokens around a text, which are not edited
    # from the token ids of a text to those of its edited copy
    edit: Callable[[np.ndarray, Generator], np.ndarray]
    views: int
    # tokens that a copy has at most, if not None; one of more is the sentence itself
    longest: int | None
    anchors: bool = False  # edit the first view too

    def __len__(self) -> int:
        return len(self.store)

    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        kept = 0 if self.anchors else 1
        rows = [self.store.tokens(int(example), 0) for example in examples]
        edited = [
            self._edited(row, draws.of(int(example), view))
            for view in range(kept, self.views)
            for example, row in zip(examples, rows, strict=True)
        ]
        return end_to_end([*rows * kept, *edited])

    def _edited(self, row: np.ndarray, random: Generator) -> np.ndarray:
        start, end = len(self.template.before), len(row) - len(self.template.after)
        edited = np.concatenate([row[:start], self.edit(row[start:end], random), row[end:]])
        return row if self.longest and len(edited) > self.longest else edited


@dataclass(frozen=True, slots=True)
class NextSentences(ViewSource):
    """A sentence, and for every other view one of those after it in its document.

    Only for examples that have a next sentence: see :class:`WithNeeds`. One of ``reach`` next
    sentences is drawn, or of fewer where the document ends.
    """

    store: TokenStore
    documents: Documents
    reach: int
    views: int

    def __len__(self) -> int:
        return len(self.store)

    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        after = np.minimum(self.reach, self.documents.ends[examples] - examples - 1)
        steps = [
            draws.of(int(example), view).integers(1, int(count) + 1) if self.reach > 1 else 1
            for view in range(1, self.views)
            for example, count in zip(examples, after, strict=True)
        ]
        others = np.tile(examples, self.views - 1) + np.array(steps, dtype=np.int64)
        return self.store.gather(np.concatenate([examples, others]), (0,))


class WithNeeds(ViewSource):
    """The examples of a source, or the ``chosen`` ones, with what else an objective needs of each.

    ``columns`` are numbers of the N examples of ``source``. ``text`` holds the sentences of a text
    in its order, one for each example of ``source``, to give the next sentences from.
    """

    def __init__(
        self,
        source: ViewSource,
        columns: Mapping[Need, np.ndarray],
        chosen: IndexArray | None = None,
        text: TokenStore | None = None,
    ) -> None:
        self.views = source.views
        self._source, self._columns, self._text = source, columns, text
        self._chosen = np.arange(len(source)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        return self._source.gather(self._chosen[examples], draws)

    def next_sentences(self, examples: IndexArray) -> Packed | None:
        return None if self._text is None else self._text.gather(self._chosen[examples] + 1, (0,))

    def columns(self, examples: IndexArray) -> dict[Need, np.ndarray]:
        return {need: values[self._chosen[examples]] for need, values in self._columns.items()}


def end_to_end(rows: Sequence[np.ndarray]) -> Packed:
    """The token ids of all ``rows``, one after the other."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return np.concatenate(rows).astype(np.int64), offsets


def example_of(views: int) -> str:
    """The sentences of an example, in words."""
    hard = views - 2
    what = {1: "1 sentence", 2: "2 (anchor, positive)", 3: "3 (anchor, positive, hard negative)"}
    return f"{what.get(views, f'{views} (anchor, positive, {hard} hard negatives)')} per example"
