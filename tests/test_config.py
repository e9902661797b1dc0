"""Recipes: those of the papers, how they are read and written, and what is wrong with one."""

import dataclasses

import pytest
from helpers.command_line import worked
from helpers.tiny_runs import TINY

from contrasent import settings
from contrasent.cli.train import describe
from contrasent.errors import ConfigError
from contrasent.objectives import available, config_of
from contrasent.recipe import DataSettings, Recipe, fields_of, load_recipe, recipes, to_yaml
from contrasent.settings import EncoderSettings, EvaluationSettings, TrainSettings, ViewSettings

# Gao et al. 2021, Table A.1: batch size and learning rate. Supervised: BERT and RoBERTa alike.
TABLE_A_1 = {
    "unsup-simcse-bert-base": (64, 3e-5),
    "unsup-simcse-bert-large": (64, 1e-5),
    "unsup-simcse-roberta-base": (512, 1e-5),
    "unsup-simcse-roberta-large": (512, 3e-5),
    "sup-simcse-bert-base": (512, 5e-5),
    "sup-simcse-bert-large": (512, 1e-5),
    "sup-simcse-roberta-base": (512, 5e-5),
    "sup-simcse-roberta-large": (512, 1e-5),
}
# Chuang et al. 2022, Tables 12 and 13: learning rate, mask rate, weight, batch size.
TABLES_12_13 = {
    "diffcse-bert-base-sts": (7e-6, 0.30, 0.005, 64),
    "diffcse-roberta-base-sts": (1e-5, 0.20, 0.005, 64),
    "diffcse-bert-base-transfer": (2e-6, 0.15, 0.05, 64),
    "diffcse-roberta-base-transfer": (3e-6, 0.15, 0.05, 128),
}


@pytest.fixture
def file(tmp_path):
    """Write a recipe file."""

    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_packaged_recipes():
    """Each has a tiny run, by which it is trained and resumed in ``test_resume.py``."""
    assert set(recipes()) == set(TINY) > {*TABLE_A_1, *TABLES_12_13}


@pytest.mark.parametrize("name", TABLE_A_1)
def test_a_papers_recipe_has_the_papers_numbers(name):
    recipe = load_recipe(name)
    supervised = name.startswith("sup")
    assert (recipe.train.batch_size, recipe.train.learning_rate) == TABLE_A_1[name]
    start = name.split("simcse-")[1]
    assert recipe.encoder.name == start + "-uncased" * start.startswith("bert")
    encoder, data, settings = recipe.encoder, recipe.data, recipe.train
    assert (encoder.pooler, encoder.head) == ("cls", "mlp" if supervised else "none")
    assert encoder.dropout is None and settings.max_steps is None
    assert data.max_tokens == 32 and data.shuffle and not data.drop_last
    assert (settings.epochs, settings.seed) == (3 if supervised else 1, 42)
    assert (settings.warmup_steps, settings.weight_decay, settings.clip) == (0, 0, 1)
    assert (recipe.evaluation.task, recipe.evaluation.every) == ("stsb-dev", 125)
    assert recipe.objective == {
        "name": "simcse",
        "temperature": 0.05,
        "hard_negatives": 1 if supervised else 0,
        "head": "none" if supervised else "mlp",
        "exclude_duplicates": False,
        **({"hard_negative_weight": 1.0} if supervised else {}),
    }


@pytest.mark.parametrize("name", TABLES_12_13)
def test_a_recipe_of_diffcse_has_its_papers_numbers_and_its_authors_ways(name):
    recipe = load_recipe(name)
    made = config_of("diffcse", {k: v for k, v in recipe.objective.items() if k != "name"})
    numbers = (recipe.train.learning_rate, made.mask_rate, made.rtd_weight, recipe.train.batch_size)
    assert numbers == TABLES_12_13[name]
    start, generator = ("bert-base-uncased", "distilbert-base-uncased")
    if "roberta" in name:
        start, generator = ("roberta-base", "distilroberta-base")
    assert (recipe.encoder.name, made.generator) == (start, generator)
    assert (recipe.encoder.pooler, recipe.encoder.head) == ("cls", "none")
    assert (recipe.data.max_tokens, recipe.train.epochs, made.temperature) == (32, 2, 0.05)
    assert (made.edit, made.edit_positions, made.generator_dropout) == ("argmax", "all", True)
    assert (made.rtd_padding, made.rtd_reduction) == ("as_reference", "mean")
    assert (made.projector, made.rtd_embedding) == ("batchnorm", "projected")
    assert not made.exclude_duplicates
    assert (recipe.train.warmup_steps, recipe.train.weight_decay, recipe.train.clip) == (0, 0, 1)
    assert (recipe.evaluation.task, recipe.evaluation.every) == ("stsb-dev", 125)


@pytest.mark.parametrize("name", ["unsup-simcse", "sup-simcse"])
def test_a_recipe_for_own_text_names_no_encoder_and_masks_duplicates(name):
    recipe, supervised = load_recipe(name), name.startswith("sup")
    assert (recipe.train.batch_size, recipe.train.learning_rate) == (64, (3e-5, 5e-5)[supervised])
    assert recipe.encoder.name == recipe.data.file == ""
    assert recipe.objective["exclude_duplicates"]
    assert recipe.objective["hard_negatives"] == (None if supervised else 0)
    heads = recipe.encoder.head, recipe.objective["head"]
    assert heads == (("mlp", "none") if supervised else (None, "mlp"))


def test_diffcse_for_own_text_edits_as_the_paper_says_and_masks_duplicates():
    recipe = load_recipe("diffcse")
    made = config_of("diffcse", {k: v for k, v in recipe.objective.items() if k != "name"})
    assert recipe.encoder.name == recipe.data.file == ""
    assert made == config_of("diffcse", {}), "the recipe says what the defaults are"
    assert (made.edit, made.edit_positions, made.generator_dropout) == ("sample", "masked", False)


@pytest.mark.parametrize("name", ["pretrain-mlm", "scored-pairs"])
def test_biases_and_layer_norms_do_not_decay_where_those_cited_leave_them_out(name):
    settings = load_recipe(name).train
    assert (settings.weight_decay, settings.decay_all) == (0.01, False)


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_written_out_is_the_same_recipe(name, file):
    recipe = load_recipe(name)
    assert load_recipe(file(to_yaml(recipe))) == recipe
    described = load_recipe(file(describe(recipe)))
    assert dataclasses.replace(described, objective={}) == dataclasses.replace(recipe, objective={})
    (name, given), (same, written) = (
        (it.objective["name"], {k: v for k, v in it.objective.items() if k != "name"})
        for it in (recipe, described)
    )
    assert name == same and written.keys() == fields_of(config_of(name, {})).keys()
    assert config_of(name, written) == config_of(name, given)


SECTIONS = EncoderSettings, DataSettings, ViewSettings, TrainSettings, EvaluationSettings, Recipe


@pytest.mark.parametrize("kind", [*SECTIONS, *(type(config_of(it, {})) for it in available())])
def test_every_setting_is_explained(kind):
    assert set(settings.explanations(kind)) == set(fields_of(kind))
    assert all(text.endswith(".") for text in settings.explanations(kind).values())


@pytest.mark.parametrize(
    ("dotted", "text", "value"),
    [
        ("train.learning_rate", "1e-5", 1e-5),
        ("train.max_steps", "null", None),
        ("train.trackers", "[tensorboard, wandb]", ["tensorboard", "wandb"]),
        ("data.columns", "[0, 2]", ["0", "2"]),
        ("data.shuffle", "no", False),
        ("encoder.dropout", "0", 0.0),
        ("encoder.pooler", "null", None),
        ("encoder.name", "2024", "2024"),
        ("data.file", "2024-05-01", "2024-05-01"),
        ("data.file", "[odd", "[odd"),
        ("data.file", "a: b #1.txt", "a: b #1.txt"),
        ("encoder.name", "pr #2", "pr #2"),
        ("encoder.prompt", "query: ", "query: "),
        ("encoder.prompt", "'null'", "null"),
        ("encoder.prompt", "null", None),
    ],
)
def test_overrides_are_read_as_yaml(dotted, text, value):
    section, key = dotted.split(".")
    recipe = load_recipe("unsup-simcse", {dotted: text})
    assert getattr(getattr(recipe, section), key) == value


@pytest.mark.parametrize(("text", "value"), [("a #b", "a #b"), ("- a", "- a"), ("null", None)])
def test_an_encoder_that_an_objective_names_is_as_it_stands(text, value):
    assert load_recipe("distil", {"objective.teacher": text}).objective["teacher"] == value


# Wrong recipes and overrides stand in ``mistakes.txt``


def test_what_no_command_line_gives_is_refused_too(file):
    with pytest.raises(ConfigError, match=r"mine\.yaml: maximum recursion"):
        load_recipe(file(f"a: {'[' * 2000}"))
    with pytest.raises(ConfigError, match="unknown setting of 'train': ''"):
        load_recipe("unsup-simcse", {"train": 1})


@pytest.mark.parametrize("text", ["", "# nothing\n", "train:\n", "train:\ndata: null\n", "{}"])
def test_what_is_left_out_is_the_default(text, file):
    assert load_recipe(file(text)) == Recipe()
    assert load_recipe(file(text), {"train.epochs": "4"}).train.epochs == 4


def test_a_file_may_start_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.yml").write_bytes(b"\xef\xbb\xbftrain:\n  epochs: 4\n")
    assert load_recipe(tmp_path / "a.yml").train.epochs == 4


def test_every_recipe_has_a_row_that_says_what_it_is_and_is_printed_as_its_settings_are():
    rows = [line.split(maxsplit=1) for line in worked("recipes").out.splitlines()]
    assert [name for name, _ in rows] == list(recipes())
    assert all(len(title) > 20 for _, title in rows)
    assert worked("recipes", "diffcse").out == describe(load_recipe("diffcse"))
