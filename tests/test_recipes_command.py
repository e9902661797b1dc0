"""``contrasent recipes``."""

import yaml
from helpers.command_line import refused, worked

from contrasent.recipe import load_recipe, recipes, summarize_recipes


def test_every_recipe_has_a_row_with_its_data_and_its_paper():
    head, _, *rows = [line.rstrip() for line in worked("recipes").out.splitlines() if line.strip()]
    assert head.split() == ["objective", "needs", "source"]
    assert [row.split()[0] for row in rows] == list(recipes())
    for row, summary in zip(rows, summarize_recipes(), strict=True):
        assert summary.objective == load_recipe(summary.name).objective["name"]
        assert summary.data and summary.data in row
        assert row.endswith(summary.source)
        assert summary.source[-4:].isdigit()


def test_labelled_pairs_are_needed_where_the_recipe_reads_labels():
    needs = {it.name: it.data for it in summarize_recipes()}
    for name, data in needs.items():
        assert (data == "labelled pairs") == (load_recipe(name).data.labels == "nli")
    assert needs["unsup-simcse"] == "one sentence per line"
    assert needs["sup-simcse"] == "pairs or triplets"


def test_a_recipe_is_printed_as_its_settings_are():
    said = worked("recipes", "diffcse")
    assert said.out == worked("train", "diffcse", "--settings").out
    assert yaml.safe_load(said.out)["objective"]["name"] == "diffcse"
    assert "Did you mean 'diffcse', " in refused("recipes", "difcse")
