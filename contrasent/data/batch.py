"""The one form in which sentences travel between files: packed, without padding.

Letters used in shapes: B examples, V views of each example, S = V * B sentences,
T tokens of all sentences end to end, L tokens of the longest sentence, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from contrasent.errors import DataError


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentences of B examples, view by view: all first views, then all second views, and so on.

    Attributes:
        token_ids: ``(T,)`` int64, the tokens of every sentence end to end.
        offsets: ``(S + 1,)`` int64; sentence ``s`` is ``token_ids[offsets[s]:offsets[s + 1]]``.
        views: V, how many sentences each example has (2 for a pair, 3 with a hard negative).
        longest: L, known to the host, so that nobody waits for a device to tell it; counted from
            the offsets if it is not given.
        texts: what :meth:`same_text` returns, if it was found already.
        following: B sentences, in its document the one after each anchor, if they were asked for;
            they are not encoded.
        labels: ``(B,)`` int64, the class of each example, if the data has them.
        places: ``(B,)`` int64, where each anchor stands in the text, if it was asked for: sentences
            of one document that follow each other are 1 apart, and those of two documents as far
            as the text has sentences.
        factors: ``(T, 1)`` or ``(T, D)``, what state 0 of each token is multiplied with behind the
            embedding layer; None for 1.
    """

    token_ids: Tensor
    offsets: Tensor
    views: int = 1
    longest: int = 0
    texts: Tensor | None = None
    following: Batch | None = None
    labels: Tensor | None = None
    factors: Tensor | None = None
    places: Tensor | None = None

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

    def pin(self) -> Batch:
        """The same batch in page-locked memory, from which :meth:`to` copies without waiting.

        What only the host finds, it finds here: after this, a training step on the device asks
        it nothing. For the thread that loads batches ahead, where the device is a CUDA device.
        """
        following = None if self.following is None else self.following.pin()
        return self._each(Tensor.pin_memory, self.same_text(), following)

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        following = None if self.following is None else self.following.to(device)
        return self._each(
            lambda tensor: tensor.to(device, non_blocking=True), self.texts, following
        )

    def view(self, number: int) -> Batch:
        """The sentences of one view, as a batch of one view."""
        first, last = number * self.examples, (number + 1) * self.examples
        offsets = self.offsets[first : last + 1]
        places = slice(int(offsets[0]), int(offsets[-1]))
        factors = None if self.factors is None else self.factors[places]
        return Batch(self.token_ids[places], offsets - offsets[0], factors=factors)

    def taken(self, sentences: Tensor, views: int = 1) -> Batch:
        """The sentences with these numbers, in this order, as ``views`` views.

        The host waits for the device to tell how many tokens they have.
        """
        lengths = self.lengths[sentences]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = torch.repeat_interleave(self.offsets[sentences] - offsets[:-1], lengths)
        places = torch.arange(len(shift), device=shift.device) + shift
        factors = None if self.factors is None else self.factors[places]
        return Batch(self.token_ids[places], offsets, views, factors=factors)

    def _each(
        self,
        change: Callable[[Tensor], Tensor],
        texts: Tensor | None,
        following: Batch | None,
    ) -> Batch:
        """The same batch with each tensor changed."""
        texts = None if texts is None else change(texts)
        labels = None if self.labels is None else change(self.labels)
        factors = None if self.factors is None else change(self.factors)
        return Batch(
            change(self.token_ids),
            change(self.offsets),
            self.views,
            self.longest,
            texts,
            following,
            labels,
            factors,
            None if self.places is None else change(self.places),
        )

    def same_text(self) -> Tensor:
        """``(S,)`` int64: the number of the first sentence of the batch with the same tokens."""
        if self.texts is not None:
            return self.texts
        tokens, offsets = self.token_ids.cpu().numpy(), self.offsets.tolist()
        first: dict[bytes, int] = {}
        texts = (tokens[a:b].tobytes() for a, b in pairwise(offsets))
        found = [first.setdefault(text, s) for s, text in enumerate(texts)]
        return torch.tensor(found, device=self.token_ids.device)


def concat(batches: Sequence[Batch], views: int = 1) -> Batch:
    """The sentences of all ``batches``, one batch after the other, as ``views`` views."""
    offsets = [batches[0].offsets]
    for batch in batches[1:]:
        offsets.append(batch.offsets[1:] + offsets[-1][-1])
    token_ids = torch.cat([batch.token_ids for batch in batches])
    return Batch(token_ids, torch.cat(offsets), views, max(batch.longest for batch in batches))


def pack(sentences: Sequence[Sequence[int] | np.ndarray], views: int = 1) -> Batch:
    """Lay sentences end to end.

    Args:
        sentences: S token id sequences, already ordered view by view.
        views: V, which must divide S.

    Raises:
        DataError: there is no sentence, a sentence has no token, or V does not divide S.
    """
    if not sentences or len(sentences) % views:
        raise DataError(f"{len(sentences)} sentences cannot be {views} views of whole examples")
    lengths = np.array([len(s) for s in sentences], dtype=np.int64)
    if not lengths.all():
        raise DataError(f"sentence {int(np.argmin(lengths))} of the batch has no token")
    offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    token_ids = np.concatenate([np.asarray(s, dtype=np.int64) for s in sentences])
    longest = int(lengths.max())
    return Batch(torch.from_numpy(token_ids), torch.from_numpy(offsets), views, longest)
