"""Evaluation: tasks by their names, read once, the scores of any encoder on them, and leaks.

Leaks are text of tasks that stands in training text too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from contrasent.data.examples import Examples, open_training
from contrasent.data.readers import dataset_parts, stop
from contrasent.data.senteval import MissingDataError, how_to_get_data, senteval_root
from contrasent.errors import CheckpointError, ConfigError, ContrasentError, DataError
from contrasent.evaluation import retrieval, sts, transfer
from contrasent.evaluation.compare import Comparison, compare, compare_ratios
from contrasent.evaluation.embed import EncoderUse, Problem, Scores
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.task_names import STS_TASKS, TaskName, TaskText, refuse
from contrasent.files import read_json
from contrasent.model.hub import INFO_FILE, find_download, section
from contrasent.options import EvaluationOptions
from contrasent.records import Record
from contrasent.search.mining import letters
from contrasent.settings import refuse_unused

_PLACES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TaskType:
    """Tasks that are scored alike."""

    name: str  # by which tables find their columns
    # The tasks of this type that a text names, each split for itself; None if it names others. A
    # split that a task does not have is a ConfigError.
    names: Callable[[str, Options], list[TaskName] | None]
    load: Callable[[Sequence[TaskName], Options], Any]  # the data of one task, or a DataError
    score: Callable[[Sequence[Any], EncoderUse, Options], Scores]
    whole: bool = False  # the splits of a task are read together

    def read(self, names: Sequence[TaskName], options: Options) -> "TaskData":
        """Read the tasks whose data is there and in order; the others are problems."""
        groups: dict[str, list[TaskName]] = {}
        for name in names:
            groups.setdefault(name.name if self.whole else name.label, []).append(name)
        tasks, problems = list[Any](), list[Problem]()
        for label, group in groups.items():
            try:
                tasks.append(self.load(group, options))
            except MissingDataError as error:
                problems.append(Problem(label, f"{error.path} is missing", missing=True))
            except DataError as error:
                problems.append(Problem(label, str(error)))
        return TaskData(tuple(names), tuple(tasks), tuple(problems))


@dataclass(frozen=True, slots=True)
class TaskData:
    """What was asked for, each task and split once, what was read, and why the rest was not."""

    names: tuple[TaskName, ...] = ()
    # each has ``name``, ``note`` (how a user's file was understood where that had to be guessed),
    # and ``texts()`` that training text must not have
    tasks: tuple[Any, ...] = ()
    problems: tuple[Problem, ...] = ()


STS = TaskType("sts", sts.names, sts.load_task, sts.score)
TRANSFER = TaskType("transfer", transfer.names, transfer.load, transfer.score, whole=True)
RETRIEVAL = TaskType("retrieval", retrieval.names, retrieval.load_task, retrieval.score)
TASK_TYPES = (
    STS,
    TRANSFER,
    TaskType("labelled", transfer.labelled_names, transfer.load, transfer.score, whole=True),
    RETRIEVAL,
)
"""In the order of their tables. Names are offered to the last one first."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks read once, to be scored for any number of encoders."""

    kinds: tuple[tuple[TaskType, TaskData], ...]
    options: Options

    @property
    def names(self) -> tuple[TaskName, ...]:
        """The tasks asked for."""
        return tuple(name for _, read in self.kinds for name in read.names)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why tasks could not be read."""
        return tuple(problem for _, read in self.kinds for problem in read.problems)

    @property
    def remedy(self) -> list[str]:
        """How to get the data where some is missing, else nothing."""
        return [how_to_get_data()] if any(it.missing for it in self.problems) else []

    @property
    def notes(self) -> list[str]:
        """How users' files were understood, where that had to be guessed."""
        return [task.note for _, read in self.kinds for task in read.tasks if task.note]

    def tasks(self, kind: str) -> tuple[Any, ...]:
        """The data of one type of tasks, by its name."""
        return tuple(t for known, read in self.kinds if known.name == kind for t in read.tasks)

    def texts(self) -> Iterator[TaskText]:
        """The text of all tasks."""
        return (text for _, read in self.kinds for task in read.tasks for text in task.texts())

    def records(self, use: EncoderUse) -> Scores:
        """Every record of an encoder, in the order of the tables, and why tasks have none.

        CheckpointError if the encoder has no record at all.
        """
        scored = [kind.score(it.tasks, use, self.options) for kind, it in self.kinds if it.tasks]
        scores = Scores.together(scored)
        if not scores.records and any(problem.damaged for problem in scores.problems):
            raise CheckpointError("\n".join(problem.message for problem in scores.problems))
        return scores

    def compare(
        self, baseline: Scores, other: Scores, bootstrap: Bootstrap
    ) -> dict[str, list[Comparison]]:
        """The second encoder's scores less the first one's, by type, in every metric of a table."""
        how, both = self.options.protocol, (baseline, other)
        given: dict[str, Any] = {"aggregation": how.aggregation, "bootstrap": bootstrap}
        return {
            kind.name: [compare(read.tasks, *both, metric=it, **given) for it in how.metrics]
            if kind is STS
            else compare_ratios(read.names, *both, bootstrap=bootstrap)
            for kind, read in self.kinds
        }


def load_suite(
    tasks: Sequence[str], options: Options | None = None, types: Sequence[TaskType] = TASK_TYPES
) -> Suite:
    """Read those tasks whose data is there and in order; the others are problems.

    ``tasks`` are named as `evaluate` takes them, and are of some of ``types``. ConfigError if one
    is unknown; DataError, which says why for each, if none could be read.
    """
    options = options or Options()
    return _read(_names_by_type(tasks, options, types), options)


def _read(named: Mapping[str, Sequence[TaskName]], options: Options) -> Suite:
    if any(name.in_senteval for names in named.values() for name in names):
        senteval_root(options.data_dir)
    kinds = ((kind, named[kind.name]) for kind in TASK_TYPES if named.get(kind.name))
    suite = Suite(tuple((kind, kind.read(names, options)) for kind, names in kinds), options)
    if not any(read.tasks for _, read in suite.kinds):
        reasons = [f"  {problem.task}: {problem.message}" for problem in suite.problems]
        raise DataError("\n".join(["no task has data to score:", *reasons, *suite.remedy]))
    return suite


def _names_by_type(
    tasks: Sequence[str], options: Options, types: Sequence[TaskType]
) -> dict[str, list[TaskName]]:
    """The tasks by the names of their types, each and its split once."""
    named: dict[str, list[TaskName]] = {kind.name: [] for kind in types}
    without = list[str]()
    for text in tasks:
        for kind in reversed(types):
            if (names := kind.names(text, options)) is not None:
                named[kind.name] += names
                break
        else:
            refuse(text)
        without += [] if names else [text]
    if without or not tasks:
        asked, splits = ", ".join(without) or "an empty list", ", ".join(options.splits)
        known = "STS12-16 have a test split only, transfer tasks a dev and a test split"
        raise ConfigError(f"no task to score in {asked} with split {splits}; {known}")
    return {kind: list(dict.fromkeys(names)) for kind, names in named.items()}


def suite_of(given: EvaluationOptions) -> Suite:
    """Read the tasks of options as :func:`load_suite`; ConfigError if no task reads one of them."""
    options, usual = Options.of(given), Options().splits
    named = _names_by_type(given.tasks, options, TASK_TYPES)
    pairs, labelled = named["sts"], named["labelled"]
    readers: dict[str, Any] = {
        "splits": given.splits == usual
        or named != _names_by_type(given.tasks, replace(options, splits=usual), TASK_TYPES),
        "columns": [it for it in (*pairs, *labelled) if not it.in_senteval],
        "regressor": [it for it in pairs if it.name in STS_TASKS and STS_TASKS[it.name].files],
        **dict.fromkeys(("protocol", "metric", "aggregation"), pairs),
        **{it: [*named["transfer"], *labelled] for it in ("preset", "classifier_seed")},
    }
    unread = [name for name, by in readers.items() if not by]
    refuse_unused(given, unread, f"{', '.join(given.tasks)} has no use for it")
    return _read(named, options)


@dataclass(frozen=True, slots=True)
class TaskOverlap:
    """How much of one task stands in training text, where only letters and digits are compared.

    Repeated sentences count each time.
    """

    task: str
    split: str  # the split, or ``all`` where a transfer task has none
    sentences: int
    seen: int  # sentences that training text has
    pairs: int
    pairs_seen: int  # pairs of which training text has both sentences, anywhere
    pairs_together: int  # pairs that are in one example of it, in either order
    # where the first ones stand in the training text, and the sentences there
    first: tuple[tuple[str, str], ...]

    @property
    def heading(self) -> str:
        """How a table names it."""
        return TaskName(self.task, self.split).heading


@dataclass(frozen=True, slots=True)
class Leaks:
    """The text of tasks in one source of training text."""

    source: str
    columns: str
    examples: int
    sha256: str
    tasks: tuple[TaskOverlap, ...]


def find_leaks(
    training: Examples, suite: Suite, advance: Callable[[int], None] = lambda _: None
) -> Leaks:
    """Look for the text of tasks in training text, which is read once and not kept."""
    texts = list(suite.texts())
    forms = {it: letters(it) for text in texts for it in (*text.sentences, *chain(*text.pairs))}
    sentences = {forms[sentence] for text in texts for sentence in text.sentences}
    pairs = [[tuple(sorted((forms[a], forms[b]))) for a, b in text.pairs] for text in texts]
    wanted, together = {pair for of_task in pairs for pair in of_task}, set[tuple[str, ...]]()
    places, count = dict[str, tuple[str, str]](), 0
    for where, example in training.read(stop):
        count += 1
        advance(1)
        known = []
        for sentence in example:
            if (form := letters(sentence)) in sentences:
                places.setdefault(form, (where, sentence))
                known.append(form)
        together.update(wanted.intersection(combinations(sorted(known), 2)))
    tasks = []
    for text, of_task in zip(texts, pairs, strict=True):
        seen = [form for it in text.sentences if (form := forms[it]) in places]
        overlap = TaskOverlap(
            task=text.task,
            split=text.split,
            sentences=len(text.sentences),
            seen=len(seen),
            pairs=len(of_task),
            pairs_seen=sum(set(pair) <= places.keys() for pair in of_task),
            pairs_together=sum(pair in together for pair in of_task),
            first=tuple(places[form] for form in list(dict.fromkeys(seen))[:_PLACES_SHOWN]),
        )
        tasks.append(overlap)
    return Leaks(training.source, training.columns, count, training.sha256, tuple(tasks))


@dataclass(frozen=True, slots=True)
class Overlap:
    """The tasks' text in one training text; ``trouble`` tells why it could not be checked."""

    file: str
    tasks: tuple[TaskOverlap, ...] = ()
    trouble: str = ""


def find_overlap(
    model: str, suite: Suite, advance: Callable[[int], None] = lambda _: None
) -> Overlap | None:
    """The text of tasks in what an encoder was trained on; None where that is not known."""
    path = Path(model).expanduser()
    kept = None if path.exists() or dataset_parts(model) is None else find_download(model)
    # The encoder's, or of a run that of the one that is used.
    folders = (it / part for it in (path, kept) if it for part in ("", "best", "last"))
    folder = next((it.resolve() for it in folders if (it / INFO_FILE).is_file()), None)
    info: Any = None
    with suppress(CheckpointError):
        info = folder and read_json(folder / INFO_FILE)
    if folder is None or not isinstance(info, dict):
        return None
    data, settings = section(info, "data"), section(section(info, "recipe"), "data")
    file, columns = settings.get("file"), settings.get("columns")
    if isinstance(file, list):
        sources = ", ".join(str(it["file"]) for it in file)
        return Overlap(sources, trouble="'contrasent data leaks' takes one of several at a time")
    if not (isinstance(file, str) and file and "sha256" in data):
        return None
    named = Path(file).expanduser()  # from here, or from a folder around the encoder's
    files = [it for it in (named, *(it / named for it in folder.parents)) if it.is_file()]
    trouble = f"{files[0]} has changed since" if files else "there is no such file here any more"
    if not files and dataset_parts(file):
        trouble = "it is a data set on the hub, which is not read again"
    try:
        for known in files:
            names = columns if isinstance(columns, list) else None
            examples = open_training(str(known), str(settings.get("labels", "none")), names)
            if examples.sha256 == data["sha256"]:
                return Overlap(file, find_leaks(examples, suite, advance).tasks)
    except (ContrasentError, OSError, ValueError, LookupError) as error:
        trouble = " ".join(str(error).split())
    return Overlap(file, trouble=trouble)


def overlap_of(record: Record, overlap: Overlap | None) -> dict[str, str | int] | None:
    """The overlap of a record's task with the training text; None if it was not checked."""
    if overlap is None:
        return None
    # A transfer task's accuracy may be of another part of its data than the split's name says.
    splits = [record.split, *(("all",) if record.split == "test" else ("dev", "train", "all"))]
    tasks = {task.split: task for task in overlap.tasks if task.task == record.task}
    for task in (tasks[split] for split in splits if split in tasks):
        return {
            "file": overlap.file,
            "sentences": task.sentences,
            "sentences_seen": task.seen,
            "pairs": task.pairs,
            "pairs_together": task.pairs_together,
        }
    return None
