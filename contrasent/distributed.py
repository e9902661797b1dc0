"""Processes of a training run: how a step is split among them, and collectives with gradient.

Every process holds the whole batch of a step, makes the same draws for it, and ends with the same
loss. What is expensive, a transformer or the rows of a matrix of all pairs, each computes for its
share alone; the shares are put together by torch's differentiable collectives. Each process takes
the gradient of a W-th of the loss, and the gradient of a weight is the sum over all W: that of one
process with the whole batch. (SimCSE's code gathers without gradient, and its embeddings get the
W-th part; DistributedDataParallel's mean would do the same here.)
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, groupby
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from contrasent.errors import ConfigError, ContrasentError

_LONG = timedelta(days=7)
_BUCKET = 1 << 25  # numbers of a gradient that are summed at once: 128 MiB


@dataclass(frozen=True, slots=True)
class Split:
    """How a step is split: among ``processes``, of which this is ``rank``, and into chunks.

    ``chunk`` sentences go through a transformer at once, for gradient caching; None for all.
    """

    rank: int = 0
    processes: int = 1
    chunk: int | None = None

    @property
    def leads(self) -> bool:
        """True if this process writes."""
        return self.rank == 0


WHOLE = Split()
_current: ContextVar[Split] = ContextVar("split", default=WHOLE)
_seeds: ContextVar[Random] = ContextVar("seeds")


def split() -> Split:
    """How the step that is being computed is split; not at all outside of :func:`splitting`."""
    return _current.get()


@contextmanager
def splitting(how: Split, seed: int = 0, step: int = 0) -> Iterator[None]:
    """Split what is computed inside, in step ``step`` of a run with ``seed``."""
    token, other = _current.set(how), _seeds.set(Random(f"{seed} {step} {how.rank}"))
    try:
        yield
    finally:
        _current.reset(token)
        _seeds.reset(other)


def own_rows(matrix: Tensor) -> Tensor:
    """The rows of a matrix that this process computes: every W-th."""
    how = split()
    return matrix if how.processes == 1 else matrix[how.rank :: how.processes]


def total(sums: Tensor) -> Tensor:
    """The sum over all processes, with gradient."""
    return sums if split().processes == 1 else _gathered(sums.unsqueeze(0)).sum(0)


def reunited(rows: Tensor, numbers: Sequence[Tensor]) -> Tensor:
    """The rows of all processes in the order of their numbers, with gradient.

    ``numbers`` says of each process which rows of the whole its own ``(n, ...)`` are.
    """
    sizes = [len(own) for own in numbers]
    most = max(sizes)
    gathered = _gathered(F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, most - len(rows)]))
    places = [torch.arange(size) + rank * most for rank, size in enumerate(sizes)]
    order = torch.cat([own.cpu() for own in numbers]).argsort()
    return gathered.index_select(0, torch.cat(places)[order].to(rows.device))


def _gathered(rows: Tensor) -> Tensor:
    """``(W * n, ...)``, the rows of all processes, of which each has n; the gradient is summed."""
    from torch.distributed import _functional_collectives as collectives

    gather: Callable[..., Tensor] | None = getattr(collectives, "all_gather_single_autograd", None)
    gather = gather or collectives.all_gather_tensor_autograd  # its name before torch 2.13
    everybody: Any = distributed.group.WORLD
    return gather(rows.contiguous(), 0, everybody)


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Draw numbers of this process inside; afterwards torch's generator goes on as if it had not.

    So all processes draw the same numbers for the whole batch, and one process would too.
    """
    if split().processes == 1:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(_seeds.get().getrandbits(62))
        yield


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Add up the gradients of all processes; all have gradients of the same parameters."""
    gradients = [it.grad for it in parameters if it.grad is not None]
    ends = accumulate(gradient.numel() for gradient in gradients)
    numbered = zip((end // _BUCKET for end in ends), gradients, strict=True)
    for _, bucket in groupby(numbered, key=lambda it: it[0]):
        together = [gradient for _, gradient in bucket]
        flat = nn.utils.parameters_to_vector(together)
        distributed.all_reduce(flat)
        nn.utils.vector_to_parameters(flat, together)


def launched() -> Split:
    """The rank of this process and their number, as a launcher puts them into the environment."""
    return Split(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def timeout() -> timedelta:
    """How long the others are waited for: ``$CONTRASENT_TIMEOUT`` seconds, else ten minutes."""
    return timedelta(seconds=float(os.environ.get("CONTRASENT_TIMEOUT", "600")))


def split_of_group() -> Split:
    """The rank of this process in torch's group, and the group's size."""
    if not distributed.is_available() or not distributed.is_initialized():
        return WHOLE
    return Split(distributed.get_rank(), distributed.get_world_size())


class ProcessGroup:
    """The processes of a run outside of its steps, where one may be waited for long."""

    def __init__(self) -> None:
        self.split = split_of_group()
        self._group: Any = None
        if self.split.processes > 1:
            self._group = distributed.new_group(backend="gloo", timeout=_LONG)

    def from_leader(self, value: Any) -> Any:
        """The value that the first process has; the others wait for it."""
        if self._group is None:
            return value
        values = [value]
        distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]

    def from_all(self, value: Any) -> list[Any]:
        """The values of all processes, by their rank; each waits for all."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.split.processes
        distributed.all_gather_object(values, value, group=self._group)
        return values

    def require_equal(self, value: Any, problem: str) -> None:
        """Raise ConfigError with ``problem`` if not all processes have the same value."""
        values = self.from_all(value)
        different = next((rank for rank, other in enumerate(values) if other != values[0]), None)
        if different is not None:
            raise ConfigError(
                f"{problem}: process 0 has {values[0]}, process {different} {values[different]}"
            )

    def copy_weights(self, modules: Sequence[nn.Module]) -> None:
        """Give all processes the weights of the first."""
        if self._group is None:
            return
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                distributed.broadcast(tensor.detach(), src=0)

    def encoder(self, encoder: Any) -> Any:
        """``encoder``; among several processes one whose ``encode`` each calls for a share."""
        return encoder if self._group is None else _GroupEncoder(encoder, self)


class _GroupEncoder:
    """An encoder of which all processes have a copy and embed the same sentences, each a share."""

    def __init__(self, encoder: Any, group: ProcessGroup) -> None:
        self._encoder, self._group = encoder, group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, sentences: Sequence[str], **options: Any) -> np.ndarray:
        """The rows of all sentences, in every process; an error of one is raised in all."""
        how = self._group.split
        local: np.ndarray | ContrasentError
        try:
            local = self._encoder.encode(sentences[how.rank :: how.processes], **options)
        except ContrasentError as error:
            local = error
        shares = self._group.from_all(local)
        for share in shares:
            if isinstance(share, ContrasentError):
                raise share
        rows = np.empty((len(sentences), *shares[0].shape[1:]), shares[0].dtype)
        for rank, share in enumerate(shares):
            rows[rank :: how.processes] = share
        return rows


def leave() -> None:
    """Leave torch's group, if this process is in one."""
    if split_of_group().processes > 1:
        distributed.destroy_process_group()
