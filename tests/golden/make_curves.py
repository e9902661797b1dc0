"""Twenty steps of training on a tiny encoder, for the losses kept in ``curves.json``.

Make the file anew, after a change that is *meant* to move the losses and says so, with

    PYTHONPATH=.:tests python tests/golden/make_curves.py
"""

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
from tiny_models import WORDS, save_tiny

from contrasent.config import load_recipe
from contrasent.train.run import train

FILE = Path(__file__).parent / "curves.json"
STEPS = 20
CURVES = {
    "unsupervised": ("unsup-simcse", {}),
    "unsupervised, no head": ("unsup-simcse", {"objective.head": "none"}),
    "supervised, hard negatives of weight 2": (
        "sup-simcse",
        {"objective.hard_negative_weight": 2.0},
    ),
    "crop": ("unsup-simcse", {"view.name": "crop", "view.share": 0.3}),
    "delete words": ("unsup-simcse", {"view.name": "delete_words", "view.share": 0.3}),
    "delete one word": ("unsup-simcse", {"view.name": "delete_one_word"}),
    "delete one word of both": (
        "unsup-simcse",
        {"view.name": "delete_one_word", "view.sides": "both"},
    ),
    "next sentence": ("unsup-simcse", {"view.name": "next_sentence"}),
    "next 3 sentences": ("unsup-simcse", {"view.name": "next_3_sentences"}),
}

_PLAIN = [word for word in WORDS if word.isalpha()]


def sentence(number, words):
    """One of many sentences of words that the tiny encoder knows."""
    return " ".join(_PLAIN[(number * 7 + k * (3 + number % 5)) % len(_PLAIN)] for k in range(words))


def curve(name, folder, encoder, **changes):
    """The losses of each step of a curve: fp32, one thread, every dropout at its usual rate.

    Args:
        name: one of ``CURVES``.
        folder: an empty folder to work in.
        encoder: the folder of a tiny BERT.
        changes: settings that differ from the curve's, ``__`` for the dot.
    """
    recipe, settings = CURVES[name]
    data = folder / ("text.txt" if recipe == "unsup-simcse" else "triplets.csv")
    texts = [(sentence(n, 3 + n % 6), sentence(n, 4), sentence(n + 17, 6)) for n in range(48)]
    rows = [t[0] if data.suffix == ".txt" else ",".join(t) for t in texts]
    if str(settings.get("view.name")).startswith("next"):
        rows = [row + "\n" * (n % 6 == 5) for n, row in enumerate(rows)]
    header = "" if data.suffix == ".txt" else "sent0,sent1,hard_neg\n"
    data.write_text(header + "\n".join(rows) + "\n", encoding="utf-8")
    common = {
        "encoder.name": str(encoder),
        "data.file": str(data),
        "train.batch_size": 16,
        "train.max_steps": STEPS,
        "train.learning_rate": 1e-3,
        "train.precision": "fp32",
        "evaluation.task": "none",
        "evaluation.final": "none",
    }
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    with _one_thread():
        train(load_recipe(recipe, {**common, **settings, **changed}), folder / "run")
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


@contextmanager
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def main():
    """Write ``curves.json``."""
    curves = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ["CONTRASENT_CACHE"] = str(folder / "cache")
        encoder = save_tiny(folder / "bert", "bert")
        for number, name in enumerate(CURVES):
            (folder / str(number)).mkdir()
            losses = curve(name, folder / str(number), encoder)
            curves[name] = [round(loss, 6) for loss in losses]
    FILE.write_text(json.dumps(curves, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
