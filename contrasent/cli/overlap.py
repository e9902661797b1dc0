"""What ``contrasent evaluate`` says of training text that has the tasks' text."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contrasent.evaluation.leaks import Overlap
    from contrasent.evaluation.sts import Scores
    from contrasent.evaluation.suite import Suite


class Overlaps:
    """Looks at what each encoder was trained on, and tells of it once."""

    def __init__(self, suite: Suite) -> None:
        """Keep the tasks that are looked for."""
        from contrasent.evaluation.leaks import TrainingCheck

        self._check = TrainingCheck(suite)

    def noted(self, scores: Scores, model: str) -> Scores:
        """Warn of what is found, and put it into the records."""
        from contrasent.cli.options import reading
        from contrasent.errors import warn
        from contrasent.evaluation.leaks import overlap_of, trainings

        if not trainings(model):
            return scores
        with reading("training examples (--no-leak-check leaves that out)") as advance:
            found = list(self._check.overlaps(model, advance))
        for overlap in found:
            if said := _told(model, overlap):
                warn(said)
        records = (replace(it, overlap=overlap_of(it, found)) for it in scores.records)
        return replace(scores, records=tuple(records))


def _told(model: str, overlap: Overlap) -> str:
    """One line; empty if there is nothing to tell."""
    trained = f"{model} was trained on {overlap.file}"
    if overlap.trouble:
        return f"{trained}; whether that has text of the tasks was not checked: {overlap.trouble}"
    if not overlap.found:
        return ""
    from contrasent.cli.options import plural

    counts = []
    for task in overlap.found:
        together = plural(task.pairs_normalised, "pair")
        pairs = f", {together} together" if task.pairs_normalised else ""
        counts.append(f"{task.heading} {task.normalised:,} of {task.sentences:,}{pairs}")
    return (
        f"{trained}, which has sentences of the tasks: {'; '.join(counts)} (letters and digits "
        f"compared); 'contrasent data leaks {shlex.quote(overlap.file)}' shows them"
    )
