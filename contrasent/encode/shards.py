"""Embeddings of a source on disk: resumable shards, and the file made of them.

Shards lie in a hidden folder beside the final file, or in a folder that is the result. A shard
counts once its note, with its hash, is there. Which sentences it has does not depend on who writes
it, so any number of workers may share them, and go on with what others left.

Shapes: N sentences, D embedding width.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Self

import numpy as np

from contrasent import files
from contrasent.data.examples import Examples, open_examples
from contrasent.data.readers import counted
from contrasent.encode.vectors import open_rows, row_writer, write_ranges
from contrasent.errors import CheckpointError, ConfigError, ContrasentError, DataError
from contrasent.model.protocol import Conventions, Encoder, role_options, similarity_of
from contrasent.options import Sharding
from contrasent.progress import sentence_progress

FILE = "manifest.json"
_KINDS = (".npy", ".parquet")
_RANGES = ".ranges.npy"
_CHUNK = 8_192
_FORMAT = "contrasent-parts-1"
_REMEDY = "remove the folder to start again"

Blocks = Iterator[tuple[np.ndarray, list[str]]]  # ``(n, D)`` rows, and their n texts


class Sentences:
    """Sentences of a source, read anew by every iteration; see :func:`open_sentences`."""

    def __init__(
        self, path: str, source: str, columns: str | None, ids: str | None, clean: bool
    ) -> None:
        if ids is not None and columns is None:
            raise ConfigError(f"--ids {ids} needs --columns too: which column holds the sentences?")
        chosen = [column for column in (columns, ids) if column is not None] or None
        self.source, self._ids, self._total = source, ids, -1
        self.examples: Examples = open_examples(path, chosen, with_ids=ids is not None, clean=clean)
        if ids is not None:
            *_, how = self.examples.columns.rpartition(" (")
            self.examples.columns = f"{columns} as the text, {ids} as the id ({how}"
        if chosen is None and self.examples.views > 1:
            what = f"{self.examples.views} sentences in a row ({self.examples.columns})"
            how = "choose one with --columns NAME, or by its number from 0"
            raise ConfigError(f"{source} has {what}; {how}")

    def __iter__(self) -> Iterator[str]:
        """Yield the sentences, in the order of the source."""
        return (example[0] for example in self.examples)

    def count(self) -> int:
        """Read the whole source once, so that a bad row is found before any work starts."""
        if self._total < 0:
            self._total = sum(1 for _ in self.examples)
        if not self._total:
            raise DataError(f"{self.source} holds no sentence; it needs at least one")
        return self._total

    def summary(self, what: str) -> Iterator[str]:
        """Say how they are read, what of it is left out, and what was cleaned."""
        yield f"{self.source}: {self.count():,} {what}; {self.examples.columns}"
        if skipped := self.examples.skipped:
            yield f"{skipped} rows with an empty cell are left out, and have no row or id"
        if self.examples.cleaned is not None:
            yield f"cleaned: {counted(self.examples.cleaned)}"

    def ids(self) -> list[str] | None:
        """The id of every sentence, or None if no column of ids was asked for."""
        return None if self._ids is None else [example[1] for example in self.examples]


@contextmanager
def open_sentences(
    source: str, columns: str | None = None, ids: str | None = None, *, clean: bool = False
) -> Iterator[Sentences]:
    """Open a source of a sentence per row, or ``-`` for lines of standard input, kept in a file."""
    if source != "-":
        yield Sentences(source, source, columns, ids, clean)
        return
    with files.scratch("sentences") as folder:
        kept = Path(folder) / "standard-input.txt"
        with kept.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield Sentences(str(kept), "standard input", columns, ids, clean)
        except DataError as error:
            raise DataError(str(error).replace(str(kept), "standard input")) from error


def blocks_with_texts(encoder: Encoder, texts: Iterable[str], **options: Any) -> Blocks:
    """Blocks of rows, each with its texts, as an encoder reads ahead; all numbers are finite."""
    read: deque[str] = deque()

    def remember() -> Iterator[str]:  # by a thread of its own where tokenizing overlaps computing
        for text in texts:
            read.append(text)
            yield text

    for block in encoder.encode_stream(remember(), **options):
        kept = [read.popleft() for _ in block]
        if not (finite := np.isfinite(block).all(axis=1)).all():
            bad = kept[int(finite.argmin())][:80]
            raise CheckpointError(f"{encoder.name} gives numbers that are not finite: {bad!r}")
        yield block, kept


def count_cut(encoder: Encoder, texts: list[str], prompt: str, task: str | None = None) -> int:
    """How many texts are longer than the encoder reads, behind the ``prompt``."""
    # A token stands for at least one byte, so only these can be too long: the others need not be
    # tokenized a second time.
    part = encoder.route(task)
    specials = getattr(getattr(part, "tokenizer", None), "specials", 2)
    room = encoder.limit(task) - specials - len(prompt.encode())
    long = [prompt + text for text in texts if len(text.encode()) > room]
    return sum(part.cut(long, task)) if long else 0


class Shards:
    """The shards of an output, and the notes of those that are whole, by number."""

    def __init__(
        self,
        folder: Path,
        made_from: dict[str, Any],
        total: int,
        settings: Sharding,
        overwrite: bool,
    ) -> None:
        """Find the shards of an unfinished run, or start with none."""
        self.folder, self._made_from, self._settings = folder, made_from, settings
        start = folder.with_name(f"{folder.name}.start")
        with files.exclusive(start, patience=60.0):  # workers may start together, on a slow disk
            if not folder.is_dir() or (overwrite and "shards" in manifest_in(folder, _FORMAT)):
                files.remove_folder(folder)  # or what a killed process left of it
            started, other = any(folder.glob("[0-9]*[0-9].*")), ""
            if started:
                kept = manifest_in(folder, _FORMAT)
                other = ", ".join(key for key in made_from if kept.get(key) != made_from[key])
                other = other if kept else "manifest, or a damaged one"
            if other and not overwrite:
                problem = f"{folder} holds shards of an unfinished run with another {other}"
                raise ConfigError(f"{problem}; repeat that run to finish it, or {_REMEDY}")
            if other:
                files.remove_folder(folder)
            folder.mkdir(exist_ok=True)
            if other or not started:
                files.write_json(folder / FILE, made_from)
        size = settings.shard_size
        self._sizes = [min(size, total - first) for first in range(0, total, size)]
        self._notes: dict[int, dict[str, Any]] = {}
        self.look()

    def sum(self, key: str) -> int:
        """Rows, or sentences that were cut (``truncated``), in whole shards."""
        return sum(note[key] for note in self._notes.values())

    @property
    def missing(self) -> int:
        """Shards that nobody has finished."""
        return len(self._sizes) - len(self._notes)

    def look(self) -> None:
        """Find the shards that are whole, whoever wrote them."""
        for number in range(len(self._sizes)):
            self._find(number)

    def _find(self, number: int) -> bool:
        if number not in self._notes:
            with suppress(FileNotFoundError):
                note = self._path(number).with_suffix(".json").read_text(encoding="utf-8")
                self._notes[number] = json.loads(note)
        return number in self._notes

    def fill(
        self,
        encoder: Encoder,
        sentences: Sentences,
        worker: tuple[int, int],
        *,
        show_progress: bool,
    ) -> None:
        """Write the shards of a worker that are missing, and that nobody else is writing."""
        number, count = worker
        own = range(number - 1, len(self._sizes), count)
        missing = [number for number in own if number not in self._notes]
        rest, read, size = iter(sentences), 0, self._settings.shard_size
        total = sum(self._sizes[number] for number in own)
        with sentence_progress(total, show_progress) as advance:
            advance(total - sum(self._sizes[number] for number in missing))
            for number in missing:
                with suppress(files.BusyError), files.exclusive(self._path(number)):
                    if self._find(number):  # another worker has written it
                        continue
                    deque(islice(rest, number * size - read), maxlen=0)
                    read = (number + 1) * size
                    note = self._write(number, encoder, islice(rest, size), advance)
                    if note["rows"] != self._sizes[number]:
                        raise DataError(f"{sentences.source} became shorter while it was read")
                    files.write_json(self._path(number).with_suffix(".json"), note)
                    self._notes[number] = note

    def _write(
        self, number: int, encoder: Encoder, texts: Iterable[str], advance: Callable[[int], None]
    ) -> dict[str, Any]:
        path, rows, truncated = self._path(number), 0, 0
        names = "batch_tokens", "normalize", "precision"
        options: dict[str, Any] = {name: getattr(self._settings, name) for name in names}
        if self._settings.role is not None:
            options |= role_options(encoder, self._settings.role)
        prompt = options.get("prompt", encoder.conventions.resolve())
        options |= {"chunk": _CHUNK, "on_overflow": "truncate"}
        with row_writer(path, encoder) as append:
            for block, kept in blocks_with_texts(encoder, texts, **options):
                append(block, kept)
                rows += len(block)
                truncated += count_cut(encoder, kept, prompt, options.get("task"))
                advance(len(block))
        return {"rows": rows, "truncated": truncated, "sha256": files.sha256_of(path)}

    def blocks(self) -> Iterator[np.ndarray]:
        """All rows in order, a few at a time; CheckpointError if a shard is damaged."""
        for number, size in enumerate(self._sizes):
            path = self._path(number)
            how = path, size, self._made_from["width"], _REMEDY
            open_rows(*how)
            if self._notes[number].get("sha256", digest := files.sha256_of(path)) != digest:
                raise CheckpointError(
                    f"{path} is damaged: its SHA-256 is not the one in its note; remove "
                    f"{path.with_suffix('.json')} and run the command again, or {_REMEDY}"
                )
            for start in range(0, size, _CHUNK):
                yield open_rows(*how)[start : start + _CHUNK]  # mapped anew: what was read goes

    def finish(self, output: Path, encoder: Encoder, sentences: Sentences) -> None:
        """Make the output of the shards."""
        keeps, form, ranges = self.folder == output, self._settings.vectors, None
        if form == "int8":
            if not keeps:
                output.unlink(missing_ok=True)  # no rows beside the ranges of others
            path = output / "ranges.npy" if keeps else output.with_suffix(_RANGES)
            ranges = write_ranges(path, self.blocks())
        if keeps:  # its manifest lists the shards, and their notes go
            paths = [self._path(number) for number in range(len(self._sizes))]
            shards = [{"file": path.name, **self._notes[n]} for n, path in enumerate(paths)]
            for shard, path in zip(shards, paths, strict=True) if form != "float32" else ():
                small = path.with_suffix(f".{form}.npy")
                with row_writer(small, encoder, form, ranges) as append:
                    append(np.load(path), ())
                shard |= {"file": small.name, "sha256": files.sha256_of(small)}
            listed = {**self._made_from, "rows": self.sum("rows"), "shards": shards}
            files.write_json(output / FILE, listed)
            for shard, path in zip(shards, paths, strict=True):
                path.with_suffix(".json").unlink()
                files.tidy_lock(path)
                if shard["file"] != path.name:
                    path.unlink()
            return
        with row_writer(output, encoder, form, ranges) as append:
            texts = iter(sentences)
            for block in self.blocks():
                append(block, texts)
        files.remove_folder(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.{self._settings.shards or 'npy'}"


def manifest_in(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder if its format begins with ``kind``; otherwise, nothing."""
    try:
        manifest: dict[str, Any] = files.read_json(folder / FILE)
        return manifest if manifest["format"].startswith(kind) else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


@dataclass(frozen=True, slots=True)
class Written:
    """``(rows, width)`` embeddings that were written."""

    rows: int
    width: int
    truncated: int  # sentences that were longer than the encoder reads, and were cut
    resumed: int  # rows that were there, of an unfinished run or of other workers
    seconds: float  # time spent on the other rows
    missing: int = 0  # shards that others have not finished


def _parts_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.parts")


def require_output(
    output: Path, settings: Sharding, overwrite: bool, *, shared: bool = False
) -> None:
    """Make sure that ``output`` can be written, before anything expensive happens."""
    kept, problem, keep = manifest_in(output, _FORMAT), "", settings.shards
    unfinished = bool(keep) and output.is_dir() and "shards" not in kept
    if unfinished and not kept and not all(it.name.startswith(".") for it in output.iterdir()):
        problem = "holds other files; name a new folder"
    if not keep and (output.suffix not in _KINDS or output.is_dir()):
        problem = f"must be a file that ends in {' or '.join(_KINDS)}"
    elif settings.vectors != "float32" and (keep or output.suffix[1:]) != "npy":
        problem = f"is no .npy, and only .npy holds {settings.vectors} vectors"
    files.require_place(output, problem)
    if not overwrite and not unfinished:
        files.refuse_existing(output, "remove it" if shared else "pass --overwrite to replace it")
    if settings.vectors == "int8" and not (keep or _parts_of(output).exists()):
        files.refuse_existing_file(output.with_suffix(_RANGES), overwrite=overwrite)


def write_embeddings(  # noqa: PLR0913 - what a caller may choose, by name
    encoder: Encoder,
    sentences: Sentences,
    output: str | Path,
    settings: Sharding,
    *,
    overwrite: bool = False,
    show_progress: bool = False,
    worker: tuple[int, int] | None = None,
    run_others: Callable[[], None] | None = None,
) -> Written:
    """Embed every sentence and write ``(N, D)`` rows, in their order.

    ``output`` is ``.npy``, ``.parquet``, or with ``settings.shards`` a folder of shards; what was
    made from something else is replaced with ``overwrite`` alone. A ``worker``, the third of 16
    say, writes its shards only; ``run_others`` has such workers run before the rest is done.
    ConfigError if another input, encoder, setting or process is at work there.
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
        **({"role": settings.role} if settings.role else {}),
        **({"kind": keep} if keep else {}),
        **({} if settings.vectors == "float32" else {"vectors": settings.vectors}),
    }
    require_output(output, settings, overwrite)
    folder = output if keep else _parts_of(output)
    with files.exclusive(output) if worker is None else nullcontext():
        shards = Shards(folder, made_from, total, settings, overwrite)
        resumed, started = shards.sum("rows"), time.perf_counter()
        if run_others is not None:
            run_others()
            shards.look()
        shards.fill(encoder, sentences, worker or (1, 1), show_progress=show_progress)
        seconds = time.perf_counter() - started
        shards.look()
        written = shards.sum("rows"), encoder.width, shards.sum("truncated"), resumed, seconds
        if worker is None:
            if shards.missing:
                what = f"{shards.missing} shards in {folder} are being written"
                raise ConfigError(f"{what} by other processes; run the command again afterwards")
            shards.finish(output, encoder, sentences)
    return Written(*written, shards.missing)


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """A folder that ``contrasent encode --shards parquet`` finished: texts with their vectors."""

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read the manifest; CheckpointError if there are no finished shards with texts."""
        folder = Path(folder)
        files.inside(folder, FILE)
        manifest = manifest_in(folder, _FORMAT)
        if "shards" not in manifest or manifest.get("kind") != "parquet":
            how = "write or finish them with: contrasent encode --shards parquet"
            raise CheckpointError(f"{folder} holds no finished shards with texts; {how}")
        return cls(folder, manifest)

    def blocks(self, encoder: Encoder) -> Blocks:
        """Rows with their texts, some at a time, if the encoder embeds texts of an index so."""
        from pyarrow import parquet

        similarity, options = similarity_of(encoder), role_options(encoder, "document")
        conventions: Conventions = getattr(encoder, "conventions", Conventions())
        default, scaled = conventions.resolve(), self.manifest.get("normalize")
        usual = "task" not in options and options.get("prompt", default) == default
        other_text = self.manifest.get("role", "document" if usual else "") != "document"
        other_length = similarity != "cosine" and scaled not in (None, encoder.normalize)
        if encoder.fingerprint() != self.manifest["encoder"] or other_length or other_text:
            raise CheckpointError(
                f"{self.folder} was written by another encoder, with another prompt, or cut or "
                f"scaled to another length, than {encoder.name} gives texts of an index, which it "
                f"compares by {similarity}; build the index from the texts"
            )
        for shard in self.manifest["shards"]:
            path = files.inside(self.folder, shard["file"])
            if not path.is_file() or files.sha256_of(path) != shard["sha256"]:
                raise CheckpointError(
                    f"{path} is missing or damaged: it has not the SHA-256 of manifest.json; copy "
                    f"it again, or remove {self.folder} and write the shards anew"
                )
            for batch in parquet.ParquetFile(path).iter_batches(_CHUNK):
                vectors = batch["embedding"].flatten().to_numpy()
                yield vectors.reshape(len(batch), -1), batch["text"].to_pylist()


_PARENT = "CONTRASENT_PARENT"  # set for a process that ends with the one that started it
_DEVICES = "CUDA_VISIBLE_DEVICES"


def keep_few_compiled_products() -> None:
    """Cut the caches of compiled matrix products of torch on a CPU, before the first product.

    oneDNN and torch's layer above it keep the last 1,024, one for each number of rows, of up to
    2 MB; batches of a long text hardly ever have as many tokens again.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def run_processes(lines: Sequence[Sequence[str]], devices: int) -> None:
    """Run the commands side by side, on a share of the cores or on one of ``devices`` each."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, line in enumerate(lines):
            environment = {**os.environ, **_share(number, len(lines), devices), _PARENT: "1"}
            quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
            processes.append(subprocess.Popen(line, env=environment, stdin=pipe, stdout=quiet))
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
    ends = [signal.Signals(-it).name if it < 0 else f"status {it}" for it in statuses]
    failed = [f"{n} ({end})" for n, end in enumerate(ends, start=1) if statuses[n - 1]]
    if failed:
        raise ContrasentError(
            f"of {len(statuses)} workers these failed: {', '.join(failed)}; their messages are "
            "above, and SIGKILL is mostly for want of memory. The shards of the others are whole: "
            "run the command again for the rest"
        )


def end_with_parent() -> None:
    """End with the process that forked it, or with :func:`run_processes`, which closes a pipe."""
    parent, is_worker = parent_process(), os.environ.pop(_PARENT, "")

    def wait() -> None:
        os.read(0, 1) if parent is None else parent.join()
        os._exit(1)

    if is_worker or parent is not None:
        threading.Thread(target=wait, daemon=True).start()


def _share(number: int, count: int, devices: int) -> dict[str, str]:
    if devices:
        visible = os.environ.get(_DEVICES, ",".join(map(str, range(devices)))).split(",")
        return {_DEVICES: visible[number % devices]}
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"OMP_NUM_THREADS": str(max(1, (cores or 1) // count))}
