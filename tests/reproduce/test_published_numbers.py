"""The quoted numbers, against what the papers print."""

import csv
from importlib.resources import files

import pytest

from contrasent.errors import ConfigError
from contrasent.reproduce.plan import cited

STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC")
# Averages that are not the mean of their row to two decimals, as the notes of the data say.
AS_PRINTED = {"SBERT-base", "BERT avg embeddings"}


@pytest.mark.parametrize(
    ("where", "column", "value"),
    [
        (("simcse", "T5", "SimCSE-BERT-base (unsup)"), "Avg", 76.25),
        (("simcse", "T5", "SimCSE-BERT-base (sup)"), "Avg", 81.57),
        (("simcse", "TE.1", "Skip-thought"), "Avg", 83.50),
        (("simcse_study", "T6", "SimCSE-BERT-base (unsup)"), "Avg", 74.45),
        (("diffcse", "T1", "DiffCSE-BERT-base"), "Avg", 78.49),
        (("diffcse", "T2", "DiffCSE-BERT-base"), "Avg", 86.86),
    ],
)
def test_numbers_are_the_papers(where, column, value):
    assert cited(*where).values[column] == value


def test_every_average_is_the_mean_of_its_row():
    with (files("contrasent") / "reproduce" / "published.csv").open(encoding="utf-8") as file:
        rows = {(line["paper"], line["table"], line["row"]) for line in csv.DictReader(file)}
    assert len(rows) > 60
    for where in sorted(rows):
        found = cited(*where)
        parts = STS if "STS12" in found.values else TRANSFER
        allowed = 0.04 if where[2] in AS_PRINTED else 0.0101
        mean = sum(found.values[part] for part in parts) / 7
        assert found.values["Avg"] == pytest.approx(mean, abs=allowed), where


def test_a_source_names_paper_and_table():
    assert cited("simcse", "TE.1", "GloVe avg").source == "Gao et al. 2021, Table E.1"
    assert cited("diffcse", "T2", "GloVe avg").source == "Chuang et al. 2022, Table 2"


def test_an_unknown_row_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'simcse T5 GloVe avg'"):
        cited("simcse", "T5", "GloVe avgs")
