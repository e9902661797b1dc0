"""How texts are batched, the thread that computes them, and when it does not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from contrasent.errors import ConfigError, ContrasentError


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

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise ConfigError(f"batch_tokens must be at least 1, not {self.batch_tokens}")
        if not self.max_wait > 0:
            raise ConfigError(f"max_wait must be above 0, not {self.max_wait}")


def computing_thread(threads: int) -> ThreadPoolExecutor:
    """The one thread in which all models of a process compute, with so many of torch's threads.

    OpenMP's threads spin for their next product, which halves the time of a sentence, only where
    no other thread of the process has had some.
    """
    import torch

    if threads < 1:
        raise ConfigError(f"threads must be at least 1, not {threads}")
    return ThreadPoolExecutor(1, "compute", torch.set_num_threads, (threads,))
