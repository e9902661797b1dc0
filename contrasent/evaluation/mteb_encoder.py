"""MTEB: an encoder as it asks for one, its tasks, and their scores as records."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.errors import ConfigError, first_line, require_extra
from contrasent.evaluation.embed import EncoderUse, Problem, Score, Scores
from contrasent.evaluation.task_names import TaskName
from contrasent.model.loading import LoadedEncoder
from contrasent.model.protocol import role_options
from contrasent.records import Record

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask
    from mteb.models.model_meta import ModelMeta
    from torch import Tensor

PROTOCOL = "mteb"

NOT_SCORES = ("main_score", "hf_subset", "languages", "mteb_version")
"""Keys that MTEB keeps beside the metrics of a subset; the main score is one of these once more."""


class MtebEncoder:
    """An encoder of ours as MTEB's ``EncoderProtocol``.

    ``mteb_model_meta`` has the hash of the weights as revision, and how it is used as settings, so
    that MTEB's files of results are told apart. ``prompts`` are those of the task at work by role.
    """

    def __init__(self, encoder: LoadedEncoder, precision: str = "fp32") -> None:
        """Describe the encoder, and the precision as it resolves it, to MTEB."""
        self.encoder = encoder
        self.precision = encoder.resolve_precision(precision)
        self.mteb_model_meta = _model_meta(encoder, self.precision)
        self.prompts = dict[str, str]()

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        prompt_type: Any = None,
        show_progress_bar: bool = False,
        **_: Any,
    ) -> np.ndarray:
        """Embed what MTEB's loader holds, ``(N, D)`` float32, in batches by tokens."""
        role = getattr(prompt_type, "value", prompt_type)
        texts = [text for batch in inputs for text in batch["text"]]
        if role is not None and (how := role_options(self.encoder, role)):
            self.prompts[role] = how["prompt"]
        use = EncoderUse(self.encoder, self.precision, show_progress=show_progress_bar)
        return use.embed(texts, of=task_metadata.name, zeros=True, role=role)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> "Tensor":
        """``(N, M)``, of every row of one ``(N, D)`` with every row of the other ``(M, D)``."""
        return self.encoder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> "Tensor":
        """``(N,)``, of each row of one ``(N, D)`` with its row of the other."""
        return self.encoder.similarity_pairwise(embeddings1, embeddings2)


def import_mteb() -> Any:
    """MTEB's package, or a MissingExtraError."""
    require_extra("running MTEB", "mteb", "mteb")
    import mteb

    return mteb


def _model_meta(encoder: LoadedEncoder, precision: str) -> "ModelMeta":
    import_mteb()
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    # MTEB wants an organisation; the name of a folder does not tell where it is.
    path, similarity = Path(encoder.name), encoder.similarity_fn_name
    is_id = not path.exists() and encoder.name.count("/") == 1
    # MTEB's own code fails for the names of others, and asks the encoder where there is none.
    scoring = ScoringFunction(similarity) if similarity in ("cosine", "dot") else None
    known: dict[str, Any] = {
        "name": encoder.name if is_id else f"contrasent/{path.resolve().name}",
        "revision": encoder.fingerprint()[:16],
        "max_tokens": encoder.max_tokens or None,
        "embed_dim": encoder.width,
        "framework": ["PyTorch"],
        "similarity_fn_name": scoring,
        "use_instructions": False,
        "experiment_kwargs": {
            "pooler": encoder.pooler,
            "head": encoder.head_name,
            "precision": precision,
            "engine": encoder.engine,
            "max_tokens": encoder.max_tokens,
        },
    }
    return ModelMeta.create_empty(known)


def mteb_tasks(names: Sequence[str], benchmark: str | None = None) -> "list[AbsTask]":
    """MTEB's tasks by their names, such as ``STSBenchmark``, and those of a benchmark, unread."""
    mteb = import_mteb()
    if not names and benchmark is None:
        raise ConfigError("no task to run; name some with --tasks, such as STSBenchmark,SICK-R")
    tasks = [] if benchmark is None else _known(mteb.get_benchmark, benchmark).tasks
    return [*tasks, *(_known(mteb.get_task, name) for name in dict.fromkeys(names))]


def _known(get: Callable[[str], Any], name: str) -> Any:
    try:
        return get(name)
    except KeyError as error:
        reason = str(error.args[0]).removeprefix("KeyError: ")
        raise ConfigError(f"MTEB {version('mteb')} has no {name}: {reason}") from error


def run_mteb(
    encoder: MtebEncoder,
    tasks: "Sequence[AbsTask]",
    *,
    output: str | Path | None = None,
    show_progress: bool = False,
) -> Scores:
    """Let MTEB score an encoder; a task that it cannot run costs itself only.

    Every task is run, also where ``output`` has its results. Records are of every metric, split
    and subset, the main score's with the protocol ``mteb``; the mean of several subsets is last.
    """
    mteb = import_mteb()
    cache = None if output is None else mteb.ResultCache(Path(output))
    records, problems = list[Record](), list[Problem]()
    for task in tasks:
        name = task.metadata.name
        encoder.prompts = {}
        try:
            task.load_data()
            result = mteb.evaluate(
                encoder,
                task,
                cache=cache,
                overwrite_strategy="always",
                co2_tracker=False,
                show_progress_bar=show_progress,
                encode_kwargs={"show_progress_bar": show_progress},
            )
            records += _records(task, result.task_results[0], encoder)
        except Exception as error:  # noqa: BLE001 - errors of the hub and of MTEB have no other parent
            problems.append(Problem(name, f"{name}: MTEB stopped: {first_line(error)}"))
        if task.data_loaded:
            task.unload_data()
    return Scores(tuple(records), tuple(problems))


def _records(task: "AbsTask", result: Any, encoder: MtebEncoder) -> list[Record]:
    use, about = EncoderUse(encoder.encoder, encoder.precision), task.metadata
    dataset: Any = task.dataset
    scores: list[tuple[str, Score]] = []
    for split, subsets in result.scores.items():
        alone, counts = len(subsets) == 1, []
        for of_subset in subsets:
            named = () if alone else ("subset", of_subset["hf_subset"])
            held = dataset.get(of_subset["hf_subset"], dataset)[split]
            queries = isinstance(held, dict) and "queries" in held
            counts.append(len(held["queries"] if queries else held))
            scores += [
                (split, Score(metric, float(value), counts[-1], *named))
                for metric, value in of_subset.items()
                if metric not in NOT_SCORES and isinstance(value, int | float)
            ]
        if not alone:
            mean = float(sum(it["main_score"] for it in subsets) / len(subsets))
            scores.append((split, Score(about.main_score, mean, sum(counts), "mean")))
    revision = str(about.dataset["revision"])
    versions = {"mteb": version("mteb"), str(about.dataset["path"]): revision}
    records = []
    for split, score in scores:
        is_main = score.metric == about.main_score and score.aggregation != "subset"
        name, protocol = TaskName(about.name, split), PROTOCOL if is_main else None
        record = score.record(name, revision, use, encoder.prompts, protocol=protocol)
        records.append(replace(record, versions={**record.versions, **versions}))
    return records
