"""The state of a search, from which it goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from contrasent.errors import ConfigError
from contrasent.files import write_text


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a candidate.

    Attributes:
        candidate: its name.
        rung: 0 for the first, shortest one.
        steps: updates it was to make.
        score: the best dev score on the way, in [-1, 1].
        best_step: where that was; 0 for the start.
        seconds: it took.
    """

    candidate: str
    rung: int
    steps: int
    score: float
    best_step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a search was asked for; one that goes on is asked for the same."""

    encoder: str
    data: str
    minutes: float
    dev: str | None
    candidates: list[str]
    settings: dict[str, Any]
    seed: int


@dataclass(slots=True)
class SearchState:
    """All that is needed to go on with a search.

    Attributes:
        request: what was asked for.
        candidates: names of what is tried.
        proxy: how held-out text is scored, ``crops:`` or ``next:``.
        max_tokens: of a line of the text, in training.
        depth: layers of the encoder.
        steps_per_epoch: of the text.
        start_score: the dev score of the start as it comes.
        dev_metric: what that is.
        seconds_per_step: of the candidate ``dropout``.
        overhead: seconds that a trial takes beside its steps.
        trials: that were made.
    """

    request: SearchRequest
    candidates: list[str]
    proxy: str
    max_tokens: int
    depth: int
    steps_per_epoch: int
    start_score: float = 0.0
    dev_metric: str = ""
    seconds_per_step: float = 0.0
    overhead: float = 0.0
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The trial with the highest dev score."""
        return max(self.trials, key=lambda trial: trial.score)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_text(path, json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path, request: SearchRequest) -> SearchState:
        """Read it again.

        Raises:
            ConfigError: the search was asked for something else.
        """
        state = TypeAdapter(cls).validate_json(path.read_bytes())
        changed = [
            f"{each.name} {before}, not {now}"
            for each in fields(SearchRequest)
            if (before := getattr(state.request, each.name)) != (now := getattr(request, each.name))
        ]
        if changed:
            raise ConfigError(
                f"the search in {path.parent} has {'; '.join(changed)}; ask for the same, or "
                "replace it with --overwrite"
            )
        return state
