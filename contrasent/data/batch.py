"""Packed batches: sentences end to end, without padding; their parts, and the shares of processes.

An objective that runs a transformer of its own over tokens does so by :func:`sums_by_parts` or
:func:`rows_by_parts`, for gradient caching and several processes; else they call it once.

Letters used in shapes: B examples, V views of each example, S = V * B sentences,
T tokens of all sentences end to end, L tokens of the longest sentence, D embedding width,
K sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contrasent.distributed import own_draws, reunited, split, total


class Need(Enum):
    """Data that an objective reads beside the embeddings; the value completes "needs ..."."""

    LABELS = "the class of each example"
    SCORES = "how alike people found the sentences of each pair"
    CANDIDATE_SCORES = "how well each candidate answers, as a teacher has it"
    POSITIONS = "to know which sentences follow each other"
    TARGETS = "the embedding that a teacher gives each example"
    NEXT_SENTENCES = "the sentence after each anchor"
    TOKEN_STATES = "the last states of all tokens"
    TOKENS = "the tokens, for a transformer of its own, whose memory grows with the batch"
    ENCODER = "the weights of the encoder, which it also runs itself"

    @property
    def is_number(self) -> bool:
        """True if it is a number, or a few, of each example."""
        rows = (Need.TARGETS, Need.NEXT_SENTENCES)
        return self not in (*rows, Need.TOKEN_STATES, Need.TOKENS, Need.ENCODER)


EMBEDDING = ("embedding_mask", "embedding_shift")
"""What changes the output of the embedding layer, token by token."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences of B examples, view by view: all first views, then all second views, and so on."""

    token_ids: Tensor  # ``(T,)`` int64, the tokens of every sentence end to end
    # ``(S + 1,)`` int64; sentence ``s`` is ``token_ids[offsets[s]:offsets[s + 1]]``
    offsets: Tensor
    views: int = 1  # V, how many sentences each example has (2 for a pair, 3 with a hard negative)
    longest: int = 0  # L, kept on the host to avoid a device sync; else counted from the offsets
    duplicate_of: Tensor | None = None  # what `same_text` returns, if it is known already
    # B sentences, the one after each anchor, for ``Need.NEXT_SENTENCES``; they are not encoded
    next_sentences: Batch | None = None
    # ``(B,)`` int64 or ``(B, ...)`` float32 each, what the objective needs, such as a label
    columns: Mapping[Need, Tensor] = field(default_factory=dict)
    # ``(T, 1)`` or ``(T, D)``, factors of the output of the embedding layer; None for 1
    embedding_mask: Tensor | None = None
    # ``(T, D)``, what is added to it after that; None for 0
    embedding_shift: Tensor | None = None
    # ``(T,)`` int64, the position of each token in its sentence; None for 0, 1, 2 and so on
    positions: Tensor | None = None
    origin: str = ""  # the name of the one of several sources that it is from

    def __post_init__(self) -> None:
        if not self.longest:
            object.__setattr__(self, "longest", int(self.lengths.max()))

    @property
    def lengths(self) -> Tensor:
        """``(S,)`` int64, tokens in each sentence."""
        return self.offsets.diff()

    @property
    def sentences(self) -> int:
        """S, the number of sentences."""
        return len(self.offsets) - 1

    @property
    def examples(self) -> int:
        """B, the number of examples."""
        return self.sentences // self.views

    def column(self, need: Need) -> Tensor:
        """``(B,)`` or ``(B, D)``, the numbers of each example."""
        return self.columns[need]

    def following(self) -> Batch:
        """The sentence after each anchor, of an objective that needs it."""
        return cast(Batch, self.next_sentences)

    def pin(self) -> Batch:
        """The same batch in page-locked memory, with all that only the host can compute."""
        return replace(self, duplicate_of=self.same_text())._map(Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def view(self, number: int) -> Batch:
        """The sentences of one view, as a batch of one view."""
        first, last = number * self.examples, (number + 1) * self.examples
        offsets = self.offsets[first : last + 1]
        tokens = slice(int(offsets[0]), int(offsets[-1]))
        return Batch(self.token_ids[tokens], offsets - offsets[0], **self.token_fields(tokens))

    def select(self, sentences: Tensor, views: int = 1) -> Batch:
        """The sentences with these numbers, in this order, as ``views`` views."""
        lengths = self.lengths[sentences]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        tokens = self.places(sentences)
        return Batch(self.token_ids[tokens], offsets, views, **self.token_fields(tokens))

    def places(self, sentences: Tensor) -> Tensor:
        """The numbers of the tokens of these sentences, one sentence after the other."""
        lengths = self.lengths[sentences]
        starts = lengths.cumsum(0) - lengths
        shift = torch.repeat_interleave(self.offsets[sentences] - starts, lengths)
        return torch.arange(len(shift), device=shift.device) + shift

    def filled(self, most: int) -> Batch:
        """These as one view, and sentences of nobody, of up to ``most`` tokens, for few shapes."""
        tokens, longest = len(self.token_ids), 1 << max(4, (self.longest - 1).bit_length())
        step = 1 << max(4, tokens.bit_length() - 5)
        added = -(-step // (min(longest, most) - 1))
        more = -(-(tokens + added) // step) * step - tokens
        ends = tokens + torch.arange(1, added + 1, device=self.offsets.device) * more // added
        ids = torch.nn.functional.pad(self.token_ids, (0, more))
        return Batch(ids, torch.cat([self.offsets, ends]), 1, longest)

    def token_fields(self, tokens: Tensor | slice) -> dict[str, Any]:
        """What some ``tokens`` have beside their ids."""
        given = {name: getattr(self, name) for name in (*EMBEDDING, "positions")}
        return {name: values[tokens] for name, values in given.items() if values is not None}

    @property
    def changes_embeddings(self) -> bool:
        """True if the embedding layer's output is multiplied or added to."""
        return any(getattr(self, name) is not None for name in EMBEDDING)

    def changed(self, state: Tensor) -> Tensor:
        """The output ``(T, D)`` of the embedding layer, multiplied and added to."""
        if self.embedding_mask is not None:
            state = state * self.embedding_mask.to(state.dtype)
        if self.embedding_shift is not None:
            state = state + self.embedding_shift.to(state.dtype)
        return state

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        fields = {name: getattr(self, name) for name in Batch.__slots__}
        tensors: dict[str, Any] = {n: change(t) for n, t in fields.items() if isinstance(t, Tensor)}
        following = self.next_sentences and self.next_sentences._map(change)
        columns = {need: change(values) for need, values in self.columns.items()}
        return replace(self, next_sentences=following, columns=columns, **tensors)

    def same_text(self) -> Tensor:
        """``(S,)`` int64: the number of the first sentence of the batch with the same tokens."""
        if self.duplicate_of is not None:
            return self.duplicate_of
        tokens, offsets = self.token_ids.cpu().numpy(), self.offsets.tolist()
        first: dict[bytes, int] = {}
        texts = (tokens[a:b].tobytes() for a, b in pairwise(offsets))
        numbers = [first.setdefault(text, s) for s, text in enumerate(texts)]
        return torch.tensor(numbers, device=self.token_ids.device)


def concat(batches: Sequence[Batch], views: int = 1) -> Batch:
    """The sentences of all ``batches``, one batch after the other, as ``views`` views."""
    offsets = [batches[0].offsets]
    for batch in batches[1:]:
        offsets.append(batch.offsets[1:] + offsets[-1][-1])
    token_ids = torch.cat([batch.token_ids for batch in batches])
    return Batch(token_ids, torch.cat(offsets), views, max(batch.longest for batch in batches))


Packed = tuple[np.ndarray, np.ndarray]
"""``(T,)`` int64 token ids of S sentences end to end, and ``(S + 1,)`` int64 offsets."""


def end_to_end(sentences: Sequence[Sequence[int] | np.ndarray]) -> Packed:
    """The token ids of all ``sentences``, one after the other."""
    offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
    np.cumsum([len(sentence) for sentence in sentences], out=offsets[1:])
    return np.concatenate(sentences).astype(np.int64), offsets


def pack(sentences: Sequence[Sequence[int] | np.ndarray], views: int = 1) -> Batch:
    """Lay S sentences, ordered view by view, end to end; none is empty."""
    token_ids, offsets = map(torch.from_numpy, end_to_end(sentences))
    return Batch(token_ids, offsets, views)


def similar_lengths(lengths: Tensor, sentences: int) -> list[Tensor]:
    """Numbers of sentences in groups of similar ``lengths (S,)`` and about as many tokens."""
    order = torch.argsort(lengths, stable=True)
    count = -(-len(lengths) // sentences)
    # A sentence belongs to the group in which the middle of its tokens falls.
    middle = 2 * lengths[order].cumsum(0) - lengths[order]
    sizes = torch.bincount(middle * count // (2 * int(lengths.sum())), minlength=count).tolist()
    return [numbers for numbers in torch.split(order, sizes) if len(numbers)]


def shares(lengths: Tensor, processes: int) -> list[Tensor]:
    """Numbers of the sentences of each process, as many, dealt by their lengths."""
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

    The function takes a batch of one view, and what belongs to it of ``rows (S, ...)`` and ``tokens
    (T, ...)`` each. Every process has the same sums. Of several chunks each is computed again when
    its gradient is taken, with the same draws.
    """
    how = split()
    if how.processes == 1 and how.chunk is None:
        return function(batch, *rows, *tokens)
    device, lengths = batch.token_ids.device, batch.lengths.cpu()
    local = shares(lengths, how.processes)[how.rank]
    # A process without a sentence takes part with one that counts nothing.
    numbers = local if len(local) else torch.zeros(1, dtype=torch.long)
    parts = [numbers]
    if how.chunk is not None:
        parts = [numbers[group] for group in similar_lengths(lengths[numbers], how.chunk)]

    def compute(part: Tensor) -> Tensor:
        places = batch.places(part)
        chosen = (*(row[part] for row in rows), *(token[places] for token in tokens))
        return function(batch.select(part), *chosen)

    run: Any = copy_context().run  # the gradient is taken after the step's split has ended
    with own_draws(device):
        sums = [
            checkpoint(partial(run, compute), part.to(device), use_reentrant=False)
            if len(parts) > 1
            else compute(part.to(device))
            for part in parts
        ]
    return total(torch.stack(sums).sum(0) * float(len(local) > 0))


def rows_by_parts(
    function: Callable[..., Tensor],
    batch: Batch,
    *,
    tokens: Sequence[Tensor] = (),
    of_tokens: bool = False,
) -> Tensor:
    """``function(batch, *tokens)``, which is a row for each sentence, by all processes.

    As of :func:`sums_by_parts`; with ``of_tokens`` the function gives a row for each token instead.
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
