"""Embeddings for a score: how an encoder is used, and what it scores.

Shapes: M texts, N distinct ones, D embedding width.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from contrasent import model
from contrasent.data.tokenizer import UNBOUNDED
from contrasent.errors import CheckpointError, DataError
from contrasent.evaluation.intervals import Ratio
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import Vector
from contrasent.model.protocol import ROLES, Conventions, role_options, similarity_of
from contrasent.options import Loading, Measuring
from contrasent.records import Interval, Record, installed_versions
from contrasent.settings import shared

Embeddings = NDArray[np.float32]
Places = NDArray[np.int64]

Similarities = tuple[Vector, ...]
"""Of each subset of a task, ``(N,)``: cosines, or scores that a regressor predicts."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the task of a label such as ``stsb-dev`` has no score."""

    task: str
    message: str
    missing: bool = False  # its data is not there
    damaged: bool = False  # the encoder's embeddings have no score


def raise_problems(problems: Iterable[Problem], remedy: Iterable[str] = ()) -> None:
    """Raise a DataError that says all problems, if there are any."""
    if messages := [problem.message for problem in problems]:
        raise DataError("; ".join([*messages, *remedy]))


@dataclass(frozen=True, slots=True)
class Scores:
    """Records of one encoder, and what could not be computed."""

    records: tuple[Record, ...] = ()
    problems: tuple[Problem, ...] = ()
    # what correlations rest on, by the label of the task
    similarities: Mapping[str, Similarities] = field(default_factory=dict)
    # what other scores rest on, by task and metric
    ratios: Mapping[tuple[TaskName, str], Ratio] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what is to be known of the records beside their numbers

    @classmethod
    def together(cls, parts: Sequence["Scores"]) -> "Scores":
        """Several of one encoder, in their order."""
        return cls(
            tuple(chain.from_iterable(part.records for part in parts)),
            tuple(chain.from_iterable(part.problems for part in parts)),
            {label: columns for part in parts for label, columns in part.similarities.items()},
            {column: ratio for part in parts for column, ratio in part.ratios.items()},
            tuple(chain.from_iterable(part.notes for part in parts)),
        )


def score_each(tasks: Iterable[tuple[TaskName, Callable[[], Scores]]]) -> Scores:
    """Score one task after the other; one that cannot be scored is a problem."""
    parts = []
    for name, score in tasks:
        try:
            parts.append(score())
        except (CheckpointError, DataError) as error:
            damaged = isinstance(error, CheckpointError)
            problem = Problem(name.label, f"{name.heading}: {error}", damaged=damaged)
            parts.append(Scores(problems=(problem,)))
    return Scores.together(parts)


@dataclass(frozen=True)
class Score:
    """A number on its way into a record, whose fields these are."""

    metric: str
    value: float
    pairs: int
    aggregation: str = "all"
    subset: str = ""
    interval: Interval | None = None

    def record(
        self,
        name: TaskName,
        sha256: str,
        use: "EncoderUse",
        roles: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Record:
        """The number with all that is known of its task and encoder; ``roles`` are its prompts."""
        known = {**vars(self), **use.record_fields(roles), **more}
        return Record(task=name.name, split=name.split, data_sha256=sha256, **known)


class DescribedEncoder(Protocol):
    """The part of an encoder that a score needs; :class:`contrasent.model.protocol.Encoder` has it.

    Records tell ``head_name``, ``transform_described``, ``max_tokens`` and ``engine`` too.
    """

    @property
    def name(self) -> str:
        """The name or folder it was loaded from."""

    @property
    def pooler(self) -> str:
        """How token states become the embedding."""

    @property
    def encode(self) -> Callable[..., np.ndarray]:
        """Embed N sentences, ``(N, D)``; takes ``precision``, ``show_progress``, ``prompt``."""


@dataclass(frozen=True, slots=True)
class EncoderUse:
    """An encoder, whose mode (training or not) stays as it is, and how it is used."""

    encoder: DescribedEncoder
    precision: str = "fp32"  # ``fp32``, ``bf16``, or what the encoder's engine computes in
    seed: int | None = None  # the seed of the training run that made the encoder, for the records
    show_progress: bool = False  # a progress bar while encoding

    @classmethod
    def of(
        cls,
        encoder: DescribedEncoder | str | Path,
        precision: str = "fp32",
        seed: int | None = None,
        show_progress: bool = False,
        **loading: Any,
    ) -> "EncoderUse":
        """The use of an encoder, or of the one of a name, in a precision as it resolves it."""
        loaded: Any = model.encoder_of(encoder, **loading)
        precision = getattr(loaded, "resolve_precision", str)(precision)
        return cls(loaded, precision, seed, show_progress)

    @classmethod
    def by(
        cls, options: Measuring, encoder: DescribedEncoder | str | Path, *how: Any
    ) -> "EncoderUse":
        """The use of an encoder as the options of a command say; ``how`` follows `precision`."""
        return cls.of(encoder, options.precision_name, *how, **shared(options, Loading))

    @property
    def similarity(self) -> str:
        """The function by which its embeddings are compared, such as ``cosine`` or ``dot``."""
        return similarity_of(self.encoder)

    def embed(
        self, texts: Sequence[str], *, of: str = "", zeros: bool = False, role: str | None = None
    ) -> Embeddings:
        """As :meth:`encode`, of rows that can be used, as :func:`require_usable` says."""
        rows = self.encode(texts, role)
        require_usable(self.encoder.name, texts, rows, of=of, zeros=zeros)
        return rows

    def encode(self, texts: Sequence[str], role: str | None = None) -> Embeddings:
        """One row per text, ``(N, D)``, with the prompt of a ``role``, or the default one."""
        how: dict[str, Any] = {} if role is None else role_options(self.encoder, role)
        rows = self.encoder.encode(
            list(texts), precision=self.precision, show_progress=self.show_progress, **how
        )
        if rows.ndim != 2 or len(rows) != len(texts):
            what = f"a matrix {rows.shape} for {len(texts)} texts"
            raise CheckpointError(f"{self.encoder.name} gave {what}")
        return rows

    def role_prompts(self) -> dict[str, str]:
        """The prompts of queries and documents, where these differ from any text."""
        return {it: how["prompt"] for it in ROLES if (how := role_options(self.encoder, it))}

    def record_fields(self, roles: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The fields of a record that describe the encoder; ``roles`` are its prompts by role."""
        name = getattr(self.encoder, "engine", None)
        limit = getattr(self.encoder, "max_tokens", None) or UNBOUNDED
        conventions: Conventions = getattr(self.encoder, "conventions", Conventions())
        prompt = conventions.resolve()
        return {
            "encoder": self.encoder.name,
            "pooler": self.encoder.pooler,
            "head": getattr(self.encoder, "head_name", None),
            "transform": getattr(self.encoder, "transform_described", None),
            "max_tokens": limit if limit < UNBOUNDED else None,
            "prompts": {**({"default": prompt} if prompt else {}), **(roles or {})} or None,
            "dimensions": conventions.truncate_dim,
            "engine": None if name == "torch" else name,
            "similarity": None if self.similarity == "cosine" else self.similarity,
            "precision": self.precision,
            "seed": self.seed,
            "versions": installed_versions(),
        }


def distinct(texts: Iterable[str]) -> tuple[list[str], Places]:
    """N distinct texts of M, in their order, and the place ``(M,)`` of each among them."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(numbers, dtype=np.int64)


def require_usable(
    name: str, texts: Sequence[str], rows: np.ndarray, *, of: str = "", zeros: bool = False
) -> None:
    """Make sure that each of N texts has an embedding in ``(N, D)`` of which scores exist.

    CheckpointError of encoder ``name``, task ``of``, if one is not finite, or 0 without ``zeros``.
    """
    finite = np.isfinite(rows).all(axis=1)
    directed = np.logical_or(rows.any(axis=1), zeros)
    usable = finite & directed
    if not usable.all():
        flaws = ["of zeros"] * (not directed.all())
        flaws += ["with NaN or infinite numbers"] * (not finite.all())
        raise CheckpointError(
            f"{of and f'{of}: '}{name} gives {int((~usable).sum())} of {len(usable)} texts an "
            f"embedding {' or '.join(flaws)}, so there is no score; the first is "
            f"{texts[int(np.argmin(usable))]!r}"
        )
