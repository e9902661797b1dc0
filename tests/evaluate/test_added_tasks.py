"""A task is a row: one more in the registry has its name, table, average and help."""

import numpy as np
import pytest
from helpers.tiny_transfer import BAD, GOOD, Writer, write_transfer
from helpers.tiny_words import WORDS, WordEncoder

from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import Options, TransferProtocol
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import (
    DEV_PART,
    STS_TASKS,
    TRANSFER_TASKS,
    StsTask,
    TransferTask,
)
from contrasent.report.scores_table import score_tables


def cells(table):
    return dict(zip(table.headings, (cell.text for cell in table.rows[0]), strict=True))


@pytest.fixture
def sst5(senteval, monkeypatch):
    """SentEval's folder with an eighth transfer task, of five classes."""
    write_transfer(senteval)
    writer = Writer(senteval, 12)
    for split in DEV_PART:
        rows = [
            f"{sentence} {'very ' * label}\t{label}"
            for label in range(5)
            for sentence in writer.sentences(GOOD if label > 2 else BAD)
        ]
        writer.put(f"SST/fine/sentiment-{split}", rows)
    files = tuple(f"SST/fine/sentiment-{split}" for split in DEV_PART)
    row = TransferTask(
        "sst5", "SST-5", files, form="sentiments", classes=5, split=DEV_PART, papers=False
    )
    monkeypatch.setitem(TRANSFER_TASKS, row.name, row)
    return senteval


def test_an_eighth_transfer_task_is_one_row(sst5):
    options = Options(sst5, learning=TransferProtocol(preset="fasttest"))
    suite = load_suite(["transfer", "SST-5"], options)
    ((kind, read),) = suite.kinds
    assert kind.name == "transfer" and [name.heading for name in read.names][-1] == "SST-5"
    assert read.tasks[-1].classes == 5
    rows = {"a": list(suite.records(EncoderUse(WordEncoder())).records)}
    (table,) = score_tables(rows)
    shown = cells(table)
    accuracy = {r.task: 100 * r.value for r in rows["a"] if r.metric == "accuracy"}
    assert list(shown)[8:] == ["Avg.", "SST-5", "MRPC F1"]
    assert shown["SST-5"] == f"{accuracy.pop('sst5'):.2f}"
    assert len(accuracy) == 7 and shown["Avg."] == f"{sum(accuracy.values()) / 7:.2f}"
    assert "Avg. over 7 tasks" in table.notes[0]
    assert table.key_heading == "Transfer Avg." and " of 8" not in str(table)


def test_an_eighth_sts_task_is_one_row(senteval, monkeypatch):
    draw = np.random.default_rng(1)
    text = "".join(
        f"{' '.join(draw.choice(WORDS, 3))}\t{' '.join(draw.choice(WORDS, 3))}\t{score}.0\n"
        for score in draw.permutation(6)
    )
    (senteval / "STS17.tsv").write_text(text)
    row = StsTask("sts17", "STS17", files={"test": "STS17.tsv"}, papers=False)
    monkeypatch.setitem(STS_TASKS, row.name, row)
    suite = load_suite(["sts", "STS-17"], Options(senteval))
    ((_, read),) = suite.kinds
    assert [name.heading for name in read.names][-1] == "STS17"
    rows = {"a": list(suite.records(EncoderUse(WordEncoder())).records)}
    shown = cells(score_tables(rows)[0])
    values = {
        r.task: 100 * r.value for r in rows["a"] if (r.metric, r.aggregation) == ("spearman", "all")
    }
    assert list(shown)[8:] == ["Avg.", "STS17"] and shown["STS17"] == f"{values.pop('sts17'):.2f}"
    assert len(values) == 7 and shown["Avg."] == f"{sum(values.values()) / 7:.2f}"
    assert [name.label for name in load_suite(["sts"], Options(senteval)).kinds[0][1].names] == [
        *values
    ]
