"""Protocols: how the papers turn cosines and classifiers into the numbers of their tables.

SimCSE, Table B.1, lists them; the same encoder differs by several points between them. The random
streams are numpy's legacy ones, as scikit-learn's and SentEval's are.

Shapes: N sentences in SentEval's order, K folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import DataError, pick
from contrasent.metrics import METRICS

AGGREGATIONS = ("all", "mean", "wmean")
"""One correlation over all pairs; mean over the subsets; that mean weighted by their pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """What a number of a paper's table is."""

    name: str  # as ``--protocol`` takes it, with what was changed of it
    source: str
    # what its tables show, ``spearman`` or ``pearson`` or both
    metrics: tuple[str, ...] = ("spearman",)
    aggregation: str = "all"  # one of `AGGREGATIONS`
    # STS-B and SICK-R are scored by what SentEval's regressor, fitted on their training splits,
    # predicts, and not by cosines
    regressor: bool = False
    # tasks of which the pairs of all splits are scored in place of the test split
    every_split: tuple[str, ...] = ()
    note: str = ""  # where SentEval's files cannot give its numbers; else empty


_MTEB_NOTE = (
    "MTEB scores the text as it was written, SentEval's STS12-16 are tokenised and partly in "
    "lower case, so only pairs (SICK-R all splits, 9,927), metric and aggregation are MTEB's; "
    "its own runner gives its own numbers"
)

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(name="simcse", source="Gao et al. 2021"),
        Protocol(name="diffcse", source="Chuang et al. 2022"),
        Protocol(name="hill", source="Hill et al. 2016", metrics=("pearson", "spearman")),
        Protocol(
            name="infersent",
            source="Conneau et al. 2017",
            metrics=("pearson",),
            aggregation="mean",
            regressor=True,
        ),
        Protocol(
            name="senteval",
            source="Conneau & Kiela 2018",
            metrics=("pearson",),
            aggregation="mean",
            regressor=True,
        ),
        Protocol(name="sbert", source="Reimers & Gurevych 2019"),
        Protocol(name="isbert", source="Zhang et al. 2020"),
        Protocol(name="flow", source="Li et al. 2020", aggregation="wmean"),
        Protocol(name="whitening", source="Su et al. 2021", aggregation="wmean"),
        Protocol(
            name="bgt", source="Wieting et al. 2020", metrics=("pearson",), aggregation="mean"
        ),
        Protocol(name="declutr", source="Giorgi et al. 2021", aggregation="mean"),
        Protocol(
            name="mteb", source="Muennighoff et al. 2023", every_split=("sickr",), note=_MTEB_NOTE
        ),
    )
}
"""Every row of SimCSE's Table B.1, DiffCSE, which scores as SimCSE does, and MTEB."""

SIMCSE = PROTOCOLS["simcse"]


def protocol(
    name: str = "simcse",
    metric: str | None = None,
    aggregation: str | None = None,
    regressor: bool | None = None,
) -> Protocol:
    """A protocol by name, with single parts of it changed; ConfigError if one is unknown."""
    chosen = PROTOCOLS[pick("protocol", name, PROTOCOLS)]
    changed = []
    if metric is not None and (pick("metric", metric, METRICS),) != chosen.metrics:
        chosen, changed = replace(chosen, metrics=(metric,)), [f"metric {metric}"]
    if aggregation not in (None, chosen.aggregation):
        chosen = replace(chosen, aggregation=pick("aggregation", str(aggregation), AGGREGATIONS))
        changed.append(f"aggregation {aggregation}")
    if regressor not in (None, chosen.regressor):
        chosen = replace(chosen, regressor=bool(regressor))
        changed.append("regressor" if regressor else "no regressor")
    if changed:
        chosen = replace(chosen, name=f"{name} with {', '.join(changed)}")
    return chosen


SEED = 1111
"""SentEval's seed."""

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
"""SentEval's L2 grid, used as weight decay."""

CLASSIFIERS = ("senteval", "sklearn")
"""SentEval's logistic regression, trained in torch; scikit-learn's without a search, faster."""


@dataclass(frozen=True, slots=True)
class Preset:
    """How classifiers are trained and judged."""

    name: str
    folds: int
    optimiser: str  # ``adam`` or ``rmsprop``, with torch's default settings
    batch: int  # sentences per step
    tenacity: int  # so many rounds without a better accuracy are allowed
    epoch_size: int  # passes over the training part between two looks at the accuracy
    max_epochs: int = 200  # no round begins after more passes than this


PRESETS = {
    "test": Preset("test", 10, "adam", 64, 5, 4),
    "fasttest": Preset("fasttest", 5, "rmsprop", 128, 3, 2),
    "dev": Preset("dev", 5, "rmsprop", 128, 3, 2),
}
"""``test`` is what papers report; SimCSE's scripts use the other two, which are equal, to try."""


@dataclass(frozen=True, slots=True)
class TransferProtocol:
    """What is fixed about the accuracies of transfer tasks.

    ``seed`` is that of folds, starting weights and permutations; nested folds of ``senteval`` are
    always of 1111, as SentEval's.
    """

    classifier: str = "senteval"
    preset: str = "test"
    seed: int = SEED

    def __post_init__(self) -> None:
        pick("classifier", self.classifier, CLASSIFIERS)
        pick("preset", self.preset, PRESETS)

    @property
    def settings(self) -> Preset:
        """What the preset stands for."""
        return PRESETS[self.preset]

    def described(self) -> dict[str, str | int]:
        """The classifier as a record tells it."""
        described: dict[str, str | int] = {"name": self.classifier, "seed": self.seed}
        if self.classifier == "sklearn":
            return described | {"folds": self.settings.folds}
        fields = ("folds", "optimiser", "batch", "tenacity", "epoch_size")
        solver = {field: getattr(self.settings, field) for field in fields}
        return described | {"preset": self.preset} | solver


Rows = NDArray[np.int64]

HELD_OUT = 0.05
"""Share of the training rows that stops the training where there is no other dev part."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows to train on and rows to be judged by.

    Rows of the features to train on ``(n,)`` stand in the order that the permutations number them;
    those of ``held_out (h,)`` stop the training, and ``drawn`` rows were permuted to choose them.
    The permutations of the training follow in the same random stream.
    """

    train: Rows
    held_out: Rows
    drawn: int = 0


def stratified_folds(labels: Rows, folds: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Train and test rows of each of K folds, as scikit-learn's shuffled ``StratifiedKFold``."""
    _, first_seen, codes = np.unique(labels, return_index=True, return_inverse=True)
    codes = np.argsort(np.argsort(first_seen))[codes]
    counts = np.bincount(codes)
    if counts.min() < folds:
        raise DataError(
            f"a class has {counts.min()} sentences, fewer than the {folds} folds; "
            "give more data, or a preset with fewer folds"
        )
    ordered = np.sort(codes)
    shares = [np.bincount(ordered[k::folds], minlength=len(counts)) for k in range(folds)]
    draw = np.random.RandomState(seed)
    fold_of = np.empty(len(codes), dtype=np.int64)
    for code in range(len(counts)):
        of_class = np.arange(folds).repeat([share[code] for share in shares])
        draw.shuffle(of_class)
        fold_of[codes == code] = of_class
    return [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(folds)]


def judged_folds(rows: Rows, labels: Rows, folds: int, seed: int) -> list[Fold]:
    """K folds of ``rows (n,)``, each trained on the others' rows and stopped by its own."""
    return [
        Fold(rows[train], rows[test]) for train, test in stratified_folds(labels[rows], folds, seed)
    ]


def with_held_out(rows: Rows, seed: int) -> Fold:
    """Hold out 5 % of ``rows``, drawn by a permutation, to stop the training."""
    count = int(HELD_OUT * len(rows))
    if not count:
        raise DataError(f"{len(rows)} training sentences are too few to hold out 5 %; give 20")
    order = np.random.RandomState(seed).permutation(len(rows))
    return Fold(rows[order[count:]], rows[order[:count]], drawn=len(rows))


class Shuffles:
    """The order of the rows in each epoch, as SentEval's classifier draws it.

    Each of its classifiers starts numpy's stream anew from one seed, so classifiers on equally
    many rows see the same permutations.
    """

    def __init__(self, count: int, drawn: int, seed: int) -> None:
        """Permutations of ``count`` rows, after one of ``drawn`` rows if that is above 0."""
        self._count = count
        self._draw = np.random.RandomState(seed)
        if drawn:
            self._draw.permutation(drawn)
        self._epochs: list[NDArray[np.int32]] = []

    def epochs(self, numbers: Sequence[int]) -> NDArray[np.int32]:
        """``(len(numbers), count)``, the permutations of these epochs, counted from 0."""
        while len(self._epochs) <= max(numbers):
            self._epochs.append(self._draw.permutation(self._count).astype(np.int32))
        return np.stack([self._epochs[number] for number in numbers])
