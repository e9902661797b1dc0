"""Quick-Thoughts and the next sentence as runs: contiguous batches, two encoders, refusals."""

import numpy as np
import pytest
import torch
from helpers.tiny_sentences import sentence

from contrasent.data.batch import Need
from contrasent.training.run_folder import complete
from contrasent.training.setup import prepare

LENGTHS = (5, 1, 9, 2, 13)
SMALL = {"data__max_tokens": 16, "train__max_steps": 6}


@pytest.fixture
def documents(tmp_path):
    """Five documents of thirty sentences, one of them alone."""
    path, rows, number = tmp_path / "documents.txt", [], 0
    for length in LENGTHS:
        rows += [*(sentence(n, 3 + n % 6) for n in range(number, number + length)), ""]
        number += length
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_batches_are_contiguous_and_know_the_borders(documents, recipe):
    made = recipe("quick-thoughts", **SMALL, data__file=str(documents), train__batch_size=10)
    parts = prepare(complete(made), torch.device("cpu"))
    loader = parts.loader
    assert loader.steps_per_epoch == 3
    borders = np.cumsum(LENGTHS)[:-1]
    places = torch.cat([loader.batch(step).column(Need.POSITIONS) for step in range(3)])
    apart = places.diff()
    assert [n + 1 for n, gap in enumerate(apart.tolist()) if gap != 1] == borders.tolist()
    assert apart[borders - 1].min() >= 30
    tokenizer = parts.encoder.tokenizer
    wanted = tokenizer.ids([line for line in documents.read_text().splitlines() if line], 16)[0]
    found = [loader.batch(step) for step in range(3)]
    rows = [b.token_ids[b.offsets[n] : b.offsets[n + 1]].tolist() for b in found for n in range(10)]
    assert rows == [list(row) for row in wanted]
    fourth, first = (loader.batch(step).column(Need.POSITIONS).tolist() for step in (4, 1))
    assert fourth == first
