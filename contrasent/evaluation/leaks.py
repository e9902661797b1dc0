"""Leaks: evaluation text that stands in training text too."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from contrasent.data.examples import Examples, open_examples
from contrasent.data.readers import dataset_parts, stop
from contrasent.errors import ContrasentError
from contrasent.evaluation.suite import Suite
from contrasent.evaluation.task_names import TaskName, TaskText
from contrasent.files import cached
from contrasent.model.hub import INFO_FILE, encoder_folder, find_download, places_of, section
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
    """The text of tasks in one source of training text."""

    source: str
    columns: str
    examples: int
    sha256: str
    tasks: tuple[TaskOverlap, ...]


def normalised(text: str) -> str:
    """Letters and digits of a sentence in lower case, without anything between them."""
    lower = text.lower()
    # Most text is ASCII, where this is twice as fast as the expression, which it equals.
    return lower.translate(_NO_ASCII_LETTER) if lower.isascii() else _NO_LETTER.sub("", lower)


def find_leaks(
    training: Examples, suite: Suite, advance: Callable[[int], None] = lambda _: None
) -> Leaks:
    """Look for the text of tasks in training text, which is read once and not kept."""
    texts = list(suite.texts())
    exact = _Matches(lambda text: " ".join(text.split()), texts)
    loose = _Matches(normalised, texts)
    count = 0
    for where, sentences in training.read(stop):
        count += 1
        advance(1)
        if loose.look_at(where, sentences):
            exact.look_at(where, sentences)
    tasks = []
    for text in texts:
        keys = loose.of_sentences(text)
        overlap = TaskOverlap(
            task=text.task,
            split=text.split,
            sentences=len(text.sentences),
            exact=len(exact.of_sentences(text)),
            normalised=len(keys),
            pairs=len(text.pairs),
            pairs_seen=sum(set(loose.key(pair)) <= loose.where.keys() for pair in text.pairs),
            pairs_exact=sum(exact.key(pair) in exact.together for pair in text.pairs),
            pairs_normalised=sum(loose.key(pair) in loose.together for pair in text.pairs),
            first=tuple(loose.where[key] for key in list(dict.fromkeys(keys))[:_SHOWN]),
        )
        tasks.append(overlap)
    return Leaks(training.source, training.columns, count, training.sha256, tuple(tasks))


class _Matches:
    """The tasks' sentences that training text has, compared in one ``form``."""

    def __init__(self, form: Callable[[str], str], texts: Sequence[TaskText]) -> None:
        self._form = form
        self._sentences = {form(sentence) for text in texts for sentence in text.sentences} - {""}
        self._pairs = {self.key(pair) for text in texts for pair in text.pairs}
        self.where: dict[str, tuple[str, str]] = {}
        self.together: set[Pair] = set()

    def look_at(self, where: str, sentences: Sequence[str]) -> bool:
        """Note the matches in one example; False if no stricter form can find anything in it."""
        keys = [self._form(sentence) for sentence in sentences]
        known = sorted(key for key in keys if key in self._sentences)
        for key, sentence in zip(keys, sentences, strict=True):
            if key in self._sentences:
                self.where.setdefault(key, (where, sentence))
        self.together.update(self._pairs.intersection(combinations(known, 2)))
        return bool(known) or not all(keys)

    def key(self, pair: Pair) -> Pair:
        """A pair without its order."""
        one, other = sorted(map(self._form, pair))
        return one, other

    def of_sentences(self, text: TaskText) -> list[str]:
        """The keys of its sentences that were found, repeated ones each time."""
        return [key for sentence in text.sentences if (key := self._form(sentence)) in self.where]


_FORMAT = 1
_COUNTS = "counts.json"


@dataclass(frozen=True, slots=True)
class TrainingText:
    """The training text that an encoder's ``contrasent.json`` names, beside that ``folder``."""

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


def training_text(model: str) -> TrainingText | None:
    """The text that an encoder was trained on; None where that is not known."""
    path = Path(model).expanduser()
    folder = encoder_folder([path])
    if folder is None and not path.exists() and dataset_parts(model) is not None:
        folder = encoder_folder(filter(None, [find_download(model)]))
    try:
        info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8")) if folder else None
    except (OSError, ValueError):
        return None
    if folder is None or not isinstance(info, dict):
        return None
    data, settings = section(info, "data"), section(section(info, "recipe"), "data")
    file, columns = settings.get("file"), settings.get("columns")
    if not (isinstance(file, str) and file and "sha256" in data):
        return None
    chosen = tuple(map(str, columns)) if isinstance(columns, list) else None
    return TrainingText(file, chosen, str(data["sha256"]), folder)


def find_overlap(
    suite: Suite, training: TrainingText, advance: Callable[[int], None] = lambda _: None
) -> Overlap:
    """The text of tasks in what an encoder was trained on.

    A text that cannot be read is told in the overlap. Counts are kept in the cache by the hashes of
    the training text and of the tasks.
    """
    try:
        examples = _open_unchanged(training)
        wanted = hashlib.sha256()
        for text in suite.texts():
            wanted.update(repr((text.task, text.split, text.sentences, text.pairs)).encode())

        def write(folder: Path) -> None:
            tasks = find_leaks(examples, suite, advance).tasks
            # Without the sentences: the cache holds counts, and no text of a task.
            counts = [{**asdict(task), "first": ()} for task in tasks]
            (folder / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")

        def read(folder: Path) -> tuple[TaskOverlap, ...]:
            counts = json.loads((folder / _COUNTS).read_text(encoding="utf-8"))
            return tuple(TaskOverlap(**{**task, "first": ()}) for task in counts)

        key = [_FORMAT, examples.sha256, wanted.hexdigest()]
        return Overlap(training.file, cached("leaks", "counts of overlap", key, read, write))
    except (ContrasentError, OSError, ValueError) as error:
        return Overlap(training.file, trouble=" ".join(str(error).split()))


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


def overlap_of(record: Record, overlap: Overlap | None) -> dict[str, str | int] | None:
    """The overlap of a record's task with the training text; None if it was not checked."""
    # A transfer task's accuracy may be of another part of its data than the split's name says.
    splits = [record.split, *(("all",) if record.split == "test" else ("dev", "train", "all"))]
    if overlap is None:
        return None
    tasks = {task.split: task for task in overlap.tasks if task.task == record.task}
    task = next((tasks[split] for split in splits if split in tasks), None)
    if task is None:
        return None
    return {
        "file": overlap.file,
        "sentences": task.sentences,
        "sentences_seen": task.normalised,
        "pairs": task.pairs,
        "pairs_together": task.pairs_normalised,
    }
