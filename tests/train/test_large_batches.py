"""Whole runs with gradient caching and gradient checkpointing."""

import pytest
from helpers.run_files import logged_losses

from contrasent.training.run import train


@pytest.mark.parametrize("name", ["unsup-simcse", "sup-simcse"])
def test_without_dropout_a_cached_run_is_the_plain_one(name, recipe, tmp_path, triplet_file):
    changes = {"encoder__dropout": 0.0, "train__batch_size": 16, "train__epochs": 3}
    if name == "sup-simcse":
        changes["data__file"] = str(triplet_file)
    train(recipe(name, **changes), tmp_path / "plain")
    train(recipe(name, **changes, train__gradcache_chunk=6), tmp_path / "cached")
    assert logged_losses(tmp_path / "cached") == pytest.approx(
        logged_losses(tmp_path / "plain"), abs=1e-4
    )


def test_a_cached_run_has_the_last_smaller_batch_too(recipe, tmp_path):
    result = train(recipe(train__batch_size=16, train__gradcache_chunk=5), tmp_path / "run")
    assert (result.steps, result.examples) == (3, 40)


@pytest.mark.parametrize("chunk", [None, 6])
def test_a_run_with_checkpointed_layers_is_the_plain_one(chunk, recipe, tmp_path):
    changes = {"train__gradcache_chunk": chunk, "evaluation__task": "none"}
    train(recipe(**changes), tmp_path / "plain")
    train(recipe(**changes, train__gradient_checkpointing=True), tmp_path / "saving")
    assert logged_losses(tmp_path / "saving") == pytest.approx(
        logged_losses(tmp_path / "plain"), abs=1e-5
    )
