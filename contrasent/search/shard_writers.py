"""What goes into a shard and comes out: embedded blocks with their texts, also as Parquet.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from contrasent.errors import CheckpointError, ConfigError
from contrasent.files import inside, sha256_of
from contrasent.model.conventions import Conventions, role_options, similarity_of
from contrasent.model.protocol import Encoder
from contrasent.search.storage import Blocks, NpyWriter, blocks_with_texts


def row_writer(path: Path, suffix: str, encoder: Encoder) -> NpyWriter | ParquetRows:
    """What writes the file ``path`` of a kind that is named by its ``suffix``."""
    return ParquetRows(path, encoder) if suffix == ".parquet" else NpyWriter(path, encoder.width)


class ParquetRows:
    """A Parquet file of the columns ``text`` and ``embedding``; ``with`` closes it."""

    def __init__(self, path: Path, encoder: Encoder) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self.rows, self._width = 0, encoder.width
        vectors = pa.list_(pa.float32(), encoder.width)
        about = {"encoder": encoder.name, "pooler": encoder.pooler, "head": encoder.head_name}
        about["fingerprint"] = encoder.fingerprint()
        schema = pa.schema([("text", pa.string()), ("embedding", vectors)], metadata=about)
        self._file = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=False)

    def append(self, rows: np.ndarray, texts: Iterable[str]) -> None:
        """Add ``(n, D)`` rows and their n texts."""
        import pyarrow as pa

        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, self._width)
        names = pa.array(islice(texts, len(rows)), pa.string())
        schema = self._file.schema
        self._file.write_batch(pa.record_batch([names, vectors], schema=schema))
        self.rows += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def embed_blocks(
    encoder: Encoder, sentences: Iterable[str], encoding: Mapping[str, Any]
) -> Iterator[tuple[np.ndarray, list[str], int]]:
    """Blocks of rows, each with its sentences and the number of those that were cut."""
    for block, texts in blocks_with_texts(encoder, sentences, **encoding):
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if bad.size:
            text = texts[int(bad[0])][:80]
            raise CheckpointError(f"{encoder.name} gives numbers that are not finite: {text!r}")
        yield block, texts, _count_truncated(encoder, texts)


def _count_truncated(encoder: Encoder, texts: list[str]) -> int:
    # A token stands for at least one byte, so only these can be too long: the others need not be
    # tokenized a second time.
    conventions: Conventions = getattr(encoder, "conventions", Conventions())
    specials = getattr(getattr(encoder, "tokenizer", None), "specials", 2)
    room = encoder.max_tokens - specials - len(conventions.resolve().encode())
    long = [text for text in texts if len(text.encode()) > room]
    return encoder.count_truncated(long) if long else 0


_ROWS_AT_ONCE = 8_192


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """A folder that ``contrasent encode --shards parquet`` finished: texts with their vectors."""

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read the manifest.

        Raises:
            CheckpointError: there are no shards, or not all of them.
            ConfigError: they hold no texts.
        """
        folder, remedy = Path(folder), "write them with: contrasent encode --shards parquet"
        try:
            manifest = json.loads(inside(folder, "manifest.json").read_text(encoding="utf-8"))
            if "shards" not in manifest:
                raise CheckpointError(f"{folder} is unfinished: run the same command again")
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{folder} holds no shards ({error}); {remedy}") from error
        if manifest.get("kind") != "parquet":
            raise ConfigError(f"the shards of {folder} hold no texts; {remedy}")
        return cls(folder, manifest)

    @property
    def precision(self) -> str:
        """What matrix products ran in."""
        return str(self.manifest["precision"])

    def blocks(self, encoder: Encoder) -> Blocks:
        """Rows with their texts, some at a time.

        Raises:
            CheckpointError: another encoder wrote them, or a shard is missing or damaged.
            ConfigError: texts of an index get a prompt that these did not get, or keep lengths that
            these do not have.
        """
        if (fingerprint := encoder.fingerprint()) != self.manifest["encoder"]:
            raise CheckpointError(
                f"{self.folder} was written by an encoder with fingerprint "
                f"{self.manifest['encoder']}, not by {encoder.name} (fingerprint {fingerprint})"
            )
        given = self.manifest.get("normalize")
        if similarity_of(encoder) != "cosine" and given not in (None, encoder.normalize):
            raise ConfigError(
                f"{encoder.name} compares vectors by {similarity_of(encoder)}, as they come, but "
                f"those of {self.folder} were written with --{'no-' * (not given)}normalize; "
                "build the index from the texts"
            )
        conventions: Conventions = getattr(encoder, "conventions", Conventions())
        how = role_options(encoder, "document")
        prompt = how.get("prompt", default := conventions.resolve())
        if prompt != default or "task" in how:
            raise ConfigError(
                f"{encoder.name} puts {prompt!r} before the texts of an index, or reads them to "
                f"another length, but {default!r} before those of {self.folder}; build the index "
                "from the texts"
            )
        return self._read()

    def _read(self) -> Blocks:
        from pyarrow import parquet

        for shard in self.manifest["shards"]:
            path = inside(self.folder, shard["file"])
            if not path.is_file() or sha256_of(path) != shard["sha256"]:
                raise CheckpointError(
                    f"{path} is missing or damaged: it has not the SHA-256 of manifest.json; copy "
                    f"it again, or remove {self.folder} and write the shards anew"
                )
            for batch in parquet.ParquetFile(path).iter_batches(_ROWS_AT_ONCE):
                vectors = batch["embedding"].flatten().to_numpy()
                yield vectors.reshape(len(batch), -1), batch["text"].to_pylist()
