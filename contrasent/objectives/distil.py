"""Distillation: a student whose embeddings follow those of a teacher (Reimers and Gurevych 2020).

The teacher embeds every sentence once. It is followed in its own space, through a linear layer of
the student (LEAF, Vujanic and Rueckstiess 2025, arXiv:2509.12539), or in the student's: a wider
teacher by its principal components, of a narrower one the student's other dimensions are to be 0.

Shapes: B examples of V sentences, N in all, D dimensions of the student, E of the teacher.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need
from contrasent.data.examples import Examples
from contrasent.errors import ConfigError, DataError
from contrasent.files import cached, readable, remove_folder, sha256_of
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import LoadedEncoder, load_encoder
from contrasent.model.protocol import Encoded
from contrasent.model.transforms import Projection
from contrasent.objectives import Objective, Start, Terms
from contrasent.progress import sentence_progress
from contrasent.settings import settings

_FORMAT, _ROWS, _STORED, _WHAT = 3, "rows.npy", ".npy", "the embeddings of the teacher"
_SAMPLE = 20_000
"""Sentences whose embeddings the principal components are of."""
_BLOCK = 8_192
"""Sentences after which their embeddings are kept, should the teacher break off."""


@settings
class Config:
    """Settings of distillation."""

    teacher: str | None = None
    """The encoder to follow: a folder, a training run, a Hugging Face id, word vectors, the http
    address of a server (/v1/embeddings#MODEL or /embed); or a .npy file with the embedding of each
    sentence."""

    space: Literal["student", "teacher", "folded"] = "student"
    """Where it is followed: in the student's dimensions; in the teacher's, through a linear layer
    that the student keeps, so that its embeddings are compared with the teacher's; or folded: there
    in training, and saved with a layer that gives the same cosines in the student's dimensions."""

    loss: Literal["cosine", "mse"] = "cosine"
    """1 minus the cosine, or the mean squared difference of all numbers."""


class Distil(Objective):
    """The distance of the embedding of each sentence of an example from that of a teacher."""

    config_class = Config
    needs = frozenset({Need.TARGETS})
    aligned = False
    takes_fewer = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self.views, self._width = start.data_views, start.width
        self.alone = config.space != "student"
        # rows whose principal components all sources get, and their key in the cache
        self._first: tuple[np.ndarray, list[Any]] | None = None
        if config.teacher and config.space != "student":
            stored, encoder = config.teacher.endswith(_STORED), start.require_encoder()
            teacher = None if stored else load_encoder(config.teacher, device=self._device)
            self._width = read_rows(config.teacher).shape[1] if teacher is None else teacher.width
            encoder.truncate_dim = None  # all dimensions are compared with the teacher's
            if encoder.transform is None:
                encoder.transform = Projection(start.width, self._width).to(encoder.device)
            elif start.width != self._width:
                raise ConfigError(
                    f"{encoder.name} has a linear layer to {start.width} dimensions, but "
                    f"{config.teacher} has {self._width}; set objective.space to student"
                )

    def columns(self, examples: Examples, show_progress: bool = False) -> Mapping[Need, np.ndarray]:
        name, every = self.config.teacher or "", partial(chain.from_iterable, examples)
        if name.endswith(_STORED):
            rows = read_rows(name, examples)
            key: list[Any] = [sha256_of(name)]
        else:
            teacher = load_encoder(name, device=self._device)
            key = [examples.sha256, examples.views, *examples.prompts]
            rows = embedded(every, [teacher], key, show_progress=show_progress)
            key += _identity(teacher)
        if rows.shape[1] > self._width:
            first, first_key = self._first = self._first or (rows, key)
            write = partial(write_components, rows, first, self._width)
            rows = _cached_rows("targets", [*key, *first_key, self._width], write)
        return {Need.TARGETS: rows.reshape(len(rows) // examples.views, -1)}

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        student, wanted = encoded.pooled.float(), batch.column(Need.TARGETS).float()
        wanted = wanted.view(batch.examples, len(student), -1).transpose(0, 1)
        wanted = F.pad(wanted, (0, student.shape[-1] - wanted.shape[-1]))
        cosine = F.cosine_similarity(student, wanted, dim=-1).mean()
        loss = 1 - cosine if self.config.loss == "cosine" else F.mse_loss(student, wanted)
        return Terms({"distillation": loss}, {"teacher_cosine": cosine.detach()})

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        trained = encoder.transform
        try:
            if self.config.space == "folded" and isinstance(trained, Projection):
                encoder.transform = trained.folded()
            super().save(encoder, folder, info)
        finally:
            encoder.transform = trained


def read_rows(name: str, examples: Examples | None = None) -> np.ndarray:
    """The mapped ``(N, E)`` rows of a .npy file; DataError unless they fit ``examples``."""
    problem = ""
    with readable(Path(name), "name a .npy file as the teacher"):
        rows: np.ndarray = np.load(Path(name).expanduser(), mmap_mode="r", allow_pickle=False)
    if rows.ndim != 2 or not rows.size or rows.dtype not in (np.float16, np.float32, np.float64):
        problem = f"holds {rows.dtype} numbers of shape {[*rows.shape]}"
    elif examples is not None and len(rows) != (count := sum(map(len, examples))):
        problem = f"has {len(rows):,} rows, but {examples.source} {count:,} sentences to train on"
    remedy = (
        "give a row of floating point numbers for each sentence, in their order. The task held-out "
        "takes some away: choose another --evaluation.task, or none"
    )
    require_rows(rows[:1] if examples is None else rows, name, problem, remedy)
    return rows


def require_rows(rows: np.ndarray, of: str, problem: str = "", remedy: str = "") -> np.ndarray:
    """The ``(N, E)`` rows of a teacher; DataError if they are not all finite, or all the same."""
    for start in range(0, 0 if problem else len(rows), _BLOCK):
        if not (finite := np.isfinite(rows[start : start + _BLOCK]).all(axis=1)).all():
            problem = f"has numbers that are not finite in row {start + int(finite.argmin())}"
    if not problem and len(rows) > 1 and (rows[:_SAMPLE] == rows[0]).all():
        problem = "has the same embedding for all sentences"
    if problem:
        raise DataError(f"{of} {problem}; {remedy or 'take another teacher'}")
    return rows


def write_components(rows: np.ndarray, sample: np.ndarray, count: int, folder: Path) -> None:
    """Write rows ``(N, E)``, maybe more than memory holds, in ``count`` axes of a sample."""
    axes, shape = principal_axes(sample[:: -(-len(sample) // _SAMPLE)], count), (len(rows), count)
    written = np.lib.format.open_memmap(folder / _ROWS, "w+", np.float32, shape)
    for start in range(0, len(rows), _SAMPLE):
        written[start : start + _SAMPLE] = rows[start : start + _SAMPLE] @ axes.T


def principal_axes(rows: np.ndarray, count: int) -> np.ndarray:
    """``(count, E)`` float32, the directions in which ``(N, E)`` rows vary most."""
    wide = rows.astype(np.float64)
    wide -= wide.mean(axis=0)
    axes = np.linalg.eigh(wide.T @ wide).eigenvectors.T[::-1][:count]
    largest = np.abs(axes).argmax(axis=1, keepdims=True)
    return np.asarray(axes * np.sign(np.take_along_axis(axes, largest, axis=1)), np.float32)


def _cached_rows(kind: str, key: Sequence[Any], write: Callable[[Path], None]) -> np.ndarray:
    read = partial(np.load, mmap_mode="r")
    return cached(kind, _WHAT, [_FORMAT, *key], lambda it: np.asarray(read(it / _ROWS)), write)


def embedded(
    texts: Callable[[], Iterable[str]],
    teachers: Sequence[LoadedEncoder],
    key: Sequence[Any],
    *,
    factors: Sequence[float] = (1.0,),
    normalize: bool | None = None,
    show_progress: bool = False,
) -> np.ndarray:
    """The ``(N, E)`` embeddings by teachers, each times its factor, side by side; in the cache."""
    ends = [0, *accumulate(it.width for it in teachers)]

    def write(folder: Path) -> None:
        shape = sum(1 for _ in texts()), ends[-1]
        rows = np.lib.format.open_memmap(folder / _ROWS, "w+", np.float32, shape)
        with sentence_progress(len(teachers) * len(rows), show_progress) as advance:
            parts = zip(teachers, factors, pairwise(ends), strict=True)
            for teacher, factor, (first, end) in parts:
                start = 0
                for block in _kept_blocks(teacher, texts(), normalize):
                    rows[start : start + len(block), first:end] = factor * block
                    start += len(block)
                    advance(len(block))

    key = [*key, *factors, normalize, *map(_identity, teachers)]
    names = " and ".join(it.name for it in teachers)
    return require_rows(_cached_rows("teacher", key, write), names)


def _identity(teacher: LoadedEncoder) -> list[Any]:
    return [teacher.local_fingerprint(), teacher.resolve_precision("auto")]


def _kept_blocks(
    teacher: LoadedEncoder, texts: Iterable[str], normalize: bool | None
) -> Iterator[np.ndarray]:
    """The embeddings in blocks, kept until the last one is had, should the teacher break off."""
    rest, overflow, entries = iter(texts), "warn", list[Path]()

    def read(entry: Path) -> np.ndarray:
        block: np.ndarray = np.load(entry / _ROWS)
        entries.append(entry)
        return block

    def write(block: list[str], overflow: str, entry: Path) -> None:
        np.save(entry / _ROWS, teacher.encode(block, normalize=normalize, on_overflow=overflow))

    while block := list(islice(rest, getattr(teacher, "at_once", _BLOCK))):
        digest = hashlib.sha256("\n".join(block).encode()).hexdigest()
        key = [*_identity(teacher), normalize, digest]
        yield cached("blocks", _WHAT, key, read, partial(write, block, overflow))
        overflow = "truncate"  # warned of once
    for entry in entries:
        remove_folder(entry)
