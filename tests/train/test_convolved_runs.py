"""IS-BERT as a run: convolutions that are trained, saved, taken on, and what is refused."""

import pytest
import torch
from helpers.run_files import logged_losses

from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.training.run import train

SMALL = {"data__max_tokens": 32, "encoder__channels": 4, "train__max_steps": 8}


def test_convolutions_are_trained_saved_and_taken_on(trained, tmp_path):
    trained("is-bert", "run", **SMALL)
    losses = logged_losses(tmp_path / "run")
    assert losses[-1] < losses[0]
    once = SentenceEncoder.load(tmp_path / "run" / "last", device="cpu")
    assert once.convolutions.widths == (1, 3, 5) and once.width == 12
    again = {**SMALL, "encoder__name": str(tmp_path / "run"), "train__learning_rate": 1e-12}
    trained("is-bert", "again", **again)
    twice = SentenceEncoder.load(tmp_path / "again" / "last", device="cpu")
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_other_convolutions_than_those_of_the_start_are_refused(trained, recipe, tmp_path):
    trained("is-bert", "run", **SMALL)
    start = {"encoder__name": str(tmp_path / "run"), "encoder__convolutions": [3]}
    with pytest.raises(ConfigError, match=r"convolutions of widths \[1, 3, 5\] with 4 channels"):
        train(recipe("is-bert", **{**SMALL, **start}), tmp_path / "other")
