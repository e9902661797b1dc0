"""SentEval's settings for transfer tasks, by the names that the papers' scripts have for them."""

from __future__ import annotations

from dataclasses import dataclass

from contrasent.errors import ConfigError, pick

SEED = 1111
"""SentEval's seed."""

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
"""SentEval's L2 grid, used as weight decay."""

CLASSIFIERS = ("senteval", "sklearn")
"""SentEval's logistic regression, trained in torch; scikit-learn's without a search, faster."""


@dataclass(frozen=True, slots=True)
class Preset:
    """How classifiers are trained and judged.

    Attributes:
        name: ``test``, ``fasttest`` or ``dev``.
        folds: K of the cross-validation.
        optimiser: ``adam`` or ``rmsprop``, with torch's default settings.
        batch: sentences per step.
        tenacity: so many rounds without a better accuracy are allowed.
        epoch_size: passes over the training part between two looks at the accuracy.
        max_epochs: no round begins after more passes than this.
    """

    name: str
    folds: int
    optimiser: str
    batch: int
    tenacity: int
    epoch_size: int
    max_epochs: int = 200


PRESETS = {
    "test": Preset("test", 10, "adam", 64, 5, 4),
    "fasttest": Preset("fasttest", 5, "rmsprop", 128, 3, 2),
    "dev": Preset("dev", 5, "rmsprop", 128, 3, 2),
}
"""``test`` is what papers report; SimCSE's scripts use the other two, which are equal, to try."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """What is fixed about the accuracies of transfer tasks.

    Attributes:
        classifier: one of :data:`CLASSIFIERS`.
        preset: one of :data:`PRESETS`, by name.
        seed: of folds, starting weights and permutations.
    """

    classifier: str = "senteval"
    preset: str = "test"
    seed: int = SEED

    def __post_init__(self) -> None:
        pick("classifier", self.classifier, CLASSIFIERS)
        pick("preset", self.preset, PRESETS)
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"a classifier's seed is from 0 to 2**32 - 1, not {self.seed}")

    @property
    def settings(self) -> Preset:
        """What the preset stands for."""
        return PRESETS[self.preset]

    def described(self) -> dict[str, str | int]:
        """Everything that a record says about it."""
        said: dict[str, str | int] = {"name": self.classifier, "seed": self.seed}
        how = self.settings
        if self.classifier == "sklearn":
            return {**said, "folds": how.folds}
        return {
            **said,
            "preset": how.name,
            "folds": how.folds,
            "optimiser": how.optimiser,
            "batch": how.batch,
            "tenacity": how.tenacity,
            "epoch_size": how.epoch_size,
        }
