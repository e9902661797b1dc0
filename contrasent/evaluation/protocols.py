"""Protocols: how the papers turn cosines and classifiers into the numbers of their tables.

SimCSE, Table B.1, lists them; the same encoder differs by several points between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from contrasent.errors import pick
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.task_names import ROWS, SPLITS
from contrasent.metrics import METRICS
from contrasent.options import EvaluationOptions, FoundText
from contrasent.records import Saved
from contrasent.settings import refuse_unused, shared

AGGREGATIONS = ("all", "mean", "wmean")
"""One correlation over all pairs; mean over the subsets; that mean weighted by their pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol(Saved):
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


PROTOCOLS = {it.name: it for it in TypeAdapter(list[Protocol]).validate_python(ROWS["protocols"])}
"""As ``tasks.yaml`` has them."""


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
    return replace(chosen, name=f"{name} with {', '.join(changed)}") if changed else chosen


SEED = 1111
"""SentEval's seed."""

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
"""SentEval's L2 grid, used as weight decay."""


_CR, _MOST_TIMES = 3775, 16  # sentences


@dataclass(frozen=True, slots=True)
class Preset:
    """How classifiers are trained and judged, and what is fixed about their accuracies."""

    name: str
    folds: int
    optimiser: str  # ``adam`` or ``rmsprop``, with torch's default settings
    batch: int  # sentences per step
    tenacity: int  # so many rounds without a better accuracy are allowed
    epoch_size: int  # passes over the training part between two looks at the accuracy
    max_epochs: int = 200  # no round begins after more passes than this
    seed: int = SEED  # of starting weights and permutations; nested folds are always of 1111

    def for_rows(self, rows: int) -> "Preset":
        """With more passes for few rows: as many steps as for CR, SentEval's smallest task."""
        times = min(_MOST_TIMES, max(1, round(_CR / rows)))
        passes = self.epoch_size * times
        return replace(self, epoch_size=passes, max_epochs=self.max_epochs * times)

    def described(self) -> dict[str, str | int]:
        """The classifier as a record tells it."""
        fields = ("folds", "optimiser", "batch", "tenacity", "epoch_size")
        solver = {field: getattr(self, field) for field in fields}
        return {"name": "senteval", "seed": self.seed, "preset": self.name, **solver}


PRESETS = {
    "test": Preset("test", 10, "adam", 64, 5, 4),
    "fasttest": Preset("fasttest", 5, "rmsprop", 128, 3, 2),
    "dev": Preset("dev", 5, "rmsprop", 128, 3, 2),
}
"""``test`` is what papers report; SimCSE's scripts use the other two, which are equal, to try."""


def preset_named(name: str = "test", seed: int = SEED) -> Preset:
    """Settings by name, with a seed of their own; ConfigError if there are none."""
    return replace(PRESETS[pick("preset", name, PRESETS)], seed=seed)


def text_reading(given: EvaluationOptions) -> dict[str, Any]:
    """How a text is read to be judged; ConfigError of options that tasks alone read."""
    of_tasks = EvaluationOptions.__annotations__.keys() - {"columns"}  # its own, none inherited
    refuse_unused(given, sorted(of_tasks), "--text is judged without tasks")
    return {"columns": given.columns, **shared(given, FoundText)}


@dataclass(frozen=True, slots=True)
class Options:
    """Wishes beside the names of tasks, as :func:`contrasent.evaluate` takes them."""

    data_dir: str | Path | None = None
    splits: Sequence[str] = ("test",)
    columns: Sequence[str] | None = None
    protocol: Protocol = PROTOCOLS["simcse"]  # of the correlations
    learning: Preset = field(default_factory=preset_named)  # of the classifiers
    bootstrap: Bootstrap | None = None

    @classmethod
    def of(cls, given: EvaluationOptions) -> "Options":
        """The reading that options ask for; ConfigError if one is unknown."""
        refuse_unused(given, shared(given, FoundText), "--text FILE alone reads them")
        return cls(
            given.data_dir,
            given.splits,
            given.columns,
            protocol(given.protocol, given.metric, given.aggregation, given.regressor),
            preset_named(given.preset, given.classifier_seed),
            None if given.confidence is None else Bootstrap(given.confidence),
        )

    def __post_init__(self) -> None:
        for split in self.splits:
            pick("split", split, SPLITS)
