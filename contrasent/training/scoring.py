"""The scores of runs: the task that selects ``best``, start beside result, several seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from contrasent.data.examples import Examples
from contrasent.distributed import ProcessGroup, launched
from contrasent.errors import ConfigError, DataError, logger
from contrasent.evaluation import suite as suites
from contrasent.evaluation.compare import SeedScores, gains, with_comparison
from contrasent.evaluation.embed import DescribedEncoder, EncoderUse, Scores, raise_problems
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.protocols import Options, preset_named
from contrasent.evaluation.proxy import FEWEST, METRICS, hold_out
from contrasent.evaluation.suite import RETRIEVAL, STS, TASK_TYPES, TRANSFER, Suite, TaskData
from contrasent.evaluation.task_names import HELD_OUT, TaskName
from contrasent.files import listed, write_json
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import load_encoder
from contrasent.recipe import Recipe
from contrasent.records import Record
from contrasent.settings import EvaluationSettings
from contrasent.training.run import BeforeAndAfter, Result, train
from contrasent.training.run_folder import RunFolder
from contrasent.training.setup import start_as_it_comes, start_encoder

# What is scored unless the recipe says otherwise, and the consequence where it is not there.
_USUAL = {
    "task": ("stsb-dev", "`best` is not selected by human ratings"),
    "final": ("sts", "no scores before and after on public tasks"),
}
AS_IT_COMES = "the start as it comes"


@dataclass(frozen=True, slots=True)
class DevTask:
    """Tasks whose mean score selects ``best``: correlations, accuracies, or retrieval.

    As SimCSE's and DiffCSE's training scripts select: by the mean of STS-B and SICK-R dev, or of
    the seven transfer tasks' dev accuracy with SentEval's quick settings.
    """

    suite: Suite
    metric: str  # of each score, such as ``spearman``

    def score(self, encoder: DescribedEncoder, *, precision: str = "fp32") -> dict[str, float]:
        """The mean over the tasks, by their names; DataError if a task has no score."""
        scores = self.suite.records(EncoderUse(encoder, precision))
        raise_problems(scores.problems)
        kept = ("all",) if self.metric == "spearman" else ("all", "mean")
        values = {
            TaskName(it.task, it.split).label: it.value
            for it in scores.records
            if it.metric == self.metric and it.aggregation in kept
        }
        return {"+".join(values): sum(values.values()) / len(values)}


def tasks_of(
    recipe: Recipe, texts: Mapping[str, Examples], holds_out: bool | None = None
) -> tuple[DevTask | None, Suite | None, dict[str, tuple[int, Path]]]:
    """The task that selects ``best``, those scored before and after, and what is trained on.

    Of several ``texts``, none of them labelled, each is a task of its own, by its name, if it makes
    enough queries. If any does, how many texts each holds out, and the file of its other text.
    """
    settings = recipe.evaluation
    dev, final = None if holds_out else dev_task(settings), final_tasks(settings)
    of_text = bool(texts) and settings.task in ("auto", HELD_OUT)
    if dev is not None or holds_out is False or not of_text:
        return dev, final, {}
    several = len(texts) > 1
    tried = {name: hold_out(text, f" of {name}" * several) for name, text in texts.items()}
    tasks = tuple(it.task for it in tried.values() if it.task is not None)
    if not tasks:
        files = ", ".join(text.source for text in texts.values())
        reason = f"a tenth of {files} makes fewer than {FEWEST} queries"
        if settings.task == HELD_OUT:
            raise DataError(f"evaluation.task is {HELD_OUT}, but {reason}; give more text, or none")
        logger.warning(
            "no dev scores, and only `last` is kept: %s; name scored pairs of your own with "
            "--evaluation.task FILE.tsv",
            reason,
        )
        return dev, final, {}
    for task in tasks:
        logger.info("%s select `best`: %s", task.name.heading, task.description)
    proxy = Suite(((RETRIEVAL, TaskData(tuple(task.name for task in tasks), tasks)),), Options())
    if final is None and settings.final == "auto":
        final = proxy
    every = frozenset[str]().union(*(it.long_texts for it in tried.values()))
    rests = {name: (it.texts, it.rest(every - it.long_texts)) for name, it in tried.items()}
    return DevTask(proxy, METRICS[0]), final, rests


def dev_task(settings: EvaluationSettings) -> DevTask | None:
    """The task that selects ``best``; DataError if its data is missing, and the recipe names it."""
    if settings.task == HELD_OUT:
        return None
    suite = _named("task", settings, Options(settings.data_dir, learning=preset_named("dev")))
    if suite is None:
        return None
    unranked = any(METRICS[0] not in it.metrics for it in suite.tasks("retrieval"))
    if len(suite.kinds) > 1 or unranked:
        what = f"evaluation.task must be of one metric, but {settings.task!r} has several"
        raise ConfigError(f"{what}; name STS, transfer or retrieval tasks, not stsb-retrieval")
    for name in suite.names if settings.task != "auto" else ():
        if name.in_senteval and name.split == "test":
            logger.warning(
                "the best step is selected by the test split of %s, whose score is then no "
                "test any more; stsb-dev is meant for it",
                name.heading,
            )
    metrics = {"sts": "spearman", "retrieval": METRICS[0]}
    return DevTask(suite, metrics.get(suite.kinds[0][0].name, "accuracy"))


def final_tasks(settings: EvaluationSettings) -> Suite | None:
    """The tasks scored before and after; errors as :func:`dev_task`."""
    return _named("final", settings, Options(settings.data_dir))


def _named(setting: str, settings: EvaluationSettings, options: Options) -> Suite | None:
    name, (usual, consequence) = getattr(settings, setting), _USUAL[setting]
    if name == "none":
        return None
    remedy = f"\nOr train without: --evaluation.{setting} none"
    types = (STS, TRANSFER, RETRIEVAL) if setting == "task" else TASK_TYPES
    try:
        suite = suites.load_suite(listed(usual if name == "auto" else name), options, types)
    except DataError as error:
        if name != "auto":
            raise DataError(f"{error}{remedy}") from error
        logger.warning(
            "%s: the data of %s was not found; 'contrasent data fetch' gets it", consequence, usual
        )
        return None
    public = {name.label for name in suite.names if name.in_senteval}
    for problem in suite.problems:
        if setting == "task" or problem.task not in public:
            raise DataError(f"{problem.message}{remedy}")
        logger.warning("%s is not scored: %s", problem.task, problem.message)
    return suite


def score_result(
    tasks: Suite,
    recipe: Recipe,
    folder: Path,
    is_start: bool,
    device: str | None = None,
    show_progress: bool = False,
    group: ProcessGroup | None = None,
) -> BeforeAndAfter:
    """Score the encoder in ``folder``, made by ``recipe`` unless it is the start, beside the start.

    That as it comes, and with the pooler and the head of the run. A result that is the start as it
    comes is scored once, and compared with both like any other.
    """
    result, together = load_encoder(str(folder), device=device), group or ProcessGroup()

    def score(encoder: DescribedEncoder, seed: int | None = None) -> Scores:
        logger.info("scoring %s", encoder.name)
        if isinstance(encoder, SentenceEncoder):
            encoder.to(getattr(result, "device", "cpu")).eval()
        precision = recipe.evaluation.precision
        use = EncoderUse(together.encoder(encoder), precision, seed, show_progress)
        scores = tasks.records(use)
        for problem in scores.problems:
            logger.warning("%s is not scored: %s", problem.task, problem.message)
        return scores

    usual = start_as_it_comes(recipe.encoder)
    trained = as_it_comes = score(usual)
    scores = {AS_IT_COMES: as_it_comes}
    before, with_pooler = list(as_it_comes.records), list[Record]()
    if isinstance(usual, SentenceEncoder):
        other = start_encoder(recipe.encoder)
        if (other.pooler, other.head_name) != (usual.pooler, usual.head_name):
            named = f"the start with pooler {other.pooler}, head {other.head_name}"
            scores[named] = score(other)
            with_pooler = list(scores[named].records)
    if is_start:
        after = [replace(record, encoder=result.name) for record in before]
    else:
        trained = score(result, recipe.train.seed)
        logger.info("looking for sentences of the tasks in the training text")
        seen = suites.find_overlap(result.name, tasks)
        after = [replace(it, overlap=suites.overlap_of(it, seen)) for it in trained.records]
    comparisons = {}
    for start, of_start in scores.items():
        bootstrap = Bootstrap(resamples=2) if of_start is trained else Bootstrap()
        of_types = tasks.compare(of_start, trained, bootstrap)
        comparisons[start] = [of_metrics[0] for of_metrics in of_types.values() if of_metrics]
    for comparison in comparisons[AS_IT_COMES] if not is_start else ():
        after = with_comparison(after, comparison)
    shown = [] if is_start else gains(comparisons)
    return BeforeAndAfter(tasks, before, with_pooler, after, shown, gains(comparisons, every=True))


@dataclass(frozen=True, slots=True)
class SeedRuns:
    """Runs that differ in their seed alone."""

    folders: Mapping[int, Path]  # of the runs, by their seeds
    scores: tuple[SeedScores, ...]  # the dev task, then the final tasks and their average
    # folder of the encoder with the highest dev score, of the first run without a dev task
    best: Path


def train_seeds(
    recipe: Recipe,
    output: Path,
    seeds: Sequence[int],
    *,
    on_run: Callable[[int, Result | None], object] = lambda *_: None,
    **options: Any,
) -> SeedRuns | None:
    """Train a recipe once for each seed into ``output/seed-S``, and compare with the start.

    ``on_run`` is called with a seed and its result; ``options`` are those of :func:`train`.
    None in all but the first of several processes. ContrasentError as :func:`train`.
    """
    folders = {seed: output / f"seed-{seed}" for seed in seeds}
    for seed, folder in folders.items():
        result = train(replace(recipe, train=replace(recipe.train, seed=seed)), folder, **options)
        if launched().leads:
            on_run(seed, result)
    if not launched().leads:
        return None
    runs = {seed: RunFolder(folder) for seed, folder in folders.items()}
    results = {seed: run.read_result() for seed, run in runs.items()}
    dev = [result["best_score"] for result in results.values()]
    scores = []
    if None not in dev:
        name, start, _ = next(iter(runs.values())).read_dev_scores()
        scores.append(SeedScores(f"{name}, best step", "", tuple(dev), start, None))
    first, *others = (
        {(it["of"], it["metric"]): it for it in result.get("changes", ())}
        for result in results.values()
    )
    for of, metric in (key for key in first if all(key in other for other in others)):
        changes = [each[of, metric] for each in (first, *others)]
        intervals = [it["compared"]["interval"] for it in changes]
        error = fmean(it["error"] for it in intervals) if all(intervals) else None
        start = max(it["value"] - it["compared"]["difference"] for it in changes)
        scores.append(SeedScores(of, metric, tuple(it["value"] for it in changes), start, error))
    best = runs[max(results, key=lambda seed: results[seed]["best_score"] or 0.0)]
    encoder = best.best if best.best.is_dir() else best.last
    derived = ("mean", "deviation", "difference", "interval")
    each = [asdict(it) | {name: getattr(it, name) for name in derived} for it in scores]
    summary = {"seeds": list(folders), "best": encoder.relative_to(output).as_posix()}
    write_json(output / "seeds.json", {**summary, "scores": each})
    return SeedRuns(folders, tuple(scores), encoder)
