"""Shards of a long piece of embedding, resumable, and the one file that is made of them.

Shards lie in a hidden folder beside the final file. A shard counts once its note is there, and the
note is written after the shard.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import escape
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.files import exclusive, refuse_existing, write_text, writing
from contrasent.model.precision import PRECISIONS
from contrasent.model.protocol import Encoder
from contrasent.search.sentences import Sentences
from contrasent.search.storage import NpyWriter, blocks_with_texts, open_rows

_CHUNK = 8_192
_FORMAT = "contrasent-parts-1"
_REMEDY = "pass --overwrite to start again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How sentences become rows; a setting out of range is refused.

    Attributes:
        batch_tokens: tokens computed at once; it changes memory and speed, not the rows.
        normalize: scale rows to length 1; None leaves it to the encoder, as for ``batch_tokens``.
        precision: ``fp32``, ``bf16`` or ``auto``.
        shard_size: sentences in a shard, the work lost by a kill.
    """

    batch_tokens: int | None = None
    normalize: bool | None = None
    precision: str = "auto"
    shard_size: int = 65_536

    def __post_init__(self) -> None:
        pick("precision", self.precision, PRECISIONS)
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ConfigError(f"batch_tokens must be at least 1, not {self.batch_tokens}")
        if self.shard_size < 1:
            raise ConfigError(f"shard_size must be at least 1, not {self.shard_size}")


class Shards:
    """The shards beside an output."""

    def __init__(self, folder: Path, width: int, notes: list[dict[str, int]]) -> None:
        """Use :meth:`open`."""
        self.folder = folder
        self._width = width
        self._notes = notes

    @property
    def rows(self) -> int:
        """Rows in whole shards."""
        return sum(note["rows"] for note in self._notes)

    @property
    def truncated(self) -> int:
        """Sentences that were cut, in whole shards."""
        return sum(note["truncated"] for note in self._notes)

    @classmethod
    def open(cls, output: Path, made_from: dict[str, Any], overwrite: bool) -> Shards:
        """Find the shards of an unfinished run, or start with none."""
        folder = output.with_name(f".{output.name}.parts")
        manifest = folder / "manifest.json"
        other = _differences(manifest, made_from) if _shard(folder, 0).exists() else ""
        if other and not overwrite:
            raise ConfigError(
                f"{folder} holds shards of an unfinished run with another {other}; "
                f"repeat that run to finish it, or {_REMEDY}"
            )
        if other:
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        write_text(manifest, json.dumps(made_from, indent=2) + "\n")
        notes = []
        for number in count():
            note = _shard(folder, number).with_suffix(".json")
            if not note.exists():
                break
            notes.append(json.loads(note.read_text(encoding="utf-8")))
        return cls(folder, made_from["width"], notes)

    def fill(
        self,
        encoder: Encoder,
        sentences: Sentences,
        settings: Settings,
        total: int,
        show_progress: bool,
    ) -> None:
        """Write the shards that are missing."""
        from contrasent.progress import sentence_progress

        rest = islice(iter(sentences), self.rows, None)
        with sentence_progress(total, show_progress) as advance:
            advance(self.rows)
            while self.rows < total:
                shard = islice(rest, settings.shard_size)
                path = _shard(self.folder, len(self._notes))
                with writing(path) as partial, NpyWriter(partial, self._width) as writer:
                    truncated = 0
                    for block, cut in _embed_blocks(encoder, shard, settings):
                        writer.append(block)
                        truncated += cut
                        advance(len(block))
                if not writer.rows:
                    raise DataError(f"{sentences.source} became shorter while it was read")
                note = {"rows": writer.rows, "truncated": truncated}
                write_text(path.with_suffix(".json"), json.dumps(note))
                self._notes.append(note)

    def blocks(self) -> Iterator[np.ndarray]:
        """All rows in order, a few at a time."""
        for number, note in enumerate(self._notes):
            rows = open_rows(_shard(self.folder, number), note["rows"], self._width, _REMEDY)
            for start in range(0, len(rows), _CHUNK):
                yield rows[start : start + _CHUNK]


def _embed_blocks(
    encoder: Encoder, sentences: Iterable[str], settings: Settings
) -> Iterator[tuple[np.ndarray, int]]:
    """Blocks of rows, each with the number of its sentences that were cut."""
    blocks = blocks_with_texts(
        encoder,
        sentences,
        chunk=_CHUNK,
        batch_tokens=settings.batch_tokens,
        normalize=settings.normalize,
        precision=settings.precision,
        on_overflow="truncate",
    )
    for block, texts in blocks:
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if bad.size:
            text = texts[int(bad[0])][:80]
            raise CheckpointError(f"{encoder.name} gives numbers that are not finite: {text!r}")
        yield block, _count_truncated(encoder, texts)


def _count_truncated(encoder: Encoder, texts: list[str]) -> int:
    # A token stands for at least one byte, so only these can be too long: the others need not be
    # tokenized a second time.
    long = [text for text in texts if len(text.encode()) + 2 > encoder.max_tokens]
    return encoder.count_truncated(long) if long else 0


def provenance_of(encoder: Encoder, sentences: Sentences, settings: Settings) -> dict[str, Any]:
    """Everything that decides what is in the shards."""
    return {
        "format": _FORMAT,
        "input": sentences.examples.sha256,
        "encoder": encoder.fingerprint(),
        "width": encoder.width,
        "normalize": settings.normalize,
        "precision": settings.precision,
        "shard_size": settings.shard_size,
    }


def _differences(manifest: Path, made_from: dict[str, Any]) -> str:
    try:
        kept = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = None
    if not isinstance(kept, dict):
        return "manifest, or a damaged one"
    return ", ".join(key for key, value in made_from.items() if kept.get(key) != value)


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npy"


KINDS = (".npy", ".parquet")


@dataclass(frozen=True, slots=True)
class Written:
    """``(rows, width)`` embeddings that were written.

    Attributes:
        truncated: sentences that were longer than the encoder reads, and were cut.
        resumed: rows that an earlier, unfinished run had written already.
        seconds: time spent on the other rows.
    """

    rows: int
    width: int
    truncated: int
    resumed: int
    seconds: float


def require_output(output: Path, overwrite: bool) -> None:
    """Make sure that ``output`` can be written, before anything expensive happens."""
    if output.suffix not in KINDS:
        raise ConfigError(f"{output}: the output must end in {' or '.join(KINDS)}")
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; name a file")
    if not overwrite:
        refuse_existing(output, "pass --overwrite to replace it")


def write_embeddings(
    encoder: Encoder,
    sentences: Sentences,
    output: str | Path,
    settings: Settings,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
) -> Written:
    """Embed every sentence and write ``(N, D)`` float32 rows, in their order.

    ``output`` is the matrix as ``.npy``, or a ``.parquet`` with the columns ``text`` and
    ``embedding``. With ``overwrite``, it is replaced, and shards that were made from something else
    are dropped.

    Raises:
        ConfigError: see :func:`require_output`; or shards of another input, encoder or setting
            lie beside ``output``; or another process writes it.
        DataError: a row cannot be read, or there is no sentence.
    """
    output = Path(output)
    require_output(output, overwrite)
    total = sentences.count()
    with exclusive(output):
        for left in output.parent.glob(f".{escape(output.name)}.*.partial"):
            left.unlink()  # by a run that was killed while it joined its shards
        parts = Shards.open(output, provenance_of(encoder, sentences, settings), overwrite)
        resumed, started = parts.rows, time.perf_counter()
        parts.fill(encoder, sentences, settings, total, show_progress)
        seconds = time.perf_counter() - started
        join = _join_parquet if output.suffix == ".parquet" else _join_npy
        with writing(output) as path:
            join(path, parts, encoder, sentences)
        shutil.rmtree(parts.folder)
    return Written(parts.rows, encoder.width, parts.truncated, resumed, seconds)


def _join_npy(path: Path, parts: Shards, encoder: Encoder, _: Sentences) -> None:
    with NpyWriter(path, encoder.width) as writer:
        for block in parts.blocks():
            writer.append(block)


def _join_parquet(path: Path, parts: Shards, encoder: Encoder, sentences: Sentences) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    vectors = pa.list_(pa.float32(), encoder.width)
    about = {"encoder": encoder.name, "pooler": encoder.pooler, "head": encoder.head_name}
    about["fingerprint"] = encoder.fingerprint()
    schema = pa.schema([("text", pa.string()), ("embedding", vectors)], metadata=about)
    texts = iter(sentences)
    with parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for block in parts.blocks():
            flat = pa.array(np.ascontiguousarray(block).reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(flat, encoder.width)
            names = pa.array(islice(texts, len(block)), pa.string())
            writer.write_batch(pa.record_batch([names, rows], schema=schema))
