"""The loader: batches in an order that the seed decides, any of which can be had at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from contrasent.data.batch import Batch
from contrasent.data.token_store import IndexArray
from contrasent.data.view_sources import Draws, ViewSource
from contrasent.errors import ConfigError, DataError

_AHEAD = 4


class Loader:
    """Batches of examples, as a function of nothing but the settings and the step.

    An epoch of ``steps_per_epoch`` batches holds every example exactly once, in an order that the
    ``seed`` decides, or that of the source without ``shuffle``. ``drop_last`` leaves a last batch
    out that has fewer than ``batch_size`` examples. Otherwise one example that would be left for a
    batch of its own, where it has no negative, joins the batch before. A ``batch_size`` above the
    number of examples makes one batch of all of them, unless ``drop_last``.
    """

    def __init__(
        self,
        source: ViewSource,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        examples = len(source)
        if examples < 2:
            raise DataError(
                f"training needs at least 2 examples, because the others of a batch are an "
                f"example's negatives; the data has {examples}"
            )
        if drop_last and batch_size > examples:
            raise ConfigError(
                f"batch_size {batch_size} is more than the {examples} examples, so drop_last "
                f"leaves no batch at all; take a smaller batch_size, or drop_last false"
            )
        self.views = source.views
        whole, rest = divmod(examples, batch_size)
        self.steps_per_epoch = whole + (rest > 1 and not drop_last)
        self._examples_per_epoch = whole * batch_size if drop_last else examples
        self._source, self._batch_size = source, batch_size
        self._seed, self._shuffle = seed, shuffle
        self._drawn: tuple[int, IndexArray] | None = None

    def batch(self, step: int) -> Batch:
        """The batch of one step, counted from 0 over all epochs; always the same for a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self._batch_size
        end = start + self._batch_size
        if place == self.steps_per_epoch - 1:
            end = self._examples_per_epoch
        examples = self._order(epoch)[start:end]
        token_ids, offsets = map(
            torch.from_numpy, self._source.gather(examples, Draws(self._seed, epoch))
        )
        following = self._source.next_sentences(examples)
        columns = self._source.columns(examples)
        return Batch(
            token_ids,
            offsets,
            self.views,
            next_sentences=following
            and Batch(torch.from_numpy(following[0]), torch.from_numpy(following[1])),
            columns={need: torch.from_numpy(values) for need, values in columns.items()},
        )

    def stream(
        self, first_step: int, last_step: int, *, pinned: bool = False
    ) -> Generator[Batch, None, None]:
        """Batches of the steps ``range(first_step, last_step)``, gathered ahead by a thread.

        With ``pinned``, in page-locked memory, for a CUDA device.
        """

        def load(step: int) -> Batch:
            batch = self.batch(step)
            return batch.pin() if pinned else batch

        return prefetch(range(first_step, last_step), load, ahead=_AHEAD)

    def _order(self, epoch: int) -> IndexArray:
        """Numbers of all examples in the order of an epoch."""
        drawn = self._drawn
        if drawn is None or drawn[0] != epoch:
            count = len(self._source)
            random = np.random.default_rng([self._seed, epoch])
            order = random.permutation(count) if self._shuffle else np.arange(count)
            drawn = self._drawn = epoch, order
        return drawn[1]


Item = TypeVar("Item")
Done = TypeVar("Done")


def prefetch(
    items: Iterable[Item], work: Callable[[Item], Done], ahead: int = 1
) -> Generator[Done, None, None]:
    """``map(work, items)`` by a thread, which is up to ``ahead`` items before the caller.

    Items are taken on the caller's thread. The thread ends with the iterator: when it is
    exhausted, closed, forgotten, or raises. What taking an item or working on it raised comes
    after all that came before it was yielded.
    """
    rest = iter(items)
    waiting: deque[Future[Done]] = deque()

    def submit() -> bool:
        try:
            waiting.append(pool.submit(work, next(rest)))
        except StopIteration:
            return False
        except Exception as error:  # noqa: BLE001 - raised by the future's result()
            waiting.append(Future())
            waiting[-1].set_exception(error)
            return False
        return True

    with ThreadPoolExecutor(1, "contrasent-prefetch") as pool:
        try:
            more = True
            while more or waiting:
                while more and len(waiting) <= ahead:
                    more = submit()
                if waiting:
                    yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
