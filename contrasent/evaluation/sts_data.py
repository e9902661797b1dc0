"""Rated pairs: SentEval's and users', and the similarity from which on two sentences are similar.

Shapes: P pairs, N distinct sentences, D embedding width.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrasent.data.readers import lines, tab_rows
from contrasent.data.rows import as_number, as_text, open_rows_of, score_of
from contrasent.data.senteval import MissingDataError, senteval_root
from contrasent.errors import ConfigError, DataError, warn
from contrasent.evaluation import task_names
from contrasent.evaluation.embed import Embeddings, EncoderUse, Places, distinct
from contrasent.evaluation.task_names import STS_TASKS, StsTask, TaskName, TaskText
from contrasent.metrics import Vector, pair_similarities
from contrasent.options import AnalysisOptions
from contrasent.settings import checked, refuse_unused

_LEAST = 3

Pair = tuple[str, str, float]


def read_pairs(source: str, columns: Sequence[str] | None = None) -> tuple[list[Pair], str, str]:
    """All pairs of a file or data set, its hash, and a line on how columns were understood.

    ``columns`` are both sentences and the score; None to know them by name, or by order of three.
    """
    records = open_rows_of(source, "rated_pairs", columns)
    by_place = records.chosen.by in ("order", "number") and not records.chosen.header
    note = "" if by_place else f"{source}: {records.described}"
    pairs = [
        _pair(where, as_text(first, where), as_text(second, where), score)
        for where, (first, second, score) in records.rows()
    ]
    if len(pairs) < _LEAST:
        raise DataError(f"{source} has {len(pairs)} pairs; a correlation needs at least {_LEAST}")
    return pairs, records.sha256, note


def _pair(where: str, first: str, second: str, score: Any, of_score: str = "") -> Pair:
    """A pair with single spaces between words, as SentEval's batcher makes them."""
    tidy = " ".join(first.split()), " ".join(second.split())
    if not all(tidy):
        raise DataError(f"{where}: a sentence is empty")
    return *tidy, score_of(score, of_score or where)


@dataclass(frozen=True, slots=True)
class Subset:
    """N pairs that are scored together, and how similar people found them, ``gold (N,)``."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: Vector


@dataclass(frozen=True, slots=True)
class Task:
    """One split of a task, read."""

    name: TaskName
    subsets: tuple[Subset, ...]
    # hash of the bytes of its files, one after the other; of the splits' hashes where several are
    # scored together
    sha256: str
    note: str = ""  # how the file was understood, where that had to be guessed; else empty
    # train and dev split, which its regressor is fitted to; None for cosines
    fitted: "tuple[Task, Task] | None" = None

    @property
    def gold(self) -> Vector:
        """Scores of all subsets."""
        return np.concatenate([subset.gold for subset in self.subsets])

    @property
    def sentences(self) -> Iterator[str]:
        """All subsets, one after the other: the first sentences, then the second ones."""
        return (text for subset in self.subsets for text in (*subset.first, *subset.second))

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """First and second sentences of all subsets."""
        first, second = zip(*((it.first, it.second) for it in self.subsets), strict=True)
        return tuple(chain.from_iterable(first)), tuple(chain.from_iterable(second))

    def texts(self) -> Iterator[TaskText]:
        """All pairs, as training text must not have both sentences."""
        pairs = list(zip(*self.sides, strict=True))
        yield TaskText(self.name.name, self.name.split, [*chain.from_iterable(pairs)], pairs)


def load(
    name: TaskName, data_dir: str | Path | None = None, columns: Sequence[str] | None = None
) -> Task:
    """Read one task; MissingDataError if a file is not there, DataError if one is damaged."""
    row = STS_TASKS.get(name.name)
    if row is None:
        path = Path(name.name).expanduser()
        source = str(path) if path.exists() else name.name
        pairs, sha256, note = read_pairs(source, columns)
        return Task(name, (_subset("", pairs, source),), sha256, note)
    root = senteval_root(data_dir)
    if row.subsets:
        folder = root / row.folder
        parts = [
            (subset, folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt")
            for subset in row.subsets
        ]
        sha256 = sha256_of_all([path for _, *both in parts for path in both])
        subsets = (_subset(name, list(_aligned(*both)), both[1]) for name, *both in parts)
        return Task(name, tuple(subsets), sha256)
    if name.split == "all":
        splits = [load(TaskName(name.name, split), data_dir) for split in task_names.ALL_SPLITS]
        whole = Task(name, tuple(subset for task in splits for subset in task.subsets), "")
        digest = hashlib.sha256(" ".join(task.sha256 for task in splits).encode())
        return Task(name, (Subset("", *whole.sides, whole.gold),), digest.hexdigest())
    path = root / row.files[name.split]
    sha256 = sha256_of_all([path])
    return Task(name, (_subset("", list(_table(path, row)), path),), sha256)


def sha256_of_all(paths: Sequence[Path]) -> str:
    """Hash of the bytes of files, one after the other; MissingDataError if one is not there."""
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise MissingDataError(path)
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _aligned(sentences: Path, scores: Path) -> Iterator[Pair]:
    """Pairs and their scores, line by line; a pair with an empty score line was not scored."""
    pairs, gold = list(tab_rows(sentences)), list(lines(scores))
    if len(pairs) != len(gold):
        what = f"{scores} has {len(gold)} lines, but {sentences} has {len(pairs)}"
        raise DataError(f"{what}; line n of one must belong to line n of the other")
    for (number, cells), (_, score) in zip(pairs, gold, strict=True):
        where = f"{sentences}:{number}"
        if score.strip():
            first, second = _cells(cells, 2, where)
            yield _pair(where, first, second, score, f"{scores}:{number}")


def _table(path: Path, row: StsTask) -> Iterator[Pair]:
    """Tab-separated, quotes literal; of STS-B without, of SICK with a header."""
    for number, cells in tab_rows(path):
        where = f"{path}:{number}"
        known = _cells(cells, max(row.columns) + 1, where)
        if number > 1 or not row.header:
            first, second, score = (known[place] for place in row.columns)
            yield _pair(where, first, second, score)


def _cells(cells: Sequence[str], needed: int, where: str) -> Sequence[str]:
    if len(cells) < needed:
        raise DataError(f"{where}: {len(cells)} tab-separated columns, not {needed}")
    return cells[:needed]


def _subset(name: str, rows: Sequence[Pair], source: Path | str) -> Subset:
    if not rows:
        raise DataError(f"{source} has no scored pair")
    first, second, gold = zip(*rows, strict=True)
    return Subset(name, first, second, np.array(gold, dtype=np.float64))


FOLDS = 5
_SEED = 0

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Reach:
    """Precision (1 if no pair is at or above a threshold), recall and F1, all in [0, 1]."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold for one encoder."""

    encoder: str
    pooler: str
    precision: str  # of the computation, such as ``fp32``
    similarity: str  # the encoder's function, such as ``cosine``, whose scale the threshold has
    prompt: str  # before every text, as before those of an index and of duplicates
    pairs: str  # what was asked for, such as ``pairs.tsv>=4``
    count: int  # P
    similar: int  # how many of them are similar
    aim: str  # ``f1``, or the least precision that was asked for, such as ``precision>=0.9``
    threshold: float  # pairs with this similarity or a larger one are to count as similar
    reached: Reach  # on the pairs that the threshold was chosen on
    # on pairs that had no part in the choice, by cross-validation; None if there are too few pairs
    held_out: Reach | None
    data_sha256: str


def read_judged(
    asked: str, data_dir: str | Path | None = None, columns: Sequence[str] | None = None
) -> "RatedPairs":
    """Read pairs of which some are similar: by a rating as RatedPairs has it, or labels 0, 1."""
    labelled = ">" not in asked
    pairs = RatedPairs.read(f"{asked}>0" if labelled else asked, data_dir, columns)
    if labelled and not np.isin(pairs.gold, (0, 1)).all():
        raise ConfigError(
            f"{asked} has ratings from {pairs.gold.min():g} to {pairs.gold.max():g}, not labels 0 "
            f"and 1; say from which rating on sentences are similar, such as '{asked}>=4'"
        )
    if pairs.positive.all():
        raise DataError(f"all pairs of {asked} are similar; give some that are not, to tell apart")
    return pairs


def calibrate(
    use: EncoderUse, pairs: "RatedPairs", least_precision: float | None = None
) -> Calibration:
    """Propose a threshold for an encoder's similarities, and say what it reaches."""
    embeddings = use.embed(pairs.sentences, of=pairs.label, role="document")
    similar = pairs.positive
    scores = pair_similarities(use.similarity, embeddings[pairs.first], embeddings[pairs.second])
    threshold = propose(scores, similar, least_precision)
    if (scores >= threshold).all():
        warn(f"the threshold takes all {len(scores)} pairs: these scores do not tell them apart")
    return Calibration(
        encoder=use.encoder.name,
        pooler=use.encoder.pooler,
        precision=use.precision,
        similarity=use.similarity,
        prompt=use.role_prompts().get("document", ""),
        pairs=pairs.label,
        count=len(pairs.gold),
        similar=int(similar.sum()),
        aim="f1" if least_precision is None else f"precision>={least_precision:g}",
        threshold=threshold,
        reached=reach(scores >= threshold, similar),
        held_out=held_out(scores, similar, least_precision),
        data_sha256=pairs.task.sha256,
    )


def held_out(scores: Vector, similar: Flags, least_precision: float | None) -> Reach | None:
    """The reach of thresholds chosen on four fifths of the pairs on the other fifth, all together.

    None if a fifth would be without a similar pair or one that is not.
    """
    if min(similar.sum(), (~similar).sum()) < FOLDS:
        return None
    draw = np.random.default_rng(_SEED)
    fold, taken = np.empty(len(scores), dtype=np.int64), np.zeros(len(scores), dtype=bool)
    for group in (np.flatnonzero(similar), np.flatnonzero(~similar)):
        fold[draw.permutation(group)] = np.arange(len(group)) % FOLDS
    for rest in (fold == number for number in range(FOLDS)):
        with suppress(DataError):  # where no threshold is precise enough, none of the rest is taken
            taken[rest] = scores[rest] >= propose(scores[~rest], similar[~rest], least_precision)
    return reach(taken, similar)


def propose(scores: Vector, similar: Flags, least_precision: float | None = None) -> float:
    """The middle between two neighbouring similarities ``(P,)`` of the largest F1, the highest.

    Or of the largest recall with a ``least_precision`` in (0, 1]; DataError if none reaches that.
    """
    levels, level_of = np.unique(-scores, return_inverse=True)  # the highest first
    hits, taken = np.cumsum(np.bincount(level_of, similar)), np.cumsum(np.bincount(level_of))
    value = 2 * hits / (taken + hits[-1])
    if least_precision is not None:
        precisions = hits / taken
        value = np.where(precisions >= least_precision, hits, -1)
        if value.max() < 0:
            largest = np.floor(precisions.max() * 1e4) / 1e4
            what = f"no threshold has a precision of {least_precision:g}"
            raise DataError(f"{what}; the largest is {largest:.4f}, so ask for that or less")
    best = int(np.argmax(value))
    lowest, below = -levels[best], -levels[min(best + 1, len(levels) - 1)]
    middle = (lowest + below) / 2
    return float(middle if middle > below else lowest)


def reach(taken: Flags, similar: Flags) -> Reach:
    """Precision, recall and F1 of taking some of ``(P,)`` pairs for similar; at least one is."""
    right, chosen, all_similar = (int(it.sum()) for it in (taken & similar, taken, similar))
    precision = right / chosen if chosen else 1.0
    return Reach(precision, right / all_similar, 2 * right / (chosen + all_similar))


_ASKED = re.compile(r"\s*(.+?)\s*(>=?)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Position:
    """Alignment of the positive pairs, 0 to 4, and uniformity of distinct sentences, -8 to 0."""

    alignment: float
    uniformity: float


@dataclass(frozen=True, slots=True)
class RatedPairs:
    """The pairs of a task, read once to be measured as often as one likes."""

    label: str  # what was asked for, such as ``stsb-dev>4``
    task: Task
    condition: str  # which ratings make a pair positive, such as ``>4``
    sentences: list[str]  # the N distinct sentences of all pairs
    first: Places  # ``(P,)``, places in ``sentences`` of those that are paired with ``second``
    second: Places
    gold: Vector  # ``(P,)``, the ratings
    positive: Flags  # ``(P,)``, whether the rating meets the condition

    @classmethod
    def read(
        cls, asked: str, data_dir: str | Path | None = None, columns: Sequence[str] | None = None
    ) -> "RatedPairs":
        """Read the pairs of a task or file, ``>`` or ``>=``, and a rating, such as ``stsb-dev>4``.

        A task without a split is all its splits together. DataError if no pair is rated so.
        """
        parsed = _ASKED.fullmatch(asked)
        name, sign, number = parsed.groups() if parsed else (asked, ">", "")
        rating = as_number(number)
        # With all splits where none is named and it has several.
        names = [] if rating is None else task_names.task_names([name], ("all", "test"))
        if rating is None or len({it.name for it in names}) > 1:
            raise ConfigError(
                f"pairs {asked!r} need one task or file and the rating above which they are "
                "positive, such as stsb>4, stsb-dev>4, or FILE.tsv>0.8; in quotes, as > alone is "
                "the shell's"
            )
        if names[0].in_senteval:
            given = checked(AnalysisOptions, {"columns": columns})
            refuse_unused(given, ["columns"], f"{name} has columns of its own")
        task = load(names[0], data_dir, columns)
        gold, condition = task.gold, f"{sign}{rating:g}"
        positive = gold >= rating if sign == ">=" else gold > rating
        sentences, places = distinct([sentence for side in task.sides for sentence in side])
        problem = "" if len(sentences) > 1 else "all sentences are equal; give different ones"
        if not positive.any():
            ratings = f"its {len(gold)} ratings go from {gold.min():g} to {gold.max():g}"
            problem = f"no pair is rated {condition}; {ratings}, so ask for a lower one"
        if problem:
            raise DataError(f"{task.name.heading}: {problem}")
        first, second = np.split(places, 2)
        return cls(f"{name}{condition}", task, condition, sentences, first, second, gold, positive)

    def embed(self, use: EncoderUse) -> Embeddings:
        """Embeddings ``(N, D)`` of the distinct sentences; each has a direction."""
        return use.embed(self.sentences, of=self.label)

    def position(self, embeddings: Embeddings) -> Position:
        """Alignment and uniformity, of ``embeddings (N, D)`` divided by their lengths."""
        import torch

        from contrasent.functional import alignment, uniformity

        with torch.no_grad():
            rows = torch.from_numpy(np.ascontiguousarray(embeddings, dtype=np.float32))
            chosen = [torch.from_numpy(side[self.positive]) for side in (self.first, self.second)]
            close = alignment(rows[chosen[0]], rows[chosen[1]])
            return Position(float(close), float(uniformity(rows)))
