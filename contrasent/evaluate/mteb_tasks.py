"""MTEB's tasks run by MTEB itself, and their scores as records."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.errors import ConfigError, ContrasentError, DataError
from contrasent.evaluate.described import of_encoder
from contrasent.evaluate.mteb_encoder import MtebEncoder, import_mteb
from contrasent.evaluate.sts import Problem, Scores
from contrasent.records import Record

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

PROTOCOL = "mteb"

NOT_SCORES = ("main_score", "hf_subset", "languages", "mteb_version")
"""What MTEB keeps beside the metrics of a subset; the main score is one of these once more."""


def mteb_tasks(names: Sequence[str]) -> list[AbsTask]:
    """MTEB's tasks by their names, such as ``STSBenchmark``, without their data.

    Raises:
        ConfigError: no such task, or none is named.
        MissingExtraError: MTEB is not installed.
    """
    mteb = import_mteb()
    if not names:
        raise ConfigError("no task to run; name some with --tasks, such as STSBenchmark,SICK-R")
    found = []
    for name in dict.fromkeys(names):
        try:
            found.append(mteb.get_task(name))
        except KeyError as error:
            said = str(error.args[0]).removeprefix("KeyError: ")
            raise ConfigError(f"MTEB {version('mteb')} has no such task: {said}") from error
    return found


def run_mteb(
    encoder: MtebEncoder,
    tasks: Sequence[AbsTask],
    *,
    output: str | Path | None = None,
    seed: int | None = None,
    show_progress: bool = False,
) -> Scores:
    """Let MTEB score an encoder; a task that it cannot run costs itself only.

    Args:
        encoder: what is measured.
        tasks: MTEB's, by :func:`mteb_tasks`, or of a class of your own.
        output: a folder for MTEB's own files of results; None for none. Every task is run, also
            where it has a file already.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: progress bars of MTEB and of encoding.

    Returns:
        Records of every metric, split and subset. The protocol ``mteb`` is named on the main
        score. Where there are several subsets, their plain mean comes last, as MTEB reports it.
    """
    mteb = import_mteb()
    cache = None if output is None else mteb.ResultCache(Path(output))
    records: list[Record] = []
    problems: list[Problem] = []
    for task in tasks:
        name = task.metadata.name
        try:
            result = _run(task, encoder, cache, show_progress)
            records += _records(task, result, encoder, seed)
        except ContrasentError as error:
            problems.append(Problem(name, f"{name}: {error}"))
        finally:
            if task.data_loaded:
                task.unload_data()
    return Scores(tuple(records), tuple(problems))


def _run(task: AbsTask, encoder: MtebEncoder, cache: Any, show_progress: bool) -> Any:
    """What MTEB makes of one task.

    Raises:
        DataError: its data cannot be had.
        ContrasentError: MTEB stopped.
    """
    mteb = import_mteb()
    try:
        task.load_data()
    except Exception as error:
        # What can go wrong on the way to the hub has no parent but this one.
        path = task.metadata.dataset.get("path")
        raise DataError(
            f"its data {path} cannot be loaded from the Hugging Face hub: {_first_line(error)}"
        ) from error
    result = mteb.evaluate(
        encoder,
        task,
        cache=cache,
        overwrite_strategy="always",
        raise_error=False,
        co2_tracker=False,
        show_progress_bar=show_progress,
        encode_kwargs={"show_progress_bar": show_progress},
    )
    if result.exceptions:
        raise ContrasentError(f"MTEB stopped: {result.exceptions[0].exception}")
    return result.task_results[0]


def _records(task: AbsTask, result: Any, encoder: MtebEncoder, seed: int | None) -> list[Record]:
    said = of_encoder(encoder.encoder, encoder.precision, seed)
    data = {str(task.metadata.dataset["path"]): str(task.metadata.dataset["revision"])}
    said["versions"] = {**said["versions"], "mteb": version("mteb"), **data}
    found = []
    for split, subsets in result.scores.items():
        alone = len(subsets) == 1

        def record(
            metric: str, value: float, aggregation: str, subset: str, pairs: int, where: str = split
        ) -> Record:
            main = metric == task.metadata.main_score and aggregation != "subset"
            return Record(
                task=task.metadata.name,
                subset=subset,
                split=where,
                metric=metric,
                aggregation=aggregation,
                value=float(value),
                pairs=pairs,
                protocol=PROTOCOL if main else None,
                data_sha256=encoder.texts_sha256(task.metadata.name),
                **said,
            )

        for scores in subsets:
            name = scores["hf_subset"]
            count = _rows(task, name, split)
            found += [
                record(metric, value, "all" if alone else "subset", "" if alone else name, count)
                for metric, value in scores.items()
                if metric not in NOT_SCORES and isinstance(value, int | float)
            ]
        if not alone:
            mean = sum(scores["main_score"] for scores in subsets) / len(subsets)
            count = sum(_rows(task, scores["hf_subset"], split) for scores in subsets)
            found.append(record(task.metadata.main_score, mean, "mean", "", count))
    return found


def _rows(task: AbsTask, subset: str, split: str) -> int:
    """How many queries or rows a score rests on."""
    held: Any = task.dataset
    if subset in held:
        held = held[subset]
    held = held[split]
    return len(held["queries"] if isinstance(held, dict) and "queries" in held else held)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
