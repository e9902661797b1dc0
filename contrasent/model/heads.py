"""Heads: trained maps after the pooler; convolutions before it. S sentences, T tokens, D width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from contrasent.data.batch import Batch
from contrasent.errors import pick

_STD = 0.02


def init_linear(layers: nn.Module) -> None:
    """Draw the weights of all linear layers from N(0, 0.02), with zero bias."""
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=_STD)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class MlpHead(nn.Module):
    """``tanh(W h + b)``, the layer that BERT has over [CLS] and SimCSE trains from scratch.

    Weights start as N(0, 0.02) with zero bias, as in SimCSE's code.
    """

    def __init__(self, width: int, embedding_width: int | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(width, embedding_width or width)
        init_linear(self.linear)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map ``(..., D)`` to ``(..., embedding_width)``, each number in (-1, 1)."""
        mapped: Tensor = self.linear(embeddings)
        return mapped.tanh()


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
        """As :class:`MlpHead`."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return super().forward(embeddings.float())


HEADS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": Fp32MlpHead,
    "batchnorm": BatchNormHead,
    "none": lambda _: nn.Identity(),
}


def head_named(name: str, width: int) -> nn.Module:
    """A new head for embeddings of ``width`` dimensions; ConfigError if there is no such head."""
    return HEADS[pick("head", name, HEADS)](width)


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
        mapped = torch.cat([conv(columns) for conv in self.convs], dim=1)
        return mapped.squeeze(0).T[places]
