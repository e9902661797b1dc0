"""What the contestants do. A peer's file imports nothing of contrasent: its Python may lack it."""

import json
from pathlib import Path
from typing import Any

Values = dict[str, Any]
"""What ``round(number)`` of a job gives: ``sentences``, how many were done, and whatever else was
measured, numbers and lists of numbers by name, ready for JSON."""


def read_texts(path: str) -> list[str]:
    """The sentences that the command wrote for all contestants."""
    texts: list[str] = json.loads(Path(path).read_text(encoding="utf-8"))
    return texts


def share(texts: list[str], number: int, size: int) -> list[str]:
    """The sentences of a round: each has its own, as long as there are enough."""
    start = number * size % len(texts)
    return texts[start : start + size]


class Steps:
    """Rounds of training steps, each of a batch of its own; ``_step`` trains on one."""

    def __init__(self, texts: str, batch_size: int, steps: int) -> None:
        self._texts, self._batch_size, self._steps = read_texts(texts), batch_size, steps

    def round(self, number: int) -> Values:
        """Make the steps of a round."""
        texts = share(self._texts, number, self._batch_size * self._steps)
        for start in range(0, len(texts), self._batch_size):
            self._step(texts[start : start + self._batch_size])
        wait_for_device()
        return {"sentences": len(texts)}

    def _step(self, batch: list[str]) -> None:
        raise NotImplementedError


def wait_for_device() -> None:
    """Let the work that was handed to an accelerator end, so that its time counts."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
