"""BERT-flow: a Glow that maps embeddings to a standard normal distribution.

Li et al. 2020, "On the Sentence Embeddings from Pre-trained Language Models"; the architecture is
that of the authors' code. Shapes: S sentences, D width, H hidden width of a coupling, L levels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from contrasent.errors import ConfigError
from contrasent.model.transforms.base import Transform

_LOG_SCALE_FACTOR = 3.0
_SMALLEST_DEVIATION = 1e-6
_SMALLEST_SHARE = 1e-3
"""Of the mean deviation; a component with less is taken for constant, as some encoders have them,
and scaled by the mean. Its likelihood has no bound, and its gradient would drown all others."""
_DEVIATION = 0.05
"""Of the first weights of a coupling."""


class ActNorm(nn.Module):
    """``(x + b) * exp(3 s)``, a number each for every component."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.log_scale = nn.Parameter(torch.zeros(width))

    @property
    def log_determinant(self) -> Tensor:
        """Sum of the logarithms of the scales, a scalar."""
        return _LOG_SCALE_FACTOR * self.log_scale.sum()

    def forward(self, rows: Tensor) -> Tensor:
        """Shift and scale ``(S, D)``."""
        return (rows + self.shift) * (_LOG_SCALE_FACTOR * self.log_scale).exp()

    @torch.no_grad()
    def start(self, rows: Tensor) -> Tensor:
        """Let each component of ``rows`` come out with mean 0 and variance 1; returns that."""
        self.shift.copy_(-rows.mean(0))
        deviation = (rows + self.shift).square().mean(0).sqrt() + _SMALLEST_DEVIATION
        mean = deviation.mean()
        deviation = deviation.where(deviation > _SMALLEST_SHARE * mean, mean)
        self.log_scale.copy_(-deviation.log() / _LOG_SCALE_FACTOR)
        moved: Tensor = self(rows)
        return moved


class Coupling(nn.Module):
    """Additive: the first half stays, and says what is added to the second.

    Linear, ActNorm, ReLU, twice, then a map that starts as 0.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        half = width // 2
        self.inner = nn.Linear(half, hidden, bias=False)
        self.inner_norm = ActNorm(hidden)
        self.middle = nn.Linear(hidden, hidden, bias=False)
        self.middle_norm = ActNorm(hidden)
        self.outer = nn.Linear(hidden, half)
        self.log_scale = nn.Parameter(torch.zeros(half))
        for layer in (self.inner, self.middle):
            nn.init.normal_(layer.weight, std=_DEVIATION)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def shift_of_second(self, first: Tensor) -> Tensor:
        """``(S, D / 2)`` that is added to the second half."""
        hidden = self.inner_norm(self.inner(first)).relu()
        hidden = self.middle_norm(self.middle(hidden)).relu()
        scaled: Tensor = self.outer(hidden) * (_LOG_SCALE_FACTOR * self.log_scale).exp()
        return scaled

    def forward(self, rows: Tensor) -> Tensor:
        """Couple the halves of ``(S, D)``; the determinant is 1."""
        first, second = rows.chunk(2, dim=1)
        return torch.cat([first, second + self.shift_of_second(first)], dim=1)

    @torch.no_grad()
    def start(self, rows: Tensor) -> Tensor:
        """Set the inner scales from ``rows``; returns what comes out."""
        hidden = self.inner_norm.start(self.inner(rows.chunk(2, dim=1)[0])).relu()
        self.middle_norm.start(self.middle(hidden))
        moved: Tensor = self(rows)
        return moved


class FlowStep(nn.Module):
    """ActNorm, the components in reverse order, coupling."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = ActNorm(width)
        self.coupling = Coupling(width, hidden)

    def forward(self, rows: Tensor) -> Tensor:
        """Map ``(S, D)`` to ``(S, D)``."""
        moved: Tensor = self.coupling(self.norm(rows).flip(1))
        return moved

    def start(self, rows: Tensor) -> Tensor:
        """Set the scales from ``rows``; returns what comes out."""
        return self.coupling.start(self.norm.start(rows).flip(1))


class Flow(Transform):
    """L levels of steps; after each but the last, the second half of the components is done."""

    name = "flow"

    def __init__(
        self, width: int, levels: int = 3, depth: int = 3, coupling_width: int = 32
    ) -> None:
        """Use weights of torch's generator; ConfigError for numbers that cannot be."""
        super().__init__()
        if width % 2**levels:
            possible = (width & -width).bit_length() - 1
            remedy = f"--levels {possible} is possible" if possible else "its width is odd"
            raise ConfigError(
                f"a flow of {levels} levels halves an embedding {levels} times, which "
                f"{width} dimensions do not allow: {remedy}"
            )
        self.input_width = self.width = width
        self.levels, self.depth, self.coupling_width = levels, depth, coupling_width
        widths = [width >> level for level in range(levels)]
        self.steps = nn.ModuleList(
            nn.ModuleList(FlowStep(each, coupling_width) for _ in range(depth)) for each in widths
        )

    def settings(self) -> dict[str, Any]:
        names = ("width", "levels", "depth", "coupling_width")
        return {name: getattr(self, name) for name in names}

    def map_rows(self, rows: Tensor) -> Tensor:
        return self._through("__call__", rows)

    @torch.no_grad()
    def start(self, rows: Tensor) -> None:
        """Set all scales such that ``rows (S, D)`` come out of each with mean 0 and variance 1."""
        self._through("start", rows)

    @property
    def log_determinant(self) -> Tensor:
        """Logarithm of the Jacobian's determinant, a scalar: it is the same everywhere."""
        steps = (step for level in range(self.levels) for step in self._steps(level))
        each: list[Tensor] = [step.norm.log_determinant for step in steps]
        return torch.stack(each).sum()

    def bits_per_dimension(self, rows: Tensor) -> Tensor:
        """Mean negative log-likelihood of ``rows (S, D)``, a scalar, in bits for each component."""
        mapped: Tensor = self(rows)
        normal = -0.5 * (mapped.square() + math.log(2 * math.pi)).sum(1)
        return -(normal + self.log_determinant).mean() / (math.log(2) * self.width)

    def _steps(self, level: int) -> list[FlowStep]:
        chosen: Any = self.steps[level]
        return list(chosen)

    def _through(self, way: str, rows: Tensor) -> Tensor:
        done: list[Tensor] = []
        for level in range(self.levels):
            for step in self._steps(level):
                rows = getattr(step, way)(rows)
            if level < self.levels - 1:
                rows, second = rows.chunk(2, dim=1)
                done.append(second)
        return torch.cat([*done, rows], dim=1)
