"""The sentences themselves, kept beside their token ids for views that edit words."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np

from contrasent.data.cache import Kind, kept
from contrasent.data.examples import Examples, portions
from contrasent.data.store import IndexArray, TokenStore

_FORMAT = 1
_TEXT, _OFFSETS, _MANIFEST = "text.bin", "offsets.bin", "manifest.json"


class TextStore:
    """Texts of N sentences, mapped from a folder."""

    def __init__(self, folder: Path) -> None:
        self._bytes = np.asarray(np.memmap(folder / _TEXT, np.uint8, "r"))
        self._offsets: IndexArray = np.asarray(np.memmap(folder / _OFFSETS, np.int64, "r"))

    def __len__(self) -> int:
        """N, the number of sentences."""
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        """The text of one sentence."""
        if not 0 <= number < len(self):
            raise IndexError(f"no text {number}: there are {len(self)}")
        start, end = self._offsets[number : number + 2]
        return self._bytes[start:end].tobytes().decode("utf-8")


def keep_texts(examples: Examples, cache_dir: str | Path | None = None) -> TextStore:
    """Texts of ``examples``, from the cache if it holds them; any tokenizer shares them.

    Args:
        examples: of one sentence each.
        cache_dir: holds the folder ``texts`` of all stores; None for the default cache.

    Raises:
        DataError: ``examples`` cannot be read.
        ConfigError: ``cache_dir`` cannot be written to.
    """
    key = [_FORMAT, examples.sha256, examples.views]
    return kept(Kind("texts", "the texts", _opened), key, partial(_write, examples), cache_dir)


def text_numbers(store: TokenStore) -> IndexArray:
    """``(N,)`` int64: for each example of ``store``, which of the texts it is."""
    left_out = store.tokenless()
    return np.delete(np.arange(len(store) + len(left_out)), left_out)


def _write(examples: Examples, folder: Path) -> None:
    size = count = 0
    with (folder / _TEXT).open("wb") as text, (folder / _OFFSETS).open("wb") as offsets:
        np.zeros(1, dtype=np.int64).tofile(offsets)
        for sentences in portions(examples):
            encoded = [sentence.encode("utf-8") for sentence in sentences]
            ends = size + np.cumsum([len(it) for it in encoded], dtype=np.int64)
            ends.tofile(offsets)
            text.write(b"".join(encoded))
            size, count = int(ends[-1]), count + len(encoded)
    (folder / _MANIFEST).write_text(json.dumps({"texts": count, "bytes": size}), encoding="utf-8")


def _opened(entry: Path) -> TextStore | None:
    """The store in ``entry``; None if it is missing or its files are not what they should be."""
    try:
        said = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        sizes = [(entry / name).stat().st_size for name in (_TEXT, _OFFSETS)]
        return TextStore(entry) if sizes == [said["bytes"], (said["texts"] + 1) * 8] else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
