"""The files of a training run, to compare."""

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class RunFiles:
    """The digest of every weight that a run saved, by path, what it logged, and its examples."""

    weights: dict
    metrics: list
    examples: int | None

    @classmethod
    def read(cls, folder):
        """The files of a run, or of a whole folder of them."""
        saved = [path for kind in ("best", "last") for path in folder.glob(f"{kind}*/**/*")]
        weights = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in saved
            if path.suffix == ".safetensors"
        }
        assert weights
        result = folder / "result.json"
        examples = json.loads(result.read_text())["examples"] if result.exists() else None
        return cls(weights, metrics(folder), examples)


def weights(folder, which="last"):
    """The bytes of the weights that a run saved."""
    return (folder / which / "model.safetensors").read_bytes()


def logged(folder):
    """Every line that a run logged."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def metrics(folder):
    """The same without what depends on the clock."""
    lines = logged(folder)
    return [{k: v for k, v in line.items() if k != "sentences_per_second"} for line in lines]


def logged_steps(folder):
    """What it logged of each step."""
    return [line for line in logged(folder) if "loss" in line]


def logged_losses(folder):
    """The loss of each step."""
    return [line["loss"] for line in logged_steps(folder)]


def logged_evaluations(folder):
    """What it logged of each evaluation."""
    return [line for line in logged(folder) if "evaluation" in line]
