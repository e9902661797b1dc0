"""Fitted maps, which come after the head and are saved with the encoder: linear ones and a flow.

Shapes: S sentences, N rows in all, n rows of a part, D width of an embedding, K of a mapped one,
H hidden width of a coupling, L levels.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from contrasent.errors import ConfigError, DataError, pick
from contrasent.model.backbones.base import FULL_FP32
from contrasent.progress import Advance


class Transform(nn.Module, ABC):
    """A map of embeddings from ``input_width`` to ``width``, always computed in fp32.

    A class is found again by its ``name``; ``described`` says what it was fitted on. One that
    ``is_trained`` is a layer of the encoder, which further training goes on with.
    """

    name: str
    made_from: ClassVar[tuple[str, ...]] = ("input_width", "width")  # attributes, by name
    is_trained: ClassVar[bool] = False
    input_width: int
    width: int

    def __init__(self) -> None:
        super().__init__()
        self.described = self.name

    def settings(self) -> dict[str, Any]:
        """What its class makes an equal one from, weights aside."""
        return {name: getattr(self, name) for name in self.made_from}

    @abstractmethod
    def map_rows(self, rows: Tensor) -> Tensor:
        """Map ``(S, D)`` fp32 to ``(S, K)``."""

    def forward(self, rows: Tensor) -> Tensor:
        """Map ``(S, D)`` to ``(S, K)`` fp32."""
        # Small directions are scaled up by orders of magnitude: bf16 or TF32 would leave noise.
        with torch.autocast(rows.device.type, enabled=False), FULL_FP32:
            return self.map_rows(rows.float())


class DenseMap(Transform):
    """``x W + b``, which sentence-transformers has as a Dense without activation."""

    weight: Tensor
    bias: Tensor

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.input_width, self.width = input_width, width
        self.weight = nn.Buffer(torch.zeros(width, input_width))
        self.bias = nn.Buffer(torch.zeros(width))

    def map_rows(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight, self.bias)


class Projection(DenseMap):
    """A layer of the encoder; a new one is the identity, cut off or filled with 0."""

    name, is_trained = "linear", True

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.weight = nn.Parameter(torch.eye(width, input_width))

    @torch.no_grad()
    def then(self, after: "Projection") -> "Projection":
        """This map and ``after`` as one."""
        both = Projection(self.input_width, after.width)
        weight, bias = after.weight.double(), self.bias.double()
        both.weight.copy_(weight @ self.weight.double())
        both.bias.copy_(weight @ bias + after.bias.double())
        return both

    @torch.no_grad()
    def folded(self) -> "Projection":
        """The map ``R`` of ``W = Q R`` to at most ``input_width``, with the same products."""
        turn, triangle = torch.linalg.qr(self.weight.double().cpu())
        folded = Projection(self.input_width, len(triangle))
        folded.weight.copy_(triangle)
        folded.bias.copy_(turn.T @ self.bias.double().cpu())
        return folded.to(self.weight.device)


class Whitening(DenseMap):
    """``x W - mu W``: mean 0, the identity as covariance (Su et al. 2021, and their code)."""

    name = "whitening"


class Moments:
    """The moments of ``count`` rows so far, merged by Chan, Golub and LeVeque's update (1979)."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(width)
        self._scatter: NDArray[np.float64] = np.zeros((width, width))

    def add(self, rows: NDArray[np.float32] | NDArray[np.float64]) -> None:
        """Take in ``(n, D)`` more rows."""
        if not len(rows):
            return
        part = rows.astype(np.float64)
        mean = part.mean(axis=0)
        part -= mean
        shift, total = mean - self.mean, self.count + len(rows)
        self._scatter += part.T @ part
        self._scatter += np.outer(shift, shift) * (self.count * len(rows) / total)
        self.mean = self.mean + shift * (len(rows) / total)
        self.count = total

    @property
    def covariance(self) -> NDArray[np.float64]:
        """``(D, D)``, divided by N - 1."""
        return self._scatter / (self.count - 1)

    @property
    def second(self) -> NDArray[np.float64]:
        """``(D, D)`` sum of the products of every row with itself, not centred."""
        return self._scatter + self.count * np.outer(self.mean, self.mean)


_NOISE = 1e-5
"""Of the length of an embedding, what float32 and an encoder's sums leave of it as noise."""
_CONSTANT = 0.02
"""Share of the dimensions that may be missing unasked: a LayerNorm takes one away, as its outputs
have a fixed weighted sum, and some of its components may be constant."""


def fit_whitening(moments: Moments, kept: int | None = None) -> tuple[Whitening, int, float]:
    """The whitening, the rank of the covariance, and the share of variance that is kept.

    ``W = U diag(1 / sqrt(S))`` of the covariance ``U diag(S) U'``, the ``kept`` columns with the
    largest variances; None keeps every direction that is more than noise, if they lack but a few.
    Each column has its largest component above 0.
    """
    variances, directions = np.linalg.eigh(moments.covariance)
    variances, directions = variances[::-1], directions[:, ::-1]
    square_length = float(np.trace(moments.second)) / moments.count
    rank = int((variances > square_length * _NOISE**2).sum())
    if kept is None and rank >= len(variances) - max(1, round(_CONSTANT * len(variances))):
        kept = rank
    kept = kept or len(variances)
    if rank < kept:
        what = f"the covariance of {moments.count} embeddings has rank {rank} of {len(variances)}"
        raise DataError(f"{what}; give sentences that differ more, or keep fewer (--dimensions)")
    chosen = directions[:, :kept]
    chosen = chosen * np.sign(chosen[np.abs(chosen).argmax(axis=0), range(kept)])
    weight = (chosen / np.sqrt(variances[:kept])).T.astype(np.float32)
    bias: NDArray[np.float64] = -(weight.astype(np.float64) @ moments.mean)
    transform = Whitening(len(variances), kept)
    transform.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
    transform.bias.copy_(torch.from_numpy(bias.astype(np.float32)))
    return transform, rank, float(variances[:kept].sum() / variances.clip(0).sum())


_STEPS, _PRECISE = 200, 1e-3  # at most, and the residual that is enough


def fit_rows(x: Any, y: np.ndarray, s: np.ndarray, ridge: float, advance: Advance) -> Tensor:
    """The rows R ``(V, D)`` that make ``|X R - Y|^2 + ridge |R - S|^2`` smallest.

    X ``(N, V)`` sparse, Y ``(N, D)``, S ``(V, D)``; by conjugate gradients, float32.
    """
    from scipy.sparse.linalg import LinearOperator, cg

    across, table = x.T.tocsr(), s.copy()
    normal = LinearOperator((len(s),) * 2, lambda row: across @ (x @ row) + ridge * row, dtype="f4")
    for n in range(s.shape[1]):
        rest = across @ (y[:, n] - x @ s[:, n])
        table[:, n] += cg(normal, rest, rtol=_PRECISE, maxiter=_STEPS)[0]
        advance(1)
    return torch.from_numpy(table)


_LOG_SCALE_FACTOR = 3.0
_SMALLEST_DEVIATION = 1e-6
_SMALLEST_SHARE = 1e-3
"""Of the mean deviation; a component with less is taken for constant, as some encoders have them,
and scaled by the mean. Its likelihood has no bound, and its gradient would drown all others."""
_DEVIATION = 0.05  # of the first weights of a coupling


class _ActNorm(nn.Module):
    """``(x + b) * exp(3 s)``; at the ``start`` set such that rows get mean 0 and variance 1."""

    starts = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.log_scale = nn.Parameter(torch.zeros(width))

    def forward(self, rows: Tensor) -> Tensor:
        if self.starts:
            self.shift.copy_(-rows.mean(0))
            deviation = (rows + self.shift).square().mean(0).sqrt() + _SMALLEST_DEVIATION
            mean = deviation.mean()
            deviation = deviation.where(deviation > _SMALLEST_SHARE * mean, mean)
            self.log_scale.copy_(-deviation.log() / _LOG_SCALE_FACTOR)
        return (rows + self.shift) * (_LOG_SCALE_FACTOR * self.log_scale).exp()


class _Coupling(nn.Module):
    """The first half stays, and says what is added to the second: two layers and a map from 0."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        half = width // 2
        self.inner = nn.Linear(half, hidden, bias=False)
        self.inner_norm = _ActNorm(hidden)
        self.middle = nn.Linear(hidden, hidden, bias=False)
        self.middle_norm = _ActNorm(hidden)
        self.outer = nn.Linear(hidden, half)
        self.log_scale = nn.Parameter(torch.zeros(half))
        for layer in (self.inner, self.middle):
            nn.init.normal_(layer.weight, std=_DEVIATION)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, rows: Tensor) -> Tensor:
        first, second = rows.chunk(2, dim=1)
        hidden = self.inner_norm(self.inner(first)).relu()
        hidden = self.middle_norm(self.middle(hidden)).relu()
        shift = self.outer(hidden) * (_LOG_SCALE_FACTOR * self.log_scale).exp()
        return torch.cat([first, second + shift], dim=1)


class _FlowStep(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = _ActNorm(width)
        self.coupling = _Coupling(width, hidden)

    def forward(self, rows: Tensor) -> Tensor:
        moved: Tensor = self.coupling(self.norm(rows).flip(1))
        return moved


class Flow(Transform):
    """BERT-flow (Li et al. 2020): a Glow from embeddings to a standard normal distribution."""

    name = "flow"
    made_from = ("width", "levels", "depth", "coupling_width")

    def __init__(
        self, width: int, levels: int = 3, depth: int = 3, coupling_width: int = 32
    ) -> None:
        """Use weights of torch's generator; ConfigError if ``width`` cannot be halved so often."""
        super().__init__()
        if width % 2**levels:
            raise ConfigError(f"a flow halves {width} numbers {levels} times: set fewer --levels")
        self.input_width = self.width = width
        self.levels, self.depth, self.coupling_width = levels, depth, coupling_width
        widths = [width >> level for level in range(levels)]
        self.steps: Any = nn.ModuleList(
            nn.ModuleList(_FlowStep(each, coupling_width) for _ in range(depth)) for each in widths
        )

    def map_rows(self, rows: Tensor) -> Tensor:
        done: list[Tensor] = []
        for number, level in enumerate(self.steps, start=1):
            for step in level:
                rows = step(rows)
            if number < self.levels:
                rows, second = rows.chunk(2, dim=1)
                done.append(second)
        return torch.cat([*done, rows], dim=1)

    @torch.no_grad()
    def start(self, rows: Tensor) -> None:
        """Set all scales such that ``rows (S, D)`` come out of each with mean 0 and variance 1."""
        norms = [module for module in self.modules() if isinstance(module, _ActNorm)]
        for norm in norms:
            norm.starts = True
        self.map_rows(rows)
        for norm in norms:
            norm.starts = False

    def bits_per_dimension(self, rows: Tensor) -> Tensor:
        """Mean negative log-likelihood of ``rows (S, D)``, a scalar, in bits for each component."""
        normal = -0.5 * (torch.square(self(rows)) + math.log(2 * math.pi)).sum(1)
        # The Jacobian's determinant is the same everywhere.
        scales = [_LOG_SCALE_FACTOR * s.norm.log_scale.sum() for it in self.steps for s in it]
        return -(normal + torch.stack(scales).sum()).mean() / (math.log(2) * self.width)


TRANSFORMS: dict[str, Any] = {it.name: it for it in (Projection, Whitening, Flow)}


def transform_named(name: str, settings: dict[str, Any]) -> Transform:
    """A transform whose weights are still to be loaded; TypeError for settings of another kind."""
    transform: Transform = TRANSFORMS[pick("transform", name, TRANSFORMS)](**settings)
    return transform
