"""Parts of a batch: chunks for gradient caching, and the shares of several processes.

An objective that runs a transformer of its own over tokens does so by :func:`sums_by_parts` or
:func:`rows_by_parts`. Without chunks, in one process, they call the function once.

Shapes: S sentences, T tokens end to end, K sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contrasent.data.batch import Batch
from contrasent.distributed import own_draws, reunited, split, total


def similar_lengths(lengths: Tensor, sentences: int) -> list[Tensor]:
    """Numbers of sentences in groups of similar lengths and about equal numbers of tokens.

    Args:
        lengths: ``(S,)``, on the host.
        sentences: makes as many groups as so many sentences in each would.
    """
    order = torch.argsort(lengths, stable=True)
    count = -(-len(lengths) // sentences)
    # A sentence belongs to the group in which the middle of its tokens falls.
    middle = 2 * lengths[order].cumsum(0) - lengths[order]
    group = middle * count // (2 * int(lengths.sum()))
    sizes = torch.bincount(group, minlength=count).tolist()
    return [numbers for numbers in torch.split(order, sizes) if len(numbers)]


def shares(lengths: Tensor, processes: int) -> list[Tensor]:
    """Numbers of the sentences of each process: as many, and of about as many tokens.

    They are dealt by length, to and fro. The first processes may have one more, or the only ones.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    spare = -len(order) % processes
    dealt = torch.cat([order, order.new_full((spare,), -1)]).view(-1, processes)
    dealt[1:-1:2] = dealt[1:-1:2].flip(1)
    return [numbers[numbers >= 0] for numbers in dealt.T]


def sums_by_parts(
    function: Callable[..., Tensor],
    batch: Batch,
    *,
    rows: Sequence[Tensor] = (),
    tokens: Sequence[Tensor] = (),
) -> Tensor:
    """``function(batch, *rows, *tokens)``, which is ``(K,)`` sums over sentences, part by part.

    Args:
        function: takes a batch of one view, and what belongs to it of ``rows`` and ``tokens``.
        batch: S sentences.
        rows: ``(S, ...)`` each.
        tokens: ``(T, ...)`` each.

    Returns:
        The same sums in every process. Of several chunks each is computed again when its gradient
        is taken, with the same draws.
    """
    how = split()
    if how.processes == 1 and how.chunk is None:
        return function(batch, *rows, *tokens)
    device, lengths = batch.token_ids.device, batch.lengths.cpu()
    own = shares(lengths, how.processes)[how.rank]
    # A process without a sentence takes part with one that counts nothing.
    numbers = own if len(own) else torch.zeros(1, dtype=torch.long)
    parts = [numbers]
    if how.chunk is not None:
        parts = [numbers[group] for group in similar_lengths(lengths[numbers], how.chunk)]

    def compute(part: Tensor) -> Tensor:
        places = batch.places(part)
        chosen = (*(row[part] for row in rows), *(token[places] for token in tokens))
        return function(batch.select(part), *chosen)

    with own_draws(device):
        sums = [
            checkpoint(compute, part.to(device), use_reentrant=False)
            if len(parts) > 1
            else compute(part.to(device))
            for part in parts
        ]
    return total(torch.stack(sums).sum(0) * float(len(own) > 0))


def rows_by_parts(
    function: Callable[..., Tensor],
    batch: Batch,
    *,
    tokens: Sequence[Tensor] = (),
    of_tokens: bool = False,
) -> Tensor:
    """``function(batch, *tokens)``, which is a row for each sentence, by all processes.

    Args:
        function: as in :func:`sums_by_parts`.
        batch: S sentences.
        tokens: ``(T, ...)`` each.
        of_tokens: the function gives a row for each token instead.
    """
    how = split()
    if how.processes == 1:
        return function(batch, *tokens)
    device, numbers = batch.token_ids.device, shares(batch.lengths.cpu(), how.processes)
    own = numbers[how.rank].to(device)
    part = own if len(own) else own.new_zeros(1)
    with own_draws(device):
        places = batch.places(part)
        rows = function(batch.select(part), *(token[places] for token in tokens))
    if of_tokens:
        numbers = [batch.places(share.to(device)) for share in numbers]
    return reunited(rows[: len(numbers[how.rank])], numbers)
