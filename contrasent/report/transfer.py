"""Records of transfer tasks as the table of the papers, with the procedure beneath it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from contrasent.evaluation.compare import Comparison
from contrasent.evaluation.task_names import TaskName
from contrasent.evaluation.task_types import Options, TaskData
from contrasent.evaluation.transfer import SPLITS, TransferSplit
from contrasent.evaluation.transfer_data import DEV_PART, NESTED_FOLDS, TRANSFER_TASKS
from contrasent.records import Compared, Record
from contrasent.report.comparison import print_differences
from contrasent.report.intervals import averaged_interval, said_of_intervals, with_interval
from contrasent.report.tables import ABSENT, AVERAGE, described, grid_table, print_grid

_OF_ROWS = (
    "the test sentences or pairs",
    " with the trained classifiers as they are, those of all folds together; of the average, "
    "normal with the tasks independent; dev accuracies have none",
)

Column = tuple[str, str, str]
"""Task (empty for the average), split and metric."""


def transfer_table(
    rows: Mapping[str, Sequence[Record]], names: Sequence[TaskName], *, upright: bool = False
) -> Table:
    """Accuracies x 100, two decimals, one row per label; averages of unrounded values.

    Args:
        rows: records of an encoder by the label of its row.
        names: tasks and splits; one without a record is shown as absent, and so is the average.
        upright: tasks as rows and encoders as columns, for narrow terminals.
    """
    columns = _columns(names)
    cells = [[label, *_cells(records, columns)] for label, records in rows.items()]
    return grid_table([["", *map(_heading, columns)], *cells], upright=upright)


def transfer_protocol(rows: Mapping[str, Sequence[Record]], names: Sequence[TaskName]) -> list[str]:
    """What the numbers of :func:`transfer_table` are, so that they can be compared with others."""
    shown = {
        label: [record for record in records if record.classifier]
        for label, records in rows.items()
    }
    splits = [split for split in SPLITS[::-1] if any(name.split == split for name in names)]
    said = ["Accuracy of a logistic regression on frozen embeddings x 100"]
    said.append(" and ".join(f"{split} part" for split in splits))
    said += [
        f"{_heading(('', split, 'accuracy'))} over {len(_averaged(names, split))} tasks"
        for split in splits
        if len(_averaged(names, split)) > 1
    ]
    lines = ["; ".join(said) + "."]
    how = [record.classifier for records in shown.values() for record in records]
    lines += list(dict.fromkeys(_procedure(each) for each in how if each))
    if "dev" in splits:
        lines.append("Dev accuracies chose the L2 penalty, and they stop the training: optimistic.")
    every = [record for records in shown.values() for record in records]
    lines += said_of_intervals(every, _OF_ROWS)
    lines += [
        f"{label}: {described(label, records[0])}." for label, records in shown.items() if records
    ]
    return lines


def print_kind(
    console: Console,
    rows: Mapping[str, Sequence[Record]],
    read: TaskData[TransferSplit],
    options: Options,
) -> None:
    """Print table and procedure; upright where a terminal is too narrow, whole lines in a pipe."""
    del options
    tables = [transfer_table(rows, read.names, upright=upright) for upright in (False, True)]
    print_grid(console, tables, transfer_protocol(rows, read.names))


def print_compared(
    console: Console,
    comparisons: Sequence[Comparison],
    read: TaskData[TransferSplit],
    labels: tuple[str, str],
) -> None:
    """Print differences, the encoder of the second label less that of the first."""
    del read
    rows: dict[str, Compared] = {}
    for comparison in comparisons:
        for name, one in comparison.tasks.items():
            rows[_heading((name.name, name.split, comparison.metric))] = one
        if comparison.average and comparison.metric == "accuracy":
            rows[AVERAGE] = comparison.average
    title = f"{labels[1]} minus {labels[0]}"
    drawn = "test sentences or pairs"
    print_differences(console, rows, title, "Accuracy and F1 x 100", drawn)


def _columns(names: Sequence[TaskName]) -> list[Column]:
    """The papers' tasks of each split, their average, then tasks and F1 that it leaves out."""
    columns: list[Column] = []
    for split in SPLITS[::-1]:
        tasks, papers = _tasks(names, split), _averaged(names, split)
        columns += [(task, split, "accuracy") for task in papers]
        if len(papers) > 1:
            columns.append(("", split, "accuracy"))
        columns += [(task, split, "accuracy") for task in tasks if task not in papers]
        of_pairs = [task for task in tasks if TRANSFER_TASKS[task].pairs]
        columns += [(task, split, "f1") for task in of_pairs if split == "test"]
    return columns


def _tasks(names: Sequence[TaskName], split: str) -> list[str]:
    asked = {name.name for name in names if name.split == split}
    return [task for task in TRANSFER_TASKS if task in asked]


def _averaged(names: Sequence[TaskName], split: str) -> list[str]:
    return [task for task in _tasks(names, split) if TRANSFER_TASKS[task].papers]


def _heading(column: Column) -> str:
    task, split, metric = column
    if not task:
        return AVERAGE if split == "test" else f"{AVERAGE} {split}"
    heading = TaskName(task, split).heading
    return f"{heading} F1" if metric == "f1" else heading


def _cells(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    of_tasks = [record for record in records if record.task in TRANSFER_TASKS]
    line = {(r.task, r.split, r.metric): r.value for r in of_tasks}
    sure = {(r.task, r.split, r.metric): r.interval for r in of_tasks}
    for average in (column for column in columns if not column[0]):
        parts = [
            column
            for column in columns
            if column[1:] == average[1:] and column[0] and TRANSFER_TASKS[column[0]].papers
        ]
        if all(part in line for part in parts):
            line[average] = sum(line[part] for part in parts) / len(parts)
            sure[average] = averaged_interval(line[average], [sure[part] for part in parts])
    return [
        with_interval(f"{100 * line[column]:.2f}", sure[column]) if column in line else ABSENT
        for column in columns
    ]


def _procedure(how: Mapping[str, str | int]) -> str:
    nested = _listed(NESTED_FOLDS)
    if how["name"] == "sklearn":
        return (
            "Classifier: scikit-learn's logistic regression, C = 1 and no search for it; "
            f"{how['folds']} folds for {nested}; seed {how['seed']}. Fast, and not "
            "the procedure of the papers' figures."
        )
    return (
        f"Classifier and data of SentEval, preset {how['preset']}: {how['optimiser']}, batch "
        f"{how['batch']}, tenacity {how['tenacity']}, epoch size {how['epoch_size']}; the L2 "
        f"penalty of 1e-5 to 1e-2 is chosen by {how['folds']} folds (nested for {nested}; "
        f"{_listed(DEV_PART)} by its dev part); seed {how['seed']}."
    )


def _listed(split: tuple[str, ...]) -> str:
    """The tasks that are split so, as ``MR, CR, SUBJ and MPQA``."""
    *first, last = [task.heading for task in TRANSFER_TASKS.values() if task.split == split]
    return f"{', '.join(first)} and {last}" if first else last
