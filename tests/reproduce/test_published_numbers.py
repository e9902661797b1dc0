"""The published numbers, against what the papers print, and against each other."""

from collections import Counter

import pytest

from contrasent.reproduce.papers import NAMES, load_tables, published, published_lines

STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC")
# Averages that are not the mean of their row to two decimals: Reimers and Gurevych print them so,
# and those of PromptBERT are means of ten seeds.
AS_PRINTED = {"SBERT-base", "SBERT-base (published)", "BERT avg embeddings", "PromptBERT"}
# Tables of differences in the study: of which of its tables, to which of SimCSE's, to within what.
DIFFERENCES = {"T4": ("T4", "T1", 0.011), "T5": ("T5", "T3", 0.011), "T7": ("T6", "T5", 0.0051)}
MISPRINTS = {
    ("T4", "word deletion 10%", "STS-B dev"): 2.28,
    ("T7", "SimCSE-RoBERTa-base (unsup)", "STS14"): -1.11,
}


def tabulated():
    return [line for line in published_lines() if line["table"] != "text"]


def test_all_tabulated_numbers_ship():
    counts = Counter(line["paper"] for line in tabulated())
    assert counts == {"simcse": 714, "simcse_study": 144, "diffcse": 371, "successors": 57}
    assert counts.total() == 1286


def test_every_tabulated_number_is_a_cell_of_a_table():
    cells = {
        (NAMES.get(table.paper, table.paper), table.number, row.published, column.heading)
        for table in load_tables().values()
        for row in table.rows
        for column in table.columns_of(row)
        if table.printed(row, column.heading) is not None
    }
    keys = {tuple(it[k] for k in ("paper", "table", "row", "column")) for it in tabulated()}
    assert len(keys) == 1286
    assert keys <= cells


@pytest.mark.parametrize(
    ("where", "row", "column", "value"),
    [
        (("simcse", "T5"), "SimCSE-BERT-base (unsup)", "Avg", "76.25"),
        (("simcse", "T5"), "SimCSE-BERT-base (sup)", "Avg", "81.57"),
        (("simcse", "TE.1"), "Skip-thought", "Avg", "83.50"),
        (("study", "T6"), "SimCSE-BERT-base (unsup)", "Avg", "74.45"),
        (("diffcse", "T1"), "DiffCSE-BERT-base", "Avg", "78.49"),
        (("diffcse", "T2"), "DiffCSE-BERT-base", "Avg", "86.86"),
        (("diffcse", "T10"), "DiffCSE-BERT-base", "recall@1", "78.87"),
    ],
)
def test_numbers_are_the_papers(where, row, column, value):
    assert published(*where)[row][column] == value


def test_every_average_is_the_mean_of_its_row():
    averaged = 0
    for table in load_tables().values():
        for name, cells in published(table.paper, table.number).items():
            parts = next((p for p in (STS, TRANSFER) if set(p) <= set(cells)), None)
            if parts is not None:
                mean = sum(float(cells[part]) for part in parts) / 7
                allowed = 0.04 if name in AS_PRINTED else 0.0101
                assert float(cells["Avg"]) == pytest.approx(mean, abs=allowed), (table.name, name)
                averaged += 1
    assert averaged > 100


def test_the_study_prints_its_differences_but_for_two_misprints():
    wrong = {}
    for table, (own, theirs, most) in DIFFERENCES.items():
        numbers, originals = published("study", own), published("simcse", theirs)
        for row, cells in published("study", table).items():
            for column in (it.removesuffix(" delta") for it in cells if it.endswith(" delta")):
                difference = float(numbers[row][column]) - float(originals[row][column])
                if float(cells[f"{column} delta"]) != pytest.approx(difference, abs=most):
                    wrong[table, row, column] = round(difference, 2)
    assert wrong == MISPRINTS
