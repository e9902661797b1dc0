"""The caches of embeddings: one in memory, whose bytes are bounded, and one that servers share."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contrasent.errors import ConfigError, MissingExtraError, install_command
from contrasent.model.loading import LoadedEncoder
from contrasent.serve.telemetry import LOG

Text = str | tuple[int, ...]
"""What is embedded: a text, or the token ids of one."""

_OVERHEAD = 400
"""Bytes of an entry beside its text and its vector, measured with CPython 3.11."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedding of a text."""

    row: np.ndarray  # ``(D,)`` float32 as the encoder gives it, neither normalised nor cut
    tokens: int  # what the encoder read, special tokens included
    truncated: bool  # whether the text was longer than that


class VectorCache:
    """Embeddings by text, of one encoder and one precision, in at most ``limit`` bytes.

    It is used by one thread. Equal bytes of text mean an equal key: nothing is stripped or
    lowered. A limit of 0 keeps nothing. ``shared`` is asked for what is not there.
    """

    def __init__(self, limit: int, shared: SharedCache | None = None) -> None:
        self.limit = limit
        self._shared = shared
        self.bytes = 0
        self._entries: OrderedDict[Text, Embedded] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, text: Text) -> Embedded | None:
        """The embedding of ``text``, which thereby becomes the most recently used."""
        entry = self._entries.get(text)
        if entry is not None:
            self._entries.move_to_end(text)
        return entry

    def put(self, text: Text, entry: Embedded) -> None:
        """Keep an embedding; what was not used for longest makes room. It must own its row."""
        size = _size(text, entry)
        if size > self.limit:
            return
        before = self._entries.pop(text, None)
        self.bytes += size - (0 if before is None else _size(text, before))
        self._entries[text] = entry
        while self.bytes > self.limit:
            self.bytes -= _size(*self._entries.popitem(last=False))

    async def fetch(self, texts: Sequence[Text], others: Container[Text]) -> dict[Text, Embedded]:
        """What the shared cache has of texts that are not in this one, nor among ``others``."""
        if self._shared is None:
            return {}
        unknown = [t for t in dict.fromkeys(texts) if t not in self._entries and t not in others]
        fetched = await self._shared.get(unknown)
        for text, entry in fetched.items():
            self.put(text, entry)
        return fetched

    def share(self, entries: Mapping[Text, Embedded]) -> None:
        """Put embeddings into the shared cache, if there is one."""
        if self._shared is not None:
            self._shared.put(entries)

    async def close(self) -> None:
        """Let go of the shared cache."""
        if self._shared is not None:
            await self._shared.close()


def _size(text: Text, entry: Embedded) -> int:
    numbers = 0 if isinstance(text, str) else 32 * len(text)
    return sys.getsizeof(text) + numbers + entry.row.nbytes + _OVERHEAD


_FORMAT = 2
"""Of keys and values; 1 held vectors of static tables with the default prompt twice."""
_HEAD = struct.Struct("<I?")
_PATIENCE, _PAUSE = 0.25, 5.0
"""Seconds that an answer may take, and for which nothing is asked after one that failed."""


class SharedCache:
    """Embeddings in a Redis or Valkey server, for all processes and machines that use it.

    A server that does not answer is no error: texts are computed then. It bounds its memory by its
    own settings. Only one event loop may use it.

    Raises:
        ConfigError: ``url`` is none of a Redis server.
        MissingExtraError: the client is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            from redis.asyncio import Redis
            from redis.exceptions import RedisError
        except ImportError as error:
            raise MissingExtraError(
                f"--shared-cache needs a client: {install_command('redis')}"
            ) from error
        try:
            self._client = Redis.from_url(url)
        except ValueError as error:
            raise ConfigError(f"--shared-cache: {error}") from error
        self._errors = RedisError, OSError, TimeoutError
        self._name, self._size = "", 0
        self._paused_until = 0.0
        self._writes: set[asyncio.Task[None]] = set()

    def hold(self, encoder: LoadedEncoder, precision: str, bitwise: bool) -> None:
        """Keep what ``encoder`` gives, under all that decides it beside the text."""
        how = "bitwise" if bitwise else "any"
        self._name = f"{encoder.fingerprint()}:{encoder.max_tokens}:{precision}:{how}"
        self._size = _HEAD.size + 4 * encoder.full_width

    async def get(self, texts: Sequence[Text]) -> dict[Text, Embedded]:
        """The embeddings of those of ``texts`` that are there."""
        if not texts or time.monotonic() < self._paused_until:
            return {}
        try:
            async with asyncio.timeout(_PATIENCE):
                values: list[Any] = await self._client.mget([*map(self._key, texts)])
        except self._errors as error:
            self._pause(error)
            return {}
        pairs = zip(texts, values, strict=True)
        return {t: _unpacked(value) for t, value in pairs if value and len(value) == self._size}

    def put(self, entries: Mapping[Text, Embedded]) -> None:
        """Send embeddings, without waiting for it."""
        if entries and time.monotonic() >= self._paused_until:
            task = asyncio.get_running_loop().create_task(self._send(entries))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def close(self) -> None:
        """Finish what is being sent, and let go of the server."""
        await asyncio.gather(*self._writes)
        await self._client.aclose()

    async def _send(self, entries: Mapping[Text, Embedded]) -> None:
        packed = {self._key(text): _packed(entry) for text, entry in entries.items()}
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._client.mset(packed)
        except self._errors as error:
            self._pause(error)

    def _key(self, text: Text) -> str:
        content, kind = str(text).encode(errors="surrogatepass"), type(text).__name__.encode()
        digest = hashlib.blake2b(content, digest_size=16, person=kind).hexdigest()
        return f"contrasent:{_FORMAT}:{self._name}:{digest}"

    def _pause(self, error: Exception) -> None:
        if time.monotonic() >= self._paused_until:
            LOG.warning("the shared cache does not answer", extra={"fields": {"why": repr(error)}})
        self._paused_until = time.monotonic() + _PAUSE


def _packed(entry: Embedded) -> bytes:
    row = entry.row.astype("<f4", copy=False)
    return _HEAD.pack(entry.tokens, entry.truncated) + row.tobytes()


def _unpacked(value: bytes) -> Embedded:
    tokens, truncated = _HEAD.unpack_from(value)
    return Embedded(np.frombuffer(value, "<f4", offset=_HEAD.size), tokens, truncated)
