"""Twenty steps of training on a tiny encoder, for the losses kept in ``curves.json``.

Make the file anew, after a change that is *meant* to move the losses and says so, with

    PYTHONPATH=.:tests python tests/golden/make_curves.py
"""

import json
import os
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from helpers.tiny_glove import save_glove
from helpers.tiny_models import save_tiny, save_tiny_masked_lm
from helpers.tiny_runs import SHORT, TINY, TinyRun
from helpers.tiny_wordnet import only_wordnet

from contrasent.training.run import train

FILE = Path(__file__).parent / "curves.json"
STEPS = 20


def diffcse(data="text.txt", **settings):
    """DiffCSE with other settings of its objective."""
    changed = {f"objective.{name}": value for name, value in settings.items()}
    return TinyRun("diffcse", changed, data, start="masked-lm")


def view(name, data="text.txt", start="bert", **settings):
    """Unsupervised SimCSE on another view."""
    changed = {f"view.{key}": value for key, value in settings.items()}
    return TinyRun(settings={"view.name": name, **changed}, data=data, start=start)


# These curves are of the methods: what the recipes say of the optimiser and the pooler may change.
PLAIN = {"train.eps": 1e-8, "train.bias_correction": True, "train.decay_all": True}
LAST_TWO = {**PLAIN, "encoder.pooler": "mean_top2", "objective.weight": 0.15}


def plain(name, **changes):
    """The tiny run of a recipe, with other settings."""
    run = TINY[name]
    return replace(run, settings={**run.settings, **changes})


CURVES = {
    "unsupervised": TinyRun(),
    "unsupervised, no head": TinyRun(settings={"objective.head": "none"}),
    "supervised, hard negatives of weight 2": TinyRun(
        "sup-simcse", {"objective.hard_negative_weight": 2.0}, "triplets.csv"
    ),
    "crop": view("crop", share=0.3),
    "crop sentences": view("crop_sentences", "documents.txt", sides="both"),
    "delete words": view("delete_words", share=0.3),
    "delete one word": view("delete_one_word"),
    "delete one word of both": view("delete_one_word", sides="both"),
    "next sentence": view("next_sentence", "documents.txt"),
    "next 3 sentences": view("next_3_sentences", "documents.txt"),
    "synonym": view("synonym"),
    "mlm": view("mlm", start="masked-lm"),
    "batch normalisation": TinyRun(settings={"objective.head": "batchnorm"}),
    "dot product": TinyRun("sup-simcse", {"objective.similarity": "dot"}, "triplets.csv"),
    "fixed dropout": TinyRun(settings={"view.fixed_dropout": True}),
    "two encoders": TinyRun(settings={"encoder.encoders": "twin"}),
    "auxiliary mlm": TinyRun(settings={"objective.mlm_weight": 0.1}, start="masked-lm"),
    "pretraining": plain("pretrain-mlm", **{"train.decay_all": True}),
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
    "consert": plain("consert", **LAST_TWO),
    "consert, joint": plain("consert-joint", **LAST_TWO),
    "sg-opt": plain(
        "sg-opt", **{**PLAIN, "train.weight_decay": 0.0, "objective.clone_dropout": False}
    ),
    "cmlm": TINY["cmlm"],
    "tsdae": TINY["tsdae"],
    "tsdae, untied": TinyRun("tsdae", {**SHORT, "objective.tie": False}, start="masked-lm"),
    "declutr": plain("declutr", **{"train.decay_all": True}),
    "contrastive tension": TINY["contrastive-tension"],
    "is-bert": plain("is-bert", **{**PLAIN, "train.eps": 1e-7}),
    "distillation": TINY["distil"],
    "quick-thoughts": TINY["quick-thoughts"],
    "next sentence, two encoders": TINY["next-sentence"],
    "infersent": TINY["infersent"],
    "nli softmax": plain("nli-softmax", **PLAIN),
    "prompt": TINY["prompt"],
    "prompt, chain of thought": TINY["prompt-cot"],
    "rank": TINY["rank"],
    "rank, list net": TinyRun("rank", {"objective.loss": "list_net"}, teacher="glove"),
    "esimcse": TINY["esimcse"],
    "mixcse": TINY["mixcse"],
    "infocse": TINY["infocse"],
    "infocse and rtd": TINY["infocse-rtd"],
    "scored pairs": plain("scored-pairs", **{"train.weight_decay": 0.0}),
    "rank distillation": plain("rank-distil", **{"train.start_shares": []}),
    "consert, adversarial": plain("consert-joint", **PLAIN, **{"objective.second": "adversarial"}),
}


def curve(name, folder, starts, **changes):
    """The losses of each step of a curve: fp32, one thread, every dropout at its usual rate.

    Args:
        name: one of ``CURVES``.
        folder: an empty folder to work in.
        starts: a tiny BERT, a tiny masked language model and word vectors, by name.
        changes: settings that differ from the curve's, ``__`` for the dot.
    """
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    recipe = CURVES[name].load(folder, starts, {"train.max_steps": STEPS, **changed})
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
