"""``contrasent recipes``, and what a shell completes."""

import os
import subprocess
import sys

import pytest
import yaml
from helpers.command_line import refused, worked

from contrasent.recipe import load_recipe, recipes, summarize_recipes


def test_every_recipe_has_a_row_with_its_data_and_its_paper():
    head, *rows = worked("recipes").out.splitlines()
    assert head.split() == ["recipe", "objective", "needs", "source"]
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


def completed(words):
    """What bash is offered behind ``words``."""
    asked = {
        "_CONTRASENT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "import sys; sys.argv[0] = 'contrasent'; from contrasent.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **asked},
    )
    return done.stdout.split()


@pytest.mark.parametrize("command", ["train", "recipes"])
def test_a_shell_completes_the_names_of_recipes(command):
    offered = [name for name in recipes() if name.startswith("unsup")]
    assert completed(f"contrasent {command} unsup") == offered


def test_a_shell_completes_commands_and_options():
    assert completed("contrasent pre") == ["pretrain"]
    assert completed("contrasent train x --bat") == ["--batch-size"]
