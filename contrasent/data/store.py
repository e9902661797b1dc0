"""Token ids of all examples, computed once, kept on disk and mapped into memory."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from contrasent.data.examples import Examples, portions
from contrasent.errors import ConfigError, DataError
from contrasent.files import writing_folder

logger = logging.getLogger(__name__)

_FORMAT = 1
_TOKENS, _OFFSETS, _MANIFEST = "tokens.bin", "offsets.bin", "manifest.json"

IdArray = np.ndarray[Any, np.dtype[np.int32]]
IndexArray = np.ndarray[Any, np.dtype[np.int64]]


class TokenSource(Protocol):
    """What a store needs of :class:`contrasent.data.tokens.Tokenizer`."""

    @property
    def vocabulary(self) -> int:
        """The largest token id plus one."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides which ids a text gets."""

    def ids(self, texts: Sequence[str], max_tokens: int | None) -> tuple[list[IdArray], int]:
        """Token ids of each text, and how many texts were cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a store holds; kept beside the arrays, whose sizes it predicts.

    Attributes:
        version: the format of the arrays.
        examples: N.
        views: V, sentences per example.
        tokens: tokens of all N * V sentences.
        dtype: of the token ids on disk.
        cut: sentences that were longer than ``max_tokens``.
        skipped: rows that were left out because a sentence was empty or had no token.
        max_tokens: the limit, special tokens included; None if there was none.
        data_sha256: of the examples.
        tokenizer: fingerprint of the tokenizer.
    """

    version: int = _FORMAT
    examples: int
    views: int
    tokens: int
    dtype: str
    cut: int
    skipped: int
    max_tokens: int | None
    data_sha256: str
    tokenizer: str


class TokenStore:
    """Token ids of N examples of V sentences, mapped from a folder.

    Attributes:
        folder: where the arrays lie.
        manifest: counts and origin.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._tokens = np.asarray(np.memmap(folder / _TOKENS, manifest.dtype, "r"))
        self._offsets: IndexArray = np.asarray(np.memmap(folder / _OFFSETS, np.int64, "r"))

    def __len__(self) -> int:
        """N, the number of examples."""
        return self.manifest.examples

    @property
    def views(self) -> int:
        """V, sentences per example."""
        return self.manifest.views

    def tokens(self, example: int, view: int) -> IdArray:
        """Token ids of one sentence.

        Raises:
            IndexError: there is no such example or view.
        """
        if not (0 <= example < len(self) and 0 <= view < self.views):
            raise IndexError(f"no view {view} of example {example}: {len(self)} x {self.views}")
        start, end = self._offsets[example * self.views + view :][:2]
        return self._tokens[start:end].astype(np.int32)

    def gather(self, examples: IndexArray, views: Sequence[int]) -> tuple[IndexArray, IndexArray]:
        """Token ids of many sentences end to end, view by view.

        Args:
            examples: ``(B,)`` int64, numbers of examples.
            views: which view of the examples comes first, second and so on; V of them.

        Returns:
            ``(T,)`` int64 token ids and ``(V * B + 1,)`` int64 offsets.
        """
        sentences = (np.asarray(views)[:, None] + examples * self.views).ravel()
        starts = self._offsets[sentences]
        lengths = self._offsets[sentences + 1] - starts
        offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return self._tokens[places].astype(np.int64), offsets


def default_cache() -> Path:
    """Where stores lie if nobody says: ``$CONTRASENT_CACHE``, or below the user's cache folder."""
    if chosen := os.environ.get("CONTRASENT_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "contrasent"


def tokenize(
    examples: Examples,
    tokenizer: TokenSource,
    max_tokens: int | None,
    cache_dir: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenStore:
    """Token ids of ``examples``, computed unless the cache holds them.

    An entry of the cache is named by a hash of the content, the columns, the tokenizer and
    ``max_tokens``. A damaged entry is computed again. If several processes want the same entry,
    one computes it and the others wait.

    Args:
        examples: what to read.
        tokenizer: what makes ids of it.
        max_tokens: tokens kept of a sentence, special tokens included; None keeps all.
        cache_dir: holds the folder ``tokens`` of all stores; None for :func:`default_cache`.
        progress: is told now and then how many examples are done.

    Raises:
        DataError: ``examples`` cannot be read, or none is left.
        ConfigError: ``max_tokens`` is too small, or ``cache_dir`` cannot be written to.
    """
    root = Path(cache_dir) if cache_dir is not None else default_cache()
    key = [_FORMAT, examples.sha256, examples.views, tokenizer.fingerprint, max_tokens]
    entry = root / "tokens" / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    if (store := _opened(entry)) is not None:
        return store
    try:
        with _alone(entry):
            if (store := _opened(entry)) is not None:
                return store
            with writing_folder(entry) as folder:
                manifest = _write(folder, examples, tokenizer, max_tokens, progress)
                text = json.dumps(asdict(manifest), indent=1)
                (folder / _MANIFEST).write_text(text, encoding="utf-8")
            return TokenStore(entry, manifest)
    except (OSError, NotImplementedError) as error:
        raise ConfigError(
            f"cannot keep token ids in {root}: {error}; "
            "name a folder with room as cache_dir or in the environment variable CONTRASENT_CACHE"
        ) from error


@contextmanager
def _alone(entry: Path) -> Iterator[None]:
    """Keep other processes away from ``entry``; the operating system frees a dead one's lock."""
    from filelock import FileLock, Timeout

    entry.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{entry}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        logger.info("waiting for another process that computes the same token ids")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _opened(entry: Path) -> TokenStore | None:
    """The store in ``entry``; None if it is missing or its files are not what they should be."""
    try:
        manifest = Manifest(**json.loads((entry / _MANIFEST).read_text(encoding="utf-8")))
        sizes = [(entry / name).stat().st_size for name in (_TOKENS, _OFFSETS)]
        sentences = manifest.examples * manifest.views
        expected = [manifest.tokens * np.dtype(manifest.dtype).itemsize, (sentences + 1) * 8]
        return TokenStore(entry, manifest) if sizes == expected else None
    except (OSError, ValueError, TypeError):
        return None


def _write(
    folder: Path,
    examples: Examples,
    tokenizer: TokenSource,
    max_tokens: int | None,
    progress: Callable[[int], None] | None,
) -> Manifest:
    dtype = "uint16" if tokenizer.vocabulary <= 1 << 16 else "int32"
    views = examples.views
    kept = tokens = cut = dropped = 0
    with (folder / _TOKENS).open("wb") as ids_file, (folder / _OFFSETS).open("wb") as offsets_file:
        np.zeros(1, dtype=np.int64).tofile(offsets_file)
        for sentences in portions(examples):
            ids, count = tokenizer.ids(sentences, max_tokens)
            cut += count
            lengths = np.array([len(row) for row in ids], dtype=np.int64)
            whole = lengths.reshape(-1, views).all(axis=1)
            if not whole.all():
                dropped += int((~whole).sum())
                stays = np.repeat(whole, views)
                ids = [row for row, stay in zip(ids, stays, strict=True) if stay]
                lengths = lengths[stays]
            _append(ids_file, ids, dtype)
            (tokens + np.cumsum(lengths)).tofile(offsets_file)
            tokens += int(lengths.sum())
            kept += int(whole.sum())
            if progress is not None:
                progress(kept)
    if not kept:
        raise DataError(f"{examples.source} holds no example whose sentences all have a token")
    return Manifest(
        examples=kept,
        views=views,
        tokens=tokens,
        dtype=dtype,
        cut=cut,
        skipped=examples.skipped + dropped,
        max_tokens=max_tokens,
        data_sha256=examples.sha256,
        tokenizer=tokenizer.fingerprint,
    )


def _append(file: BinaryIO, ids: list[IdArray], dtype: str) -> None:
    if ids:
        np.concatenate(ids).astype(dtype).tofile(file)
