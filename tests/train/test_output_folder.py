"""What a training run may write to, and what it must never take from anybody."""

import shutil

import pytest
from helpers.command_line import refused, train, tree, worked

from contrasent.training import run_folder

pytestmark = pytest.mark.usefixtures("desk")


def test_a_run_is_replaced_only_if_asked_and_never_with_a_file_of_the_users(desk):
    worked(*train())
    before = tree(desk / "out")
    assert "out holds a training run already: --resume continues it" in refused(*train())
    assert tree(desk / "out") == before
    assert "out is complete: nothing to resume" in worked(*train("--resume")).err
    assert tree(desk / "out") == before
    worked(*train("--overwrite", "--train.seed", "7"))
    assert tree(desk / "out") != before
    (desk / "out" / "thesis.txt").write_text("three years of work")
    before = tree(desk / "out")
    message = refused(*train("--overwrite"))
    assert "holds thesis.txt, which no training run wrote" in message and "--output" in message
    assert tree(desk / "out") == before


@pytest.mark.parametrize("flag", [(), ("--resume",), ("--overwrite",)])
@pytest.mark.parametrize("with_recipe", [False, True])
def test_a_folder_of_the_users_is_never_touched(desk, flag, with_recipe):
    mine = desk / "mine"
    (mine / "best").mkdir(parents=True)
    (mine / "thesis.txt").write_text("three years of work")
    (mine / "best" / "thesis.txt").write_text("the better version")
    if with_recipe:
        (mine / "recipe.yaml").write_text(worked("recipes", "unsup-simcse").out)
    before = tree(mine)
    message = refused(*train("--output", "mine", *flag))
    assert "mine holds files that are not of a training run, such as best; choose" in message
    assert tree(mine) == before


@pytest.mark.parametrize("start", ["out", "out/best", "./out/../out/last"])
def test_a_run_cannot_replace_the_encoder_it_starts_from(desk, start):
    worked(*train("--evaluation.task", "pairs.tsv"))
    before = tree(desk / "out")
    assert refused(*train("--encoder", start, "--overwrite")) == (
        f"out holds the encoder to start from, {start}; choose another folder with --output"
    )
    assert tree(desk / "out") == before
    worked(*train("--encoder", start, "--output", "second"))


def test_leftovers_of_a_killed_write_are_no_obstacle(desk):
    (desk / "out").mkdir()
    (desk / "out" / ".recipe.yaml.4711.partial").write_text("data:")
    (desk / "out" / ".state.lock").write_text("4711")
    worked(*train())
    (desk / "out" / ".best.partial").mkdir()
    worked(*train("--overwrite"))
    assert not [name for name in tree(desk / "out") if name.startswith(".")]


@pytest.mark.parametrize("removed", [1, 5, 8, 10])
def test_a_run_that_was_killed_while_it_was_replaced_is_still_known_as_a_run(desk, removed):
    worked(*train())
    for name in run_folder._WRITTEN[:removed]:
        path = desk / "out" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert refused(*train()).startswith("out holds a training run already")
    assert "training: 2 steps" in worked(*train("--resume")).err
    assert (desk / "out" / "last" / "model.safetensors").is_file()


def test_a_folder_taken_while_this_run_was_loading_is_not_lost(desk, monkeypatch):
    checked = run_folder.check_trackers

    def meanwhile(names):
        monkeypatch.setattr(run_folder, "check_trackers", checked)
        worked(*train("--train.seed", "7"))
        checked(names)

    monkeypatch.setattr(run_folder, "check_trackers", meanwhile)
    assert "out holds a training run already" in refused(*train())
    assert "seed: 7" in (desk / "out" / "recipe.yaml").read_text()


def test_resuming_with_other_settings_tells_each_difference():
    worked(*train("--objective.hard_negative_weight", "2"))
    message = refused(*train("--resume", "--train.epochs", "3"))
    assert "weight is 2.0 there, 1.0 now; train.epochs is 1 there, 3 now; repeat" in message
