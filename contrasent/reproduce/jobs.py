"""Jobs: what has to be made and measured for tables, each once, found again by its content.

A job is addressed by the hash of everything that decides its numbers: settings, texts, start,
scale. Tables share jobs that way, and a command that was killed goes on with what is there: a job
counts when its ``job.json`` is in place, a measure when its result is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from contrasent.errors import ConfigError, ContrasentError
from contrasent.evaluation.task_names import STS
from contrasent.recipe import Recipe, load_recipe
from contrasent.reproduce.materials import (
    STS_FOLDERS,
    TRANSFER_FOLDERS,
    Materials,
    content_hash,
    data_sha256,
    file_sha256,
    model_sha256,
)
from contrasent.reproduce.measures import Measured, examples_of, is_by_example, measure_of
from contrasent.reproduce.papers import (
    SAMPLE,
    TARGET,
    PaperColumn,
    PaperRow,
    System,
    load_scales,
    recipe_of,
    system_row,
)

DONE = "job.json"
TEACHERS = ("teacher", "second_teacher")
"""Settings of an objective that name encoders."""


@dataclass(frozen=True, slots=True)
class Job:
    """An encoder to make, or a text to look at."""

    key: str  # hash of what decides it
    kind: str  # ``train``, ``fit``, ``start`` or ``data``
    label: str  # of the row that asked for it first
    system: System  # how it is made
    recipe: Recipe | None  # for train, with the files of this machine
    source: str  # the start, or the text; empty where it is made from ``above``
    above: Job | None  # the job that it is made from
    text: str  # what a map is fitted on: a file, or a task
    identity: Mapping[str, Any]  # what the hash is of
    teachers: Mapping[str, Job]  # encoders that it is trained to follow, by settings

    @property
    def seed(self) -> int | None:
        """Of the training run that it comes from, if there is one."""
        if self.recipe is not None:
            return self.recipe.train.seed
        return self.above.seed if self.above else None

    @property
    def is_random(self) -> bool:
        """Whether another seed would give another encoder."""
        return any(it.kind == "train" or it.system.make == "flow" for it in self.chain())

    @property
    def run(self) -> Job:
        """The training run that it is the encoder of, with a head or a map; else itself."""
        return next((it for it in reversed([*self.chain()]) if it.kind == "train"), self)

    def chain(self) -> Iterator[Job]:
        """The jobs that it is made from, and itself, first things first."""
        for job in (self.above, *self.teachers.values()):
            if job is not None:
                yield from job.chain()
        yield self


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measure of a job, and the file that it reads if it reads one."""

    job: Job
    name: str
    argument: str
    key: str


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of a reproduction: what was made, by its hash."""

    root: Path

    def folder(self, job: Job) -> Path:
        """Of one job."""
        return self.root / "jobs" / job.key

    def is_made(self, job: Job) -> bool:
        """Whether the job was finished; texts and starts need no making."""
        return job.kind in ("start", "data") or (self.folder(job) / DONE).is_file()

    def path(self, measurement: Measurement) -> Path:
        """Of a result, without its suffix."""
        kind = measurement.name.partition(":")[0]
        return self.folder(measurement.job) / f"{kind}-{measurement.key}"

    def is_measured(self, measurement: Measurement) -> bool:
        """Whether there is a result, with what it says of each example where it is to say that.

        Results of earlier versions are without, so that a difference would have no interval.
        """
        result = self.result(measurement)
        if result is None or not (result.values and is_by_example(measurement.name)):
            return result is not None
        return bool(examples_of(self.path(measurement)))

    def result(self, measurement: Measurement) -> Measured | None:
        """What was measured; None if it was not."""
        path = self.path(measurement)
        path = path.with_name(f"{path.name}.json")
        return Measured.read(path) if path.is_file() else None

    def description(self, job: Job) -> dict[str, Any]:
        """What is kept of a job that was made; nothing of one that was not."""
        path = self.folder(job) / DONE
        content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        return content

    def failure(self, job: Job) -> str:
        """Why the last attempt at a job failed; empty if it did not."""
        path = self.folder(job) / "failed.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else ""


class Planner:
    """Makes the jobs of cells."""

    def __init__(
        self, scale: str, materials: Materials, data_dir: str | None, device: str | None
    ) -> None:
        """Plan at a scale, from materials, with the tasks of SentEval's folder, for a device."""
        self.scale_name, self.materials, self.data_dir = scale, materials, data_dir
        self._device = device
        self.scale = load_scales()[1][scale]
        self._jobs: dict[str, Job] = {}

    def jobs(self, row: PaperRow, column: PaperColumn, seed: int) -> list[Measurement]:
        """What a cell is computed from for a seed: one measurement, or one for each STS task.

        ContrasentError if it needs something that is not there.
        """
        system = row.system(self.scale_name, column)
        value = column.value.split(":")[1] if column.value.startswith("delta:") else column.value
        if value.startswith("generator:"):
            settings, _ = recipe_of(system, self.scale)
            generator = load_recipe(system.recipe, settings).objective.get("generator")
            system = System(make="start", start=str(generator), pooler="cls")
            value = value.partition(":")[2]
        followed = value.startswith(("trace:", "machine:"))
        name = "" if followed else measure_of(value)
        if system.data != TARGET:
            return [self.measurement(self.job(row.label, system, seed), name)]
        task = value.partition("/")[0]
        return [
            self.measurement(self.job(row.label, system, seed, it), f"{name}:{it}")
            for it in (STS if task == "sts" else (task,))
        ]

    def measurement(self, job: Job, name: str) -> Measurement:
        """A measure of a job."""
        argument = ""
        corpus = name.partition("@")[2] if name.startswith("neighbours") else ""
        if corpus in load_scales()[0]:
            argument = self.materials.text(corpus)
        preset = self.scale.preset if name == "transfer" else ""
        folders = TRANSFER_FOLDERS if name.startswith("transfer") else STS_FOLDERS
        read = file_sha256(argument) if argument else data_sha256(self.data_dir, folders)
        return Measurement(
            job, name, argument, content_hash([name, preset, read, job.system.count])
        )

    def job(self, label: str, system: System, seed: int, task: str = "") -> Job:
        """The job that makes a system's encoder.

        ContrasentError if it needs something that is not there.

        Args:
            label: of the row.
            system: how it is made.
            seed: of its training, or of what it is made from.
            task: that is scored, whose text a map for the target is fitted on.
        """
        key = content_hash([asdict(system), seed, task if system.data == TARGET else ""])
        if key not in self._jobs:
            self._jobs[key] = self._new_job(label, system, seed, task)
        return self._jobs[key]

    def _new_job(self, label: str, system: System, seed: int, task: str) -> Job:
        above = self._system_job(system.of, seed) if system.of else None
        match system.make:
            case "train" if system.head:
                above = self.job(label, replace(system, head=""), seed)
                identity = {"start": above.key, "head": system.head}
                return self._job("start", label, system, "", above, identity=identity)
            case "train":
                return self._training(label, system, seed, above)
            case "start":
                source = "" if above else self.materials.model(system.start)
                identity = {"start": above.key if above else model_sha256(source)}
                identity |= {"pooler": system.pooler or ""}
                return self._job("start", label, system, source, above, identity=identity)
            case "data":
                known = system.data.removeprefix(SAMPLE) in load_scales()[0]
                source = self.materials.text(system.data) if known else system.data
                sha = file_sha256(source) if known else source
                return self._job("data", label, system, source, identity={"data": sha})
            case _:
                return self._fit(label, system, above, task)

    def _system_job(self, name: str, seed: int) -> Job:
        return self.job(name, system_row(name).system(self.scale_name), seed)

    def _training(self, label: str, system: System, seed: int, above: Job | None) -> Job:
        settings, start = recipe_of(system, self.scale)
        settings |= {"train.seed": seed, "evaluation.final": "none"}
        if self.data_dir:
            settings["evaluation.data_dir"] = self.data_dir
        recipe = load_recipe(system.recipe, settings)
        generator = recipe.objective.get("generator")
        find = self.materials.model
        source, text, view, *made = _every(
            lambda: "" if above else find(start),
            lambda: self.materials.text(system.data),
            lambda: self.materials.view(recipe.view.name),
            *([] if generator is None else [lambda: find(generator)]),
        )
        models = dict(zip(("generator",), made, strict=False))
        teachers = {
            role: self._system_job(name, seed)
            for role, name in zip(TEACHERS, system.teachers, strict=False)
        }
        precision = recipe.train.precision
        identity = {
            "settings": _changed(recipe),
            "precision": self._usual_precision if precision == "auto" else precision,
            "start": above.key if above else model_sha256(source),
            "text": file_sha256(text),
            "tasks": data_sha256(self.data_dir),
            "models": {role: model_sha256(it) for role, it in models.items()},
            **({"view": view} if view else {}),
            **({"teachers": [it.key for it in teachers.values()]} if teachers else {}),
        }
        # Tables that score it with its head share the run with those that do not.
        keeps = {"name": "simcse", "head": "mlp"}.items() <= recipe.objective.items()
        recipe = replace(
            recipe,
            encoder=replace(recipe.encoder, name=source),
            data=replace(recipe.data, file=text),
            objective={**recipe.objective, **models, **({"keep_head": True} if keeps else {})},
        )
        job = self._job("train", label, system, source, above, recipe, identity=identity)
        return replace(job, teachers=teachers)

    @cached_property
    def _usual_precision(self) -> str:
        """What ``auto`` is on the device."""
        from contrasent.model.precision import torch_precisions, training_device

        return torch_precisions(training_device(self._device))[0]

    def _fit(self, label: str, system: System, above: Job | None, task: str) -> Job:
        text = task if system.data == TARGET else self.materials.text(system.data)
        sha = data_sha256(self.data_dir) if system.data == TARGET else file_sha256(text)
        identity = {
            "fit": system.make,
            "of": above.key if above else "",
            "text": [task, sha],
        }
        return self._job("fit", label, system, "", above, text=text, identity=identity)

    def _job(  # noqa: PLR0913 - the fields of a job
        self,
        kind: str,
        label: str,
        system: System,
        source: str,
        above: Job | None = None,
        recipe: Recipe | None = None,
        *,
        text: str = "",
        identity: Mapping[str, Any],
    ) -> Job:
        whole = {"kind": kind, "scale": self.scale_name, **identity}
        key = content_hash(whole)
        return Job(key, kind, label, system, recipe, source, above, text, whole, {})


def _every(*found: Callable[[], str]) -> list[str]:
    """What all of them give; a ConfigError says all that is missing."""
    values: list[str] = []
    reasons: list[str] = []
    for find in found:
        try:
            values.append(find())
        except ContrasentError as error:
            reasons.append(str(error))
    if reasons:
        raise ConfigError("; ".join(dict.fromkeys(reasons)))
    return values


_OF_THE_MACHINE = {("encoder", "name"), ("data", "file"), ("evaluation", "data_dir")}


def _changed(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Settings that are not the default, so that a new setting leaves old jobs what they are."""
    usual = asdict(Recipe())
    changed: dict[str, dict[str, Any]] = {}
    for section, settings in asdict(recipe).items():
        for key, value in settings.items():
            if (section, key) in _OF_THE_MACHINE or (section, key) == ("objective", "generator"):
                continue
            if section == "objective" or value != usual[section][key]:
                changed.setdefault(section, {})[key] = value
    return changed
