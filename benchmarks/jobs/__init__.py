"""The jobs of contestants. A peer's file imports nothing of contrasent: its Python may lack it."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

Values = dict[str, Any]
"""What ``round(number)`` of a job gives: ``sentences``, how many were done, and whatever else was
measured, numbers and lists of numbers by name, ready for JSON."""


def share(texts: list[str], number: int, size: int) -> list[str]:
    """The sentences of a round: each has its own, as long as there are enough."""
    start = number * size % len(texts)
    return texts[start : start + size]


class Steps:
    """Rounds of steps of AdamW, clipped at 1, each of a batch of its own; ``loss`` is of one."""

    def __init__(self, model: nn.Module, texts: list[str], batch_size: int, steps: int) -> None:
        self._texts, self._batch_size, self._steps = texts, batch_size, steps
        self._parameters = list(model.train().parameters())
        self._optimizer = torch.optim.AdamW(self._parameters, lr=3e-5, fused=True)

    def round(self, number: int) -> Values:
        """Make the steps of a round."""
        texts = share(self._texts, number, self._batch_size * self._steps)
        for start in range(0, len(texts), self._batch_size):
            torch.autograd.backward(self.loss(texts[start : start + self._batch_size]))
            nn.utils.clip_grad_norm_(self._parameters, 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        wait_for_device()
        return {"sentences": len(texts)}


@dataclass(kw_only=True)
class Encoding:
    """Rounds of all sentences in one call, or of so many ``calls`` of one sentence.

    ``embed`` of a side is from texts to their matrix ``(N, D)``.
    """

    folder: str
    texts: list[str]
    pooler: str | None = None
    calls: int = 0

    def round(self, number: int) -> Values:
        """Embed all sentences, or time single calls, each of another sentence."""
        if not self.calls:
            return {"sentences": len(self.rows())}
        seconds = []
        for text in share(self.texts, number, self.calls):
            start = time.perf_counter()
            self.embed([text])
            seconds.append(time.perf_counter() - start)
        return {"sentences": len(seconds), "calls": seconds}

    def rows(self) -> np.ndarray:
        """``(N, D)``, an embedding for each sentence."""
        return self.embed(self.texts)


def wait_for_device() -> None:
    """Let the work that was handed to an accelerator end, so that its time counts."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
