"""Twenty steps of training on a tiny encoder, for the losses kept in ``curves.json``.

Make the file anew, after a change that is *meant* to move the losses and says so, with

    PYTHONPATH=.:tests python tests/golden/make_curves.py
"""

import json
import os
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from helpers.tiny_glove import save_glove
from helpers.tiny_models import save_tiny, save_tiny_masked_lm
from helpers.tiny_sentences import sentence
from helpers.tiny_wordnet import only_wordnet

from contrasent.recipe import load_recipe
from contrasent.train.run import train

FILE = Path(__file__).parent / "curves.json"
STEPS = 20


@dataclass(frozen=True)
class Curve:
    """What is trained, on what."""

    recipe: str = "unsup-simcse"
    settings: dict = field(default_factory=dict)
    data: str = "text.txt"
    start: str = "bert"


def diffcse(data="text.txt", **settings):
    """DiffCSE with other settings of its objective."""
    changed = {f"objective.{name}": value for name, value in settings.items()}
    return Curve("diffcse", changed, data, start="masked-lm")


def view(name, data="text.txt", start="bert", **settings):
    """Unsupervised SimCSE on another view."""
    changed = {f"view.{key}": value for key, value in settings.items()}
    return Curve(settings={"view.name": name, **changed}, data=data, start=start)


CURVES = {
    "unsupervised": Curve(),
    "unsupervised, no head": Curve(settings={"objective.head": "none"}),
    "supervised, hard negatives of weight 2": Curve(
        "sup-simcse", {"objective.hard_negative_weight": 2.0}, "triplets.csv"
    ),
    "crop": view("crop", share=0.3),
    "delete words": view("delete_words", share=0.3),
    "delete one word": view("delete_one_word"),
    "delete one word of both": view("delete_one_word", sides="both"),
    "next sentence": view("next_sentence", "documents.txt"),
    "next 3 sentences": view("next_3_sentences", "documents.txt"),
    "synonym": view("synonym"),
    "mlm": view("mlm", start="masked-lm"),
    "batch normalisation": Curve(settings={"objective.head": "batchnorm"}),
    "dot product": Curve("sup-simcse", {"objective.similarity": "dot"}, "triplets.csv"),
    "fixed dropout": Curve(settings={"view.fixed_dropout": True}),
    "two encoders": Curve(settings={"encoder.encoders": "twin"}),
    "auxiliary mlm": Curve(settings={"objective.mlm_weight": 0.1}, start="masked-lm"),
    "pretraining": Curve("pretrain-mlm", {"data.max_tokens": 32}, start="masked-lm"),
    "diffcse": diffcse(),
    "diffcse of the authors": diffcse(
        exclude_duplicates=False,
        rtd_weight=0.05,
        rtd_padding="as_reference",
        generator_dropout=True,
        edit="argmax",
        edit_positions="all",
    ),
    "diffcse, all edits": diffcse(edit_operation="all", rtd_embedding="pooled", rtd_weight=1.0),
    "diffcse, edits as negatives": diffcse(edit_role="negatives"),
    "diffcse, edits as positives": diffcse(edit_role="positives", edit_operation="insert"),
    "diffcse, next sentence": diffcse("documents.txt", edit_source="both", rtd_weight=1.0),
    "diffcse, conditional mlm": diffcse(task="cmlm", contrast=False, rtd_weight=1.0),
    "diffcse, corrective": diffcse(task="corrective", projector="mlp"),
    "consert": Curve("consert", {"data.max_tokens": 32}),
    "consert, joint": Curve("consert-joint", {"data.max_tokens": 32}, "labelled.csv"),
    "sg-opt": Curve("sg-opt", {"data.max_tokens": 32, "objective.projection": 32}),
    "cmlm": Curve("cmlm", {"objective.vectors": 3}, "documents.txt", start="masked-lm"),
    "declutr": Curve(
        "declutr",
        {
            "data.max_tokens": 32,
            "objective.min_words": 2,
            "objective.max_words": 8,
            "train.batch_size": 4,
        },
        "documents.txt",
        start="masked-lm",
    ),
    "contrastive tension": Curve(
        "contrastive-tension", {"data.max_tokens": 32, "train.batch_size": 15}
    ),
    "is-bert": Curve("is-bert", {"data.max_tokens": 32, "encoder.channels": 6}),
    "quick-thoughts": Curve("quick-thoughts", data="documents.txt"),
    "next sentence, two encoders": Curve("next-sentence", data="documents.txt"),
    "infersent": Curve(
        "infersent",
        {"encoder.lstm": 8, "objective.hidden": [12, 12], "train.learning_rate": 0.1},
        "labelled.csv",
        start="glove",
    ),
    "nli softmax": Curve("nli-softmax", {"data.max_tokens": 32}, "labelled.csv"),
}


def write_data(path):
    """Forty-eight examples, of one sentence or of three; in documents of six, or in none."""
    texts = [(sentence(n, 3 + n % 6), sentence(n, 4), sentence(n + 17, 6)) for n in range(48)]
    if path.stem == "labelled":
        names = ("entailment", "neutral", "contradiction")
        pairs = [f"{premise},{other},{names[n % 3]}" for n, (premise, other, _) in enumerate(texts)]
        rows = ["sent0,sent1,label", *pairs]
    elif path.suffix == ".csv":
        rows = ["sent0,sent1,hard_neg", *(",".join(row) for row in texts)]
    else:
        gap = "\n" if path.stem == "documents" else ""
        rows = [first + gap * (n % 6 == 5) for n, (first, _, _) in enumerate(texts)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def curve(name, folder, starts, **changes):
    """The losses of each step of a curve: fp32, one thread, every dropout at its usual rate.

    Args:
        name: one of ``CURVES``.
        folder: an empty folder to work in.
        starts: a tiny BERT, a tiny masked language model and word vectors, by name.
        changes: settings that differ from the curve's, ``__`` for the dot.
    """
    trained = CURVES[name]
    common = {
        "encoder.name": str(starts[trained.start]),
        "data.file": str(write_data(folder / trained.data)),
        "train.batch_size": 16,
        "train.max_steps": STEPS,
        "train.learning_rate": 1e-3,
        "train.precision": "fp32",
        "evaluation.task": "none",
        "evaluation.final": "none",
    }
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    recipe = load_recipe(trained.recipe, {**common, **trained.settings, **changed})
    with ExitStack() as stack:
        if recipe.view.name == "synonym":
            stack.enter_context(only_wordnet(folder / "nltk_data"))
        stack.enter_context(_one_thread())
        train(recipe, folder / "run")
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
        starts = {
            "bert": save_tiny(folder / "bert", "bert"),
            "masked-lm": save_tiny_masked_lm(folder / "masked-lm"),
            "glove": save_glove(folder / "glove.txt"),
        }
        for number, name in enumerate(CURVES):
            (folder / str(number)).mkdir()
            losses = curve(name, folder / str(number), starts)
            curves[name] = [round(loss, 6) for loss in losses]
    FILE.write_text(json.dumps(curves, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
