"""Scores of MTEB's tasks as a table, and what sets them apart from those of the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from contrasent.evaluation.mteb_encoder import PROTOCOL
from contrasent.records import Record
from contrasent.report.tables import ABSENT, described, grid_table, print_grid

_STS = (
    "STS numbers of MTEB are not those of SentEval's protocol (contrasent evaluate): MTEB embeds "
    "the text as it was written, SentEval's STS12-16 are tokenised and partly in lower case."
)
_OF_TASK = {
    "SICK-R": "SICK-R: 9,927 pairs, those of all splits; SentEval's test split has 4,927.",
    "STS12": "STS12: 206 pairs occur more than once, and count each time.",
    "STS14": "STS14: 68 pairs occur more than once, and count each time.",
    "STSBenchmark": "STSBenchmark: one pair occurs twice; STSBenchmark.v2 leaves such pairs out.",
}


def print_mteb(console: Console, rows: Mapping[str, Sequence[Record]]) -> None:
    """Print main scores x 100, a row for each label, and what they are beneath.

    Args:
        console: where to.
        rows: records of an encoder by the label of its row, as
            :func:`contrasent.evaluation.mteb_encoder.run_mteb` makes them.
    """
    main = {
        label: [it for it in records if it.protocol == PROTOCOL] for label, records in rows.items()
    }
    columns = list(dict.fromkeys((it.task, it.split) for found in main.values() for it in found))
    grid = [["", *(heading(task, split) for task, split in columns)]]
    for label, found in main.items():
        values = {(it.task, it.split): it.value for it in found}
        grid.append(
            [label, *(f"{100 * values[it]:.2f}" if it in values else ABSENT for it in columns)]
        )
    tables = [grid_table(grid, upright=upright) for upright in (False, True)]
    print_grid(console, tables, told(main))


def told(rows: Mapping[str, Sequence[Record]]) -> list[str]:
    """What main scores are, given those of each encoder by its label."""
    every = [record for found in rows.values() for record in found]
    metrics = dict.fromkeys(f"{it.task} {it.metric}" for it in every)
    several = dict.fromkeys(it.task for it in every if it.aggregation == "mean")
    lines = [
        f"MTEB {every[0].versions['mteb']} (Muennighoff et al. 2023), main score of each task "
        f"x 100: {', '.join(metrics)}."
    ]
    if several:
        lines.append(f"Mean over the subsets of {', '.join(several)}.")
    if any(it.metric in ("cosine_spearman", "cosine_pearson") for it in every):
        lines.append(_STS)
    lines += [_OF_TASK[task] for task in dict.fromkeys(it.task for it in every) if task in _OF_TASK]
    lines += [f"{label}: {described(label, found[0])}." for label, found in rows.items() if found]
    return lines


def heading(task: str, split: str) -> str:
    """A task as a table names it."""
    return task if split == "test" else f"{task} {split}"
