"""Leaks: evaluation text that stands in training text too."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

from contrasent.data.examples import Examples, open_training
from contrasent.data.readers import dataset_parts, stop
from contrasent.errors import ContrasentError
from contrasent.evaluation.suite import Suite
from contrasent.evaluation.task_names import TaskName
from contrasent.model.hub import INFO_FILE, encoder_folder, find_download, places_of, section
from contrasent.records import Record
from contrasent.search.mining import letters

_SHOWN = 3


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
    found: dict[str, tuple[str, str]] = {}
    count = 0
    for where, example in training.read(stop):
        count += 1
        advance(1)
        known = []
        for sentence in example:
            if (form := letters(sentence)) in sentences:
                found.setdefault(form, (where, sentence))
                known.append(form)
        together.update(wanted.intersection(combinations(sorted(known), 2)))
    tasks = []
    for text, of_task in zip(texts, pairs, strict=True):
        seen = [form for it in text.sentences if (form := forms[it]) in found]
        overlap = TaskOverlap(
            task=text.task,
            split=text.split,
            sentences=len(text.sentences),
            seen=len(seen),
            pairs=len(of_task),
            pairs_seen=sum(set(pair) <= found.keys() for pair in of_task),
            pairs_together=sum(pair in together for pair in of_task),
            first=tuple(found[form] for form in list(dict.fromkeys(seen))[:_SHOWN]),
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
    folder, info = encoder_folder(filter(None, [path, kept])), None
    with suppress(OSError, ValueError):
        info = folder and json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
    if folder is None or not isinstance(info, dict):
        return None
    data, settings = section(info, "data"), section(section(info, "recipe"), "data")
    file, columns = settings.get("file"), settings.get("columns")
    if isinstance(file, list):
        sources = ", ".join(str(it["file"]) for it in file)
        return Overlap(sources, trouble="'contrasent data leaks' takes one of several at a time")
    labels = str(settings.get("labels", "none"))
    if not (isinstance(file, str) and file and "sha256" in data):
        return None
    files = [place for place in places_of(file, folder) if place.is_file()]
    trouble = f"{files[0]} has changed since" if files else "there is no such file here any more"
    if not files and dataset_parts(file):
        trouble = "it is a data set on the hub, which is not read again"
    try:
        for known in files:
            names = columns if isinstance(columns, list) else None
            examples = open_training(str(known), labels, names)
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
