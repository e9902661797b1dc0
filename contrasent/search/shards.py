"""Shards of a long piece of embedding, resumable, and the one file that is made of them.

Shards lie in a hidden folder beside the final file, or in a folder that is the result. A shard
counts once its note, with its hash, is there, and the note is written after the shard. Which
sentences are in a shard does not depend on who writes it, so any number of workers may share them,
and go on with what others left.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.files import (
    exclusive,
    refuse_existing,
    remove_folder,
    sha256_of,
    tidy_lock,
    write_text,
    writing,
)
from contrasent.model.precision import PRECISIONS
from contrasent.model.protocol import Encoder
from contrasent.search.sentences import Sentences
from contrasent.search.shard_writers import embed_blocks, row_writer
from contrasent.search.storage import FILE, manifest_in, open_rows
from contrasent.search.workers import Worker

KINDS = (".npy", ".parquet")
_CHUNK = 8_192
_FORMAT = "contrasent-parts-1"
_REMEDY = "remove the folder to start again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How sentences become rows; a setting out of range is refused.

    Attributes:
        batch_tokens: tokens computed at once; it changes memory and speed, not the rows.
        normalize: scale rows to length 1; None leaves it to the encoder, as for ``batch_tokens``.
        precision: ``fp32``, ``bf16`` or ``auto``.
        shard_size: sentences in a shard, the work lost by a kill.
        keep: leave a folder of shards of this kind, ``npy`` or ``parquet``; empty for one file.
    """

    batch_tokens: int | None = None
    normalize: bool | None = None
    precision: str = "auto"
    shard_size: int = 65_536
    keep: str = ""

    def __post_init__(self) -> None:
        pick("precision", self.precision, PRECISIONS)
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise ConfigError(f"batch_tokens must be at least 1, not {self.batch_tokens}")
        if self.shard_size < 1:
            raise ConfigError(f"shard_size must be at least 1, not {self.shard_size}")
        if self.keep:
            pick("kind of shards", self.keep, [kind[1:] for kind in KINDS])

    @property
    def encoding(self) -> dict[str, Any]:
        """The arguments of `Encoder.encode_stream`."""
        return {
            "chunk": _CHUNK,
            "batch_tokens": self.batch_tokens,
            "normalize": self.normalize,
            "precision": self.precision,
            "on_overflow": "truncate",
        }

    @property
    def suffix(self) -> str:
        """The ending of a shard."""
        return f".{self.keep or 'npy'}"


class Shards:
    """The shards of an output, and the notes of those that are whole, by number."""

    def __init__(self, folder: Path, width: int, total: int, settings: Settings) -> None:
        """Use :meth:`open`."""
        self.folder = folder
        self._width, self._total, self._settings = width, total, settings
        self._notes: dict[int, dict[str, Any]] = {}
        self.look()

    @property
    def count(self) -> int:
        """How many there are to be."""
        return -(-self._total // self._settings.shard_size)

    @property
    def rows(self) -> int:
        """Rows in whole shards."""
        return sum(note["rows"] for note in self._notes.values())

    @property
    def truncated(self) -> int:
        """Sentences that were cut, in whole shards."""
        return sum(note["truncated"] for note in self._notes.values())

    @property
    def missing(self) -> int:
        """Shards that nobody has finished."""
        return self.count - len(self._notes)

    @classmethod
    def open(
        cls,
        folder: Path,
        made_from: dict[str, Any],
        total: int,
        settings: Settings,
        overwrite: bool,
    ) -> Shards:
        """Find the shards of an unfinished run, or start with none."""
        start = folder.with_name(f"{folder.name}.start")
        with exclusive(start, patience=60.0):  # workers may start together, on a slow disk
            if not folder.is_dir() or (overwrite and _is_complete(folder)):
                remove_folder(folder)  # or what a killed process left of it
            started = any(folder.glob("[0-9]*[0-9].*"))
            other = _differences(manifest_in(folder, _FORMAT), made_from) if started else ""
            if other and not overwrite:
                raise ConfigError(
                    f"{folder} holds shards of an unfinished run with another {other}; "
                    f"repeat that run to finish it, or {_REMEDY}"
                )
            if other:
                remove_folder(folder)
            folder.mkdir(exist_ok=True)
            if other or not started:
                write_text(folder / FILE, json.dumps(made_from, indent=2) + "\n")
        return cls(folder, made_from["width"], total, settings)

    def look(self, *numbers: int) -> None:
        """Find the shards, all or of these ``numbers``, that are whole, whoever wrote them."""
        for number in numbers or range(self.count):
            note = self._path(number).with_suffix(".json")
            if number not in self._notes:
                with suppress(FileNotFoundError):
                    self._notes[number] = json.loads(note.read_text(encoding="utf-8"))

    def fill(
        self, encoder: Encoder, sentences: Sentences, worker: Worker, *, show_progress: bool
    ) -> None:
        """Write the shards of ``worker`` that are missing, and that nobody else is writing."""
        from contrasent.progress import sentence_progress

        own = range(worker.number - 1, self.count, worker.count)
        missing = [number for number in own if number not in self._notes]
        rest, read, size = iter(sentences), 0, self._settings.shard_size
        share = sum(self._size(number) for number in own)
        with sentence_progress(share, show_progress) as advance:
            advance(share - sum(self._size(number) for number in missing))
            for number in missing:
                with suppress(_TakenError), self._alone(number):
                    deque(islice(rest, number * size - read), maxlen=0)
                    read = (number + 1) * size
                    note = self._write(number, encoder, islice(rest, size), advance)
                    if note["rows"] != self._size(number):
                        raise DataError(f"{sentences.source} became shorter while it was read")
                    write_text(self._path(number).with_suffix(".json"), json.dumps(note))
                    self._notes[number] = note

    @contextmanager
    def _alone(self, number: int) -> Iterator[None]:
        """Keep other workers from a shard; _TakenError if one writes it, or has written it."""
        lock = ExitStack()
        try:
            lock.enter_context(exclusive(self._path(number)))
        except ConfigError as error:
            raise _TakenError from error
        with lock:
            self.look(number)
            if number in self._notes:
                raise _TakenError
            yield

    def _write(
        self, number: int, encoder: Encoder, texts: Iterable[str], advance: Callable[[int], None]
    ) -> dict[str, Any]:
        """Write a shard; returns its note."""
        path, truncated = self._path(number), 0
        with writing(path) as partial:
            with row_writer(partial, path.suffix, encoder) as writer:
                for block, names, cut in embed_blocks(encoder, texts, self._settings.encoding):
                    writer.append(block, names)
                    truncated += cut
                    advance(len(block))
            digest = sha256_of(partial)
        return {"rows": writer.rows, "truncated": truncated, "sha256": digest}

    def blocks(self) -> Iterator[np.ndarray]:
        """All rows in order, a few at a time; CheckpointError if a shard is damaged."""
        for number in range(self.count):
            note, path = self._notes[number], self._path(number)
            rows = open_rows(path, note["rows"], self._width, _REMEDY)
            if note.get("sha256", digest := sha256_of(path)) != digest:
                raise CheckpointError(
                    f"{path} is damaged: its SHA-256 is not the one in its note; remove "
                    f"{path.with_suffix('.json')} and run the command again, or {_REMEDY}"
                )
            for start in range(0, len(rows), _CHUNK):
                yield rows[start : start + _CHUNK]

    def list_in_manifest(self, made_from: dict[str, Any]) -> None:
        """Make the folder the result: its manifest lists the shards, and their notes go."""
        shards = [{"file": self._path(n).name, **self._notes[n]} for n in range(self.count)]
        listed = {**made_from, "rows": self.rows, "shards": shards}
        write_text(self.folder / FILE, json.dumps(listed, indent=2) + "\n")
        for number in range(self.count):
            self._path(number).with_suffix(".json").unlink()
            tidy_lock(self._path(number))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}{self._settings.suffix}"

    def _size(self, number: int) -> int:
        """Rows that a shard is to have."""
        size = self._settings.shard_size
        return min(size, self._total - number * size)


class _TakenError(Exception):
    """Another worker writes a shard."""


def provenance_of(encoder: Encoder, sentences: Sentences, settings: Settings) -> dict[str, Any]:
    """Everything that decides what is in the shards."""
    kept = {"kind": settings.keep} if settings.keep else {}
    return {
        "format": _FORMAT,
        "input": sentences.examples.sha256,
        "encoder": encoder.fingerprint(),
        "width": encoder.width,
        "normalize": settings.normalize,
        "precision": encoder.resolve_precision(settings.precision),
        "shard_size": settings.shard_size,
        **kept,
    }


def _differences(kept: dict[str, Any], made_from: dict[str, Any]) -> str:
    other = ", ".join(key for key, value in made_from.items() if kept.get(key) != value)
    return other if kept else "manifest, or a damaged one"


@dataclass(frozen=True, slots=True)
class Written:
    """``(rows, width)`` embeddings that were written.

    Attributes:
        truncated: sentences that were longer than the encoder reads, and were cut.
        resumed: rows that were there already, of an unfinished run or of other workers.
        seconds: time spent on the other rows.
        missing: shards that other workers have not finished; without any, the output is there.
        already: whether other workers had made the output before.
    """

    rows: int
    width: int
    truncated: int
    resumed: int
    seconds: float
    missing: int = 0
    already: bool = False


def require_output(output: Path, overwrite: bool, keep: str = "", *, shared: bool = False) -> bool:
    """Make sure that ``output`` can be written, before anything expensive happens.

    Returns whether the workers by whom it is ``shared`` have made it already.
    """
    complete = _is_complete(output) if keep else output.is_file()
    if keep:
        if output.is_dir() and not complete:
            hidden = all(path.name.startswith(".") for path in output.iterdir())
            if not hidden and not manifest_in(output, _FORMAT):
                raise ConfigError(f"{output} holds other files; name a new folder")
            return False
    else:
        if output.suffix not in KINDS:
            raise ConfigError(f"{output}: the output must end in {' or '.join(KINDS)}")
        if output.is_dir():
            raise ConfigError(f"{output} is a folder; name a file")
    if not overwrite and not (shared and complete):
        refuse_existing(output, "pass --overwrite to replace it")
    return shared and complete


def _is_complete(folder: Path) -> bool:
    """Whether a folder of shards is a finished one."""
    return "shards" in manifest_in(folder, _FORMAT)


def write_embeddings(  # noqa: PLR0913 - what a caller may choose, by name
    encoder: Encoder,
    sentences: Sentences,
    output: str | Path,
    settings: Settings,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
    worker: Worker | None = None,
    run_others: Callable[[], None] | None = None,
) -> Written:
    """Embed every sentence and write ``(N, D)`` float32 rows, in their order.

    ``output`` is the matrix as ``.npy``, or a ``.parquet`` with the columns ``text`` and
    ``embedding``, or with ``settings.keep`` a folder of shards. With ``overwrite``, it is replaced,
    and shards that were made from something else are dropped. A ``worker`` of several writes its
    shards; who finishes the last one makes the output, unless a process waits for it that called
    ``run_others`` to have them write first; and who comes later leaves it as it is.

    Raises:
        ConfigError: see :func:`require_output`; or shards of another input, encoder or setting
            lie beside ``output``; or another process writes it.
        DataError: a row cannot be read, or there is no sentence.
    """
    output = Path(output)
    total, made_from = sentences.count(), provenance_of(encoder, sentences, settings)
    if require_output(output, overwrite, settings.keep, shared=worker is not None):
        return _made_before(output, made_from, total)
    shared, worker = worker is not None or run_others is not None, worker or Worker()
    folder = output if settings.keep else _parts(output)
    with exclusive(output) if worker.count == 1 else nullcontext(), ExitStack() as whole:
        shards = Shards.open(folder, made_from, total, settings, overwrite)
        resumed, started = shards.rows, time.perf_counter()
        if run_others is not None:
            run_others()
            shards.look()
        shards.fill(encoder, sentences, worker, show_progress=show_progress)
        seconds = time.perf_counter() - started
        shards.look()
        missing = shards.missing
        try:  # whoever holds it has seen all shards as well, and makes the output
            if worker.count > 1 and not missing:
                whole.enter_context(exclusive(output))
        except ConfigError:
            return Written(total, encoder.width, shards.truncated, resumed, seconds)
        if not folder.is_dir() or _is_complete(folder):
            missing = 0  # another one has made it
        elif not missing:
            _finish(output, shards, encoder, sentences, made_from, shared=shared)
        elif worker.count == 1:
            raise ConfigError(
                f"{missing} of {shards.count} shards in {folder} are being written by other "
                "processes; run the command again once they have finished"
            )
    rows = shards.rows if missing else total
    return Written(rows, encoder.width, shards.truncated, resumed, seconds, missing)


def _made_before(output: Path, made_from: dict[str, Any], total: int) -> Written:
    """What other workers wrote; ConfigError if it was made from something else."""
    folder = output if output.is_dir() else _provenance(output)
    kept = manifest_in(folder, _FORMAT)
    if folder != output and kept.get("written") != output.stat().st_mtime_ns:
        raise ConfigError(f"{output} exists already, of another command; remove it")
    if other := _differences(kept, made_from):
        raise ConfigError(f"{output} was made with another {other}; remove it, or name a new one")
    if folder != output:
        with suppress(ConfigError), exclusive(output):  # whoever made it may have died just then
            remove_folder(_parts(output))
    return Written(total, made_from["width"], 0, total, 0.0, already=True)


def _parts(output: Path) -> Path:
    """The folder of the shards that a file is made of."""
    return output.with_name(f".{output.name}.parts")


def _provenance(output: Path) -> Path:
    """The folder of what workers made a file from, for those that come when it is made."""
    return output.with_name(f".{output.name}.made")


def _finish(
    output: Path,
    shards: Shards,
    encoder: Encoder,
    sentences: Sentences,
    made_from: dict[str, Any],
    *,
    shared: bool,
) -> None:
    """Make the output of the shards, which other workers may have shared."""
    if shards.folder == output:
        shards.list_in_manifest(made_from)
        return
    with writing(output) as path:
        with row_writer(path, output.suffix, encoder) as writer:
            texts = iter(sentences)
            for block in shards.blocks():
                writer.append(block, texts)
        if shared:
            _provenance(output).mkdir(exist_ok=True)
            kept = {**made_from, "written": path.stat().st_mtime_ns}
            write_text(_provenance(output) / FILE, json.dumps(kept) + "\n")
    remove_folder(shards.folder)
