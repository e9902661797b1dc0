"""The run folder: its files, lock and environment; what is logged in it, and to trackers."""

import json
import logging
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent import files
from contrasent.errors import ConfigError, MissingExtraError, logger, pick
from contrasent.recipe import Recipe, dotted, load_recipe, to_yaml
from contrasent.records import installed_versions

if TYPE_CHECKING:
    from accelerate import Accelerator

    from contrasent.training.loop import StepMetrics

_RECIPE, _DATA, _ENVIRONMENT = "recipe.yaml", "data.json", "environment.json"
_LOCK = ".state.lock"
_HEADER = "# The recipe of the training run in this folder, as contrasent understood it.\n"
# In this order an old run is removed: as long as anything is left of it, it is known as a run, and
# none that is half removed is taken for a complete one.
_WRITTEN = (
    *("result.json", "scores.jsonl", "held_out.json", "metrics.jsonl", "log.txt", "trackers"),
    *("profile", "state", "best", "last", "best-twin", "last-twin", _ENVIRONMENT, _DATA, _RECIPE),
)
# What an interrupted write leaves: .NAME.partial, .NAME.PROCESS.partial, .NAME.previous
_UNFINISHED = re.compile(r"\.(?P<name>.+?)(\.\d+)?\.(partial|previous)")


def complete(recipe: Recipe) -> Recipe:
    """``recipe`` with every setting of its objectives, also those left to the default."""
    from contrasent.objectives import MATRYOSHKA, config_of  # loads torch

    def whole(given: Mapping[str, Any]) -> dict[str, Any]:
        name, own = str(given["name"]), {key: it for key, it in given.items() if key != "name"}
        dimensions = {key: own[key] for key in MATRYOSHKA if key in own}
        return {"name": name, **asdict(config_of(name, own)), **dimensions}

    recipe = replace(recipe, objective=whole({"name": "simcse", **recipe.objective}))
    file = recipe.data.file
    if not isinstance(file, str):
        own = (it.objective and whole(recipe.of(it).objective) for it in file)
        file = [replace(it, objective=each) for it, each in zip(file, own, strict=True)]
    return replace(recipe, data=replace(recipe.data, file=file))


def environment() -> dict[str, Any]:
    """The software and hardware of this process, as ``environment.json`` keeps it."""
    import torch

    from contrasent.distributed import split_of_group

    return {
        "versions": installed_versions(),
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processes": split_of_group().processes,
    }


class RunFolder:
    """The folder of a run; an encoder loader that is given it takes ``best``, else ``last``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.best = root / "best"  # the encoder with the highest dev score
        self.last = root / "last"  # the encoder after the last step
        self.state = root / "state"  # from which --resume goes on; removed at the end
        self.result = root / "result.json"  # written last
        self.metrics = root / "metrics.jsonl"  # a line per step and per evaluation
        self.log = root / "log.txt"
        self.trackers = root / "trackers"  # files of trackers such as TensorBoard
        self.scores = root / "scores.jsonl"  # records of the final tasks, before and after

    def read_result(self) -> Any:
        """The content of ``result.json``."""
        return files.read_json(self.result)

    def read_dev_scores(self) -> tuple[str, float | None, list[float]]:
        """The dev task, its score of the start as it comes, and those of all else on the way."""
        name, start, scores = "", None, list[float]()
        for line in map(json.loads, self.metrics.read_text(encoding="utf-8").splitlines()):
            if "evaluation" in line:
                ((name, score),) = line["evaluation"].items()
                if line["step"]:
                    scores.append(score)
                else:
                    start = score
        return name, start, scores

    @property
    def is_complete(self) -> bool:
        """True if a run was finished here."""
        return self.result.is_file()

    def check_place(self, *, resume: bool, overwrite: bool) -> None:
        """Raise ConfigError if the folder cannot be written to, or holds anything to be kept."""
        files.require_place(self.root)
        names = sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []
        names = [name for name in names if name != _LOCK and not _is_unfinished(name)]
        foreign = [name for name in names if name not in _WRITTEN]
        problem = ""
        if resume and overwrite:
            problem = "is kept by --resume and replaced by --overwrite: give one of them"
        elif self.root.is_file():
            problem = "is a file"
        elif names and not self.is_run:
            problem = f"holds files that are not of a training run, such as {names[0]}"
        elif overwrite and foreign:
            problem = f"holds {foreign[0]}, which no training run wrote, so it is not replaced"
        elif names and not overwrite and not resume:
            problem = "holds a training run already: --resume continues it, --overwrite replaces it"
        self._refuse(problem, problem)

    def _refuse(self, refused: object, problem: str) -> None:
        if refused:
            raise ConfigError(f"{self.root} {problem}; choose another folder with --output")

    def check(self, recipe: Recipe, *, resume: bool, overwrite: bool) -> None:
        """As :meth:`check_place`; what is there must fit ``recipe``, and not be its start."""
        self.check_place(resume=resume, overwrite=overwrite)
        if resume and self.is_run:
            kept, now = dotted(complete(load_recipe(self.root / _RECIPE))), dotted(recipe)
            differing = [it for it in dict.fromkeys([*kept, *now]) if kept.get(it) != now.get(it)]
            changes = (f"{it} is {kept.get(it)!r} there, {now.get(it)!r} now" for it in differing)
            problem = f"cannot be resumed with other settings: {'; '.join(changes)}"
            self._refuse(differing, f"{problem}; repeat its own")
        start = Path(recipe.encoder.name).expanduser()
        here = recipe.encoder.name and start.exists()
        inside = here and start.resolve().is_relative_to(self.root.resolve())
        self._refuse(inside, f"holds the encoder to start from, {recipe.encoder.name}")

    @contextmanager
    def hold(
        self, recipe: Recipe, data: Mapping[str, Any], *, resume: bool, overwrite: bool
    ) -> Iterator[None]:
        """Take the folder, write recipe, data and environment; others are kept out of it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with files.exclusive(self.state):
            files.sweep(self.root)
            self.check(recipe, resume=resume, overwrite=overwrite)
            if resume:
                then = (self._kept() or data).get("read", {})
                for name, content in data["read"].items():
                    self._refuse(
                        then.get(name, content) != content,
                        f"cannot be resumed: {name} has changed since it started (sha256 "
                        f"{then.get(name, '')[:12]} then, {content[:12]} now); bring it back",
                    )
            else:
                unfinished = [path for path in self.root.iterdir() if _is_unfinished(path.name)]
                for path in [*unfinished, *(self.root / name for name in _WRITTEN)]:
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink(missing_ok=True)
            for encoder in (self.best, self.last):
                files.recover_folder(encoder)
                files.recover_folder(twin_of(encoder))
            files.write_text(self.root / _RECIPE, _HEADER + to_yaml(recipe))
            files.write_json(self.root / _DATA, data)
            files.write_json(self.root / _ENVIRONMENT, environment())
            yield

    def tidy(self) -> None:
        """Remove what only an unfinished run needs; the process that completed it may have died."""
        if self.state.exists() or (self.root / _LOCK).exists():
            with suppress(files.BusyError), files.exclusive(self.state):
                files.sweep(self.root)
                shutil.rmtree(self.state, ignore_errors=True)

    @property
    def holds_out(self) -> bool | None:
        """True if the run here keeps a part of its text out of training; None without a run."""
        kept = self._kept()
        return None if kept is None else "held_out" in kept

    def _kept(self) -> Any:
        path = self.root / _DATA
        return files.read_json(path) if path.is_file() else None

    @property
    def is_run(self) -> bool:
        """True if the recipe is one that a run wrote, and not one that a user keeps here."""
        path = self.root / _RECIPE
        return path.is_file() and path.read_bytes().startswith(_HEADER.encode())


def twin_of(encoder: Path) -> Path:
    """The folder of the second encoder of a run with two, beside the first."""
    return encoder.with_name(f"{encoder.name}-twin")


def _is_unfinished(name: str) -> bool:
    match = _UNFINISHED.fullmatch(name)
    return match is not None and match["name"] in _WRITTEN


class MetricsFile:
    """``metrics.jsonl``, without lines from ``first_step`` on; no path drops all lines."""

    def __init__(self, path: Path | None, first_step: int) -> None:
        if path is not None:
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            lines = text.splitlines(keepends=True)
            files.write_text(path, "".join(line for line in lines if _is_before(line, first_step)))
        self.file = (path or Path(os.devnull)).open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any]) -> None:
        """Append a line; it is on disk when the process dies, not when the machine does."""
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()


def _is_before(line: str, first_step: int) -> bool:
    """True if a whole line was written before update ``first_step``; not if it cannot be read."""
    # An evaluation of step N was made after N updates, but that of the start is made again.
    try:
        values = json.loads(line)
        after = values["step"] > 0 and ("evaluation" in values or "geometry" in values)
        reached: int = values["step"] + (0 if after else 1)
    except (ValueError, KeyError, TypeError):
        return False
    return reached <= first_step and line.endswith("\n")


def step_values(step: "StepMetrics", seconds: float) -> dict[str, float | int]:
    """The numbers of a step under the names they have in ``metrics.jsonl`` and in trackers."""
    return {
        "step": step.number,
        "loss": step.loss,
        **({f"loss_{step.source}": step.loss} if step.source else {}),
        **{f"term_{name}": value for name, value in step.terms.items()},
        "learning_rate": step.learning_rate,
        "gradient_norm": step.gradient_norm,
        **step.measures,
        "sentences_per_second": step.sentences / seconds,
    }


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging names it
        error = sys.exception()
        if error is not None:
            raise error


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append what is logged to ``path``, with the time."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def check_trackers(names: list[str]) -> None:
    """Raise ConfigError for an unknown tracker, MissingExtraError if its package is missing."""
    if not names:  # accelerate.tracking takes a second to import
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known = [str(name) for name in LOGGER_TYPE_TO_CLASS]
    installed = {str(name) for name in get_available_trackers()}
    for name in names:
        if pick("tracker", name, known) not in installed:
            raise MissingExtraError(f"tracker {name!r} needs its package: pip install {name}")


@contextmanager
def trackers(accelerator: "Accelerator", recipe: Recipe, run: str) -> Iterator[None]:
    """The trackers that ``recipe`` names, open inside; where runs have names, it is ``run``."""
    if not recipe.train.trackers:
        yield
        return
    simple = bool | int | float | str  # what every tracker takes
    settings = {k: v if isinstance(v, simple) else str(v) for k, v in dotted(recipe).items()}
    named = {name: {"name": run} for name in ("trackio", "wandb")}
    with redirect_stdout(sys.stderr):  # for what they print
        accelerator.init_trackers("contrasent", config=settings, init_kwargs=named)
    try:
        yield
    finally:
        with redirect_stdout(sys.stderr):
            accelerator.end_training()
