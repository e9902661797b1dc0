"""Labelled sentences, SentEval's and users': read as SentEval does, and classified by embeddings.

Order matters: the folds are drawn over the sentences sorted by length, as SentEval's are.

Shapes: N sentences or pairs of a part, D embedding width.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from contrasent.data.columns import SPECS
from contrasent.data.readers import tab_rows
from contrasent.data.rows import SourceRows, as_text, open_rows_of
from contrasent.data.senteval import senteval_root
from contrasent.errors import ConfigError, DataError, shown
from contrasent.evaluation import logistic_regression, task_names
from contrasent.evaluation.embed import EncoderUse, Score, Scores, distinct, score_each
from contrasent.evaluation.intervals import Ratio, intervals
from contrasent.evaluation.logistic_regression import Accuracy, LabelledFeatures, Rows
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.sts import pair_features
from contrasent.evaluation.sts_data import sha256_of_all
from contrasent.evaluation.task_names import CLASSIFY, TRANSFER_TASKS, TaskName, TaskText

_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

Item = tuple[tuple[str, ...], int]
"""A sentence or the two of a pair, empty where the file has a blank line; a class from 0."""


@dataclass(frozen=True, slots=True)
class Part:
    """Items of one file, or of several that are split into folds together."""

    # N sentences, or twice as many for pairs: all first ones, then all second ones
    texts: tuple[str, ...]
    labels: Rows  # ``(N,)``


def _polar(path: Path, number: int, _: int) -> Iterator[Item]:
    """A latin-1 sentence per line, blank or not: class 1 in the first file, 0 in the second."""
    for line in path.read_bytes().decode("latin-1").splitlines():
        yield (" ".join(line.split()),), int(number == 0)


def _questions(path: Path, _: int, __: int) -> Iterator[Item]:
    """``COARSE:fine question`` in latin-1; the fine class is left out."""
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, start=1):
            coarse, _colon, rest = line.strip().partition(":")
            if coarse not in _QUESTIONS or " " not in rest:
                form = f"CLASS:fine question, with a class of {', '.join(_QUESTIONS)}"
                raise DataError(f"{path}:{number}: {line.strip()[:40]!r} instead of {form}")
            yield (" ".join(rest.split(" ", 1)[1].split()),), _QUESTIONS.index(coarse)


def _table(
    path: Path, _: int, classes: int, *, width: int, texts: Sequence[int], label: int, header: bool
) -> Iterator[Item]:
    """Cells between tabs, classes being whole numbers from 0; quotes are literal."""
    known = [str(code) for code in range(classes)]
    for number, cells in tab_rows(path):
        if number == 1 and header:
            continue
        if len(cells) != width or cells[label].strip() not in known:
            wanted = f"{width} columns, and in column {label + 1} the class {' or '.join(known)}"
            raise DataError(f"{path}:{number}: a row has {wanted}, not {cells}")
        yield tuple(" ".join(cells[place].split()) for place in texts), int(cells[label])


READERS: dict[str, Callable[[Path, int, int], Iterator[Item]]] = {
    "polar": _polar,
    "questions": _questions,
    "sentiments": partial(_table, width=2, texts=(0,), label=1, header=False),
    # quality, two ids, two sentences
    "paraphrases": partial(_table, width=5, texts=(3, 4), label=0, header=True),
}
"""Readers of a file by its form, given its path, its number from 0, and the number of classes."""


@dataclass(frozen=True, slots=True)
class TransferData:
    """A task, read."""

    name: str
    parts: dict[str, Part]  # ``all``, or ``train`` and ``test``, or ``train``, ``dev`` and ``test``
    classes: int
    sha256: str
    class_names: tuple[str, ...] = ()  # of a user's own classes; empty for SentEval's tasks
    # one line on what the rows of a user's own task are; empty for SentEval's
    description: str = ""
    note: str = ""  # how a user's columns were understood, where that had to be guessed; else empty
    splits: tuple[str, ...] = ("dev", "test")  # those that are to have records

    @property
    def of_pairs(self) -> bool:
        """True if it classifies pairs of sentences."""
        return any(len(part.texts) == 2 * len(part.labels) for part in self.parts.values())

    def judged_part(self, split: str) -> str:
        """The part that a split's accuracy is of: the one of that name, or what stands for it."""
        choices = ("test", "all") if split == "test" else ("dev", "train", "all")
        return next(part for part in choices if part in self.parts)

    def texts(self) -> Iterator[TaskText]:
        """The parts that the accuracies are of."""
        for name in dict.fromkeys(map(self.judged_part, self.splits)):
            texts = self.parts[name].texts
            half = len(texts) // 2
            pairs = zip(texts[:half], texts[half:], strict=True) if self.of_pairs else ()
            yield TaskText(self.name, name, texts, list(pairs))


def load_transfer(name: str, data_dir: str | Path | None = None) -> TransferData:
    """Read one of :data:`TRANSFER_TASKS`; a DataError, such as a MissingDataError, if it cannot."""
    task = TRANSFER_TASKS[name]
    paths = [senteval_root(data_dir) / file for file in task.files]
    sha256, read = sha256_of_all(paths), READERS[task.form]
    groups = [list(read(path, number, task.classes)) for number, path in enumerate(paths)]
    if len(task.split) == 1:
        groups = [[item for group in groups for item in group]]
    parts = dict(zip(task.split, map(sorted_part, groups), strict=True))
    return TransferData(name, parts, task.classes, sha256)


def sorted_part(items: Sequence[Item]) -> Part:
    """In SentEval's order: by words of the first, then the second sentence, then by class."""
    ordered = sorted(items, key=lambda it: (*(len(text.split()) for text in it[0]), it[1]))
    texts = tuple(text for side in zip(*(it[0] for it in ordered), strict=True) for text in side)
    return Part(texts, np.array([label for _, label in ordered], dtype=np.int64))


Row = tuple[str, tuple[str, ...], str]
"""``path:line``, one sentence or the two of a pair, and their class."""


def holds_labels(source: str, columns: Sequence[str] | None) -> bool:
    """True if a file or data set without a prefix holds labelled sentences and no scored pairs."""
    if columns is not None:
        return len(columns) == len(SPECS["sentences"].roles)
    return _known(source, "rated_pairs") is None and _known(source, "sentences") is not None


def read_labelled(name: str, columns: Sequence[str] | None = None) -> TransferData:
    """Read labelled sentences, or labelled pairs of sentences.

    One file is judged by nested folds, as SentEval judges MR; ``TRAIN+TEST`` and ``TRAIN+DEV+TEST``
    as TREC and SST-2 are.
    """
    sources = task_names.joined_sources(name.removeprefix(CLASSIFY))
    splits = {1: ("all",), 2: ("train", "test"), 3: task_names.ALL_SPLITS}
    if len(sources) not in splits:
        what = "a task of labelled sentences is one file, train+test or train+dev+test"
        raise ConfigError(f"{name} names {len(sources)} files; {what}")
    opened = [_open(source, columns) for source in sources]
    read = [list(_rows(records)) for records in opened]
    labels, problem = {label for _, _, label in read[0]}, ""
    if len({len(texts) for rows in read for _, texts, _ in rows}) > 1 or not all(read):
        problem = "every row needs a sentence and a class, or every row two and one"
    elif len(labels) < 2:
        problem = f"the label of all rows is {labels.pop()!r}; 2 classes are needed"
    if problem:
        raise DataError(f"{name}: {problem}")
    below = {label for rows in read for _, _, label in rows[1:]}
    for records, ((where, _, label), *_) in zip(opened, read, strict=True):
        if not (records.chosen.header or label in below or label.isdecimal()):
            raise DataError(
                f"{where}: {label!r} looks like a heading, as no other row has this class; name "
                "the columns with --columns, or move the row down if it is a sentence's"
            )
    for where, _, label in (row for rows in read for row in rows if row[2] not in labels):
        raise DataError(f"{where}: no row of {sources[0]} has the class {label!r}; spell it alike")
    numbers = all(label.isdecimal() for label in labels)
    classes = sorted(labels, key=lambda label: (int(label) if numbers else 0, label))
    parts = dict(zip(splits[len(sources)], read, strict=True))
    sha256 = " ".join(records.sha256 for records in opened)
    understood = (it for it in opened if it.chosen.by == "name")
    judged = parts["test" if "test" in parts else "all"]
    counts = Counter(label for _, _, label in judged)
    most, count = min(counts.items(), key=lambda it: (-it[1], it[0]))
    things = "sentences" if len(judged[0][1]) == 1 else "pairs"
    sizes = " + ".join(f"{len(rows):,}" for rows in parts.values())
    share = f"the most frequent, {most!r}, is {100 * count / len(judged):.2f} %"
    share += " of test" * ("test" in parts)
    return TransferData(
        name=name,
        parts={
            part: sorted_part([(texts, classes.index(label)) for _, texts, label in rows])
            for part, rows in parts.items()
        },
        classes=len(classes),
        sha256=sha256 if len(opened) == 1 else hashlib.sha256(sha256.encode()).hexdigest(),
        class_names=tuple(classes),
        description=f"{sizes} {things} of {len(classes)} classes; {share}",
        note="\n".join(f"{records.source}: {records.described}" for records in understood),
    )


def _open(source: str, columns: Sequence[str] | None) -> SourceRows:
    if columns is not None:
        is_single = len(columns) == len(SPECS["sentences"].roles)
        return open_rows_of(source, "sentences" if is_single else "sentence_pairs", columns)
    known = _known(source, "sentence_pairs") or _known(source, "sentences")
    if known is not None:
        return known
    try:
        return open_rows_of(source, "sentence_pairs")
    except DataError:
        return open_rows_of(source, "sentences")


def _known(source: str, kind: str) -> SourceRows | None:
    """The rows of a source whose columns are known by their names; None of any other."""
    try:
        rows = open_rows_of(str(Path(source).expanduser()), kind)
    except DataError:
        return None
    return rows if rows.chosen.by == "name" else None


def _rows(records: SourceRows) -> Iterator[Row]:
    names = records.label_names
    for where, (*cells, given) in records.rows():
        texts, label = tuple(as_text(cell, where) for cell in cells), given
        if isinstance(given, float) and (given.is_integer() or isnan(given)):
            # pandas makes floats of whole numbers beside an empty cell
            label = None if isnan(given) else int(given)
        hidden = names is not None and isinstance(label, int) and not 0 <= label < len(names)
        if hidden or not (isinstance(label, str | int) and str(label).strip()) or not all(texts):
            raise DataError(
                f"{where}: a sentence or its label {shown(label)} is missing, hidden, or no name "
                "or number; mend the row or take it out, or name a split with labels"
            )
        named = names[label] if names is not None and isinstance(label, int) else str(label)
        yield where, texts, " ".join(named.split())


def labelled(task: TransferData, part: Part, use: EncoderUse) -> LabelledFeatures:
    """Embeddings of a part, of pairs |u - v| and u * v as in SentEval; zeros are of use here."""
    texts, places = distinct(part.texts)
    embeddings = use.embed(texts, zeros=True)[places].astype(np.float32)
    if task.of_pairs:
        embeddings = pair_features(*np.split(embeddings, 2))
    return LabelledFeatures(embeddings, part.labels)


def ratios_of(task: TransferData, reached: Accuracy, labels: Rows) -> dict[str, Ratio]:
    """The sums that the scores of the test rows are quotients of, by metric."""
    right = (reached.predicted == labels).astype(np.float64)
    weights = np.ones_like(right)
    if reached.folds is not None:
        # The mean over folds: a row counts as much as its fold is small.
        weights = 1 / np.bincount(reached.folds)[reached.folds]
    ratios = {"accuracy": Ratio(right * weights, weights)}
    if task.class_names:
        ratios["macro_f1"] = _f1(reached.predicted, labels, np.arange(task.classes))
    elif task.of_pairs:
        ratios["f1"] = _f1(reached.predicted, labels, [1])
    return ratios


def _f1(predicted: Rows, expected: Rows, classes: ArrayLike) -> Ratio:
    """F1 of a class, or its mean over classes, of rows of all folds (Forman and Scholz 2010)."""
    chosen, right = (rows[:, None] == np.asarray(classes) for rows in (predicted, expected))
    return Ratio(2.0 * (chosen & right), chosen.astype(np.float64) + right)


SPLITS = ("dev", "test")
"""``dev`` is the accuracy that chose the penalty, ``test`` that of the test part."""


def names(text: str, options: Options) -> list[TaskName] | None:
    """Transfer tasks, on those of the splits that are in :data:`SPLITS`."""
    return task_names.public_names(text, options.splits, dict.fromkeys(TRANSFER_TASKS, SPLITS))


def labelled_names(text: str, options: Options) -> list[TaskName] | None:
    """The task after :data:`CLASSIFY`, or a file or data set that :func:`holds_labels` knows."""
    text = text.strip()
    own = task_names.names_own_data(text) and holds_labels(text, options.columns)
    if not (own or text.startswith(CLASSIFY)):
        return None
    return [TaskName(text, split) for split in SPLITS[::-1] if split in options.splits]


def load(names: Sequence[TaskName], options: Options) -> TransferData:
    """Read one task; its splits come of the same files and the same classifiers."""
    name = names[0].name
    if name in TRANSFER_TASKS:
        data = load_transfer(name, options.data_dir)
    else:
        data = read_labelled(name, options.columns)
    return replace(data, splits=tuple(it.split for it in names))


def score(tasks: Sequence[TransferData], use: EncoderUse, options: Options) -> Scores:
    """Accuracy of every split; of test rows F1 of pairs, and macro-F1 of a user's own task.

    Intervals draw test rows again, the classifiers as they are; a dev score, whose rows chose the
    penalty, has none.
    """
    return score_each((TaskName(task.name), partial(_score, task, use, options)) for task in tasks)


def _score(task: TransferData, use: EncoderUse, options: Options) -> Scores:
    parts = {name: labelled(task, part, use) for name, part in task.parts.items()}
    device = getattr(use.encoder, "device", "cpu")
    learning = options.learning
    if task.class_names:
        learning = learning.for_rows(len(next(iter(task.parts.values())).labels))
    reached = logistic_regression.cross_validate(parts, task.classes, learning, device)
    test = task.parts[task.judged_part("test")]
    ratios = ratios_of(task, reached, test.labels) if "test" in task.splits else {}
    sure = intervals(ratios, options.bootstrap, task.name)
    values = {("dev", "accuracy"): reached.dev, ("test", "accuracy"): reached.test}
    values |= {("test", of): each.value for of, each in ratios.items() if of != "accuracy"}
    how = learning.described()
    folded = {"dev": "dev" not in task.parts, "test": "all" in task.parts}  # a mean over folds
    records = tuple(
        Score(
            metric=metric,
            value=value,
            pairs=len(task.parts[task.judged_part(split)].labels),
            aggregation="mean" if metric == "accuracy" and folded[split] else "all",
            interval=sure.get(metric) if split == "test" else None,
        ).record(TaskName(task.name, split), task.sha256, use, classifier=how)
        for (split, metric), value in values.items()
        if split in task.splits
    )
    kept = {(TaskName(task.name), of): ratio for of, ratio in ratios.items()}
    return Scores(records, ratios=kept)
