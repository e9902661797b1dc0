"""What comes after the backbone, on packed batches: convolutions, a pooler, a trained head.

Shapes: T tokens end to end, S sentences, D width. A state is ``(T, D)``: number 0 is the
embedding layer, 1 the first transformer layer, -1 the last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from contrasent.data.batch import Batch


@dataclass(frozen=True, slots=True)
class Pooler:
    """The states that are averaged, by layer from either end, and the reduction over tokens.

    ``reduce`` maps a state ``(T, D)`` and its batch to ``(S, D)``. ``st_mode`` is the setting of
    sentence-transformers' Pooling that reduces alike.
    """

    name: str
    layers: tuple[int, ...]
    reduce: Callable[[Tensor, Batch], Tensor]
    st_mode: str

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
        chosen = [states[layer] for layer in self.layers]
        return self.reduce(chosen[0] if len(chosen) == 1 else torch.stack(chosen).mean(0), batch)


def first_token(state: Tensor, batch: Batch) -> Tensor:
    """The state of each sentence's first token; ``state`` may be those rows alone."""
    return state if len(state) == batch.sentences else state[batch.offsets[:-1]]


def last_token(state: Tensor, batch: Batch) -> Tensor:
    """The state of each sentence's last token."""
    return state[batch.offsets[1:] - 1]


def mean_over_tokens(state: Tensor, batch: Batch) -> Tensor:
    """The mean of each sentence's states, in float32."""
    sentence = torch.repeat_interleave(batch.lengths, output_size=len(state))
    total = state.new_zeros(batch.sentences, state.shape[-1], dtype=torch.float32)
    return total.index_add(0, sentence, state.float()) / batch.lengths.unsqueeze(-1)


def largest_over_tokens(state: Tensor, batch: Batch) -> Tensor:
    """The largest value of each dimension over a sentence's tokens, in float32."""
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


def init_linear(layers: nn.Module) -> None:
    """Draw the weights of all linear layers from N(0, 0.02), with zero bias."""
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def gelu_layers(*widths: int) -> nn.Sequential:
    """New linear layers from each width to the next, with GELU behind each."""
    pairs = pairwise(widths)
    layers = nn.Sequential(*(it for a, b in pairs for it in (nn.Linear(a, b), nn.GELU())))
    init_linear(layers)
    return layers


class MlpHead(nn.Module):
    """``tanh(W h + b)``, the layer that BERT has over [CLS] and SimCSE trains from scratch."""

    def __init__(self, width: int, embedding_width: int | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(width, embedding_width or width)
        init_linear(self.linear)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map ``(..., D)`` to ``(..., embedding_width)``, each number in (-1, 1)."""
        return torch.tanh(self.linear(embeddings))


class BatchNormHead(nn.Module):
    """DiffCSE's projector, normalised over the batch (Chuang et al. 2022, Appendix A)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, 2 * width, bias=False),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width, bias=False),
            nn.BatchNorm1d(width, affine=False),
        )
        init_linear(self.net)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map ``(..., D)`` in fp32, with the statistics of all rows; in training of two or more."""
        with torch.autocast(embeddings.device.type, enabled=False):
            rows: Tensor = self.net(embeddings.float().flatten(0, -2))
        return rows.view(embeddings.shape)


class Fp32MlpHead(MlpHead):
    """The same in fp32, also under autocast, for training only."""

    def forward(self, embeddings: Tensor) -> Tensor:
        with torch.autocast(embeddings.device.type, enabled=False):
            return super().forward(embeddings.float())


HEADS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": Fp32MlpHead,
    "batchnorm": BatchNormHead,
    "none": lambda _: nn.Identity(),
}
"""By their names, what makes a new head for embeddings of so many dimensions."""


class Convolutions(nn.Module):
    """Convolutions of several odd ``widths`` side by side, without an activation.

    Each gives ``channels`` numbers for a token. Beyond either end of a sentence there are zeros.
    """

    def __init__(self, width: int, widths: Sequence[int], channels: int) -> None:
        super().__init__()
        self.widths, self.channels = tuple(widths), channels
        self.convs = nn.ModuleList(
            nn.Conv1d(width, channels, seen, padding=seen // 2) for seen in widths
        )

    @property
    def width(self) -> int:
        """Dimensions of a token state after them."""
        return len(self.widths) * self.channels

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Map the ``(T, D)`` states of the sentences of ``batch`` to ``(T, width)``."""
        gap = max(self.widths) // 2
        tokens = len(states)
        sentence = torch.repeat_interleave(batch.lengths, output_size=tokens)
        places = torch.arange(tokens, device=states.device) + gap * sentence
        spaced = states.new_zeros(tokens + gap * (batch.sentences - 1), states.shape[-1])
        columns = spaced.index_copy(0, places, states).T.unsqueeze(0)
        return torch.cat([conv(columns) for conv in self.convs], dim=1).squeeze(0).T[places]
