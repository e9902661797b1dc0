"""The scores of a run: the task that selects ``best``, and the start beside the result."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from contrasent.data.examples import Examples
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.compare import Gain
from contrasent.evaluation.embed import DescribedEncoder, EncoderUse
from contrasent.evaluation.protocols import Options, TransferProtocol
from contrasent.evaluation.proxy import (
    FEWEST,
    METRICS,
    HeldOutTask,
    hold_out,
)
from contrasent.evaluation.retrieval import RetrievalTask
from contrasent.evaluation.suite import (
    RETRIEVAL,
    STS,
    TASK_TYPES,
    TRANSFER,
    Suite,
    TaskData,
    load_suite,
)
from contrasent.evaluation.task_names import HELD_OUT, TaskName
from contrasent.recipe import Recipe
from contrasent.records import Record
from contrasent.settings import EvaluationSettings

logger = logging.getLogger("contrasent")
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
        if scores.problems:
            raise DataError("; ".join(problem.message for problem in scores.problems))
        kept = ("all",) if self.metric == "spearman" else ("all", "mean")
        values = {
            TaskName(it.task, it.split).label: it.value
            for it in scores.records
            if it.metric == self.metric and it.aggregation in kept
        }
        return {"+".join(values): sum(values.values()) / len(values)}


@dataclass(frozen=True, slots=True)
class BeforeAndAfter:
    """Scores of the start and of the result."""

    tasks: Suite | None = None  # what was scored; None for nothing
    before: list[Record] = field(default_factory=list)  # records of the start as it comes
    # records of the start with the pooler and head of the run; empty if these are its own
    with_pooler: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)  # records of the result
    # what training changed, against the better of the two; empty if the result is the start
    gains: list[Gain] = field(default_factory=list)
    # the same of every task, also where there is an average
    changes: list[Gain] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """The records of all."""
        return [*self.before, *self.with_pooler, *self.after]

    @property
    def rows(self) -> dict[str, list[Record]]:
        """The records by the label of their row in a table."""
        rows = {"before": self.before}
        if self.with_pooler:
            rows[f"before, {self.with_pooler[0].pooler}"] = self.with_pooler
        return {**rows, "after": self.after}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    # folder of the encoder with the highest dev score, which is the start as it comes if nothing
    # beat it; None without a dev task
    best: Path | None
    last: Path  # folder of the encoder after the last step
    steps: int  # updates made
    best_step: int | None  # the update after which ``best`` was saved; 0 for the start
    best_is_start: bool  # nothing beat the start as it comes, so ``best`` is that
    best_score: float | None  # its dev score, in [-1, 1]
    seconds: float  # time of the steps of this process, evaluation left out
    examples: int  # examples trained on in that time
    # the start and ``best``, else ``last``, on the final tasks
    scores: BeforeAndAfter = field(default_factory=BeforeAndAfter)
    # what ``best_score`` is, such as ``spearman``; None without a dev task
    dev_metric: str | None = None
    last_loss: float | None = None  # of the last step of this process; None if it made none
    parameters: int = 0  # of the encoder that is saved
    trained_parameters: int = 0  # those that updates change, with those of the objective
    # bytes: the most that tensors took on the accelerator, else the most that this process had
    peak_memory: int = 0

    @property
    def cost(self) -> str:
        """What it took, in words."""
        return (
            f"{self.parameters / 1e6:.1f} M parameters, {self.trained_parameters / 1e6:.1f} M "
            f"trained, {self.peak_memory / 2**30:.1f} GiB of memory at most"
        )

    @property
    def before(self) -> list[Record]:
        """Records of the start as it comes."""
        return self.scores.before

    @property
    def after(self) -> list[Record]:
        """Records of ``best``, else of ``last``."""
        return self.scores.after


def tasks_of(
    recipe: Recipe, examples: Examples, holds_out: bool | None = None
) -> tuple[DevTask | None, Suite | None, HeldOutTask | None]:
    """The task that selects ``best``, those scored before and after, and the text held out."""
    settings = recipe.evaluation
    dev, final = None if holds_out else dev_task(settings), final_tasks(settings)
    of_text = recipe.data.labels == "none" and settings.task in ("auto", HELD_OUT)
    if dev is not None or holds_out is False or not of_text:
        return dev, final, None
    held = hold_out(examples)
    if held is None:
        reason = f"a tenth of {examples.source} makes fewer than {FEWEST} queries"
        if settings.task == HELD_OUT:
            raise DataError(f"evaluation.task is {HELD_OUT}, but {reason}; give more text, or none")
        logger.warning(
            "no dev scores, and only `last` is kept: %s; name scored pairs of your own with "
            "--evaluation.task FILE.tsv",
            reason,
        )
        return dev, final, None
    logger.info("%s select `best`: %s", held.task.name.heading, held.task.description)
    proxy = _proxy(held.task)
    if final is None and settings.final == "auto":
        final = proxy
    return DevTask(proxy, METRICS[0]), final, held


def dev_task(settings: EvaluationSettings) -> DevTask | None:
    """The task that selects ``best``; DataError if its data is missing, and the recipe names it."""
    if settings.task == HELD_OUT:
        return None
    options = Options(settings.data_dir, learning=TransferProtocol(preset="dev"))
    suite = _named("task", settings, options)
    if suite is None:
        return None
    if suite.problems:
        raise DataError("; ".join(problem.message for problem in suite.problems))
    unranked = any(METRICS[0] not in it.metrics for it in suite.tasks("retrieval"))
    if len(suite.kinds) > 1 or unranked:
        raise ConfigError(
            f"evaluation.task must be of one metric: {settings.task!r} has several, whose mean "
            "says nothing; name STS tasks, transfer tasks, or retrieval but stsb-retrieval"
        )
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


def _proxy(task: RetrievalTask) -> Suite:
    return Suite(((RETRIEVAL, TaskData((task.name,), (task,))),), Options())


def _named(setting: str, settings: EvaluationSettings, options: Options) -> Suite | None:
    """The tasks of a setting; what is wrong with a user's own file stops everything."""
    name, (usual, consequence) = getattr(settings, setting), _USUAL[setting]
    if name == "none":
        return None
    remedy = f"\nOr train without: --evaluation.{setting} none"
    types = (STS, TRANSFER, RETRIEVAL) if setting == "task" else TASK_TYPES
    try:
        suite = load_suite((usual if name == "auto" else name).split(","), options, types)
    except DataError as error:
        if name != "auto":
            raise DataError(f"{error}{remedy}") from error
        logger.warning(
            "%s: the data of %s was not found; 'contrasent data fetch' gets it", consequence, usual
        )
        return None
    public = {name.label for name in suite.names if name.in_senteval}
    for problem in suite.problems:
        if problem.task not in public:
            raise DataError(f"{problem.message}{remedy}")
        logger.warning("%s is not scored: %s", problem.task, problem.message)
    return suite
