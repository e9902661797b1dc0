"""InferSent as a run: trained, resumed, saved, loaded everywhere, and what is refused."""

import numpy as np
import pytest
from helpers.run_files import metrics
from helpers.tiny_glove import save_glove
from helpers.tiny_sentences import sentence

from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import load_encoder
from contrasent.training.run import train

SMALL = {"encoder__lstm": 5, "objective__hidden": [7, 7]}
LABELS = ("entailment", "neutral", "contradiction")
TEXTS = ["a dog runs in the street .", "the old man isn't sad", "zzz", "two birds"]


@pytest.fixture
def glove(tmp_path):
    return save_glove(tmp_path / "glove.txt")


@pytest.fixture
def nli_file(tmp_path):
    path = tmp_path / "nli.tsv"
    rows = [f"{sentence(n)}\t{sentence(n + 17, 4)}\t{LABELS[n % 3]}" for n in range(40)]
    path.write_text("premise\thypothesis\tlabel\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def infersent(recipe, glove, nli_file):
    def make(**changes):
        start = {"encoder__name": str(glove), "data__file": str(nli_file), "train__epochs": 2}
        return recipe("infersent", **{**start, **SMALL, **changes})

    return make


def test_the_rate_falls_as_the_dev_scores_say(tmp_path, infersent):
    train(infersent(train__min_rate=1e-9, train__checkpoint_every=1), tmp_path / "run")
    rate, best, expected, found = 1e-3, -2.0, [], []
    for line in metrics(tmp_path / "run"):
        if "evaluation" in line:
            (score,) = line["evaluation"].values()
            rate *= 0.99 / (1 if score > best else 5)
            best = max(best, score)
        else:
            expected.append(rate)
            found.append(line["learning_rate"])
    assert found == pytest.approx(expected, rel=1e-9)
    assert len(set(found)) == 5


def test_a_saved_encoder_is_the_same(tmp_path, infersent):
    train(infersent(), tmp_path / "run")
    folder = tmp_path / "run" / "best"
    loaded = load_encoder(folder)
    assert (loaded.pooler, loaded.width, loaded.head_name) == ("max", 10, "none")
    assert loaded.tokenizer.marks == ("<s>", "</s>")
    with pytest.warns(UserWarning, match=r"^1 of 4 sentences have no word that glove\.txt knows"):
        rows = loaded.encode(TEXTS)
    assert np.isfinite(rows).all() and rows[2].any()
    loaded.save(tmp_path / "again")
    again = SentenceEncoder.load(tmp_path / "again", device="cpu")
    assert again.fingerprint() == loaded.fingerprint()
