"""Tables: every row can be made of what it says, at every scale."""

import pytest

from contrasent.errors import ConfigError
from contrasent.recipe import load_recipe
from contrasent.reproduce.plan import Plan, chosen_rows, load_plan, missing_materials, tables
from contrasent.reproduce.row_builder import RowBuilder

TEXTS = {"sentences", "documents", "labelled", "triplets"}
ALL = {"encoder", "words", *TEXTS}


@pytest.fixture(params=sorted(tables()))
def plan(request):
    return load_plan(request.param)


@pytest.fixture
def baselines():
    return load_plan("baselines")


def test_every_recipe_takes_its_settings_at_every_scale(plan):
    trained = {name: row for name, row in plan.rows.items() if row.make == "train"}
    assert trained
    for row in trained.values():
        assert row.data in plan.materials
        for scale in plan.scales.values():
            load_recipe(row.recipe, {**(row.short if scale.short else {}), **scale.train})


def test_a_row_is_trained_by_its_recipe_but_for_what_is_short(baselines, tmp_path):
    materials = {"encoder": "start", "labelled": "nli.csv", "sentences": "text.txt"}

    def recipe(scale, name):
        shop = RowBuilder(baselines, baselines.scales[scale], materials, tmp_path, "senteval")
        return shop.recipe(name)

    short, whole = recipe("small", "sbert"), recipe("paper", "sbert")
    assert (short.data.max_tokens, whole.data.max_tokens) == (64, 128)
    assert (short.train.max_steps, whole.train.max_steps) == (200, None)
    assert short.train.learning_rate == whole.train.learning_rate == 2e-5
    assert recipe("smoke", "sbert").train.max_steps == 2
    assert (whole.encoder.name, whole.data.file) == ("start", "nli.csv")
    assert whole.evaluation.data_dir == "senteval"
    assert recipe("small", "ct-sbert").encoder.name == str(tmp_path / "sbert" / "run")
    assert recipe("small", "diffcse").encoder.pooler == "cls"


def test_every_trainable_baseline_is_a_row(baselines):
    recipes = {row.recipe for row in baselines.rows.values()}
    assert recipes >= {
        *("nli-softmax", "contrastive-tension", "is-bert", "declutr-small", "quick-thoughts"),
        *("next-sentence", "sg-opt", "cmlm", "consert", "consert-joint", "infersent"),
        *("unsup-simcse-bert-base", "sup-simcse-bert-base", "diffcse"),
    }
    assert {row.make for row in baselines.rows.values()} >= {"whitening", "flow", "sif", "words"}
    poolers = {row.pooler for row in baselines.rows.values() if row.make == "start"}
    assert poolers == {"cls", "mean", "mean_first_last", "mean_embed_last"}


def test_what_cannot_be_made_is_cited(baselines):
    cited = {name for name, row in baselines.rows.items() if row.make == "cited"}
    assert cited == {"skip-thought", "universal-sentence-encoder"}
    for name in cited:
        assert baselines.rows[name].citations
        assert baselines.needs(name) == set()


@pytest.mark.parametrize(
    ("row", "needed"),
    [
        ("glove", {"words"}),
        ("glove-sif", {"words", "sentences"}),
        ("cls", {"encoder"}),
        ("whitening", {"encoder", "triplets"}),
        ("infersent", {"words", "labelled"}),
        ("sbert", {"encoder", "labelled"}),
        ("ct-sbert", {"encoder", "labelled", "sentences"}),
        ("sbert-flow", {"encoder", "labelled", "triplets"}),
        ("declutr", {"encoder", "documents"}),
    ],
)
def test_a_row_needs_what_it_and_its_ancestors_are_made_of(baselines, row, needed):
    assert baselines.needs(row) == needed


def test_a_row_brings_what_it_is_made_from(baselines):
    assert chosen_rows(baselines, ["ct-sbert"]) == ["sbert", "ct-sbert"]
    assert chosen_rows(baselines, ["sbert-whitening", "cls"]) == ["cls", "sbert", "sbert-whitening"]
    assert chosen_rows(baselines, []) == list(baselines.rows)


def test_a_row_brings_what_its_ancestors_are_made_from():
    start = {"label": "", "make": "start"}
    rows = {"a": start, "b": {**start, "of": "a"}, "c": {**start, "of": "b"}, "d": start}
    plan = Plan(title="", materials={}, scales={}, rows=rows)
    assert chosen_rows(plan, ["c"]) == ["a", "b", "c"]
    assert list(plan.families(["a", "b", "c", "d"])) == [["a", "b", "c"], ["d"]]


def test_families_have_every_row_once_after_what_it_is_made_from(baselines):
    made = [name for name, row in baselines.rows.items() if row.make != "cited"]
    families = list(baselines.families(made))
    assert sorted(name for family in families for name in family) == sorted(made)
    for family in families:
        for place, name in enumerate(family):
            above = baselines.rows[name].of
            assert (above in family[:place]) if above else place == 0


def test_rows_without_their_material_are_told(baselines):
    chosen = chosen_rows(baselines, [])
    given = dict.fromkeys(ALL - {"words"}, "some")
    assert missing_materials(baselines, chosen, given) == {
        "glove": {"words"},
        "glove-sif": {"words"},
        "infersent": {"words"},
    }
    with pytest.raises(ConfigError, match="nothing to make a row of: give some of --encoder"):
        missing_materials(baselines, chosen, {})
    with pytest.raises(ConfigError, match="nothing to make"):
        missing_materials(baselines, ["sbert"], {"encoder": "some"})


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"unknown table 'baseline'.*Did you mean 'baselines'"):
        load_plan("baseline")
    with pytest.raises(ConfigError, match=r"unknown row 'sbrt'.*Did you mean 'sbert'"):
        chosen_rows(load_plan("baselines"), ["sbrt"])
