"""Contrastive Tension as a run: two encoders, both evaluated, and what it refuses."""

import json

from helpers.run_files import metrics

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
