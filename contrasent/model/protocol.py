"""The interface of every encoder, and its parts.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import pick
from contrasent.model.backbones.base import Backbone
from contrasent.model.heads import Convolutions, MlpHead
from contrasent.model.transforms.base import Transform


@dataclass(frozen=True, slots=True)
class Encoded:
    """What one forward call gives an objective.

    Attributes:
        pooled: ``(V, B, D)`` embeddings, view by view.
        states: the token states that were asked for, each ``(T, D)``, by their layer number.
        convolved: the last ones behind the encoder's convolutions, if it has any.
    """

    pooled: Tensor
    states: Mapping[int, Tensor]
    convolved: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderParts:
    """What is saved of an encoder; the attributes of `SentenceEncoder` explain them."""

    backbone: Backbone
    tokenizer: Tokenizer
    pooler: str
    head: MlpHead | None
    convolutions: Convolutions | None = None
    transform: Transform | None = None
    normalize: bool
    max_tokens: int | None


class Encoder(ABC):
    """Sentences in, rows of D numbers out."""

    @property
    @abstractmethod
    def width(self) -> int:
        """D, numbers in an embedding."""

    @abstractmethod
    def encode_stream(
        self,
        sentences: Iterable[str],
        *,
        chunk: int = ...,
        batch_tokens: int | None = None,
        normalize: bool | None = None,
        precision: str = "auto",
        show_progress: bool = False,
        on_overflow: str = "warn",
    ) -> Iterator[np.ndarray]:
        """Embed any number of sentences in bounded memory, ``chunk`` of them at a time.

        Other arguments and errors as in :meth:`encode`.

        Returns:
            An iterator of ``(chunk, D)`` float32, rows in the order of ``sentences``; the last may
            be shorter. Settings are checked at once, sentences as they are read.
        """

    def encode(
        self,
        sentences: Iterable[str],
        *,
        batch_tokens: int | None = None,
        normalize: bool | None = None,
        precision: str = "auto",
        show_progress: bool = False,
        on_overflow: str = "warn",
    ) -> np.ndarray:
        """Embed sentences, in their order.

        Args:
            sentences: N sentences; any iterable.
            batch_tokens: tokens computed at once, padding counted; by default 4,096 on a CPU and
                65,536 on an accelerator. Memory grows with it; the vectors do not depend on it
                beyond float tolerance.
            normalize: scale each embedding to length 1; by default what the encoder was saved
                with.
            precision: `fp32`, `bf16`, or `auto`: bf16 where the hardware multiplies it natively
                and no fitted map follows, which would amplify its rounding errors; with an engine
                other than `torch`, what that engine computes in.
            show_progress: a progress bar on standard error.
            on_overflow: what to do about sentences longer than `max_tokens`: cut them and `warn`
                once with their number, stop with an `error`, or `truncate` silently.

        Returns:
            ``(N, D)`` float32.

        Raises:
            ConfigError: a setting is not one of its choices, or one string was given.
            DataError: an item is not a string, or is too long under `on_overflow="error"`.
        """
        parts = self.encode_stream(
            sentences,
            batch_tokens=batch_tokens,
            normalize=normalize,
            precision=precision,
            show_progress=show_progress,
            on_overflow=on_overflow,
        )
        total = len(sentences) if isinstance(sentences, Sequence) else None
        return _joined(parts, total, self.width)


def _joined(parts: Iterable[np.ndarray], total: int | None, width: int) -> np.ndarray:
    """One matrix of all parts; with their ``total`` rows known, each is let go once it is in."""
    if total is None:
        return np.concatenate([np.empty((0, width), np.float32), *parts])
    rows = np.empty((0, width), np.float32)
    done = 0
    for part in parts:
        if len(part) == total:
            rows = part  # without leaving: a warning may follow the last part
            continue
        if not done:
            rows = np.empty((total, width), np.float32)
        rows[done : done + len(part)] = part
        done += len(part)
    return rows


class CountingTokenizer(Protocol):
    """A tokenizer that says how many texts it had to cut."""

    def ids(self, texts: Sequence[str], max_tokens: int | None) -> tuple[list[Any], int]:
        """Token ids of each text, and how many texts were longer than ``max_tokens``."""
        ...


class TextEncoder(Protocol):
    """Sentences in, rows of D numbers out.

    Attributes:
        name: what the encoder was loaded from.
        max_tokens: longer sentences are cut.
    """

    name: str
    max_tokens: int

    @property
    def width(self) -> int:
        """D, numbers in an embedding."""
        ...

    @property
    def pooler(self) -> str:
        """How token states become an embedding."""
        ...

    @property
    def head_name(self) -> str:
        """The map after the pooler, ``none`` or ``mlp``."""
        ...

    @property
    def engine(self) -> str:
        """What computes the transformer."""
        ...

    @property
    def tokenizer(self) -> CountingTokenizer:
        """What cuts long sentences."""
        ...

    def fingerprint(self) -> str:
        """Equal for encoders that give equal embeddings."""
        ...

    def encode_stream(
        self,
        sentences: Iterable[str],
        *,
        chunk: int = ...,
        batch_tokens: int | None = ...,
        normalize: bool | None = ...,
        precision: str = ...,
        show_progress: bool = ...,
        on_overflow: str = ...,
    ) -> Iterator[np.ndarray]:
        """Blocks of at most ``chunk`` rows, ``(chunk, D)`` float32, in the order of the input."""
        ...


def require_precision(name: str) -> None:
    """Make sure that ``name`` is a precision an encoder takes, without importing one.

    Raises:
        ConfigError: it is not.
    """
    pick("precision", name, ("auto", "bf16", "fp32"))
