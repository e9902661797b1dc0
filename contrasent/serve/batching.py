"""From texts to embeddings: the cache, and the texts of all requests in batches of tokens.

The event loop owns the queue and the cache; one thread tokenizes while another computes.
"""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from cachetools import LRUCache

from contrasent.errors import CheckpointError, ContrasentError, DataError
from contrasent.model import ROLES, LoadedEncoder, SentenceEncoder, by_length, embed

if TYPE_CHECKING:
    from contrasent.serve.application import Metrics
    from contrasent.serve.server import ServeOptions

Text = tuple[str, str | None]  # and its role, where queries and documents have own lengths

_OVERHEAD = 500  # bytes of an entry beside its text and its vector


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedding of a text."""

    row: np.ndarray  # ``(D,)`` float32 as the encoder gives it, neither normalised nor cut
    tokens: int  # what the encoder read, special tokens included
    truncated: bool  # whether the text was longer than that
    size: int  # bytes that it takes of the cache


_AT_ONCE = 256  # texts of one request in the queue at a time, so that a large one leaves room
_TOKENIZED_TOGETHER = 128
_TELLING_TOKENS = 256  # the speed is taken from batches of at least as many
_REMEMBERED = 0.5
_STOPPED = "the threads that embed do not run; restart the server"
_PROBES = [" ".join(["embedding"] * (1 + 4 * (n % 24))) for n in range(72)]


class OverloadedError(ContrasentError):
    """The queue is too long; ``retry_after`` are the seconds after which it may not be."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the model is overloaded; try again later")
        self.retry_after = retry_after


class StoppedError(ContrasentError):
    """A thread that embeds has ended, though nobody closed the batcher."""


@dataclass(slots=True, eq=False)
class _Queued:
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
    more than float rounding does; with ``options.bitwise`` texts are computed one by one.
    """

    def __init__(
        self, encoder: LoadedEncoder, options: "ServeOptions", precision: str, metrics: "Metrics"
    ) -> None:
        import torch

        self.encoder, self.options, self.metrics = encoder, options, metrics
        self.precision = precision  # of the matrix products, resolved
        self.cache = LRUCache[Text, Embedded](options.cache_mb * 1_000_000, lambda it: it.size)
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
        for encoder in {self.encoder.route(role) for role in ROLES}:
            if isinstance(encoder, SentenceEncoder):
                self._open.enter_context(encoder.serving())
            ids = self._ids(encoder, _PROBES)[0]
            for _ in range(2):
                start = time.perf_counter()
                self._rows(encoder, ids, _PROBES)
                self._speed = (float(sum(map(len, ids))), time.perf_counter() - start)

    async def start(self) -> None:
        """Start to embed, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._tokenizer = threading.Thread(target=self._tokenize, daemon=True)
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
        self._open.close()

    @property
    def wait(self) -> float:
        """Seconds that the queue will take, about."""
        return self._backlog * self._speed[1] / self._speed[0]

    @property
    def queued(self) -> int:
        """Texts in the queue or being computed."""
        return len(self._works)

    async def embed(self, texts: Sequence[Text]) -> list[Embedded]:
        """Embed ``texts``, in order; a cancelled call leaves the queue where nobody else waits."""
        if self.wait > self.options.max_wait and any(text not in self.cache for text in texts):
            self.metrics.put(contrasent_rejected=1)
            raise OverloadedError(self.wait)
        entries = list[Embedded]()
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            known = {text: self.cache.get(text) for text in some}
            works = {text: self._join(text) for text, entry in known.items() if entry is None}
            self.metrics.put(contrasent_cache_hits=len(some) - len(works))
            try:
                if works:
                    await asyncio.wait([work.done for work in works.values()])
            finally:
                for work in works.values():
                    work.waiters -= 1
                    if not work.waiters and not work.done.done():
                        self.metrics.put(contrasent_cancelled_texts=1)
                        self._forget(work)
            entries += [known[text] or works[text].done.result() for text in some]
        return entries

    def _join(self, text: Text) -> _Queued:
        if not self.is_healthy:
            raise StoppedError(_STOPPED)
        if work := self._works.get(text):
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

    def _tokenize(self) -> None:
        with self._failing_all():
            works: list[_Queued | None] = []
            while None not in works:
                works = [self._inbox.get()]
                while len(works) < _TOKENIZED_TOGETHER and not self._inbox.empty():
                    works.append(self._inbox.get())
                wanted = [work for work in works if work is not None and work.waiters]
                self._do_each_on_failure(self._set_ids, wanted)
                self._ready += [work for work in wanted if work.ids is not None]
                self._computer.submit(self._compute)

    def _do_each_on_failure(self, step: Callable[[Any], None], works: list[_Queued]) -> None:
        """Do a step for all; if it fails, for each, so that only a text of its own fails."""
        try:
            step(works)
        except Exception as error:  # noqa: BLE001 - whatever it is
            if len(works) == 1:
                self._loop.call_soon_threadsafe(self._fail, works[0], error)
                return
            for work in works:
                self._do_each_on_failure(step, [work])

    def _set_ids(self, works: Sequence[_Queued]) -> None:
        for task in {work.text[1] for work in works}:
            some = [work for work in works if work.text[1] == task]
            ids, cut = self._ids(self.encoder.route(task), [work.text[0] for work in some], task)
            for work, row, truncated in zip(some, ids, cut, strict=True):
                if not len(row):
                    raise DataError(f"text {work.text[0][:80]!r} has no token; leave it out")
                work.ids, work.truncated, work.tokens = row, truncated, len(row)

    def _ids(
        self, encoder: Any, texts: Sequence[str], task: str | None = None
    ) -> tuple[list[np.ndarray], list[bool]]:
        if not isinstance(encoder, SentenceEncoder):
            return [np.zeros(len(it.split()) or 1, np.int32) for it in texts], encoder.cut(texts)
        return encoder.cut_ids(texts, task)

    def _compute(self) -> None:
        with self._failing_all():
            while self._ready:
                works, tokens = list[_Queued](), 0
                while self._ready and tokens < self.options.batch_tokens:
                    works.append(self._ready.popleft())
                    tokens += works[-1].tokens
                self.metrics.put(te_batch_next_size=len(works), te_batch_next_tokens=tokens)
                for encoder in {self.encoder.route(work.text[1]) for work in works}:
                    some = [it for it in works if self.encoder.route(it.text[1]) is encoder]
                    lengths = [work.tokens for work in some]
                    at_once = 1 if self.options.bitwise else None
                    batches = [*by_length(lengths, self.options.batch_tokens, at_once)]
                    for numbers in reversed(batches):  # short ones do not wait for the long
                        if part := [some[n] for n in numbers if some[n].waiters]:
                            self._do_each_on_failure(self._embed_batch, part)

    def _embed_batch(self, works: list[_Queued]) -> None:
        encoder = self.encoder.route(works[0].text[1])
        ids = [work.ids for work in works if work.ids is not None]
        rows = self._rows(encoder, ids, [work.text[0] for work in works])
        self._loop.call_soon_threadsafe(self._deliver, works, rows)

    def _rows(self, encoder: Any, ids: Sequence[np.ndarray], texts: Sequence[str]) -> np.ndarray:
        if isinstance(encoder, SentenceEncoder):
            precision = encoder.resolve_precision(self.precision)
            return embed(encoder, ids, self.options.batch_tokens, precision, lambda _: None)
        how: dict[str, Any] = {"prompt": "", "truncate_dim": encoder.full_width}
        return np.asarray(encoder.encode(texts, normalize=False, on_overflow="truncate", **how))

    def _deliver(self, works: list[_Queued], rows: np.ndarray) -> None:
        began = max(self._delivered, min(work.queued for work in works))
        self._delivered = now = time.perf_counter()
        if sum(work.tokens for work in works) >= _TELLING_TOKENS:
            size, sizes, spent = sum(w.size for w in works), *self._speed
            self._speed = sizes * _REMEMBERED + size, spent * _REMEMBERED + now - began
        finite = np.isfinite(rows).all(axis=1)
        for work, row, is_finite in zip(works, rows, finite, strict=True):
            if not is_finite:
                self._fail(work, CheckpointError("the encoder gives a vector that is not finite"))
                continue
            size = sys.getsizeof(work.text[0]) + row.nbytes + _OVERHEAD
            entry = Embedded(row.copy(), work.tokens, work.truncated, size)
            with suppress(ValueError):  # it is larger than the cache
                self.cache[work.text] = entry
            self._forget(work)
            if not work.done.done():
                work.done.set_result(entry)

    @contextmanager
    def _failing_all(self) -> Iterator[None]:
        """Let nobody wait for a thread that an error ends."""
        try:
            yield
        except BaseException:
            self._loop.call_soon_threadsafe(self._stop)
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
