"""Sentences of a source, one in a row, with their ids."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.metrics import pair_similarities
from contrasent.model.conventions import similarity_of
from contrasent.model.protocol import Encoder

if TYPE_CHECKING:
    from contrasent.data.examples import Examples


_AT_ONCE = 4_096


class Sentences:
    """Sentences of a source, read anew by every iteration; see :func:`open_sentences`."""

    def __init__(self, examples: Examples, source: str, ids: bool) -> None:
        self.source = source
        self.examples = examples
        self._ids = ids
        self._total: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield the sentences, in the order of the source."""
        for example in self.examples:
            yield example[0]

    def count(self) -> int:
        """Read the whole source once, so that a bad row is found before any work starts."""
        if self._total is None:
            self._total = sum(1 for _ in self.examples)
        if not self._total:
            raise DataError(f"{self.source} holds no sentence; it needs at least one")
        return self._total

    def ids(self) -> list[str] | None:
        """The id of every sentence, or None if no column of ids was asked for."""
        return [example[1] for example in self.examples] if self._ids else None


@contextmanager
def open_sentences(
    source: str, columns: str | None = None, ids: str | None = None, *, unique: bool = False
) -> Iterator[Sentences]:
    """Open a source of which every row holds one sentence, in the column ``columns``.

    ``source`` is as for :func:`contrasent.data.examples.open_examples`, or ``-`` for a sentence per
    line on standard input, which is kept in a temporary file. ``ids`` is the column of the ids,
    which needs ``columns``. With ``unique`` the source is read once, and the different sentences,
    in the order in which they come first, are kept in a temporary file; what was seen is kept in
    another, so that memory does not grow with the source.
    """
    if ids is not None and columns is None:
        raise ConfigError(f"--ids {ids} needs --columns too: which column holds the sentences?")
    if columns is not None and "," in columns:
        raise ConfigError(f"--columns {columns}: one column holds the sentences; name only that")
    chosen = [column for column in (columns, ids) if column is not None] or None
    with tempfile.TemporaryDirectory() as folder:
        if unique:
            with open_sentences(source, columns) as every:
                kept, total = _keep_first(every, Path(folder))
            if not total:
                raise DataError(f"{source} holds no sentence; it needs at least one")
            sentences = _open(str(kept), every.source, None, False)
            left_out = f"; {every.examples.skipped} rows without one are left out"
            sentences.examples.columns = (
                f"{every.examples.columns}, the different ones of {total}"
                f"{left_out if every.examples.skipped else ''}"
            )
            yield sentences
            return
        if source != "-":
            yield _open(source, source, chosen, ids is not None)
            return
        path = str(Path(folder) / "standard-input.txt")
        with Path(path).open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield _open(path, "standard input", chosen, ids is not None)
        except DataError as error:
            raise DataError(str(error).replace(path, "standard input")) from error


def _keep_first(sentences: Iterable[str], folder: Path) -> tuple[Path, int]:
    """Write the different ones of some sentences to a file; it, and how many were read.

    What was seen is a table of 16-byte hashes on disk.
    """
    path, total, rest = folder / "unique.jsonl", 0, iter(sentences)
    with (
        closing(sqlite3.connect(folder / "seen.sqlite", isolation_level=None)) as seen,
        path.open("w", encoding="utf-8") as file,
    ):
        seen.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536;"
            "CREATE TABLE seen (hash BLOB PRIMARY KEY) WITHOUT ROWID; BEGIN"
        )
        while block := list(islice(rest, _AT_ONCE)):
            total += len(block)
            new = {hashlib.blake2b(text.encode(), digest_size=16).digest(): text for text in block}
            places = ",".join("?" * len(new))
            known = seen.execute(f"SELECT hash FROM seen WHERE hash IN ({places})", [*new])
            for (digest,) in known.fetchall():
                del new[digest]
            seen.executemany("INSERT INTO seen VALUES (?)", [(digest,) for digest in new])
            file.writelines(f"{json.dumps([text], ensure_ascii=False)}\n" for text in new.values())
    return path, total


def _open(path: str, source: str, chosen: Sequence[str] | None, ids: bool) -> Sentences:
    from contrasent.data.examples import open_examples

    examples = open_examples(path, chosen, with_ids=ids)
    if ids:
        examples.columns = f"{chosen[0]} as the text, {chosen[1]} as the id" if chosen else ""
    if chosen is None and examples.views > 1:
        raise ConfigError(
            f"{source} has {examples.views} sentences in a row ({examples.columns}); "
            "choose one with --columns NAME, or by its number from 0"
        )
    return Sentences(examples, source, ids)


def similarity(encoder: Encoder, a: str, b: str, *, precision: str = "auto") -> float:
    """How alike two texts are by the encoder's similarity, the cosine if it states no other.

    An empty text is refused.
    """
    for text in (a, b):
        if not text.strip():
            raise DataError(f"{text!r} is empty; a similarity needs two texts")
    rows = np.concatenate([*encoder.encode_stream([a, b], precision=precision)]).astype(np.float64)
    try:
        [score] = pair_similarities(similarity_of(encoder), rows[:1], rows[1:])
    except DataError as error:
        raise CheckpointError(f"{encoder.name} gives a vector that {error}; check it") from error
    return float(np.clip(score, -1.0, 1.0) if similarity_of(encoder) == "cosine" else score)
