"""The folder of a training run: what lies in it, and who may write there."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from contrasent.config import Recipe, to_yaml
from contrasent.errors import ConfigError
from contrasent.files import recover_folder, write_text
from contrasent.records import installed_versions

_RECIPE, _DATA = "recipe.yaml", "data.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Names inside the folder of a run.

    Attributes:
        root: the folder; an encoder loader that is given it takes ``best``, else ``last``.
    """

    root: Path

    @property
    def best(self) -> Path:
        """The encoder with the highest dev score."""
        return self.root / "best"

    @property
    def last(self) -> Path:
        """The encoder after the last step."""
        return self.root / "last"

    @property
    def state(self) -> Path:
        """What ``--resume`` continues from; removed when the run is complete."""
        return self.root / "state"

    @property
    def result(self) -> Path:
        """Written last: the run is complete."""
        return self.root / "result.json"

    @property
    def metrics(self) -> Path:
        """A line per step and per evaluation."""
        return self.root / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What was said, with the time."""
        return self.root / "log.txt"

    @property
    def scores(self) -> Path:
        """Records of the final tasks, before and after."""
        return self.root / "scores.jsonl"

    @property
    def is_complete(self) -> bool:
        """Whether a run was finished here."""
        return self.result.is_file()

    def check(self, recipe: Recipe, *, resume: bool, overwrite: bool) -> None:
        """Make sure that a run of ``recipe`` may write here, before anything is written.

        Raises:
            ConfigError: the folder holds something else, or another run.
        """
        if self.root.is_file():
            raise ConfigError(f"{self.root} is a file; choose a folder with --output")
        if not self.root.is_dir() or not any(self.root.iterdir()):
            return
        if not (self.root / _RECIPE).is_file():
            raise ConfigError(
                f"{self.root} holds files that are not of a training run; choose another --output"
            )
        if resume:
            self._refuse_other(recipe)
        elif not overwrite:
            raise ConfigError(
                f"{self.root} holds a training run already; continue it with --resume, replace it "
                "with --overwrite, or choose another --output"
            )

    def open(self, recipe: Recipe, data: Mapping[str, Any], *, resume: bool) -> None:
        """Take the folder: write recipe, data and environment; a new run removes an old one.

        Raises:
            ConfigError: the run to resume was trained on other data.
        """
        if self.root.is_dir() and not resume:
            shutil.rmtree(self.root)
        self._refuse_other_data(data)
        self.root.mkdir(parents=True, exist_ok=True)
        recover_folder(self.best)
        recover_folder(self.last)
        write_text(self.root / _RECIPE, to_yaml(recipe))
        write_text(self.root / _DATA, json.dumps(data, indent=2) + "\n")
        write_text(self.root / "environment.json", json.dumps(_environment(), indent=2) + "\n")

    def _refuse_other(self, recipe: Recipe) -> None:
        stored = yaml.safe_load((self.root / _RECIPE).read_text(encoding="utf-8"))
        differing = [
            f"{section}.{key} is {old!r} there, {new!r} now"
            for section, settings in asdict(recipe).items()
            for key, new in settings.items()
            if (old := (stored.get(section) or {}).get(key)) != new
        ]
        if differing:
            raise ConfigError(
                f"cannot resume {self.root} with other settings: {'; '.join(differing)}"
            )

    def _refuse_other_data(self, data: Mapping[str, Any]) -> None:
        if not (self.root / _DATA).is_file():
            return
        stored = json.loads((self.root / _DATA).read_text(encoding="utf-8"))
        if stored["sha256"] != data["sha256"]:
            raise ConfigError(
                f"cannot resume {self.root}: the training data has changed since it started (sha256 "
                f"{stored['sha256'][:12]} then, {data['sha256'][:12]} now)"
            )


def _environment() -> dict[str, Any]:
    """What beside the recipe decides the bits of the result."""
    import torch

    return {
        "versions": installed_versions(),
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
