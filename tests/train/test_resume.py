"""A run that is cut off anywhere and resumed ends with the bits of one that was not."""

import numpy as np
import pytest
from helpers.interrupted import CutError, cut, kill_after
from helpers.run_files import RunFiles
from helpers.tiny_runs import TINY
from helpers.tiny_sentences import sentence, write, write_pairs

from contrasent.errors import CheckpointError, ConfigError
from contrasent.recipe import recipes, to_yaml
from contrasent.training import run as run_module
from contrasent.training.run import train

SAVED = ("loop.save_state", 2)
PUBLISHED = ("-base", "-large", "-sts", "-transfer")
"""Recipes that differ from others in numbers only."""
LOGGED = {
    "cmlm": {"term_mlm", "mlm_accuracy"},
    "consert-joint": {"term_contrast", "term_nli"},
    "declutr": {"term_contrast", "term_mlm", "mlm_accuracy"},
    "distil": {"term_distillation", "teacher_cosine"},
    "nli-softmax": {"term_nli", "nli_accuracy"},
    "tsdae": {"term_reconstruction"},
}
AUTHORS = {"generator_dropout": True, "edit": "argmax", "edit_positions": "all"}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder of scored pairs, for what is trained on as well."""
    folder = tmp_path_factory.mktemp("shelf")
    write_pairs(folder / "pairs.tsv")
    return folder


@pytest.fixture(scope="module")
def files():
    """The files of all runs, by recipe and what cut them off; several tiny recipes are alike."""
    return {}


@pytest.fixture
def resume(tmp_path, tiny_starts, shelf, files):
    """Train six steps of a recipe whole, and again with a death; gives the files of both."""

    def run(name, changes, function, calls):
        pairs = shelf / "pairs.tsv"
        selected = {} if name == "pretrain-mlm" else {"evaluation.task": str(pairs)}
        changed = {"train.max_steps": 6, "evaluation.every": 2, **selected, **changes}
        if "evaluation.geometry_every" in changed:
            changed["evaluation.geometry_pairs"] = f"{pairs}>4"
        recipe = TINY[name].load(shelf, tiny_starts, changed)
        whole = to_yaml(recipe)
        if whole not in files:
            files[whole] = RunFiles.read(train(recipe, tmp_path / "whole").last.parent)
        cut = (whole, function, calls)
        if cut not in files:
            with kill_after(function, calls):
                train(recipe, tmp_path / "cut")
            train(recipe, tmp_path / "cut", resume=True)
            files[cut] = RunFiles.read(tmp_path / "cut")
        return files[cut], files[whole]

    return run


@pytest.mark.parametrize("name", [it for it in recipes() if not it.endswith(PUBLISHED)])
def test_resume_is_bitwise_equal(name, resume):
    resumed, whole = resume(name, {}, *SAVED)
    assert resumed == whole
    steps = [values for values in whole.metrics if "loss" in values]
    assert len(steps) == 6
    assert all(LOGGED.get(name, {"loss"}) <= values.keys() for values in steps)


def case(name="unsup-simcse", killed="loop.save_state", calls=2, **changes):
    return name, {key.replace("__", "."): value for key, value in changes.items()}, killed, calls


def view(calls, **settings):
    changes = {f"view__{key}": value for key, value in settings.items()}
    return case(calls=calls, data="documents.txt", **changes)


def diffcse(**settings):
    changes = {key if "__" in key else f"objective__{key}": settings[key] for key in settings}
    return case("diffcse", calls=2, data="documents.txt", **changes)


@pytest.mark.parametrize(
    ("name", "changes", "function", "calls"),
    [
        *(case(calls=n) for n in (1, 2, 3)),
        *(case(killed="run_folder.step_values", calls=n) for n in (1, 3, 4, 6)),
        case(train__gradcache_chunk=5, train__gradient_checkpointing=True),
        case(objective__head="batchnorm", train__gradcache_chunk=5),
        case(train__optimizer="rmsprop", train__schedule="steps", train__rate_steps={5: 1e-4}),
        case(train__bias_correction=False, train__betas=[0.9, 0.9], train__clip=None),
        case(encoder__freeze_embeddings=True, train__warmup_share=0.3),
        case(encoder__encoders="twin", train__gradcache_chunk=4),
        case(encoder__encoders="twin", encoder__keep="better", calls=3),
        *(
            case(killed="GeometryLog.after_update", calls=calls, evaluation__geometry_every=2)
            for calls in (1, 4)
        ),
        view(3, name="crop", share=0.3),
        view(3, name="crop_sentences", sides="both"),
        view(1, name="delete_one_word", sides="both"),
        view(3, name="next_3_sentences"),
        diffcse(**AUTHORS, rtd_padding="as_reference"),
        diffcse(edit_role="positives", edit_operation="all"),
        diffcse(edit_source="both", task="cmlm"),
        diffcse(task="corrective", encoder__encoders="twin"),
        diffcse(train__gradient_checkpointing=True),
        case("distil", objective__space="folded", encoder__layers=1),
        case("pretrain-mlm", calls=1),
        case("tsdae", objective__tie=False),
        case("infersent", train__learning_rate=0.5),
        case("nli-softmax", data="partly_labelled.csv"),
    ],
    ids=str,
)
def test_resume_is_bitwise_equal_after_any_cut_with_any_settings(
    name, changes, function, calls, resume
):
    resumed, whole = resume(name, changes, function, calls)
    assert resumed == whole


def test_a_run_that_stopped_early_does_not_go_on(tmp_path, recipe, monkeypatch):
    settings = recipe(
        train__epochs=4, evaluation__every=1, evaluation__patience=1, train__learning_rate=1e-12
    )
    whole = train(settings, tmp_path / "whole")
    assert whole.steps < 20
    with monkeypatch.context() as patched:
        patched.setattr(run_module.Session, "finish", cut)
        with pytest.raises(CutError):
            train(settings, tmp_path / "cut")
    resumed = train(settings, tmp_path / "cut", resume=True)
    assert resumed.steps == whole.steps
    assert RunFiles.read(tmp_path / "cut") == RunFiles.read(tmp_path / "whole")


def test_other_data_cannot_be_resumed_and_no_damaged_state(tmp_path, recipe, text_file):
    rated = [f"{sentence(n)}\t{sentence(n, 4)}\t{n % 6}" for n in range(9)]
    dev = write(tmp_path / "dev.tsv", rated)
    np.save(teacher := tmp_path / "teacher.npy", np.random.default_rng(0).random((40, 16), "f4"))
    follows = {"objective__teacher": str(teacher), "data__max_tokens": 32}
    settings = recipe("distil", evaluation__task=str(dev), **follows)
    with kill_after("loop.save_state"):
        train(settings, tmp_path / "run")
    for changed, last in {text_file: b" x\n", dev: b"5\n", teacher: b"@"}.items():
        before, named = changed.read_bytes(), "data" if changed is text_file else changed.name
        changed.write_bytes(before[:-1] + last)
        with pytest.raises(ConfigError, match=f"{named} has changed since it started"):
            train(settings, tmp_path / "run", resume=True)
        changed.write_bytes(before)
    (progress,) = (tmp_path / "run" / "state").glob("*/progress.json")
    whole = progress.read_text()
    progress.write_text(whole.replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match=r"its format is 2, and this version reads 1"):
        train(settings, tmp_path / "run", resume=True)
    progress.write_text(whole)
    (weights,) = (tmp_path / "run" / "state").glob("*/encoder.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot resume from"):
        train(settings, tmp_path / "run", resume=True)
