"""SG-OPT and ConSERT as runs: frozen embeddings, bits after a resume, and what is refused."""

from helpers.run_files import metrics
from safetensors.torch import load_file

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
