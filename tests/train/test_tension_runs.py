"""Contrastive Tension as a run: two encoders, both evaluated, and what it refuses."""

import json

import pytest
import torch
from helpers.run_files import logged_losses, metrics

from contrasent.errors import ConfigError, DataError
from contrasent.training.run import train

NAME = "contrastive-tension"
SMALL = {
    "data__max_tokens": 32,
    "objective__negatives": 2,
    "train__batch_size": 10,
    "train__max_steps": 6,
    "evaluation__every": 2,
}


def test_both_encoders_are_trained_scored_and_saved(trained, tmp_path):
    result = trained(NAME, **SMALL)
    lines = metrics(tmp_path / "run")
    found = [line for line in lines if "evaluation" in line]
    assert len(found) == 3 and all("beside" in line for line in found)
    assert all(max(a["evaluation"].values()) >= max(a["beside"].values()) for a in found)
    assert (tmp_path / "run" / "best-twin").is_dir()
    told = json.loads((result.best / "contrasent.json").read_text())
    assert (
        told["dev_spearman"]
        == found[[line["step"] for line in found].index(result.best_step)]["evaluation"]
    )
    steps = [line for line in lines if "loss" in line]
    assert all("alignment" not in line for line in steps)


def test_gradient_caching_gives_the_same_run(trained, tmp_path):
    for folder, chunk in (("whole", None), ("chunks", 5)):
        trained(NAME, folder, **SMALL, train__gradcache_chunk=chunk)
    losses = [logged_losses(tmp_path / name) for name in ("whole", "chunks")]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train__batch_size": 16}, r"take 5 or a multiple of it"),
        (
            {"view__fixed_dropout": True, "encoder__encoders": "shared", "encoder__keep": "first"},
            r"objective contrastive_tension makes views of its own",
        ),
        ({"view__name": "crop"}, r"view.name is crop, but the objective takes one view"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(changes, said, recipe, tmp_path):
    with pytest.raises(ConfigError, match=said):
        train(recipe(NAME, **{**SMALL, **changes}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pairs_are_refused(recipe, triplet_file, tmp_path):
    with pytest.raises((ConfigError, DataError), match=r"the data has 3 .*, but the objective"):
        train(recipe(NAME, **SMALL, data__file=str(triplet_file)), tmp_path / "run")
