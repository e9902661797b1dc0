"""Texts are embedded once each, and what no score can be computed from is refused."""

import numpy as np
import pytest

from contrasent.errors import CheckpointError
from contrasent.evaluation.embed import require_usable

TEXTS = ["a", "b", "c", "d"]


def rows(**bad):
    found = np.ones((4, 2), np.float32)
    found[3] = [0, -1]
    for text, row in bad.items():
        found[TEXTS.index(text)] = row
    return found


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"c": (0, 0)}, "1 of 4 texts an embedding of zeros, so"),
        ({"c": (np.nan, 1)}, "1 of 4 texts an embedding with NaN or infinite numbers, so"),
        ({"c": (0, -np.inf), "d": (np.nan, 0)}, "2 of 4 texts an embedding with NaN"),
        ({"c": (0, 0), "d": (np.inf, 1)}, "2 of 4 texts an embedding of zeros or with NaN"),
    ],
)
def test_the_task_the_flaw_and_the_first_text_are_named(bad, said):
    with pytest.raises(CheckpointError) as caught:
        require_usable("some/model", TEXTS, rows(**bad), of="STS-B dev")
    message = str(caught.value)
    assert message.startswith("STS-B dev: some/model gives " + said)
    assert message.endswith("the first is 'c'")


def test_zeros_are_of_use_to_some():
    require_usable("m", TEXTS, rows())
    require_usable("m", TEXTS, rows(c=(0, 0)), zeros=True)
    with pytest.raises(CheckpointError, match=r"^m gives 1 of 4 texts .* NaN .* first is 'd'"):
        require_usable("m", TEXTS, rows(c=(0, 0), d=(np.nan, 0)), zeros=True)
