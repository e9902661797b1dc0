"""From token states to one embedding per sentence, on packed batches.

Shapes: T tokens end to end, S sentences, D width. A state is ``(T, D)``: number 0 is the
embedding layer, 1 the first transformer layer, -1 the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.errors import pick


@dataclass(frozen=True, slots=True)
class Pooler:
    """Which states an embedding is made of, and how.

    Attributes:
        name: the word used in recipes, tables and on the command line.
        layers: the states that are averaged with equal weight, as numbers from either end.
        first_only: take the first token of each sentence instead of the mean over its tokens.
        largest: take each number's largest value over the tokens instead of the mean.
    """

    name: str
    layers: tuple[int, ...]
    first_only: bool = False
    largest: bool = False

    @property
    def averages(self) -> bool:
        """Whether it is a mean over tokens."""
        return not (self.first_only or self.largest)

    def shares(self, depth: int) -> dict[int, float]:
        """How much each state of a model of ``depth`` layers counts, by its number from 0."""
        numbers = [layer % (depth + 1) for layer in self.layers]
        return {number: numbers.count(number) / len(numbers) for number in sorted(numbers)}

    def __call__(self, states: Mapping[int, Tensor], batch: Batch) -> Tensor:
        """Pool ``states`` to ``(S, D)``.

        Args:
            states: the layers named by :attr:`layers`. With :attr:`first_only`, each may already
                be cut down to the ``(S, D)`` rows of the first tokens.
            batch: the sentences that the states belong to.
        """
        chosen = [states[layer] for layer in self.layers]
        mixed = chosen[0] if len(chosen) == 1 else torch.stack(chosen).mean(0)
        if self.largest:
            return torch.segment_reduce(mixed.float(), "max", lengths=batch.lengths, axis=0)
        if not self.first_only:
            return mean_over_tokens(mixed, batch)
        return mixed if len(mixed) == batch.sentences else mixed[batch.offsets[:-1]]


def mean_over_tokens(state: Tensor, batch: Batch) -> Tensor:
    """``(S, D)`` float32, the mean of the ``(T, D)`` states of each sentence."""
    sentence = torch.repeat_interleave(batch.lengths, output_size=len(state))
    total = state.new_zeros(batch.sentences, state.shape[-1], dtype=torch.float32)
    return total.index_add(0, sentence, state.float()) / batch.lengths.unsqueeze(-1)


POOLERS = {
    pooler.name: pooler
    for pooler in (
        Pooler("cls", (-1,), first_only=True),
        Pooler("mean", (-1,)),
        Pooler("max", (-1,), largest=True),
        Pooler("mean_top2", (-2, -1)),
        Pooler("mean_first_last", (1, -1)),
        Pooler("mean_embed_last", (0, -1)),
    )
}
"""``mean_first_last`` averages layer 1 and the last (the 60.73 of the SimCSE authors' README),
``mean_embed_last`` the embedding layer and the last (the printed 56.70 of their Table 5)."""


def pooler(name: str) -> Pooler:
    """Look a pooler up by name.

    Raises:
        ConfigError: no such pooler.
    """
    return POOLERS[pick("pooler", name, POOLERS)]
