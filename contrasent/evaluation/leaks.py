"""Leaks: evaluation text that stands in training text too."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from contrasent.data.examples import Examples, open_examples
from contrasent.data.readers import dataset_parts, stop
from contrasent.errors import ContrasentError
from contrasent.evaluation.suite import Suite
from contrasent.evaluation.task_names import TaskName
from contrasent.evaluation.task_types import TaskText
from contrasent.files import cached
from contrasent.model.hub import ancestry, encoder_folder, find_download, places_of, section
from contrasent.records import Record

_SHOWN = 3
_NO_LETTER = re.compile(r"[\W_]+")
_NO_ASCII_LETTER = {code: None for code in range(128) if not chr(code).isalnum()}

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TaskOverlap:
    """How much of one task stands in training text; repeated sentences count each time."""

    task: str
    split: str  # the split, or ``all`` where a transfer task has none
    sentences: int
    exact: int  # sentences that training text has, but for white space
    normalised: int  # sentences that it has when only letters and digits in lower case are compared
    pairs: int
    pairs_seen: int  # pairs of which training text has both sentences, anywhere, normalised
    pairs_exact: int  # pairs that are in one example of the training text, in either order
    pairs_normalised: int
    # where the first ones stand in the training text, and the sentences there
    first: tuple[tuple[str, str], ...]

    @property
    def heading(self) -> str:
        """How a table names it."""
        return TaskName(self.task, self.split).heading


@dataclass(frozen=True, slots=True)
class Leaks:
    """What was found in one source of training text.

    ``columns`` tells how its columns were understood, ``sha256`` is of content and columns.
    """

    source: str
    columns: str
    examples: int
    sha256: str
    tasks: tuple[TaskOverlap, ...]


def tidied(text: str) -> str:
    """A sentence with single spaces between its words."""
    return " ".join(text.split())


def normalised(text: str) -> str:
    """Letters and digits of a sentence in lower case, without anything between them."""
    lower = text.lower()
    # Most text is ASCII, where this is twice as fast as the expression, which it equals.
    return lower.translate(_NO_ASCII_LETTER) if lower.isascii() else _NO_LETTER.sub("", lower)


def fingerprint(suite: Suite) -> str:
    """Hexadecimal hash of all that :func:`find_leaks` looks for."""
    digest = hashlib.sha256()
    for text in suite.texts():
        digest.update(repr((text.task, text.split, text.sentences, text.pairs)).encode())
    return digest.hexdigest()


def find_leaks(
    training: Examples, suite: Suite, advance: Callable[[int], None] = lambda _: None
) -> Leaks:
    """Look for the text of tasks in training text, which is read once and not kept.

    ``advance`` is called with 1 for every example. A row that cannot be read is a DataError.
    """
    texts = list(suite.texts())
    exact, loose = _Matches(tidied, texts), _Matches(normalised, texts)
    count = 0
    for where, sentences in training.read(stop):
        count += 1
        advance(1)
        if loose.look_at(where, sentences):
            exact.look_at(where, sentences)
    return Leaks(
        source=training.source,
        columns=training.columns,
        examples=count,
        sha256=training.sha256,
        tasks=tuple(_task_overlap(text, exact, loose) for text in texts),
    )


class _Matches:
    """What training text has of the tasks' sentences, compared in one form."""

    def __init__(self, form: Callable[[str], str], texts: Sequence[TaskText]) -> None:
        self._form = form
        self._sentences = {form(sentence) for text in texts for sentence in text.sentences} - {""}
        self._pairs = {self.key(pair) for text in texts for pair in text.pairs}
        self.where: dict[str, tuple[str, str]] = {}
        self._together: set[Pair] = set()

    def look_at(self, where: str, sentences: Sequence[str]) -> bool:
        """Note what one example has; False if no stricter form can find anything in it."""
        known = []
        anything = False
        for sentence in sentences:
            key = self._form(sentence)
            if key in self._sentences:
                known.append(key)
                self.where.setdefault(key, (where, sentence))
            anything |= not key
        for one, other in combinations(sorted(known), 2):
            if (one, other) in self._pairs:
                self._together.add((one, other))
        return anything or bool(known)

    def key(self, pair: Pair) -> Pair:
        """A pair without its order."""
        one, other = sorted(map(self._form, pair))
        return one, other

    def of_sentences(self, text: TaskText) -> list[str]:
        """The keys of its sentences that were found, repeated ones each time."""
        return [key for sentence in text.sentences if (key := self._form(sentence)) in self.where]

    def of_pairs(self, text: TaskText) -> int:
        """How many of its pairs were found."""
        return sum(self.key(pair) in self._together for pair in text.pairs)


def _task_overlap(text: TaskText, exact: _Matches, loose: _Matches) -> TaskOverlap:
    keys = loose.of_sentences(text)
    return TaskOverlap(
        task=text.task,
        split=text.split,
        sentences=len(text.sentences),
        exact=len(exact.of_sentences(text)),
        normalised=len(keys),
        pairs=len(text.pairs),
        pairs_seen=sum(set(loose.key(pair)) <= loose.where.keys() for pair in text.pairs),
        pairs_exact=exact.of_pairs(text),
        pairs_normalised=loose.of_pairs(text),
        first=tuple(loose.where[key] for key in list(dict.fromkeys(keys))[:_SHOWN]),
    )


_FORMAT = 1
_COUNTS = "counts.json"


@dataclass(frozen=True, slots=True)
class TrainingText:
    """The training text that an encoder's ``contrasent.json`` names, beside that folder.

    ``sha256`` is the hash of content and columns when it was trained.
    """

    file: str
    columns: tuple[str, ...] | None
    sha256: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Overlap:
    """The tasks' text in one training text; ``trouble`` tells why it could not be checked."""

    file: str
    tasks: tuple[TaskOverlap, ...] = ()
    trouble: str = ""


def find_overlaps(
    suite: Suite, model: str, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Overlap]:
    """The text of tasks in what an encoder was trained on, and in what it started from.

    ``model`` is a folder, a training run, or the id of a model that was downloaded before. Nothing
    is raised for a text that cannot be read: the overlap says why. Counts are kept in the cache by
    the hash of the training text and of the tasks, so that a text is read once for the same tasks.
    """
    for training in trainings(model):
        try:
            yield Overlap(training.file, _counts(training, suite, advance))
        except (ContrasentError, OSError, ValueError) as error:
            yield Overlap(training.file, trouble=" ".join(str(error).split()))


def _counts(
    training: TrainingText, suite: Suite, advance: Callable[[int], None]
) -> tuple[TaskOverlap, ...]:
    examples = _open_unchanged(training)

    def write(folder: Path) -> None:
        tasks = find_leaks(examples, suite, advance).tasks
        # Without the sentences: the cache holds counts, and no text of a task.
        counts = [{**asdict(task), "first": ()} for task in tasks]
        (folder / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")

    key = [_FORMAT, examples.sha256, fingerprint(suite)]
    return cached("leaks", "counts of overlap", key, _read_counts, write)


def trainings(model: str) -> list[TrainingText]:
    """What an encoder was trained on, last first; nothing where that is not known.

    The encoder that a run started from may be one of another run, whose text counts too.
    """
    texts: list[TrainingText] = []
    path = Path(model).expanduser()
    folder = encoder_folder([path])
    if folder is None and not path.exists() and dataset_parts(model) is not None:
        folder = encoder_folder(filter(None, [find_download(model)]))
    for place, info in ancestry(folder):
        data, settings = section(info, "data"), section(section(info, "recipe"), "data")
        if isinstance(file := settings.get("file"), str) and file and "sha256" in data:
            columns = settings.get("columns")
            chosen = tuple(map(str, columns)) if isinstance(columns, list) else None
            texts.append(TrainingText(file, chosen, str(data["sha256"]), place))
    return texts


def overlap_of(record: Record, overlaps: Iterable[Overlap]) -> dict[str, str | int] | None:
    """What a record says of its task: of the text that has most of it; None if none was checked."""
    # A transfer task's accuracy may be of another part of its data than the split's name says.
    splits = [record.split, *(("all",) if record.split == "test" else ("dev", "train", "all"))]
    of_task = []
    for overlap in overlaps:
        counts = {task.split: task for task in overlap.tasks if task.task == record.task}
        of_task += [(overlap.file, counts[split]) for split in splits if split in counts][:1]
    if not of_task:
        return None
    file, task = max(of_task, key=lambda it: it[1].normalised)
    return {
        "file": file,
        "sentences": task.sentences,
        "sentences_seen": task.normalised,
        "pairs": task.pairs,
        "pairs_together": task.pairs_normalised,
    }


def _open_unchanged(training: TrainingText) -> Examples:
    """The training text; a ContrasentError if it is not there, or is not what it was."""
    files = [place for place in places_of(training.file, training.folder) if place.is_file()]
    for place in files:
        examples = open_examples(str(place), training.columns)
        if examples.sha256 == training.sha256:
            return examples
    if files:
        raise ContrasentError(f"{files[0]} has changed since")
    if dataset_parts(training.file):
        raise ContrasentError("it is a data set on the hub, which is not read again")
    raise ContrasentError("there is no such file here any more")


def _read_counts(entry: Path) -> tuple[TaskOverlap, ...]:
    counts = json.loads((entry / _COUNTS).read_text(encoding="utf-8"))
    return tuple(TaskOverlap(**{**task, "first": ()}) for task in counts)
