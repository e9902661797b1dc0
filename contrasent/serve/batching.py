"""From texts to embeddings: the caches, and the texts of all requests in batches of tokens.

The event loop owns the queue and the cache; one thread tokenizes while another computes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import struct
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.errors import CheckpointError, ContrasentError, DataError, require_extra
from contrasent.model import LONG, LoadedEncoder, SentenceEncoder, by_length, embed

if TYPE_CHECKING:
    from contrasent.serve.application import Metrics
    from contrasent.serve.server import ServeOptions

LOG = logging.getLogger("contrasent.serve")

Text = tuple[str, int]
"""A text to embed, and of how many tokens at most; 0 for what the encoder reads."""

_OVERHEAD = 500  # bytes of an entry beside its text and its vector


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedding of a text."""

    row: np.ndarray  # ``(D,)`` float32 as the encoder gives it, neither normalised nor cut
    tokens: int  # what the encoder read, special tokens included
    truncated: bool  # whether the text was longer than that


class VectorCache:
    """Embeddings by text, byte for byte, of one encoder, in at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
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
        if _size(text, entry) > self.limit:
            return
        if before := self._entries.pop(text, None):
            self.bytes -= _size(text, before)
        self.bytes += _size(text, entry)
        self._entries[text] = entry
        while self.bytes > self.limit:
            self.bytes -= _size(*self._entries.popitem(last=False))


def _size(text: Text, entry: Embedded) -> int:
    return sys.getsizeof(text[0]) + entry.row.nbytes + _OVERHEAD


_FORMAT = 3  # of keys and values
_HEAD = struct.Struct("<I?")
_PATIENCE, _PAUSE = 0.25, 5.0
"""Seconds that an answer may take, and for which nothing is asked after one that failed."""


class SharedCache:
    """What an encoder gives, in a Redis or Valkey server; if that does not answer, nothing."""

    def __init__(self, url: str, encoder: LoadedEncoder, precision: str, bitwise: bool) -> None:
        require_extra("--shared-cache", "redis", "redis")
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        self._client = Redis.from_url(url)
        self._errors = RedisError, OSError, TimeoutError
        how = "bitwise" if bitwise else "any"
        self._name = f"{encoder.fingerprint()}:{encoder.max_tokens}:{precision}:{how}"
        self._size = _HEAD.size + 4 * encoder.full_width
        self._paused_until = 0.0
        self._writes: set[asyncio.Task[None]] = set()

    async def get(self, texts: Sequence[Text]) -> dict[Text, Embedded]:
        """The embeddings of those of ``texts`` that are there."""
        if not texts:
            return {}
        values: list[Any] = await self._ask("mget", [*map(self._key, texts)]) or []
        entries = {}
        for text, value in zip(texts, values, strict=False):
            if value and len(value) == self._size:
                row = np.frombuffer(value, "<f4", offset=_HEAD.size)
                entries[text] = Embedded(row, *_HEAD.unpack_from(value))
        return entries

    def put(self, entries: Mapping[Text, Embedded]) -> None:
        """Send embeddings, without waiting for it."""
        packed = {
            self._key(text): _HEAD.pack(entry.tokens, entry.truncated)
            + entry.row.astype("<f4", copy=False).tobytes()
            for text, entry in entries.items()
        }
        if packed:
            task = asyncio.get_running_loop().create_task(self._ask("mset", packed))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def close(self) -> None:
        """Finish what is being sent, and let go of the server."""
        await asyncio.gather(*self._writes)
        await self._client.aclose()

    async def _ask(self, method: str, given: Any) -> Any:
        """The answer of the server; None if it does not come."""
        if time.monotonic() < self._paused_until:
            return None
        try:
            async with asyncio.timeout(_PATIENCE):
                return await getattr(self._client, method)(given)
        except self._errors as error:
            if time.monotonic() >= self._paused_until:
                fields = {"why": repr(error)}
                LOG.warning("the shared cache does not answer", extra={"fields": fields})
            self._paused_until = time.monotonic() + _PAUSE

    def _key(self, text: Text) -> str:
        content = f"{text[1]} {text[0]}".encode(errors="surrogatepass")
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return f"contrasent:{_FORMAT}:{self._name}:{digest}"


_AT_ONCE = 256
"""Texts of one request that are in the queue at a time, so that a large one leaves room."""
_TOKENIZED_TOGETHER = 128
_TELLING_TOKENS = 256
"""The speed is taken from batches of at least as many tokens."""
_REMEMBERED = 0.5
_STOPPED = "the threads that embed do not run; restart the server"
_LENGTHS = 24
_PROBES = [(" ".join(["embedding"] * (1 + 4 * (n % _LENGTHS))), 0) for n in range(3 * _LENGTHS)]


class OverloadedError(ContrasentError):
    """The queue is too long; ``retry_after`` are the seconds after which it may not be."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the model is overloaded; try again later")
        self.retry_after = retry_after


class StoppedError(ContrasentError):
    """A thread that embeds has ended, though nobody closed the batcher."""


@dataclass(slots=True, eq=False)
class _Queued:
    """A text in the queue, and the requests that wait for it."""

    text: Text
    size: int
    done: asyncio.Future[Embedded]
    waiters: int = 1
    queued: float = field(default_factory=time.perf_counter)
    ids: np.ndarray | None = None
    tokens: int = 0
    truncated: bool = False


class Batcher:
    """Embeds texts for an event loop, many requests at once.

    A text that is in the queue already is not computed twice. A vector depends on the batch no
    more than float rounding does; with ``options.bitwise`` not at all.
    """

    def __init__(
        self,
        encoder: LoadedEncoder,
        options: ServeOptions,
        precision: str,  # of the matrix products, resolved
        metrics: Metrics,
        shared: SharedCache | None = None,
    ) -> None:
        import torch

        self.encoder, self.precision, self.metrics = encoder, precision, metrics
        self.cache, self.shared = VectorCache(options.cache_mb * 1_000_000), shared
        self._options, self._alone = options, False  # one by one, if a batch changes the bits
        self._open = ExitStack()
        self._works: dict[Text, _Queued] = {}
        self._backlog = 0
        self._speed = (1.0, 1e-6)
        self._delivered = 0.0
        self._inbox: SimpleQueue[_Queued | None] = SimpleQueue()
        self._ready: deque[_Queued] = deque()
        # OpenMP's threads spin for their next product, which halves the time of a sentence, only
        # where no other thread of the process has had some.
        threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.workers)
        self._computer = ThreadPoolExecutor(1, "compute", torch.set_num_threads, (threads,))
        self._stopped, self._tokenizer = False, threading.Thread()

    def warm_up(self) -> None:
        """Lay out weights, on one thread as others do not live through a fork; measure speed."""
        encoder = self.encoder
        if isinstance(encoder, SentenceEncoder):
            # Single sentences have a faster path, with other rounding.
            backbone, bitwise = encoder.backbone, self._options.bitwise
            self._open.enter_context(backbone.unchanging() if bitwise else encoder.serving())
        ids = self._ids(_PROBES)[0]
        for _ in range(2):
            start = time.perf_counter()
            self._rows(ids, _PROBES)
            self._speed = (float(sum(map(len, ids))), time.perf_counter() - start)

    def _changes_bits(self) -> bool:
        rows = self._rows(ids := self._ids(_PROBES)[0], _PROBES)
        parts = [*(slice(n, n + 1) for n in range(_LENGTHS)), slice(2, _LENGTHS // 2)]
        return any(
            not np.array_equal(rows[part], self._rows(ids[part], _PROBES[part])) for part in parts
        )

    async def start(self) -> None:
        """Start to embed, on the running event loop."""
        loop = asyncio.get_running_loop()
        if self._options.bitwise:
            self._alone = await asyncio.wrap_future(self._computer.submit(self._changes_bits))
        self._tokenizer = threading.Thread(target=self._tokenize, args=(loop,), daemon=True)
        self._tokenizer.start()

    @property
    def is_healthy(self) -> bool:
        """True if texts are tokenized and computed."""
        return self._tokenizer.is_alive() and not self._stopped

    async def close(self) -> None:
        """Finish what is in the queue, and stop."""
        self._inbox.put(None)
        await asyncio.to_thread(self._tokenizer.join)
        await asyncio.wrap_future(self._computer.submit(self._ready.clear))  # after all others
        if self.shared is not None:
            await self.shared.close()
        self._open.close()

    @property
    def wait(self) -> float:
        """Seconds that the queue will take, about."""
        return self._backlog * self._speed[1] / self._speed[0]

    @property
    def queued(self) -> int:
        """Texts in the queue or being computed."""
        return len(self._works)

    def cached(self, texts: Sequence[Text]) -> list[Embedded] | None:
        """The embeddings of ``texts`` if all are in the cache."""
        entries = [entry for text in texts if (entry := self.cache.get(text))]
        if len(entries) < len(texts):
            return None
        self.metrics.put(contrasent_cache_hits=len(entries))
        return entries

    async def embed(self, texts: Sequence[Text]) -> list[Embedded]:
        """Embed ``texts``, in order; a cancelled call leaves the queue where nobody else waits."""
        if self.wait > self._options.max_wait:
            self.metrics.put(contrasent_rejected=1)
            raise OverloadedError(self.wait)
        entries: list[Embedded] = []
        for start in range(0, len(texts), _AT_ONCE):
            entries += await self._embed_some(texts[start : start + _AT_ONCE])
        return entries

    async def _embed_some(self, texts: Sequence[Text]) -> list[Embedded]:
        distinct, entries = [*dict.fromkeys(texts)], dict[Text, Embedded]()
        if self.shared is not None:
            unknown = [it for it in distinct if not self.cache.get(it) and it not in self._works]
            entries = await self.shared.get(unknown)
            self.metrics.put(contrasent_cache_fetched=len(entries))
            for text, entry in entries.items():
                self.cache.put(text, entry)
        entries |= {text: known for text in distinct if (known := self.cache.get(text))}
        works = {text: self._join(text) for text in distinct if text not in entries}
        self.metrics.put(contrasent_cache_hits=len(texts) - len(works))
        try:
            if works:
                await asyncio.wait([work.done for work in works.values()])
        finally:
            for work in works.values():
                work.waiters -= 1
                if not work.waiters and not work.done.done():
                    self.metrics.put(contrasent_cancelled_texts=1)
                    self._forget(work)
        return [entries[text] if text in entries else works[text].done.result() for text in texts]

    def _join(self, text: Text) -> _Queued:
        if not self.is_healthy:
            raise StoppedError(_STOPPED)
        work = self._works.get(text)
        if work is not None:
            self.metrics.put(contrasent_cache_shared=1)
            work.waiters += 1
            return work
        size = min(2 + len(text[0]) // 4, self.encoder.max_tokens or 512)  # tokens, about
        work = _Queued(text, size, asyncio.get_running_loop().create_future())
        self._works[text] = work
        self._backlog += size
        self.metrics.put(contrasent_cache_misses=1)
        self._inbox.put(work)
        return work

    def _forget(self, work: _Queued) -> None:
        if self._works.get(work.text) is work:
            del self._works[work.text]
            self._backlog -= work.size

    def _tokenize(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tokenize what comes in, all that is there at a time, until the batcher closes."""
        with self._failing_all(loop):
            works: list[_Queued | None] = []
            while None not in works:
                works = [self._inbox.get()]
                while len(works) < _TOKENIZED_TOGETHER and not self._inbox.empty():
                    works.append(self._inbox.get())
                wanted = [work for work in works if work is not None and work.waiters]
                for work, error in self._tokenize_all(wanted):
                    loop.call_soon_threadsafe(self._fail, work, error)
                self._ready += [work for work in wanted if work.ids is not None]
                self._computer.submit(self._compute, loop)

    def _tokenize_all(self, works: Sequence[_Queued]) -> list[tuple[_Queued, Exception]]:
        """Set the token ids of each; those that have none come back with the reason."""
        try:
            ids, cut = self._ids([work.text for work in works])
            for work, row, truncated in zip(works, ids, cut, strict=True):
                if not len(row):
                    raise DataError(f"text {work.text[0][:80]!r} has no token; leave it out")
                work.ids, work.truncated, work.tokens = row, truncated, len(row)
        except Exception as error:  # noqa: BLE001 - whatever it is, only its own text fails
            if len(works) == 1:
                return [(works[0], error)]
            return [failed for work in works for failed in self._tokenize_all([work])]
        return []

    def _ids(self, texts: Sequence[Text]) -> tuple[list[np.ndarray], list[bool]]:
        """The token ids of each, and whether it was cut; of tables of vectors, a number a word."""
        encoder, words = self.encoder, [text for text, _ in texts]
        if not isinstance(encoder, SentenceEncoder):
            return [np.zeros(len(it.split()) or 1, np.int32) for it in words], encoder.cut(words)
        ids, cut = encoder.tokenizer.cut_ids(words, encoder.max_tokens)
        for n, (text, limit) in enumerate(texts):
            if limit:
                [ids[n]], [cut[n]] = encoder.tokenizer.cut_ids([text], limit)
        return ids, cut

    def _compute(self, loop: asyncio.AbstractEventLoop) -> None:
        """Embed the texts that are ready, a budget of tokens at a time."""
        with self._failing_all(loop):
            while self._ready:
                works, tokens = list[_Queued](), 0
                while self._ready and tokens < self._options.batch_tokens:
                    works.append(self._ready.popleft())
                    tokens += works[-1].tokens
                self.metrics.put(te_batch_next_size=len(works), te_batch_next_tokens=tokens)
                # The shortest first: their answers do not wait for the long ones.
                for numbers in reversed(self._batches([work.tokens for work in works])):
                    if part := [works[n] for n in numbers if works[n].waiters]:
                        self._embed_batch(loop, part)

    def _batches(self, lengths: Sequence[int]) -> list[Sequence[int]]:
        """Cut the numbers of texts into batches, the longest first."""
        budget = self._options.batch_tokens
        if not self._options.bitwise:
            return [numbers.tolist() for numbers in by_length(lengths, budget)]
        # A long sentence takes another kernel of attention, and all of its batch with it.
        limit = 0 if self._alone else LONG
        long = [[n] for n, length in enumerate(lengths) if length > limit]
        short = [n for n, length in enumerate(lengths) if length <= limit]
        batches = by_length([lengths[n] for n in short], budget)
        return [*long, *([short[n] for n in batch] for batch in batches)]

    def _embed_batch(self, loop: asyncio.AbstractEventLoop, works: list[_Queued]) -> None:
        try:
            ids = [work.ids for work in works if work.ids is not None]
            rows = self._rows(ids, [work.text for work in works])
        except Exception as error:  # noqa: BLE001 - whatever it is, only its own text fails
            if len(works) == 1:
                loop.call_soon_threadsafe(self._fail, works[0], error)
                return
            for work in works:
                self._embed_batch(loop, [work])
            return
        loop.call_soon_threadsafe(self._deliver, works, rows)

    def _rows(self, ids: Sequence[np.ndarray], texts: Sequence[Text]) -> np.ndarray:
        """``(N, D)``, of the same texts in both forms."""
        encoder = self.encoder
        if isinstance(encoder, SentenceEncoder):
            budget = self._options.batch_tokens
            return embed(encoder, ids, budget, self.precision, lambda _: None)
        how: dict[str, Any] = {"prompt": "", "truncate_dim": encoder.full_width}
        return np.asarray(encoder.encode([text for text, _ in texts], normalize=False, **how))

    def _deliver(self, works: list[_Queued], rows: np.ndarray) -> None:
        """Answer all that wait, on the event loop, and measure the speed, all delays included."""
        began = max(self._delivered, min(work.queued for work in works))
        self._delivered = now = time.perf_counter()
        if sum(work.tokens for work in works) >= _TELLING_TOKENS:
            size, sizes, spent = sum(w.size for w in works), *self._speed
            self._speed = sizes * _REMEMBERED + size, spent * _REMEMBERED + now - began
        finite, entries = np.isfinite(rows).all(axis=1), dict[Text, Embedded]()
        for work, row, usable in zip(works, rows, finite, strict=True):
            if not usable:
                self._fail(work, CheckpointError("the encoder gives a vector that is not finite"))
                continue
            entries[work.text] = entry = Embedded(row.copy(), work.tokens, work.truncated)
            self.cache.put(work.text, entry)
            self._forget(work)
            if not work.done.done():
                work.done.set_result(entry)
        if self.shared is not None:
            self.shared.put(entries)

    @contextmanager
    def _failing_all(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Let nobody wait for a thread that an error ends."""
        try:
            yield
        except BaseException:
            loop.call_soon_threadsafe(self._stop)
            raise

    def _stop(self) -> None:
        self._stopped = True
        for work in [*self._works.values()]:
            self._fail(work, StoppedError(_STOPPED))

    def _fail(self, work: _Queued, error: Exception) -> None:
        self._forget(work)
        if work.waiters and not work.done.done():
            work.done.set_exception(error)
            work.done.exception()  # a request looks at its first only; asyncio logs the others
