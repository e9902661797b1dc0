"""What a training run may write to, and what it must never take from anybody."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers.careless import prepare, train
from helpers.command_line import refused, tree, worked

from contrasent.files import exclusive
from contrasent.training import metrics_log, run_folder


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch, tiny_bert):
    """The folder one works in."""
    return prepare(tmp_path, monkeypatch, tiny_bert)


def test_a_run_is_not_replaced_unless_asked(desk):
    worked(*train())
    before = tree(desk / "out")
    assert "out holds a training run already; continue it with --resume" in refused(*train())
    assert tree(desk / "out") == before
    said = worked(*train("--resume"))
    assert "out is complete: nothing to resume" in said.err
    assert tree(desk / "out") == before
    worked(*train("--overwrite", "--train.seed", "7"))
    assert tree(desk / "out") != before


def test_a_taken_folder_is_told_before_anything_is_loaded():
    worked(*train())
    code = (
        "import sys; from contrasent.cli.app import main\n"
        "sys.argv = ['contrasent', 'train', 'unsup-simcse', '--output', 'out']\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "2 False\n"
    assert "out holds a training run already" in said.stderr


@pytest.mark.parametrize("flag", [(), ("--resume",), ("--overwrite",)])
@pytest.mark.parametrize("with_recipe", [False, True])
def test_a_folder_of_the_users_is_never_touched(desk, flag, with_recipe):
    mine = desk / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("three years of work")
    (mine / "best").mkdir()
    (mine / "best" / "thesis.txt").write_text("the better version")
    if with_recipe:
        settings = worked("train", "unsup-simcse", "--settings").out
        (mine / "recipe.yaml").write_text(settings)
    before = tree(mine)
    message = refused(*train("--output", "mine", *flag))
    assert "mine holds files that are not of a training run, such as best; choose" in message
    assert tree(mine) == before


def test_what_a_user_put_into_a_run_is_not_removed_with_it(desk):
    worked(*train())
    (desk / "out" / "thesis.txt").write_text("three years of work")
    before = tree(desk / "out")
    message = refused(*train("--overwrite"))
    assert "holds thesis.txt, which no training run wrote" in message and "--output" in message
    assert tree(desk / "out") == before


def test_the_working_folder_itself_is_no_output(desk):
    before = tree(desk)
    for flag in ("--overwrite", "--resume"):
        assert ". holds files that are not of a training run" in refused(
            *train("--output", ".", flag)
        )
    assert tree(desk) == before


@pytest.mark.parametrize("start", ["out", "out/best", "./out/../out/last"])
def test_a_run_cannot_replace_the_encoder_it_starts_from(desk, start):
    worked(*train("--evaluation.task", "pairs.tsv"))
    before = tree(desk / "out")
    assert refused(*train("--encoder", start, "--overwrite")) == (
        f"the encoder to start from, {start}, lies in out; choose another folder with --output"
    )
    assert tree(desk / "out") == before
    worked(*train("--encoder", start, "--output", "second"))


def test_an_empty_folder_is_taken(desk):
    (desk / "out").mkdir()
    worked(*train())


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


@pytest.mark.parametrize("output", ["text.txt", "text.txt/run"])
def test_a_file_is_no_output(desk, output):
    before = tree(desk)
    for flag in ((), ("--overwrite",), ("--resume",)):
        assert refused(*train("--output", output, *flag)) == (
            f"{desk / 'text.txt'} is a file; choose a folder with --output"
        )
    assert tree(desk) == before


def test_a_link_to_nothing_is_no_output(desk):
    (desk / "out").symlink_to(desk / "gone")
    assert refused(*train()) == "out is a link to nothing; choose a folder with --output"


def test_a_read_only_disk_is_told(desk):
    disk = desk / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)]
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root of Linux may mount a disk")
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    try:
        message = refused(*train("--output", "disk/run"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert message == f"{disk} cannot be written to; choose another folder with --output"


def test_two_trainings_cannot_share_a_folder(desk):
    (desk / "out").mkdir()
    with exclusive(desk / "out" / "state"):
        message = refused(*train())
    assert f"out/state is being written by process {os.getpid()}; wait until" in message
    assert tree(desk / "out") == {}


def test_a_folder_taken_while_this_run_was_loading_is_not_lost(desk, monkeypatch):
    """Both found the folder empty; the other was quicker, and is done."""
    checked = metrics_log.check_trackers

    def meanwhile(names):
        monkeypatch.setattr(metrics_log, "check_trackers", checked)
        worked(*train("--train.seed", "7"))
        checked(names)

    monkeypatch.setattr(metrics_log, "check_trackers", meanwhile)
    assert "out holds a training run already" in refused(*train())
    assert "seed: 7" in (desk / "out" / "recipe.yaml").read_text()


# Resuming


def test_resuming_with_other_settings_tells_each_difference():
    worked(*train("--objective.hard_negative_weight", "2"))
    message = refused(*train("--resume", "--train.epochs", "3"))
    assert "weight is 2.0 there, 1.0 now; train.epochs is 1 there, 3 now. Repeat" in message


def test_a_default_that_is_spelt_out_is_no_other_setting():
    worked(*train())
    said = worked(*train("--resume", "--objective.hard_negative_weight", "1"))
    assert "nothing to resume" in said.err


def test_a_damaged_recipe_in_a_run_is_told_with_its_line(desk):
    worked(*train())
    recipe = desk / "out" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("batch_size:", "batch_sise:"))
    message = refused(*train("--resume"))
    assert re.match(r"out/recipe\.yaml:\d+: unknown setting of 'train': 'batch_sise'", message)
