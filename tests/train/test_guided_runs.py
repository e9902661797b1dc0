"""SG-OPT and ConSERT as runs: frozen embeddings, bits after a resume, and what is refused."""

import pytest
from helpers.run_files import metrics
from safetensors.torch import load_file

from contrasent.errors import ConfigError
from contrasent.training.run import train

SG_OPT = {"data__max_tokens": 32, "objective__projection": 16, "train__max_steps": 8}
CONSERT = {"data__max_tokens": 32, "train__max_steps": 8}


def test_sg_opt_freezes_the_embeddings_and_keeps_near_the_start(trained, tmp_path, tiny_bert):
    trained("sg-opt", **SG_OPT)
    start = load_file(tiny_bert / "model.safetensors")
    last = load_file(tmp_path / "run" / "last" / "model.safetensors")
    same = {name for name in last if last[name].equal(start[name])}
    assert {name for name in last if name.startswith("embeddings.")} <= same
    assert "encoder.layer.0.output.dense.weight" not in same
    distances = [line["term_distance"] for line in metrics(tmp_path / "run") if "loss" in line]
    # The warm-up begins at a rate of 0, so the second step still starts at the start.
    assert distances[:2] == [0.0, 0.0] and distances[-1] > 0


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("sg-opt", {"train__gradcache_chunk": 4}, "objective also reads the states or the tokens"),
        ("sg-opt", {"encoder__encoders": "twin"}, "the objective takes one view of each example"),
        ("consert", {"view__fixed_dropout": True}, "objective consert makes views of its own"),
        ("consert-joint", {"data__labels": "none"}, "objective consert needs the label of each"),
    ],
)
def test_what_does_not_go_together_is_refused(name, changes, said, recipe, tmp_path, triplet_file):
    settings = SG_OPT if name == "sg-opt" else CONSERT
    data = {"data__file": str(triplet_file)} if name == "consert-joint" else {}
    with pytest.raises(ConfigError, match=said):
        train(recipe(name, **{**settings, **data, **changes}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
