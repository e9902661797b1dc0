"""Token ids and texts of all examples, computed once, kept on disk and mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.batch import Need
from contrasent.data.examples import Examples, portions
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import DataError
from contrasent.files import cached, map_array

_FORMAT = 2
_TOKENS, _OFFSETS, _MANIFEST = "tokens.bin", "offsets.bin", "manifest.json"
_TOKENLESS = "tokenless.bin"

IdArray = np.ndarray[Any, np.dtype[np.int32]]
IndexArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenManifest:
    """What a store holds; kept beside the arrays, whose sizes it predicts."""

    version: int = _FORMAT
    examples: int
    views: int
    tokens: int
    dtype: str  # of the token ids on disk
    cut: int  # sentences that were longer than ``max_tokens``, special tokens included
    skipped: int  # rows that were left out because a sentence was empty or had no token
    tokenless: int  # how many of those had no empty sentence
    max_tokens: int | None
    data_sha256: str
    tokenizer: str
    # types of the numbers of each example, by the need that they meet; ``unlabelled`` rows without
    # a number were left out
    columns: dict[str, str] = field(default_factory=dict)
    unlabelled: int = 0


class TokenStore:
    """Token ids of N examples of V sentences, mapped from a folder; damage is a ValueError."""

    def __init__(self, folder: Path) -> None:
        text = (folder / _MANIFEST).read_text(encoding="utf-8")
        self.folder = folder
        known = json.loads(text)
        if known.pop("labelled", False):  # as releases that kept nothing but labels wrote
            known["columns"] = {Need.LABELS.name: "uint8"}
        self.manifest = kept = TokenManifest(**known)
        self._tokens = map_array(folder / _TOKENS, kept.dtype, kept.tokens)
        sentences = kept.examples * kept.views
        self._offsets: IndexArray = map_array(folder / _OFFSETS, np.int64, sentences + 1)
        self._columns = {
            Need[name]: map_array(_column_file(folder, name), dtype, len(self))
            for name, dtype in kept.columns.items()
        }
        if len(self.tokenless()) != kept.tokenless:
            raise ValueError(f"{_TOKENLESS} does not hold {kept.tokenless} numbers")

    def __len__(self) -> int:
        """N, the number of examples."""
        return self.manifest.examples

    @property
    def views(self) -> int:
        """V, sentences per example."""
        return self.manifest.views

    def tokenless(self) -> IndexArray:
        """Numbers, ascending, of what was left out for want of a token, among all examples."""
        return np.fromfile(self.folder / _TOKENLESS, dtype=np.int64)

    def column(self, need: Need) -> np.ndarray | None:
        """``(N,)`` int64 or float32, a number of each example; None if they have none."""
        numbers = self._columns.get(need)
        if numbers is None:
            return None
        return np.array(numbers, np.int64 if numbers.dtype.kind in "iu" else np.float32)

    def tokens(self, example: int, view: int) -> IdArray:
        """Token ids of one sentence."""
        start, end = self._offsets[example * self.views + view :][:2]
        return self._tokens[start:end].astype(np.int32)

    def gather(self, examples: IndexArray, views: Sequence[int]) -> tuple[IndexArray, IndexArray]:
        """``(T,)`` int64 token ids of the ``(B,)`` examples end to end, and their offsets.

        ``views`` says which of the sentences of an example comes first, second and so on.
        """
        sentences = (np.asarray(views)[:, None] + examples * self.views).ravel()
        starts = self._offsets[sentences]
        lengths = self._offsets[sentences + 1] - starts
        offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return self._tokens[places].astype(np.int64), offsets


def tokenize(
    examples: Examples,
    tokenizer: Tokenizer,
    max_tokens: int | None,
    progress: Callable[[int], None] | None = None,
) -> TokenStore:
    """Token ids of ``examples``, computed unless the cache holds them whole.

    ``max_tokens`` of a sentence are kept, special ones included; None keeps all. ``progress`` is
    told now and then how many examples are done. DataError if none is left.
    """
    key = [_FORMAT, examples.sha256, examples.views, tokenizer.fingerprint, max_tokens]
    dtype, views = "uint16" if tokenizer.vocabulary <= 1 << 16 else "int32", examples.views

    def write(folder: Path) -> None:
        kept = tokens = cut = 0
        tokenless: list[int] = []
        with (folder / _TOKENS).open("wb") as file, (folder / _OFFSETS).open("wb") as offsets:
            np.zeros(1, dtype=np.int64).tofile(offsets)
            for sentences in portions(examples):
                ids, count = tokenizer.ids(sentences, max_tokens)
                cut += count
                lengths = np.array([len(row) for row in ids], dtype=np.int64)
                whole = lengths.reshape(-1, views).all(axis=1)
                if not whole.all():
                    tokenless += (kept + len(tokenless) + np.flatnonzero(~whole)).tolist()
                    stays = np.repeat(whole, views)
                    ids = [row for row, stay in zip(ids, stays, strict=True) if stay]
                    lengths = lengths[stays]
                if ids:
                    np.concatenate(ids).astype(dtype).tofile(file)
                (tokens + np.cumsum(lengths)).tofile(offsets)
                tokens += int(lengths.sum())
                kept += int(whole.sum())
                if progress is not None:
                    progress(kept)
        if not kept:
            raise DataError(f"{examples.source} holds no example whose sentences all have a token")
        np.array(tokenless, dtype=np.int64).tofile(folder / _TOKENLESS)
        columns = {name: np.array(numbers) for name, numbers in examples.numbers.items()}
        for name, numbers in columns.items():
            np.delete(numbers, tokenless).tofile(_column_file(folder, name))
        manifest = TokenManifest(
            examples=kept,
            views=views,
            tokens=tokens,
            dtype=dtype,
            cut=cut,
            skipped=examples.skipped + len(tokenless),
            tokenless=len(tokenless),
            max_tokens=max_tokens,
            data_sha256=examples.sha256,
            tokenizer=tokenizer.fingerprint,
            columns={name: numbers.dtype.name for name, numbers in columns.items()},
            unlabelled=examples.unlabelled,
        )
        text = json.dumps(asdict(manifest), indent=1)
        (folder / _MANIFEST).write_text(text, encoding="utf-8")

    return cached("tokens", "token ids", key, TokenStore, write)


def _column_file(folder: Path, name: str) -> Path:
    return folder / f"{name.lower()}.bin"


_TEXTS_FORMAT = 1
_TEXT = "text.bin"


class TextStore:
    """Texts of N sentences, mapped from a folder; damage is a ValueError or LookupError."""

    def __init__(self, folder: Path) -> None:
        kept = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        self._bytes = map_array(folder / _TEXT, np.uint8, kept["bytes"])
        self._offsets: IndexArray = map_array(folder / _OFFSETS, np.int64, kept["texts"] + 1)

    def __len__(self) -> int:
        """N, the number of sentences."""
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        """The text of one sentence."""
        start, end = self._offsets[number : number + 2]
        return self._bytes[start:end].tobytes().decode("utf-8")


def keep_texts(examples: Examples) -> TextStore:
    """Texts of ``examples`` of one sentence each, from the cache if it holds them."""

    def write(folder: Path) -> None:
        size = count = 0
        with (folder / _TEXT).open("wb") as text, (folder / _OFFSETS).open("wb") as offsets:
            np.zeros(1, dtype=np.int64).tofile(offsets)
            for sentences in portions(examples):
                encoded = [sentence.encode("utf-8") for sentence in sentences]
                ends = size + np.cumsum([len(it) for it in encoded], dtype=np.int64)
                ends.tofile(offsets)
                text.write(b"".join(encoded))
                size, count = int(ends[-1]), count + len(encoded)
        manifest = json.dumps({"texts": count, "bytes": size})
        (folder / _MANIFEST).write_text(manifest, encoding="utf-8")

    key = [_TEXTS_FORMAT, examples.sha256, examples.views]
    return cached("texts", "the texts", key, TextStore, write)


def text_numbers(store: TokenStore) -> IndexArray:
    """``(N,)`` int64: for each example of ``store``, which of the texts it is."""
    left_out = store.tokenless()
    return np.delete(np.arange(len(store) + len(left_out)), left_out)
