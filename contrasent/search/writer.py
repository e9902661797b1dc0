"""Embeddings of a whole source into one file, which appears only when everything is in it.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from glob import escape
from itertools import islice
from pathlib import Path

import numpy as np

from contrasent.errors import ConfigError
from contrasent.files import refuse_existing, writing
from contrasent.search.encoder import TextEncoder
from contrasent.search.lock import exclusive
from contrasent.search.npy import NpyWriter
from contrasent.search.parts import Parts, Settings, described
from contrasent.search.sentences import Sentences

KINDS = (".npy", ".parquet")


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        rows: N.
        width: D.
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
    """Make sure that ``output`` can be written, before anything expensive happens.

    Raises:
        ConfigError: it is of no known kind, is a folder, or exists and may not be replaced.
    """
    if output.suffix not in KINDS:
        raise ConfigError(f"{output}: the output must end in {' or '.join(KINDS)}")
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; name a file")
    if not overwrite:
        refuse_existing(output, "pass --overwrite to replace it")


def write_embeddings(
    encoder: TextEncoder,
    sentences: Sentences,
    output: str | Path,
    settings: Settings,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
) -> Written:
    """Embed every sentence and write ``(N, D)`` float32 rows, in their order.

    Args:
        encoder: what embeds.
        sentences: the source; it is read more than once.
        output: ``.npy``: the matrix; ``.parquet``: columns ``text`` and ``embedding``.
        settings: how.
        overwrite: replace ``output``, and drop shards that were made from something else.
        show_progress: a progress bar on standard error.

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
        parts = Parts.open(output, described(encoder, sentences, settings), overwrite)
        resumed, started = parts.rows, time.perf_counter()
        parts.fill(encoder, sentences, settings, total, show_progress)
        seconds = time.perf_counter() - started
        join = _join_parquet if output.suffix == ".parquet" else _join_npy
        with writing(output) as path:
            join(path, parts, encoder, sentences)
        shutil.rmtree(parts.folder)
    return Written(parts.rows, encoder.width, parts.truncated, resumed, seconds)


def _join_npy(path: Path, parts: Parts, encoder: TextEncoder, _: Sentences) -> None:
    with NpyWriter(path, encoder.width) as writer:
        for block in parts.blocks():
            writer.append(block)


def _join_parquet(path: Path, parts: Parts, encoder: TextEncoder, sentences: Sentences) -> None:
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
