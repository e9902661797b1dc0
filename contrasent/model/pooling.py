"""Pooling: from token states to one embedding per sentence, on packed batches.

Shapes: T tokens end to end, S sentences, D width. A state is ``(T, D)``: number 0 is the
embedding layer, 1 the first transformer layer, -1 the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contrasent.errors import pick

if TYPE_CHECKING:  # torch is imported when something is pooled: the help lists the names
    from torch import Tensor

    from contrasent.data.batch import Batch


@dataclass(frozen=True, slots=True)
class Pooler:
    """The states that are averaged, by layer from either end, and the reduction over tokens.

    ``reduce`` maps a state ``(T, D)`` and its batch to ``(S, D)``. ``st_mode`` is the setting of
    sentence-transformers' Pooling that reduces alike; without one an encoder cannot be saved.
    """

    name: str
    layers: tuple[int, ...]
    reduce: Callable[[Tensor, Batch], Tensor]
    st_mode: str | None

    @property
    def first_only(self) -> bool:
        """True if only the first token of each sentence counts."""
        return self.reduce is first_token

    def shares(self, depth: int) -> dict[int, float]:
        """How much each state of a model of ``depth`` layers counts, by its number from 0."""
        numbers = [layer % (depth + 1) for layer in self.layers]
        return {number: numbers.count(number) / len(numbers) for number in sorted(numbers)}

    def __call__(self, states: Mapping[int, Tensor], batch: Batch) -> Tensor:
        """Pool ``states``, by the numbers in :attr:`layers`, to ``(S, D)``."""
        import torch

        chosen = [states[layer] for layer in self.layers]
        mixed = chosen[0] if len(chosen) == 1 else torch.stack(chosen).mean(0)
        return self.reduce(mixed, batch)


def first_token(state: Tensor, batch: Batch) -> Tensor:
    """The state of each sentence's first token; ``state`` may be those rows alone."""
    return state if len(state) == batch.sentences else state[batch.offsets[:-1]]


def last_token(state: Tensor, batch: Batch) -> Tensor:
    """The state of each sentence's last token."""
    return state[batch.offsets[1:] - 1]


def mean_over_tokens(state: Tensor, batch: Batch) -> Tensor:
    """The mean of each sentence's states, in float32."""
    import torch

    sentence = torch.repeat_interleave(batch.lengths, output_size=len(state))
    total = state.new_zeros(batch.sentences, state.shape[-1], dtype=torch.float32)
    return total.index_add(0, sentence, state.float()) / batch.lengths.unsqueeze(-1)


def largest_over_tokens(state: Tensor, batch: Batch) -> Tensor:
    """The largest value of each dimension over a sentence's tokens, in float32."""
    import torch

    return torch.segment_reduce(state.float(), "max", lengths=batch.lengths, axis=0)


POOLERS = {
    pooler.name: pooler
    for pooler in (
        Pooler("cls", (-1,), first_token, "pooling_mode_cls_token"),
        Pooler("mean", (-1,), mean_over_tokens, "pooling_mode_mean_tokens"),
        Pooler("max", (-1,), largest_over_tokens, "pooling_mode_max_tokens"),
        Pooler("last", (-1,), last_token, "pooling_mode_lasttoken"),
        Pooler("mean_top2", (-2, -1), mean_over_tokens, "pooling_mode_mean_tokens"),
        Pooler("mean_first_last", (1, -1), mean_over_tokens, "pooling_mode_mean_tokens"),
        Pooler("mean_embed_last", (0, -1), mean_over_tokens, "pooling_mode_mean_tokens"),
    )
}
"""``mean_first_last`` averages layer 1 and the last (the 60.73 of the SimCSE authors' README),
``mean_embed_last`` the embedding layer and the last (the printed 56.70 of their Table 5)."""


def pooler(name: str) -> Pooler:
    """Look a pooler up by name; ConfigError if there is none."""
    return POOLERS[pick("pooler", name, POOLERS)]
