"""``contrasent recipes``."""

import yaml
from helpers.command_line import refused, worked

from contrasent.recipe import recipes


def test_every_recipe_has_a_row_that_says_what_it_is():
    rows = [line.split(maxsplit=1) for line in worked("recipes").out.splitlines()]
    assert [name for name, _ in rows] == list(recipes())
    assert all(len(title) > 20 for _, title in rows)


def test_a_recipe_is_printed_as_its_settings_are():
    said = worked("recipes", "diffcse")
    assert said.out == worked("train", "diffcse", "--settings").out
    assert yaml.safe_load(said.out)["objective"]["name"] == "diffcse"
    assert "Did you mean 'diffcse', " in refused("recipes", "difcse")
