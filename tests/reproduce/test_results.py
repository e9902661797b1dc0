"""Lines of a table, and the page that shows them."""

import numpy as np
import pytest

from contrasent.records import Record
from contrasent.report.table import number, text_table
from contrasent.reproduce.document import (
    TableRow,
    difference,
    making_table,
    mean,
    scored_tasks,
    sts_table,
    transfer_table,
)
from contrasent.reproduce.plan import PlanRow
from contrasent.reproduce.row_builder import CachedEncoder

STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")


def record(task, value, metric="spearman", aggregation="all", split="test"):
    return Record(
        task=task,
        subset="",
        split=split,
        metric=metric,
        aggregation=aggregation,
        value=value,
        pairs=9,
        encoder="row",
        pooler="cls",
        precision="fp32",
        data_sha256="0",
        versions={},
    )


def line(records=(), label="mine", **row):
    made = PlanRow(label=label, make="start", **row)
    return TableRow("mine", made, tuple(records), None, made.citations, None, "")


def test_values_are_spearman_of_all_pairs_and_accuracy_of_the_test_part():
    found = line(
        [
            record("stsb", 0.1, split="dev"),
            record("stsb", 0.2, metric="pearson"),
            record("stsb", 0.3, aggregation="mean"),
            record("stsb", 0.5),
            record("cr", 0.6, "accuracy", "mean", "dev"),
            record("cr", 0.8, "accuracy", "mean"),
            record("mrpc", 0.7, "f1"),
        ]
    )
    assert (found.value("stsb"), found.value("cr")) == (50, 80)
    assert found.value("mrpc") is None
    assert scored_tasks([found]) == (["stsb"], ["cr"])


def test_averages_are_of_unrounded_values_and_need_every_task():
    found = line([record(task, value / 700) for value, task in enumerate(STS, start=1)])
    assert found.average(STS) == pytest.approx(sum(range(1, 8)) / 49, rel=1e-12)
    assert found.average((*STS, "cr")) is None
    assert mean([]) is None
    assert mean([1.0, None]) is None


def test_the_published_average_is_as_printed_or_of_the_same_tasks():
    found = line(sts=["simcse", "T5", "SBERT-base"], transfer=["simcse", "TE.1", "SBERT-base"])
    assert found.published_average(STS, "sts") == 74.89  # printed; the mean of the row is 74.86
    pair = [found.published_value(task) for task in ("stsb", "sickr")]
    assert found.published_average(("stsb", "sickr"), "sts") == sum(pair) / 2
    assert found.published_average(("cr",), "transfer") == found.published_value("cr")
    assert found.published_average(STS, "study") is None


def test_a_table_shows_ours_theirs_and_the_difference():
    citation = ["simcse", "T5", "SimCSE-BERT-base (unsup)"]
    study = ["simcse_study", "T6", "SimCSE-BERT-base (unsup)"]
    ours = line([record(task, 0.7) for task in STS], "SimCSE", sts=citation, study=study)
    other = line([record("sts12", 0.5)], "other | one", supervised=True)
    rows = sts_table([ours, other], STS).markdown().splitlines()
    assert rows[0].split(" | ")[-6:-3] == ["Avg.", "published", "study"]
    assert rows[2].startswith("| **Unsupervised** |")
    assert rows[3] == f"| SimCSE | {'70.00 | ' * 7}70.00 | 76.25 | 74.45 | -6.25 | - | - |"
    assert rows[4].startswith("| **Supervised** |")
    assert rows[5] == f"| other \\| one | 50.00 | {'- | ' * 11}- |"


def test_accuracies_stand_beside_the_published_ones():
    found = line([record("cr", 0.9, "accuracy")], transfer=["simcse", "TE.1", "GloVe avg"])
    theirs = found.published_value("cr")
    row = transfer_table([found], ["cr"]).markdown().splitlines()[3]
    assert row == f"| mine | 90.00 | {theirs:.2f} | 90.00 | {theirs:.2f} | {90 - theirs:+.2f} |"


def test_a_page_quotes_no_sentence_of_a_task():
    problems = ["stsb: STS-B: mine gives 1 of 9 texts zeros; the first is 'secret'", "no geometry"]
    run = {"problems": problems, "recipe": None, "seconds": {"make": 1.0, "score": 2.0}}
    row = PlanRow(label="mine", make="start", note="a note")
    page = making_table([TableRow("mine", row, (), None, {}, run, "")]).markdown()
    assert page.splitlines()[2] == (
        "| mine | start |  | 1 + 2 | a note; STS-B: mine gives 1 of 9 texts zeros; no geometry |"
    )


def test_numbers_and_cells():
    cells = (number(None), number(1.005, 1), number(2.0, sign="+"))
    assert tuple(cell.text for cell in cells) == ("-", "1.0", "+2.00")
    pairs = ((3.0, 2.0), (None, 2.0), (3.0, None))
    assert [difference(*pair) for pair in pairs] == [1.0, None, None]
    table = text_table(["a", "b"], [["x\ny", "1 | 2"]])
    assert table.markdown() == "| a | b |\n| :--- | :--- |\n| x y | 1 \\| 2 |\n"


class Counting:
    """Embeds a sentence as its length and its number of calls; says what it was asked."""

    name, pooler = "folder", "mean"

    def __init__(self):
        self.asked = []

    def encode(self, sentences, **how):
        assert how == {"precision": "fp32", "show_progress": False}
        self.asked += sentences
        return np.array([[len(it), 1.0] for it in sentences], np.float32)


def test_a_sentence_is_embedded_once_whatever_asks_for_it():
    encoder = Counting()
    once = CachedEncoder(encoder, "row")
    first = once.encode(["a", "bbb", "a"])
    again = once.encode(["cc", "bbb"])
    assert first.tolist() == [[1, 1], [3, 1], [1, 1]]
    assert again.tolist() == [[2, 1], [3, 1]]
    assert encoder.asked == ["a", "bbb", "cc"]
    assert (once.name, once.pooler) == ("row", "mean")
