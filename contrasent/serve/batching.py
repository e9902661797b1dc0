"""Batching: the texts of all requests, embedded together by a budget of tokens.

The event loop owns the queue and the cache; one thread tokenizes while another computes, which all
models of a process share. D is the embedding width.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np

from contrasent.errors import CheckpointError, ContrasentError, DataError
from contrasent.model.backbones.attention import LONG
from contrasent.model.encoder import SentenceEncoder, by_length, embed
from contrasent.model.loading import LoadedEncoder
from contrasent.serve.telemetry import Metrics
from contrasent.serve.vector_cache import Embedded, Text, VectorCache

_AT_ONCE = 256
"""Texts of one request that are in the queue at a time, so that a large one leaves room."""
_TOKENIZED_TOGETHER = 128
_TELLING_TOKENS = 256
"""The speed is taken from batches of at least as many tokens."""
_REMEMBERED = 0.5
_LENGTHS = 24
_PROBES = [" ".join(["embedding"] * (1 + 4 * (n % _LENGTHS))) for n in range(3 * _LENGTHS)]


class OverloadedError(ContrasentError):
    """The queue is too long; ``retry_after`` are the seconds after which it may not be."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the model is overloaded; try again later")
        self.retry_after = retry_after


class StoppedError(ContrasentError):
    """A thread that embeds has ended, though nobody closed the batcher."""

    def __init__(self) -> None:
        super().__init__("the threads that embed do not run; restart the server")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How texts are batched."""

    precision: str  # of the matrix products, resolved
    batch_tokens: int  # padded tokens computed at once
    max_wait: float  # seconds of work in the queue from which new requests are refused
    bitwise: bool  # whether each vector is bitwise the same whatever is in its batch


def computing_thread(threads: int) -> ThreadPoolExecutor:
    """The one thread in which all models of a process compute, with so many of torch's threads.

    OpenMP's threads spin for their next product, which halves the time of a sentence, only where
    no other thread of the process has had some.
    """
    import torch

    return ThreadPoolExecutor(1, "compute", torch.set_num_threads, (threads,))


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
    more than float rounding does; with ``settings.bitwise`` not at all.
    """

    def __init__(
        self,
        encoder: LoadedEncoder,
        settings: BatchSettings,
        cache: VectorCache,
        metrics: Metrics,
        computer: ThreadPoolExecutor,
    ) -> None:
        self.encoder = encoder
        self.settings = settings
        self.cache = cache
        self.metrics = metrics
        self._alone = False  # texts are computed one by one, since here a batch changes the bits
        self._open = ExitStack()
        self._works: dict[Text, _Queued] = {}
        self._backlog = 0
        self._speed = (1.0, 1e-6)
        self._delivered = 0.0
        self._inbox: SimpleQueue[_Queued | None] = SimpleQueue()
        self._ready: deque[_Queued] = deque()
        self._computer = computer
        self._stopped = False
        self._tokenizer = threading.Thread()

    def warm_up(self) -> None:
        """Lay the weights out and measure the speed.

        With one torch thread: others would not live through a fork, after which processes share
        what is laid out, and belong to the thread that computes.
        """
        encoder = self.encoder
        if isinstance(encoder, SentenceEncoder):
            # Single sentences have a faster path, with other rounding.
            backbone, bitwise = encoder.backbone, self.settings.bitwise
            self._open.enter_context(backbone.unchanging() if bitwise else encoder.serving())
        ids = self._ids(_PROBES)[0]
        for _ in range(2):
            start = time.perf_counter()
            self._rows(ids, _PROBES)
            self._speed = (float(sum(map(len, ids))), time.perf_counter() - start)

    def _settle(self) -> None:
        """With ``bitwise``, see if a batch changes bits."""
        if not self.settings.bitwise:
            return
        rows = self._rows(ids := self._ids(_PROBES)[0], _PROBES)
        parts = [*(slice(n, n + 1) for n in range(_LENGTHS)), slice(2, _LENGTHS // 2)]
        self._alone = any(
            not np.array_equal(rows[part], self._rows(ids[part], _PROBES[part])) for part in parts
        )

    async def start(self) -> None:
        """Start to embed, on the running event loop."""
        loop = asyncio.get_running_loop()
        await asyncio.wrap_future(self._computer.submit(self._settle))
        self._tokenizer = threading.Thread(target=self._tokenize, args=(loop,), daemon=True)
        self._tokenizer.start()

    @property
    def is_healthy(self) -> bool:
        """Whether texts are tokenized and computed."""
        return self._tokenizer.is_alive() and not self._stopped

    async def close(self) -> None:
        """Finish what is in the queue, and stop."""
        self._inbox.put(None)
        await asyncio.to_thread(self._tokenizer.join)
        await asyncio.wrap_future(self._computer.submit(self._ready.clear))  # after all others
        await self.cache.close()
        self._open.close()

    @property
    def wait(self) -> float:
        """Seconds that the queue will take, about."""
        sizes, seconds = self._speed
        return self._backlog * seconds / sizes

    @property
    def queued(self) -> int:
        """Texts in the queue or being computed."""
        return len(self._works)

    def require_room(self) -> None:
        """Raise OverloadedError if a request that came now would wait too long."""
        if self.wait > self.settings.max_wait:
            self.metrics.count("rejected")
            raise OverloadedError(self.wait)

    def cached(self, texts: Sequence[Text]) -> list[Embedded] | None:
        """The embeddings of ``texts`` if all are in the cache."""
        entries = [entry for text in texts if (entry := self.cache.get(text)) is not None]
        if len(entries) < len(texts):
            return None
        self.metrics.count("cache_hits", len(entries))
        return entries

    async def embed(self, texts: Sequence[Text]) -> list[Embedded]:
        """Embed ``texts``, in their order.

        Cancelling the call takes texts that nobody else waits for out of the queue. DataError if a
        text cannot be embedded, which the others do not notice; StoppedError if none can.
        """
        entries: list[Embedded] = []
        for start in range(0, len(texts), _AT_ONCE):
            entries += await self._embed_some(texts[start : start + _AT_ONCE])
        return entries

    async def _embed_some(self, texts: Sequence[Text]) -> list[Embedded]:
        entries = await self.cache.fetch(texts, self._works)
        self.metrics.count("cache_fetched", len(entries))
        if not self.is_healthy:
            raise StoppedError
        works: dict[Text, _Queued] = {}
        for text in texts:
            if text in entries or text in works:
                continue
            entry = self.cache.get(text)
            if entry is not None:
                entries[text] = entry
            else:
                works[text] = self._join(text)
        self.metrics.count("cache_hits", len(texts) - len(works))
        try:
            if works:
                await asyncio.wait([work.done for work in works.values()])
        finally:
            for work in works.values():
                work.waiters -= 1
                if not work.waiters and not work.done.done():
                    self.metrics.count("cancelled_texts")
                    self._forget(work)
        return [entries[text] if text in entries else works[text].done.result() for text in texts]

    def _join(self, text: Text) -> _Queued:
        work = self._works.get(text)
        if work is not None:
            self.metrics.count("cache_shared")
            work.waiters += 1
            return work
        loop = asyncio.get_running_loop()
        size = 2 + len(text) // 4 if isinstance(text, str) else len(text)  # tokens, about
        size = min(size, self.encoder.max_tokens or size)
        work = self._works[text] = _Queued(text, size, loop.create_future())
        self._backlog += work.size
        self.metrics.count("cache_misses")
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
                start = time.perf_counter()
                failed = self._tokenize_all(wanted)
                if wanted:
                    seconds = time.perf_counter() - start
                    self.metrics.observe(te_request_tokenization_duration=seconds)
                for work, error in failed:
                    loop.call_soon_threadsafe(self._fail, work, error)
                ready = [work for work in wanted if work.ids is not None]
                self._ready += ready
                # Each call takes the budget, or all left; those of other models come between.
                tokens = sum(work.tokens for work in ready)
                for _ in range(0, tokens + 1, self.settings.batch_tokens):
                    self._computer.submit(self._compute, loop)

    def _tokenize_all(self, works: Sequence[_Queued]) -> list[tuple[_Queued, Exception]]:
        """Set the token ids of each; those that have none come back with the reason."""
        try:
            ids, cut = self._ids([work.text for work in works])
            for work, row, truncated in zip(works, ids, cut, strict=True):
                if not len(row):
                    raise DataError(f"text {work.text[:80]!r} has no token; leave it out")
                work.ids, work.truncated, work.tokens = row, truncated, len(row)
        except Exception as error:  # noqa: BLE001 - whatever it is, only its own text fails
            if len(works) == 1:
                return [(works[0], error)]
            return [failed for work in works for failed in self._tokenize_all([work])]
        return []

    def _ids(self, texts: Sequence[Text]) -> tuple[list[np.ndarray], list[bool]]:
        """The token ids of each, and whether it was cut; of tables of vectors, a number a word."""
        encoder = self.encoder
        if isinstance(encoder, SentenceEncoder):
            return cut_ids(encoder, texts, encoder.max_tokens)
        words = [text for text in texts if isinstance(text, str)]
        if len(words) < len(texts):
            raise DataError(
                f"{encoder.name} holds word vectors, which take no token ids; send text"
            )
        return [np.zeros(len(text.split()) or 1, np.int32) for text in words], encoder.cut(words)

    def _compute(self, loop: asyncio.AbstractEventLoop) -> None:
        """Embed the texts that waited longest, up to the budget of tokens."""
        works, tokens = list[_Queued](), 0
        while self._ready and (not works or tokens < self.settings.batch_tokens):
            works.append(self._ready.popleft())
            tokens += works[-1].tokens
        if not works:
            return
        with self._failing_all(loop):
            self.metrics.observe(te_batch_next_size=len(works), te_batch_next_tokens=tokens)
            # The shortest first: their answers do not wait for the long ones.
            for numbers in reversed(self._batches([work.tokens for work in works])):
                if part := [works[n] for n in numbers if works[n].waiters]:
                    self._embed_batch(loop, part)

    def _batches(self, lengths: Sequence[int]) -> list[Sequence[int]]:
        """Cut the numbers of texts into batches, the longest first."""
        if not self.settings.bitwise:
            return [numbers.tolist() for numbers in by_length(lengths, self.settings.batch_tokens)]
        # A long sentence takes another kernel of attention, and all of its batch with it.
        limit = 0 if self._alone else LONG
        long = [[n] for n, length in enumerate(lengths) if length > limit]
        short = [n for n, length in enumerate(lengths) if length <= limit]
        batches = by_length([lengths[n] for n in short], self.settings.batch_tokens)
        return [*long, *([short[n] for n in batch] for batch in batches)]

    def _embed_batch(self, loop: asyncio.AbstractEventLoop, works: list[_Queued]) -> None:
        start = time.perf_counter()
        try:
            ids = [work.ids for work in works if work.ids is not None]
            rows = self._rows(ids, [str(work.text) for work in works])
        except Exception as error:  # noqa: BLE001 - whatever it is, only its own text fails
            if len(works) == 1:
                loop.call_soon_threadsafe(self._fail, works[0], error)
                return
            for work in works:
                self._embed_batch(loop, [work])
            return
        loop.call_soon_threadsafe(self._deliver, works, rows, start, time.perf_counter() - start)

    def _rows(self, ids: Sequence[np.ndarray], texts: Sequence[str]) -> np.ndarray:
        """``(N, D)``, of the same texts in both forms."""
        encoder, precision = self.encoder, self.settings.precision
        if isinstance(encoder, SentenceEncoder):
            return embed(encoder, ids, self.settings.batch_tokens, precision, lambda _: None)
        how: dict[str, Any] = {"prompt": "", "truncate_dim": encoder.full_width}
        rows: np.ndarray = encoder.encode(texts, normalize=False, **how)
        return rows

    def _deliver(
        self, works: list[_Queued], rows: np.ndarray, start: float, seconds: float
    ) -> None:
        """Answer all that wait, on the event loop."""
        self._take_speed(works)
        finite, entries = np.isfinite(rows).all(axis=1), dict[Text, Embedded]()
        for work, row, usable in zip(works, rows, finite, strict=True):
            self.metrics.observe(
                te_request_queue_duration=start - work.queued,
                te_request_inference_duration=seconds,
                te_request_input_length=work.tokens,
            )
            if not usable:
                self._fail(work, CheckpointError("the encoder gives a vector that is not finite"))
                continue
            entry = Embedded(row.copy(), work.tokens, work.truncated)
            entries[work.text] = entry
            self.cache.put(work.text, entry)
            self._forget(work)
            if not work.done.done():
                work.done.set_result(entry)
        self.cache.share(entries)

    def _take_speed(self, works: Sequence[_Queued]) -> None:
        """Take the speed from what was delivered since the last time, all delays included."""
        began = max(self._delivered, min(work.queued for work in works))
        self._delivered = now = time.perf_counter()
        if sum(work.tokens for work in works) >= _TELLING_TOKENS:
            size, sizes, spent = sum(w.size for w in works), *self._speed
            self._speed = sizes * _REMEMBERED + size, spent * _REMEMBERED + now - began

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
            self._fail(work, StoppedError())

    def _fail(self, work: _Queued, error: Exception) -> None:
        self._forget(work)
        if work.waiters and not work.done.done():
            work.done.set_exception(error)
            work.done.exception()  # a request looks at its first only; asyncio logs the others


def is_framed(encoder: LoadedEncoder, ids: tuple[int, ...]) -> bool:
    """Whether ids stand between the special tokens that the tokenizer puts around a text."""
    if not isinstance(encoder, SentenceEncoder):
        return False
    template = encoder.tokenizer.template
    before, after = ids[: len(template.before)], ids[len(ids) - len(template.after) :]
    is_long = 0 < len(template) <= len(ids)
    return is_long and (before, after) == (template.before, template.after)


def cut_ids(
    encoder: SentenceEncoder, texts: Sequence[Text], limit: int
) -> tuple[list[np.ndarray], list[bool]]:
    """Token ids of texts, or of the ids of one, at most ``limit`` of each; and whether it was cut.

    DataError for ids that are not in the vocabulary.
    """
    ids, cut = encoder.tokenizer.cut_ids([text for text in texts if isinstance(text, str)], limit)
    read = zip(ids, cut, strict=True)
    pairs = [next(read) if isinstance(t, str) else _frame(encoder, t, limit) for t in texts]
    return [row for row, _ in pairs], [was_cut for _, was_cut in pairs]


def _frame(
    encoder: SentenceEncoder, ids: tuple[int, ...], limit: int | None
) -> tuple[np.ndarray, bool]:
    """Ids that a client sent, inside the tokenizer's template if not yet; and whether too long."""
    before, after = encoder.tokenizer.template.before, encoder.tokenizer.template.after
    if max(ids, default=0) >= encoder.tokenizer.vocabulary:
        raise DataError(
            f"token id {max(ids)} is not in the vocabulary, which ends at "
            f"{encoder.tokenizer.vocabulary - 1}; send the ids of this model, or the text"
        )
    inner = ids[len(before) : len(ids) - len(after)] if is_framed(encoder, ids) else ids
    room = len(inner) if limit is None else limit - len(before) - len(after)
    kept = inner[-room:] if encoder.tokenizer.truncation_side == "left" else inner[:room]
    return np.array([*before, *kept, *after], np.int32), len(inner) > room
