"""Jobs: what has to be made and measured for tables, each once, found again by its content.

A job is addressed by the hash of everything that decides its numbers: settings, texts, start,
scale. Tables share jobs that way, and a command that was killed goes on with what is there: a job
counts when its ``job.json`` is in place, a measure when its result is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from contrasent import model
from contrasent.encode import end_with_parent
from contrasent.errors import ConfigError, ContrasentError
from contrasent.evaluation import STS, Geometry
from contrasent.files import read_json, write_text
from contrasent.recipe import Recipe
from contrasent.reproduce import materials, papers
from contrasent.reproduce.materials import Materials, content_hash, data_sha256, path_sha256
from contrasent.reproduce.papers import SAMPLE, TARGET, PaperColumn, PaperRow, System

DONE = "job.json"
_PRELOADED = (
    *("contrasent.reproduce.runner", "scipy.stats"),
    "transformers.models.bert.modeling_bert",
    "transformers.tokenization_utils_tokenizers",
)
TEACHERS = ("teacher", "second_teacher")
"""Settings of an objective that name encoders."""

Value = float | str


@dataclass(frozen=True, slots=True)
class Job:
    """An encoder to make, or a text to look at."""

    key: str  # hash of what decides it
    kind: str  # ``train``, ``fit``, ``start`` or ``data``
    label: str  # of the row that asked for it first
    system: System  # how it is made
    identity: Mapping[str, Any]  # what the hash is of
    above: "Job | None"  # the job that it is made from
    source: str = ""  # the start, or the text; empty where it is made from ``above``
    recipe: Recipe | None = None  # for train, with the files of this machine
    text: str = ""  # what a map is fitted on: a file, or a task
    # encoders that it is trained to follow, by settings
    teachers: "Mapping[str, Job]" = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """Of the training run that it comes from, if there is one."""
        if self.recipe is not None:
            return self.recipe.train.seed
        return self.above.seed if self.above else None

    @property
    def is_random(self) -> bool:
        """Another seed would give another encoder."""
        return any(it.kind == "train" or it.system.make == "flow" for it in self.chain())

    @property
    def run(self) -> "Job":
        """The training run that it is the encoder of, with a head or a map; else itself."""
        return next((it for it in reversed([*self.chain()]) if it.kind == "train"), self)

    def chain(self) -> "Iterator[Job]":
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

    @property
    def result(self) -> str:
        """The name of its result in a store."""
        return f"{self.job.key}/{self.name.partition(':')[0]}-{self.key}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one measure; examples and geometry are kept in files of their own."""

    values: Mapping[str, Value]  # by the names that columns use; scores in [0, 1]
    # of scores, with how they were computed
    records: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # what could not be computed, and why
    seconds: float = 0.0  # how long it took
    scale: str = ""  # at which its encoder was made
    # by task or value: cosines of the pairs of an STS task; how much each example moves an accuracy
    # or a recall, and each rated pair a number of geometry
    examples: Mapping[str, np.ndarray] | None = None
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of a reproduction: what was made, by its hash, and with what."""

    root: Path
    scale: str  # its name
    data_dir: str | None = None  # SentEval's folder
    device: str | None = None  # what computes; None takes the accelerator if there is one

    def folder(self, job: Job) -> Path:
        """Of one job."""
        return self.root / "jobs" / job.key

    def is_made(self, job: Job) -> bool:
        """The job was finished; texts and starts need no making."""
        return job.kind in ("start", "data") or (self.folder(job) / DONE).is_file()

    def path(self, measurement: Measurement, suffix: str) -> Path:
        """Of a result: ``.json``, ``.npz`` by example, ``.jsonl`` or ``.failed.txt``."""
        return self.root / "jobs" / f"{measurement.result}{suffix}"

    def result(self, measurement: Measurement) -> Measured | None:
        """What was measured; None if it was not."""
        path = self.path(measurement, ".json")
        return Measured(**read_json(path)) if path.is_file() else None

    def examples(self, result: str) -> Mapping[str, np.ndarray]:
        """Numbers by test pair or example, by task or value; nothing where none were kept."""
        path = self.root / "jobs" / f"{result}.npz"
        if not path.exists() or not path.with_suffix(".json").exists():
            return {}
        with np.load(path) as arrays:
            return dict(arrays)

    def description(self, job: Job) -> dict[str, Any]:
        """What is kept of a job that was made; nothing of one that was not."""
        path = self.folder(job) / DONE
        return read_json(path) if path.is_file() else {}

    def failure(self, job: Job) -> str:
        """Why the last attempt at a job failed; empty if it did not."""
        path = self.folder(job) / "failed.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else ""


@dataclass(frozen=True, slots=True)
class Work:
    """A job, and what is to be measured of it."""

    job: Job  # to be made, unless it is made
    measurements: tuple[Measurement, ...]  # that have no result yet
    store: Store  # where everything is kept

    def fail(self, reason: str) -> str:
        """Write down why it was not done; a line that says so."""
        write_text(self.store.folder(self.job) / "failed.txt", reason)
        return f"{self.job.label} failed: {reason}"


def plan_work(measurements: Iterable[Measurement], store: Store) -> list[Work]:
    """What is left to do, a job once, each after those that it is made from."""
    wanted: dict[str, dict[str, Measurement]] = {}
    jobs = dict[str, Job]()
    for measurement in measurements:
        of = measurement.job
        for job in of.chain():
            jobs.setdefault(job.key, job)
        if measurement.name and not store.path(measurement, ".json").is_file():
            wanted.setdefault(of.key, {})[measurement.key] = measurement
    work = [
        Work(job, tuple(wanted.get(key, {}).values()), store)
        for key, job in sorted(jobs.items(), key=lambda it: len(list(it[1].chain())))
    ]
    return [it for it in work if it.measurements or not store.is_made(it.job)]


def run_work(work: Sequence[Work], jobs: int, notify: Callable[[str], None]) -> None:
    """Do all of it, so many ``jobs`` at once.

    Each has a process of its own, which may be killed, and whose memory ends with it. It is forked
    from one that has imported what it needs.
    """
    recipes = [it.job.recipe for it in work if it.job.recipe]
    for it in work:
        for path in it.store.folder(it.job).glob("*failed.txt"):
            path.unlink()
    left, pending = list(work), {it.job.key for it in work}
    busy: dict[Future[str], tuple[Work, ProcessPoolExecutor]] = {}
    forking = get_context("forkserver")
    objectives = {f"contrasent.objectives.{it.objective['name']}" for it in recipes}
    forking.set_forkserver_preload([*_PRELOADED, *sorted(objectives)])
    try:
        while left or busy:
            ready = [
                it for it in left if pending.isdisjoint(job.key for job in [*it.job.chain()][:-1])
            ]
            for it in ready[: jobs - len(busy)]:
                process = ProcessPoolExecutor(1, forking, end_with_parent)
                busy[process.submit(_perform, it, jobs)] = it, process
                left.remove(it)
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                it, process = busy.pop(future)
                try:
                    line = future.result()
                except BrokenExecutor:
                    line = it.fail("its process was killed, perhaps for want of memory")
                process.shutdown()
                pending.discard(it.job.key)
                notify(f"[{len(work) - len(left) - len(busy)}/{len(work)}] {line}")
    finally:
        for _, process in busy.values():
            process.shutdown(cancel_futures=True)


def _perform(work: Work, jobs: int) -> str:
    from contrasent.reproduce.runner import perform

    return perform(work, jobs)


class Planner:
    """Makes the jobs of cells, at a store's scale, with its tasks and device."""

    def __init__(self, materials: Materials, store: Store) -> None:
        self.scale = papers.load_scales()[1][store.scale]
        self._materials, self._store = materials, store
        self._jobs: dict[str, Job] = {}

    def jobs(self, row: PaperRow, column: PaperColumn, seed: int) -> list[Measurement]:
        """What a cell is computed from for a seed: one measurement, or one for each STS task.

        ContrasentError if it needs something that is not there.
        """
        system = row.system(self._store.scale, column)
        if column.of_generator:
            recipe, _ = papers.recipe_of(system, self.scale)
            start = str(recipe.objective.get("generator"))
            system = System(make="start", start=start, pooler="cls")
        if system.data != TARGET:
            return [self._measurement(self._job(row.label, system, seed), column.measure)]
        return [
            self._measurement(self._job(row.label, system, seed, it), f"{column.measure}:{it}")
            for it in (STS if column.task == "sts" else (column.task,))
        ]

    def _measurement(self, job: Job, name: str) -> Measurement:
        corpus = name.partition("@")[2] if name.startswith("neighbours") else ""
        argument = self._materials.get("text", corpus) if corpus in papers.load_scales()[0] else ""
        preset = self.scale.preset if name == "transfer" else ""
        is_transfer = name.startswith("transfer")
        folders = materials.TRANSFER_FOLDERS if is_transfer else materials.STS_FOLDERS
        read = path_sha256(argument) if argument else data_sha256(self._store.data_dir, folders)
        key = content_hash([name, preset, read, job.system.count])
        return Measurement(job, name, argument, key)

    def _job(self, label: str, system: System, seed: int, task: str = "") -> Job:
        """The job that makes a system's encoder; ``task`` is the one whose text a map may fit."""
        key = content_hash([asdict(system), seed, task if system.data == TARGET else ""])
        if key not in self._jobs:
            self._jobs[key] = self._new_job(label, system, seed, task)
        return self._jobs[key]

    def _system_job(self, name: str, seed: int) -> Job:
        return self._job(name, papers.system_row(name).system(self._store.scale), seed)

    def _new_job(self, label: str, system: System, seed: int, task: str) -> Job:
        above = self._system_job(system.of, seed) if system.of else None
        kind: str = system.make
        more, identity = dict[str, Any](), dict[str, Any]()
        if kind == "train" and (system.head or system.step == "last"):
            kind, above = "start", self._job(label, replace(system, head="", step="best"), seed)
            identity = {"start": above.key, "head": system.head}
            identity |= {"step": "last"} if system.step == "last" else {}
        elif kind == "train":
            more, identity = self._training(system, seed, above)
        elif kind == "start":
            more["source"] = "" if above else self._materials.get("model", system.start)
            identity = {"start": above.key if above else path_sha256(more["source"])}
            identity |= {"pooler": system.pooler or ""}
        elif kind == "data":
            known = system.data.removeprefix(SAMPLE) in papers.load_scales()[0]
            more["source"] = self._materials.get("text", system.data) if known else system.data
            identity = {"data": path_sha256(more["source"]) if known else system.data}
        else:
            kind, target = "fit", system.data == TARGET
            more["text"] = task if target else self._materials.get("text", system.data)
            sha = data_sha256(self._store.data_dir) if target else path_sha256(more["text"])
            identity = {"fit": system.make, "of": above.key if above else "", "text": [task, sha]}
        whole = {"kind": kind, "scale": self._store.scale, **identity}
        return Job(content_hash(whole), kind, label, system, whole, above, **more)

    def _training(
        self, system: System, seed: int, above: Job | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        own: dict[str, Any] = {"train.seed": seed, "evaluation.final": "none"}
        own["evaluation.data_dir"] = self._store.data_dir
        recipe, start = papers.recipe_of(system, self.scale, **own)
        generator = recipe.objective.get("generator")
        wanted = {
            "start": None if above else ("model", start),
            "text": ("text", system.data),
            "view": ("view", recipe.view.name),
            "generator": generator and ("model", generator),
        }
        files, reasons = dict[str, str](), dict[str, None]()
        for role, asked in wanted.items():
            try:
                files |= {role: self._materials.get(*asked)} if asked else {}
            except ContrasentError as error:
                reasons[str(error)] = None
        if reasons:
            raise ConfigError("; ".join(reasons))
        models = {"generator": files["generator"]} if generator else {}
        teachers = {
            role: self._system_job(name, seed)
            for role, name in zip(TEACHERS, system.teachers, strict=False)
        }
        precision: str = recipe.train.precision
        if precision == "auto":
            precision = model.torch_precisions(model.training_device(self._store.device))[0]
        identity = {
            "settings": _changed(recipe),
            "precision": precision,
            "start": above.key if above else path_sha256(files["start"]),
            "text": path_sha256(files["text"]),
            "tasks": data_sha256(self._store.data_dir),
            "models": {role: path_sha256(it) for role, it in models.items()},
            **({"view": files["view"]} if files["view"] else {}),
            **({"teachers": [it.key for it in teachers.values()]} if teachers else {}),
        }
        # Tables that score it with its head share the run with those that do not.
        keeps = {"name": "simcse", "head": "mlp"}.items() <= recipe.objective.items()
        source = files.get("start", "")
        recipe = replace(
            recipe,
            encoder=replace(recipe.encoder, name=source),
            data=replace(recipe.data, file=files["text"]),
            objective={**recipe.objective, **models, **({"keep_head": True} if keeps else {})},
        )
        return {"source": source, "recipe": recipe, "teachers": teachers}, identity


_OF_THE_MACHINE = ("encoder.name", "data.file", "evaluation.data_dir", "objective.generator")


def _changed(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Settings that are not the default, so that a new setting leaves old jobs what they are."""
    usual = asdict(Recipe())
    changed: dict[str, dict[str, Any]] = {}
    for section, settings in asdict(recipe).items():
        for key, value in settings.items():
            is_new = section == "objective" or value != usual[section][key]
            if is_new and f"{section}.{key}" not in _OF_THE_MACHINE:
                changed.setdefault(section, {})[key] = value
    return changed
