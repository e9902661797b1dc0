"""The state of a run, from which it goes on as if never stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from contrasent.errors import CheckpointError
from contrasent.files import writing_folder

_FORMAT = 1
_PREFIX = "step-"


@dataclass(slots=True)
class Progress:
    """The progress of a run: updates made, and its best evaluation on the dev task.

    The place in the data and the learning rate follow from ``step``; the schedule ``plateau``
    multiplies the latter with ``rate_factor``. ``without_best`` counts evaluations since the best.
    With ``twin_is_better`` the second of two encoders had the higher score at the last one, with
    ``best_is_start`` nothing beat the start as it comes.
    """

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None
    without_best: int = 0
    ended: bool = False
    twin_is_better: bool = False
    rate_factor: float = 1.0
    best_is_start: bool = False


def save_state(
    folder: Path,
    progress: Progress,
    modules: Mapping[str, nn.Module],
    optimizer: Optimizer,
    device: torch.device,
) -> None:
    """Write ``folder/step-N`` whole, then remove older states."""
    target = folder / f"{_PREFIX}{progress.step:09d}"
    with writing_folder(target) as partial:
        for name, module in modules.items():
            _save(module.state_dict(), partial / f"{name}.safetensors")
        moments = optimizer.state_dict()["state"]
        named = {f"{n}.{key}": t for n, values in moments.items() for key, t in values.items()}
        _save(named, partial / "optimizer.safetensors")
        _save(random_state(device), partial / "random.safetensors")
        described = {"format": _FORMAT, **asdict(progress)}
        (partial / "progress.json").write_text(json.dumps(described), encoding="utf-8")
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other)


def load_state(
    folder: Path, modules: Mapping[str, nn.Module], optimizer: Optimizer, device: torch.device
) -> Progress | None:
    """Restore the newest whole state below ``folder``; None if there is none."""
    states = sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
    if not states:
        return None
    newest = states[-1]
    try:
        described = json.loads((newest / "progress.json").read_text(encoding="utf-8"))
        if described.pop("format") != _FORMAT:
            raise CheckpointError("it was written by another version of contrasent")
        for name, module in modules.items():
            module.load_state_dict(load_file(newest / f"{name}.safetensors"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in load_file(newest / "optimizer.safetensors").items():
            number, _, key = name.partition(".")
            moments.setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        set_random_state(load_file(newest / "random.safetensors"), device)
        return Progress(**described)
    except Exception as error:
        raise CheckpointError(
            f"cannot resume from {newest}: {error}; start the run again with --overwrite"
        ) from error


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    stored: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        # A weight that two parts of a module share is written for each of them.
        stored[name] = whole.clone() if whole.data_ptr() in places else whole
        places.add(whole.data_ptr())
    save_file(stored, path)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators, of the CPU and of ``device``."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Put the generators back where :func:`random_state` found them."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
