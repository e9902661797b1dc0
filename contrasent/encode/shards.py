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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from contrasent.encode.row_files import Blocks, blocks_with_texts, open_rows, row_writer
from contrasent.encode.sentences import Sentences
from contrasent.encode.workers import Worker
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.files import (
    BusyError,
    exclusive,
    inside,
    refuse_existing,
    remove_folder,
    sha256_of,
    tidy_lock,
    write_text,
    writing,
)
from contrasent.model.conventions import Conventions, role_options, similarity_of
from contrasent.model.protocol import Encoder
from contrasent.options import Sharding

FILE = "manifest.json"
_KINDS = (".npy", ".parquet")
_CHUNK = 8_192
_FORMAT = "contrasent-parts-1"
_REMEDY = "remove the folder to start again"


def count_cut(encoder: Encoder, texts: list[str]) -> int:
    """How many texts are longer than the encoder reads."""
    # A token stands for at least one byte, so only these can be too long: the others need not be
    # tokenized a second time.
    conventions: Conventions = getattr(encoder, "conventions", Conventions())
    specials = getattr(getattr(encoder, "tokenizer", None), "specials", 2)
    room = encoder.max_tokens - specials - len(conventions.resolve().encode())
    long = [text for text in texts if len(text.encode()) > room]
    return encoder.count_truncated(long) if long else 0


class Shards:
    """The shards of an output, and the notes of those that are whole, by number."""

    def __init__(
        self, folder: Path, made_from: dict[str, Any], total: int, settings: Sharding
    ) -> None:
        """Use :meth:`open`."""
        self.folder, self._made_from, self._settings = folder, made_from, settings
        self._notes: dict[int, dict[str, Any]] = {}
        size = settings.shard_size
        self._sizes = [min(size, total - first) for first in range(0, total, size)]
        self.look()

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
        return len(self._sizes) - len(self._notes)

    @classmethod
    def open(
        cls,
        folder: Path,
        made_from: dict[str, Any],
        total: int,
        settings: Sharding,
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
        return cls(folder, made_from, total, settings)

    def look(self, *numbers: int) -> None:
        """Find the shards, all or of these ``numbers``, that are whole, whoever wrote them."""
        for number in numbers or range(len(self._sizes)):
            if number not in self._notes:
                with suppress(FileNotFoundError):
                    note = self._path(number).with_suffix(".json").read_text(encoding="utf-8")
                    self._notes[number] = json.loads(note)

    def fill(
        self, encoder: Encoder, sentences: Sentences, worker: Worker, *, show_progress: bool
    ) -> None:
        """Write the shards of ``worker`` that are missing, and that nobody else is writing."""
        from contrasent.progress import sentence_progress

        own = range(worker.number - 1, len(self._sizes), worker.count)
        missing = [number for number in own if number not in self._notes]
        rest, read, size = iter(sentences), 0, self._settings.shard_size
        share = sum(self._sizes[number] for number in own)
        with sentence_progress(share, show_progress) as advance:
            advance(share - sum(self._sizes[number] for number in missing))
            for number in missing:
                with suppress(BusyError), exclusive(self._path(number)):
                    self.look(number)
                    if number in self._notes:  # another worker has written it
                        continue
                    deque(islice(rest, number * size - read), maxlen=0)
                    read = (number + 1) * size
                    note = self._write(number, encoder, islice(rest, size), advance)
                    if note["rows"] != self._sizes[number]:
                        raise DataError(f"{sentences.source} became shorter while it was read")
                    write_text(self._path(number).with_suffix(".json"), json.dumps(note))
                    self._notes[number] = note

    def _write(
        self, number: int, encoder: Encoder, texts: Iterable[str], advance: Callable[[int], None]
    ) -> dict[str, Any]:
        """Write a shard; returns its note."""
        path, truncated = self._path(number), 0
        how: dict[str, Any] = {
            name: getattr(self._settings, name)
            for name in ("batch_tokens", "normalize", "precision")
        }
        blocks = blocks_with_texts(encoder, texts, chunk=_CHUNK, on_overflow="truncate", **how)
        with writing(path) as partial:
            with row_writer(partial, path.suffix, encoder) as writer:
                for block, names in blocks:
                    if not (finite := np.isfinite(block).all(axis=1)).all():
                        bad = names[int(finite.argmin())][:80]
                        raise CheckpointError(
                            f"{encoder.name} gives numbers that are not finite: {bad!r}"
                        )
                    writer.append(block, names)
                    truncated += count_cut(encoder, names)
                    advance(len(block))
            digest = sha256_of(partial)
        return {"rows": writer.rows, "truncated": truncated, "sha256": digest}

    def blocks(self) -> Iterator[np.ndarray]:
        """All rows in order, a few at a time; CheckpointError if a shard is damaged."""
        for number, size in enumerate(self._sizes):
            path = self._path(number)
            rows = open_rows(path, size, self._made_from["width"], _REMEDY)
            if self._notes[number].get("sha256", digest := sha256_of(path)) != digest:
                raise CheckpointError(
                    f"{path} is damaged: its SHA-256 is not the one in its note; remove "
                    f"{path.with_suffix('.json')} and run the command again, or {_REMEDY}"
                )
            for start in range(0, size, _CHUNK):
                yield rows[start : start + _CHUNK]

    def finish(self, output: Path, encoder: Encoder, sentences: Sentences, shared: bool) -> None:
        """Make the output of the shards, which other workers may have ``shared``."""
        if self.folder == output:  # its manifest lists the shards, and their notes go
            paths = [self._path(number) for number in range(len(self._sizes))]
            shards = [{"file": path.name, **self._notes[n]} for n, path in enumerate(paths)]
            listed = {**self._made_from, "rows": self.rows, "shards": shards}
            write_text(output / FILE, json.dumps(listed, indent=2) + "\n")
            for path in paths:
                path.with_suffix(".json").unlink()
                tidy_lock(path)
            return
        with writing(output) as path:
            with row_writer(path, output.suffix, encoder) as writer:
                texts = iter(sentences)
                for block in self.blocks():
                    writer.append(block, texts)
            if shared:
                _provenance(output).mkdir(exist_ok=True)
                kept = {**self._made_from, "written": path.stat().st_mtime_ns}
                write_text(_provenance(output) / FILE, json.dumps(kept) + "\n")
        remove_folder(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.{self._settings.shards or 'npy'}"


def _differences(kept: dict[str, Any], made_from: dict[str, Any]) -> str:
    other = ", ".join(key for key, value in made_from.items() if kept.get(key) != value)
    return other if kept else "manifest, or a damaged one"


def manifest_in(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder if its format begins with ``kind``; otherwise, nothing."""
    try:
        manifest: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return manifest if manifest["format"].startswith(kind) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_complete(folder: Path) -> bool:
    """Whether a folder of shards is a finished one."""
    return "shards" in manifest_in(folder, _FORMAT)


def _parts(output: Path) -> Path:
    """The folder of the shards that a file is made of."""
    return output.with_name(f".{output.name}.parts")


def _provenance(output: Path) -> Path:
    """The folder of what workers made a file from, for those that come when it is made."""
    return output.with_name(f".{output.name}.made")


@dataclass(frozen=True, slots=True)
class Written:
    """``(rows, width)`` embeddings that were written."""

    rows: int
    width: int
    truncated: int  # sentences that were longer than the encoder reads, and were cut
    resumed: int  # rows that were there, of an unfinished run or of other workers
    seconds: float  # time spent on the other rows
    missing: int = 0  # shards that others have not finished; without any, the output is there
    already: bool = False  # whether other workers had made the output before


def require_output(
    output: Path, overwrite: bool, keep: str | None = None, *, shared: bool = False
) -> bool:
    """Make sure that ``output`` can be written, before anything expensive happens.

    Returns whether the workers by whom it is ``shared`` have made it already.
    """
    complete = _is_complete(output) if keep else output.is_file()
    if keep and output.is_dir() and not complete:
        hidden = all(path.name.startswith(".") for path in output.iterdir())
        if not hidden and not manifest_in(output, _FORMAT):
            raise ConfigError(f"{output} holds other files; name a new folder")
        return False
    if not keep and (output.suffix not in _KINDS or output.is_dir()):
        raise ConfigError(f"{output}: the output must be a file that ends in {' or '.join(_KINDS)}")
    if not overwrite and not (shared and complete):
        refuse_existing(output, "pass --overwrite to replace it")
    return shared and complete


def write_embeddings(  # noqa: PLR0913 - what a caller may choose, by name
    encoder: Encoder,
    sentences: Sentences,
    output: str | Path,
    settings: Sharding,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
    worker: Worker | None = None,
    run_others: Callable[[], None] | None = None,
) -> Written:
    """Embed every sentence and write ``(N, D)`` float32 rows, in their order.

    ``output`` is the matrix as ``.npy``, or a ``.parquet`` with the columns ``text`` and
    ``embedding``, or with ``settings.shards`` a folder of shards. With ``overwrite``, it is
    replaced, and shards that were made from something else are dropped. A ``worker`` of several
    writes its shards; who finishes the last one makes the output, unless a process waits for it
    that called ``run_others`` to have them write first; and who comes later leaves it as it is.

    ConfigError if shards of another input, encoder or setting lie beside ``output``, or another
    process writes it.
    """
    output, total, keep = Path(output), sentences.count(), settings.shards
    made_from = {
        "format": _FORMAT,
        "input": sentences.examples.sha256,
        "encoder": encoder.fingerprint(),
        "width": encoder.width,
        "normalize": settings.normalize,
        "precision": encoder.resolve_precision(settings.precision),
        "shard_size": settings.shard_size,
        **({"kind": keep} if keep else {}),
    }
    if require_output(output, overwrite, keep, shared=worker is not None):
        return _made_before(output, made_from, total)
    shared, worker = worker is not None or run_others is not None, worker or Worker()
    folder = output if keep else _parts(output)
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
        except BusyError:
            return Written(total, encoder.width, shards.truncated, resumed, seconds)
        if not folder.is_dir() or _is_complete(folder):
            missing = 0  # another one has made it
        elif not missing:
            shards.finish(output, encoder, sentences, shared)
        elif worker.count == 1:
            raise ConfigError(
                f"{missing} shards in {folder} are being written by other processes; run the "
                "command again once they have finished"
            )
    rows = shards.rows if missing else total
    return Written(rows, encoder.width, shards.truncated, resumed, seconds, missing)


def _made_before(output: Path, made_from: dict[str, Any], total: int) -> Written:
    """What other workers wrote; ConfigError if it was made from something else."""
    folder = output if output.is_dir() else _provenance(output)
    kept = manifest_in(folder, _FORMAT)
    other = _differences(kept, made_from)
    if folder != output and kept.get("written") != output.stat().st_mtime_ns:
        other = "command"
    if other:
        raise ConfigError(f"{output} was made with another {other}; remove it, or name a new one")
    if folder != output:
        with suppress(BusyError), exclusive(output):  # whoever made it may have died just then
            remove_folder(_parts(output))
    return Written(total, made_from["width"], 0, total, 0.0, already=True)


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """A folder that ``contrasent encode --shards parquet`` finished: texts with their vectors."""

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read the manifest; CheckpointError if there are no finished shards with texts."""
        folder = Path(folder)
        inside(folder, FILE)
        manifest = manifest_in(folder, _FORMAT)
        if "shards" not in manifest or manifest.get("kind") != "parquet":
            raise CheckpointError(
                f"{folder} holds no finished shards with texts; write or finish them with: "
                "contrasent encode --shards parquet"
            )
        return cls(folder, manifest)

    @property
    def precision(self) -> str:
        """What matrix products ran in."""
        return str(self.manifest["precision"])

    def blocks(self, encoder: Encoder) -> Blocks:
        """Rows with their texts, some at a time, if the encoder embeds texts of an index so."""
        if (fingerprint := encoder.fingerprint()) != self.manifest["encoder"]:
            raise CheckpointError(
                f"{self.folder} was written by an encoder with fingerprint "
                f"{self.manifest['encoder']}, not by {encoder.name} (fingerprint {fingerprint})"
            )
        given, similarity = self.manifest.get("normalize"), similarity_of(encoder)
        conventions: Conventions = getattr(encoder, "conventions", Conventions())
        how = role_options(encoder, "document")
        other_length = similarity != "cosine" and given not in (None, encoder.normalize)
        default = conventions.resolve()
        if other_length or how.get("prompt", default) != default or "task" in how:
            raise ConfigError(
                f"{self.folder} was written with another prompt, or cut or scaled to another "
                f"length, than {encoder.name} gives texts of an index, which it compares by "
                f"{similarity}, as they come; build the index from the texts"
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
            for batch in parquet.ParquetFile(path).iter_batches(_CHUNK):
                vectors = batch["embedding"].flatten().to_numpy()
                yield vectors.reshape(len(batch), -1), batch["text"].to_pylist()
