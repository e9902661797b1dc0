"""Word vectors: text files such as GloVe's, a form that is mapped from disk, and their tokenizer.

Shapes: W words, D numbers in a vector.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from contrasent.data.loader import map_array
from contrasent.data.readers import lines
from contrasent.data.rows import as_number
from contrasent.data.tokenizer import Ids, SpecialIds, Template, Tokenizer, require_text
from contrasent.errors import CheckpointError, ConfigError
from contrasent.files import cached, readable, sha256_of, write_json

MANIFEST = "words.json"
FORMAT = "contrasent-words-1"
_VECTORS, _HASHES, _ROWS = "vectors.bin", "hashes.bin", "rows.bin"

Vectors = NDArray[np.float32]


def word_lines(path: Path) -> Iterator[tuple[str, Vectors]]:
    """Word and vector ``(D,)`` of every line; a first line of two numbers, as fastText's, is none.

    Words that hold spaces, as some of GloVe's largest file, are left out: no text is split so. A
    line that is not a word and D finite numbers is a CheckpointError.
    """
    width = 0
    for number, line in lines(path):
        cells = line.rstrip().split(" ")
        if number == 1 and len(cells) == 2:
            continue
        width = width or len(cells) - 1
        if len(cells) - 1 > width > 0 and all(as_number(it) is None for it in cells[1:-width]):
            continue
        text, row = "".join(cells[1:]), np.full(width, np.nan, np.float32)
        # numpy reads Python's numbers too, with underscores and with digits of any script.
        if len(cells) - 1 == width and text.isascii() and "_" not in text:
            with suppress(ValueError):
                row = np.array(cells[1:], dtype=np.float32)
        if not (width and np.isfinite(row).all()):
            raise CheckpointError(f"{path}:{number}: no word and {width or 'some'} finite numbers")
        yield cells[0], row


class WordStore:
    """``(W, D)`` vectors, mapped from a folder; of a word only a hash of 64 bits is kept."""

    def __init__(self, folder: Path) -> None:
        with readable(folder, "make it anew of its text file"):
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if manifest["format"] != FORMAT:
                raise ValueError(f"its format is {manifest['format']!r}, not {FORMAT!r}")
            self.folder = folder
            self.words, self.width = int(manifest["words"]), int(manifest["width"])
            self.blank = self.words  # the number of no row, which stands for a vector of zeros
            self.source, self.sha256 = str(manifest["source"]), str(manifest["sha256"])
            numbers = map_array(folder / _VECTORS, np.float32, self.words * self.width)
            self.vectors: Vectors = numbers.reshape(self.words, self.width)
            self._hashes = map_array(folder / _HASHES, np.uint64, self.words)
            self._rows = map_array(folder / _ROWS, np.int64, self.words)

    def rows(self, words: Collection[str]) -> dict[str, int]:
        """The rows of those of ``words`` that are known, as they are or in lower case."""

        def known(words: list[str]) -> dict[str, int]:
            hashes = np.array([_hash(word) for word in words], np.uint64)
            places = np.minimum(np.searchsorted(self._hashes, hashes), self.words - 1)
            hits = np.flatnonzero(self._hashes[places] == hashes)
            return {words[hit]: int(self._rows[places[hit]]) for hit in hits}

        asked = list(dict.fromkeys(words))
        in_store = known(asked)
        lower = {word: word.lower() for word in asked if word not in in_store}
        in_lower = known(list(dict.fromkeys(lower.values())))
        return in_store | {it: in_lower[low] for it, low in lower.items() if low in in_lower}

    def select(self, rows: NDArray[np.int64]) -> Vectors:
        """``(N, D)``, the vectors of N ``rows``, of which some may be :attr:`blank`."""
        vectors = self.vectors[np.minimum(rows, self.words - 1)]
        vectors[rows == self.blank] = 0
        return vectors

    def save(self, folder: Path) -> None:
        """Write all of it into ``folder``, by links where those are possible."""
        for name in (MANIFEST, _VECTORS, _HASHES, _ROWS):
            try:
                os.link(self.folder / name, folder / name)
            except OSError:
                shutil.copyfile(self.folder / name, folder / name)

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: it is only read, and may be larger than memory."""
        return self


def open_words(path: Path) -> WordStore:
    """Word vectors of a text file, from the cache if it holds them."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}; look for a misspelling")
    digest = sha256_of(path)

    def write(folder: Path) -> None:
        hashes: list[int] = []  # of several lines of a word, the first counts
        width = 0
        with (folder / _VECTORS).open("wb") as file:
            for word, row in word_lines(path):
                row.tofile(file)
                hashes.append(_hash(word))
                width = len(row)
        if not hashes:
            raise CheckpointError(f"{path} holds no word vector; a line is a word and its numbers")
        every = np.array(hashes, np.uint64)
        order = np.argsort(every, kind="stable").astype(np.int64)
        every[order].tofile(folder / _HASHES)
        order.tofile(folder / _ROWS)
        about = {"format": FORMAT, "words": len(every), "width": width}
        write_json(folder / MANIFEST, {**about, "source": path.name, "sha256": digest})

    return cached("words", "word vectors", [FORMAT, digest], WordStore, write)


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


MARKS = (("<s>", "</s>"), ("<p>", "</p>"))
"""What InferSent puts around a sentence: version 1, over GloVe, and version 2, over fastText."""

_RULES = "spaces, then pieces 1"
# As the Penn Treebank cuts words: do + n't, it + 's; every other character by itself.
_PIECES = re.compile(r"\w+(?=n't)|n't|'(?:s|m|d|re|ve|ll)\b|\w+|[^\w\s]", re.IGNORECASE)


class WordTokenizer(Tokenizer):
    """Words between spaces that have a vector, as the numbers of their rows; others are left out.

    One that the vectors lack, in its own case and in lower case, is cut at its punctuation.
    ``marks`` are words around every sentence, as :func:`sentence_marks` gives them.
    """

    def __init__(self, store: WordStore, marks: Sequence[str] = ()) -> None:
        rows = store.rows(marks)
        self.store, self.marks = store, tuple(marks)
        self._marks = [rows[mark] for mark in marks]
        self.vocabulary = store.blank + 1
        self.max_tokens, self.truncation_side = None, "right"
        self.specials = len(marks)
        content = f"words {store.sha256} {self.marks} {_RULES}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()
        self.source = store.source
        first, last = self._marks or (None, None)
        every = tuple(sorted(self._marks))
        self.special_ids = SpecialIds(mask=None, first=first, last=last, pad=None, every=every)

    @cached_property
    def template(self) -> Template:
        """The marks."""
        return Template(tuple(self._marks[:1]), tuple(self._marks[1:]))

    def template_of(self, prompt: str) -> Template:
        """Refused: the words of a prompt might have no vector."""
        raise ConfigError(f"word vectors take no prompt, but one is given: {prompt!r}")

    def cut_ids(self, texts: Sequence[str], max_tokens: int | None) -> tuple[Ids, list[bool]]:
        """Rows of the words of each text, marks included, or of zeros; whether it was cut."""
        self._require_room(max_tokens)
        require_text(texts, "text")
        split = [text.split() for text in texts]
        words = {word for of_text in split for word in of_text}
        rows = self.store.rows(words)
        cuts = {word: _PIECES.findall(word) for word in words if word not in rows}
        known = self.store.rows({piece for pieces in cuts.values() for piece in pieces})
        parts = {word: [row] for word, row in rows.items()}
        parts |= {word: [known[p] for p in cut if p in known] for word, cut in cuts.items()}
        room = None if max_tokens is None else max_tokens - self.specials
        before, behind = self._marks[:1], self._marks[1:]
        sentences, cut_off = [], []
        for sentence in split:
            numbers = [row for word in sentence for row in parts[word]]
            cut_off.append(room is not None and len(numbers) > room)
            kept = [*before, *numbers[:room], *behind] or [self.store.blank]
            sentences.append(np.array(kept, dtype=np.int32))
        return sentences, cut_off

    def wordless(self, ids: Sequence[np.ndarray[Any, Any]]) -> int:
        """How many of the sentences with these ``ids`` have no known word."""
        alone = self._marks or [self.store.blank]
        return sum(list(sentence) == alone for sentence in ids)

    def save(self, folder: str | Path) -> None:
        """Write the vectors, which are all there is to keep."""
        self.store.save(Path(folder))


def sentence_marks(store: WordStore) -> tuple[str, ...]:
    """The first pair of `MARKS` that ``store`` has whole; empty if there is none."""
    return next((pair for pair in MARKS if len(store.rows(pair)) == len(pair)), ())
