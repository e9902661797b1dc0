"""MTEB: an encoder as it asks for one, its tasks, and their scores as records.

Shapes: N texts of one call, M of another, D embedding width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.errors import (
    ConfigError,
    ContrasentError,
    DataError,
    MissingExtraError,
    first_line,
    install_command,
    pick,
)
from contrasent.evaluation.embed import EncoderUse, Problem, Score, Scores
from contrasent.evaluation.task_names import TaskName
from contrasent.model.conventions import role_options
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import LoadedEncoder
from contrasent.records import Record

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask
    from mteb.models.model_meta import ModelMeta
    from torch import Tensor
    from torch.nn import Parameter


class MtebEncoder:
    """What MTEB calls ``EncoderProtocol``, around an encoder of ours.

    Queries and documents of retrieval get the encoder's prompts for them, other text the default
    one; similarity is the encoder's own.
    ``mteb_model_meta`` has the hash of the weights as revision; pooler, head, precision, engine and
    longest sentence as settings, so that MTEB's files of results are told apart by them.
    """

    def __init__(self, encoder: LoadedEncoder, precision: str = "fp32") -> None:
        """Describe the encoder, and the precision as it resolves it, to MTEB.

        ConfigError if there is no such precision; MissingExtraError if MTEB is not installed.
        """
        self.encoder = encoder
        self.precision = encoder.resolve_precision(precision)
        self.mteb_model_meta = _model_meta(encoder, self.precision)
        self._texts: dict[str, Any] = {}
        self._prompts: dict[str, dict[str, str]] = {}

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Embed what MTEB's loader holds, ``(N, D)`` float32, whatever the split.

        Of MTEB's settings ``show_progress_bar`` is followed, ``batch_size`` is not, as batches here
        are made by tokens. ConfigError if MTEB is to quantise the embeddings; CheckpointError if an
        embedding is not finite.
        """
        del hf_split, hf_subset
        role = getattr(prompt_type, "value", prompt_type)
        quantised = kwargs.get("precision")
        if quantised not in (None, "float32"):
            raise ConfigError(
                f"embeddings are float32, not {quantised!r}; leave 'precision' out of encode_kwargs"
            )
        texts = [text for batch in inputs for text in batch["text"]]
        if role is not None and (how := role_options(self.encoder, role)):
            self._prompts.setdefault(task_metadata.name, {})[role] = how["prompt"]
        digest = self._texts.setdefault(task_metadata.name, hashlib.sha256())
        for text in texts:
            raw = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(raw) + raw)
        show_progress = bool(kwargs.get("show_progress_bar", False))
        use = EncoderUse(self.encoder, self.precision, show_progress=show_progress)
        return use.embed(texts, of=task_metadata.name, zeros=True, role=role)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """``(N, M)``, of every row of one ``(N, D)`` with every row of the other ``(M, D)``."""
        return self.encoder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """``(N,)``, of each row of one ``(N, D)`` with its row of the other."""
        return self.encoder.similarity_pairwise(embeddings1, embeddings2)

    def texts_sha256(self, task: str) -> str:
        """Hash of all texts embedded for a task in its last run, in MTEB's order."""
        return str(self._texts.get(task, hashlib.sha256()).hexdigest())

    def prompts_of(self, task: str) -> dict[str, str]:
        """What was put before a task's queries and documents then; empty without either."""
        return self._prompts.get(task, {})


def import_mteb() -> Any:
    """MTEB's package, or a MissingExtraError."""
    try:
        import mteb
    except ImportError as error:
        raise MissingExtraError(
            f"running MTEB needs its package; {install_command('mteb')}"
        ) from error
    return mteb


def _model_meta(encoder: LoadedEncoder, precision: str) -> ModelMeta:
    import_mteb()
    from mteb.models.model_meta import ModelMeta

    parameters: list[Parameter] = []
    if isinstance(encoder, SentenceEncoder) and encoder.engine == "torch":
        parameters = [*encoder.parameters()]
    known: dict[str, Any] = {
        "name": _name(encoder.name),
        "revision": encoder.fingerprint()[:16],
        "n_parameters": sum(it.numel() for it in parameters) or None,
        "max_tokens": encoder.max_tokens or None,
        "embed_dim": encoder.width,
        "framework": ["PyTorch"],
        "similarity_fn_name": encoder.similarity_fn_name,
        "use_instructions": False,
        "experiment_kwargs": {
            "pooler": encoder.pooler,
            "head": encoder.head_name,
            "precision": precision,
            "engine": encoder.engine,
            "max_tokens": encoder.max_tokens,
        },
    }
    if encoder.similarity_fn_name not in ("cosine", "dot"):
        # MTEB's own code fails for the names of others, and asks the encoder where there is none.
        known["similarity_fn_name"] = None
    # Which fields are there, and have to be, differs between versions.
    needed = {name for name, field in ModelMeta.model_fields.items() if field.is_required()}
    return ModelMeta(**{**dict.fromkeys(needed - known.keys()), **known})


def _name(name: str) -> str:
    """A name with an organisation, as MTEB wants it; that of a folder does not tell where it is."""
    path = Path(name)
    if path.exists() or name.count("/") != 1:
        return f"contrasent/{path.resolve().name}"
    return name


PROTOCOL = "mteb"

NOT_SCORES = ("main_score", "hf_subset", "languages", "mteb_version")
"""What MTEB keeps beside the metrics of a subset; the main score is one of these once more."""


def mteb_tasks(names: Sequence[str]) -> list[AbsTask]:
    """MTEB's tasks by their names, such as ``STSBenchmark``, without their data.

    ConfigError if there is no such task, or none is named; MissingExtraError if MTEB is not
    installed.
    """
    mteb = import_mteb()
    if not names:
        raise ConfigError("no task to run; name some with --tasks, such as STSBenchmark,SICK-R")
    tasks = []
    for name in dict.fromkeys(names):
        try:
            tasks.append(mteb.get_task(name))
        except KeyError as error:
            reason = str(error.args[0]).removeprefix("KeyError: ")
            raise ConfigError(f"MTEB {version('mteb')} has no such task: {reason}") from error
    return tasks


def benchmark_tasks(name: str) -> list[AbsTask]:
    """The tasks of a benchmark of MTEB, or those of one type, as in ``MTEB(eng, v2):STS``.

    ConfigError if there is no such benchmark, or no such type in it; MissingExtraError if MTEB is
    not installed.
    """
    mteb = import_mteb()
    benchmark, _, kind = name.partition(":")
    try:
        tasks = [*mteb.get_benchmark(benchmark).tasks]
    except KeyError as error:
        raise ConfigError(
            f"MTEB {version('mteb')} has no such benchmark: {error.args[0]}"
        ) from error
    if kind:
        kinds = {task.metadata.type.lower() for task in tasks}
        wanted = pick(f"type of tasks in {benchmark}", kind.lower(), kinds)
        tasks = [task for task in tasks if task.metadata.type.lower() == wanted]
    return tasks


def run_mteb(
    encoder: MtebEncoder,
    tasks: Sequence[AbsTask],
    *,
    output: str | Path | None = None,
    show_progress: bool = False,
) -> Scores:
    """Let MTEB score an encoder; a task that it cannot run costs itself only.

    The tasks are MTEB's, by :func:`mteb_tasks`, or of a class of your own. Every one is run, also
    where the folder ``output`` has MTEB's file of its results already. Returns records of every
    metric, split and subset; the protocol ``mteb`` is named on the main score. Where there are
    several subsets, their plain mean comes last, as MTEB reports it.
    """
    mteb = import_mteb()
    cache = None if output is None else mteb.ResultCache(Path(output))
    records: list[Record] = []
    problems: list[Problem] = []
    for task in tasks:
        name = task.metadata.name
        try:
            result = _run(task, encoder, cache, show_progress)
            records += _records(task, result, encoder)
        except ContrasentError as error:
            problems.append(Problem(name, f"{name}: {error}"))
        finally:
            if task.data_loaded:
                task.unload_data()
    return Scores(tuple(records), tuple(problems))


def _run(task: AbsTask, encoder: MtebEncoder, cache: Any, show_progress: bool) -> Any:
    """What MTEB makes of one task; a ContrasentError if it stops or the data cannot be had."""
    mteb = import_mteb()
    for kept in (encoder._texts, encoder._prompts):
        kept.pop(task.metadata.name, None)  # of an earlier run
    try:
        task.load_data()
    except Exception as error:
        # What can go wrong on the way to the hub has no parent but this one.
        path = task.metadata.dataset.get("path")
        raise DataError(
            f"its data {path} cannot be loaded from the Hugging Face hub: {first_line(error)}"
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


def _records(task: AbsTask, result: Any, encoder: MtebEncoder) -> list[Record]:
    use = EncoderUse(encoder.encoder, encoder.precision)
    about, main = task.metadata, task.metadata.main_score
    data = {str(about.dataset["path"]): str(about.dataset["revision"])}
    sha256, roles = encoder.texts_sha256(about.name), encoder.prompts_of(about.name)
    records = []
    for split, subsets in result.scores.items():
        alone = len(subsets) == 1
        pairs = [_record_rows(task, scores["hf_subset"], split) for scores in subsets]
        every = [
            Score(metric, float(value), count, *(() if alone else ("subset", scores["hf_subset"])))
            for scores, count in zip(subsets, pairs, strict=True)
            for metric, value in scores.items()
            if metric not in NOT_SCORES and isinstance(value, int | float)
        ]
        if not alone:
            mean = sum(scores["main_score"] for scores in subsets) / len(subsets)
            every.append(Score(main, float(mean), sum(pairs), "mean"))
        for score in every:
            is_main = score.metric == main and score.aggregation != "subset"
            protocol = PROTOCOL if is_main else None
            records.append(
                score.record(TaskName(about.name, split), sha256, use, roles, protocol=protocol)
            )
    versions = {"mteb": version("mteb"), **data}
    return [replace(it, versions={**it.versions, **versions}) for it in records]


def _record_rows(task: AbsTask, subset: str, split: str) -> int:
    """How many queries or rows a score rests on."""
    held: Any = task.dataset
    if subset in held:
        held = held[subset]
    held = held[split]
    return len(held["queries"] if isinstance(held, dict) and "queries" in held else held)
