"""Records of a user's labelled sentences as a table, with classes and procedure beneath it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from contrasent.evaluation.compare import Comparison
from contrasent.evaluation.task_names import TaskName
from contrasent.evaluation.task_types import Options, TaskData
from contrasent.evaluation.transfer import SPLITS, TransferSplit
from contrasent.records import Record
from contrasent.report.comparison import print_differences
from contrasent.report.intervals import said_of_intervals, with_interval
from contrasent.report.tables import ABSENT, described, grid_table, print_grid

Column = tuple[str, str, str]
"""Task, split and metric."""

_SHOWN = {"accuracy": "accuracy", "macro_f1": "macro-F1"}
_OF_ROWS = ("the test rows", ", the classifiers as they are")


def labelled_table(
    rows: Mapping[str, Sequence[Record]], read: TaskData[TransferSplit], *, upright: bool = False
) -> Table:
    """Accuracy and macro-F1 x 100, two decimals, one row per label.

    Args:
        rows: records of an encoder by the label of its row.
        read: tasks; what is without a record is shown as absent.
        upright: metrics as rows and encoders as columns, for narrow terminals.
    """
    columns = _columns(read)
    told = _told(read)
    alone = len(told) == 1
    headings = [
        " ".join(
            [
                *([] if alone else [told[task]]),
                *([] if split == "test" else [split]),
                _SHOWN[metric],
            ]
        )
        for task, split, metric in columns
    ]
    cells = [[label, *_cells(records, columns)] for label, records in rows.items()]
    return grid_table([["", *headings], *cells], upright=upright)


def labelled_protocol(
    rows: Mapping[str, Sequence[Record]], read: TaskData[TransferSplit]
) -> list[str]:
    """What the numbers of :func:`labelled_table` are, so that they can be compared with others."""
    told = _told(read)
    lines = [
        "Logistic regression on frozen embeddings x 100: share of right classes, and the mean of "
        "the F1 of all classes."
    ]
    lines += [f"{told[task.task.name]}: {task.task.said}; {_judged(task)}." for task in read.tasks]
    shown = {
        label: [record for record in records if record.task in told]
        for label, records in rows.items()
    }
    records = [record for found in shown.values() for record in found]
    lines += list(dict.fromkeys(_procedure(r.classifier, read) for r in records if r.classifier))
    if any("dev" in task.splits for task in read.tasks):
        lines.append("Dev accuracies chose the L2 penalty, and they stop the training: optimistic.")
    lines += said_of_intervals(records, _OF_ROWS)
    lines += [f"{label}: {described(label, found[0])}." for label, found in shown.items() if found]
    return lines


def print_kind(
    console: Console,
    rows: Mapping[str, Sequence[Record]],
    read: TaskData[TransferSplit],
    options: Options,
) -> None:
    """Print table and procedure; upright where a terminal is too narrow, whole lines in a pipe."""
    del options
    tables = [labelled_table(rows, read, upright=upright) for upright in (False, True)]
    print_grid(console, tables, labelled_protocol(rows, read))


def print_compared(
    console: Console,
    comparisons: Sequence[Comparison],
    read: TaskData[TransferSplit],
    labels: tuple[str, str],
) -> None:
    """Print differences, the encoder of the second label less that of the first."""
    told = _told(read)
    rows = {
        f"{told[name.name]} {_SHOWN[comparison.metric]}": one
        for comparison in comparisons
        for name, one in comparison.tasks.items()
    }
    title = f"{labels[1]} minus {labels[0]}"
    print_differences(console, rows, title, "Accuracy and macro-F1 x 100", "test rows")


def _columns(read: TaskData[TransferSplit]) -> list[Column]:
    return [
        (task.task.name, split, metric)
        for split in SPLITS[::-1]
        for task in read.tasks
        for metric in _SHOWN
        if split in task.splits and (split == "test" or metric == "accuracy")
    ]


def _told(read: TaskData[TransferSplit]) -> dict[str, str]:
    """Short names; files of one name are told apart by their paths."""
    short = [TaskName(task.task.name).heading for task in read.tasks]
    return {
        task.task.name: heading if short.count(heading) == 1 else task.task.name
        for task, heading in zip(read.tasks, short, strict=True)
    }


def _cells(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    line = {(record.task, record.split, record.metric): record for record in records}
    found = [line.get(column) for column in columns]
    return [
        with_interval(f"{100 * record.value:.2f}", record.interval) if record else ABSENT
        for record in found
    ]


def _judged(task: TransferSplit) -> str:
    if "all" in task.task.parts:
        return "every fold is the test part once; accuracy is the mean over them"
    if "dev" in task.task.parts:
        return "the dev part chooses the penalty"
    return "folds of the training part choose the penalty"


def _procedure(how: Mapping[str, str | int], read: TaskData[TransferSplit]) -> str:
    folds = ""
    if any("dev" not in task.task.parts for task in read.tasks):
        nested = any("all" in task.task.parts for task in read.tasks)
        folds = f"{how['folds']} folds{', nested without a test part' if nested else ''}; "
    if how["name"] == "sklearn":
        return (
            "Classifier: scikit-learn's logistic regression, C = 1 and no search for it; "
            f"{folds}seed {how['seed']}."
        )
    return (
        f"Classifier of SentEval, preset {how['preset']}: {how['optimiser']}, batch "
        f"{how['batch']}, tenacity {how['tenacity']}, epoch size {how['epoch_size']}; L2 penalty "
        f"of 1e-5 to 1e-2; {folds}seed {how['seed']}."
    )
