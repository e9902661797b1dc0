"""The interface of every encoder, the options of its calls, and its parts.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError, pick
from contrasent.model.backbones.base import Backbone
from contrasent.model.heads import Convolutions, MlpHead
from contrasent.model.transforms.base import Transform

ON_OVERFLOW = ("error", "truncate", "warn")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Embeddings ``pooled (V, B, D)``, and the token states, ``(T, D)`` each, that were asked for.

    ``convolved`` are the last states after the encoder's convolutions, if it has any. In a run of
    several processes, each has the token states of the sentences with the numbers ``own`` alone.
    """

    pooled: Tensor
    states: Mapping[int, Tensor]
    convolved: Tensor | None = None
    own: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderParts:
    """The arguments of `SentenceEncoder` that a folder gives."""

    backbone: Backbone
    tokenizer: Tokenizer
    pooler: str
    head: MlpHead | None
    convolutions: Convolutions | None = None
    transform: Transform | None = None
    normalize: bool
    max_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingOptions:
    """Options of `Encoder.encode_stream`, resolved; ConfigError if one is out of range."""

    chunk: int
    batch_tokens: int | None
    normalize: bool
    precision: str
    show_progress: bool
    on_overflow: str

    def __post_init__(self) -> None:
        pick("on_overflow", self.on_overflow, ON_OVERFLOW)
        for name, number in (("chunk", self.chunk), ("batch_tokens", self.batch_tokens)):
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be above 0, not {number}")


class Encoder(ABC):
    """Sentences in, rows of D numbers out.

    ``name`` is what it was loaded from. Rows have length 1 if ``normalize``, unless a call says
    otherwise; sentences longer than ``max_tokens`` are cut, if that is not 0.
    """

    name: str
    normalize: bool
    max_tokens: int

    @property
    @abstractmethod
    def width(self) -> int:
        """D, dimensions of an embedding."""

    @property
    @abstractmethod
    def pooler(self) -> str:
        """How token states become an embedding."""

    @property
    @abstractmethod
    def head_name(self) -> str:
        """The map after the pooler, ``none`` or ``mlp``."""

    @property
    def engine(self) -> str:
        """What computes the transformer."""
        return "torch"

    @property
    def transform_described(self) -> str | None:
        """The fitted map and the text it was fitted on, in words; None without one."""
        return None

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that is equal for encoders that give equal embeddings."""

    @abstractmethod
    def resolve_precision(self, name: str) -> str:
        """The precision that `encode` uses when asked for ``name``; errors as there."""

    @abstractmethod
    def count_truncated(self, texts: Sequence[str]) -> int:
        """The number of ``texts`` that are longer than ``max_tokens``."""

    @abstractmethod
    def blocks(self, sentences: Iterable[str], options: EncodingOptions) -> Iterator[np.ndarray]:
        """The embeddings of ``sentences``, of at most ``options.chunk`` at a time."""

    def encode_stream(
        self,
        sentences: Iterable[str],
        *,
        chunk: int = 65_536,
        batch_tokens: int | None = None,
        normalize: bool | None = None,
        precision: str = "auto",
        show_progress: bool = False,
        on_overflow: str = "warn",
    ) -> Iterator[np.ndarray]:
        """Embed any number of sentences in bounded memory, ``chunk`` of them at a time.

        Arguments and errors are those of :meth:`encode`. Options are checked at once, sentences as
        they are read. Blocks of at most ``(chunk, D)`` float32 are in the order of ``sentences``.
        """
        if isinstance(sentences, str):
            raise ConfigError("sentences must be a list of strings, not one string: put it in [ ]")
        options = EncodingOptions(
            chunk=chunk,
            batch_tokens=batch_tokens,
            normalize=self.normalize if normalize is None else normalize,
            precision=self.resolve_precision(precision),
            show_progress=show_progress,
            on_overflow=on_overflow,
        )
        return self.blocks(sentences, options)

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
            ConfigError: an option is not one of its choices, or one string was given.
            DataError: an item is not a string, or is too long under `on_overflow="error"`.
        """
        blocks = self.encode_stream(
            sentences,
            batch_tokens=batch_tokens,
            normalize=normalize,
            precision=precision,
            show_progress=show_progress,
            on_overflow=on_overflow,
        )
        total = len(sentences) if isinstance(sentences, Sequence) else None
        return _concat(blocks, total, self.width)


def _concat(blocks: Iterable[np.ndarray], total: int | None, width: int) -> np.ndarray:
    """One matrix of all blocks; with ``total`` rows known, each is freed once it is copied."""
    if total is None:
        return np.concatenate([np.empty((0, width), np.float32), *blocks])
    rows = np.empty((0, width), np.float32)
    done = 0
    for block in blocks:
        if len(block) == total:
            rows = block  # without leaving: a warning may follow the last block
            continue
        if not done:
            rows = np.empty((total, width), np.float32)
        rows[done : done + len(block)] = block
        done += len(block)
    return rows
