"""What search needs of an encoder; :class:`contrasent.model.encoder.SentenceEncoder` has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from contrasent.errors import pick


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
