"""Whole runs with gradient caching and gradient checkpointing."""

import pytest
from helpers.run_files import logged_losses
from helpers.tiny_runs import TINY

from contrasent.training.run import train

CACHED = {
    "unsup-simcse": {},
    "sup-simcse": {},
    "contrastive-tension": {},
    "distil": {},
    "quick-thoughts": {},
    "declutr": {"objective.mlm_weight": 0.0},
}


@pytest.mark.parametrize("name", CACHED)
def test_without_dropout_a_cached_run_is_the_plain_one(name, tiny_starts, tmp_path):
    changes = {"encoder.dropout": 0.0, "train.max_steps": 8, **CACHED[name]}
    for folder, chunk in (("plain", None), ("cached", 6)):
        changed = {**changes, "train.gradcache_chunk": chunk}
        train(TINY[name].load(tmp_path, tiny_starts, changed), tmp_path / folder)
    plain, cached = (logged_losses(tmp_path / folder) for folder in ("plain", "cached"))
    assert len(plain) == 8 and cached == pytest.approx(plain, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("chunk", [None, 6])
def test_a_run_with_checkpointed_layers_is_the_plain_one(chunk, recipe, tmp_path):
    changes = {"train__gradcache_chunk": chunk, "evaluation__task": "none"}
    train(recipe(**changes), tmp_path / "plain")
    train(recipe(**changes, train__gradient_checkpointing=True), tmp_path / "saving")
    assert logged_losses(tmp_path / "saving") == pytest.approx(
        logged_losses(tmp_path / "plain"), abs=1e-5
    )
