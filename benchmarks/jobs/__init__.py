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


def wait_for_device() -> None:
    """Let the work that was handed to an accelerator end, so that its time counts."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
