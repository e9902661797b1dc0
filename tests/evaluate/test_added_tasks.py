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


def sst5(root):
    """An eighth transfer task, of five classes, in the folder of the others."""
    write_transfer(root)
    writer = Writer(root, 12)
    files = tuple(f"SST/fine/sentiment-{split}" for split in DEV_PART)
    for file in files:
        rows = [
            f"{sentence} {'very ' * label}\t{label}"
            for label in range(5)
            for sentence in writer.sentences(GOOD if label > 2 else BAD)
        ]
        writer.put(file, rows)
    return TransferTask(
        "sst5", "SST-5", files, form="sentiments", classes=5, split=DEV_PART, papers=False
    )


def sts17(root):
    draw = np.random.default_rng(1)
    sides = [[" ".join(draw.choice(WORDS, 3)) for _ in range(6)] for _ in range(2)]
    rows = (f"{a}\t{b}\t{n}.0\n" for a, b, n in zip(*sides, draw.permutation(6), strict=True))
    (root / "STS17.tsv").write_text("".join(rows))
    return StsTask("sts17", "STS17", files={"test": "STS17.tsv"}, papers=False)


@pytest.mark.parametrize(
    ("make", "registry", "kind", "spelled", "beside"),
    [
        (sst5, TRANSFER_TASKS, "transfer", "SST-5", ["MRPC F1"]),
        (sts17, STS_TASKS, "sts", "STS-17", []),
    ],
)
def test_an_eighth_task_is_one_row(make, registry, kind, spelled, beside, senteval, monkeypatch):
    row = make(senteval)
    monkeypatch.setitem(registry, row.name, row)
    options = Options(senteval, learning=TransferProtocol(preset="fasttest"))
    suite = load_suite([kind, spelled], options)
    ((found, read),) = suite.kinds
    assert found.name == kind and [name.heading for name in read.names][-1] == row.heading
    records = list(suite.records(EncoderUse(WordEncoder())).records)
    (table,) = score_tables({"a": records})
    shown = dict(zip(table.headings, (cell.text for cell in table.rows[0]), strict=True))
    main = ("accuracy",) if kind == "transfer" else ("spearman", "all")
    values = {
        r.task: 100 * r.value for r in records if (r.metric, r.aggregation)[: len(main)] == main
    }
    assert list(shown)[8:] == ["Avg.", row.heading, *beside]
    assert shown[row.heading] == f"{values.pop(row.name):.2f}"
    assert len(values) == 7 and shown["Avg."] == f"{sum(values.values()) / 7:.2f}"
    assert "Avg. over 7 tasks" in table.notes[0] and " of 8" not in str(table)
    assert row.name not in [it.label for it in load_suite([kind], options).kinds[0][1].names]
