"""A disk that fills up, a real one where a small one can be mounted: what was saved stays whole,
the message says what to do, and with room again the work goes on."""

import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.command_line import refused, tree, worked
from helpers.run_files import weights
from helpers.tiny_sentences import SENTENCES

from contrasent.model.encoder import SentenceEncoder
from contrasent.training import loop


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 2 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root of Linux may mount a small disk")
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    yield folder
    # Lazily, because weights that were loaded may be mapped until they are forgotten.
    subprocess.run(["umount", "-l", str(folder)], check=True)


def leave_room(disk, room):
    """Fill the disk until ``room`` bytes are left."""
    system = os.statvfs(disk)
    free = system.f_bavail * system.f_frsize
    (disk / "ballast").write_bytes(bytes(max(free - room, 0)))


@pytest.fixture(scope="module")
def whole(arguments, tmp_path_factory):
    """The same run on a disk with room."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    worked(*arguments("unsup-simcse", "text.txt", folder))
    return folder


def test_a_run_goes_on_when_there_is_room_again(arguments, whole, small_disk, monkeypatch):
    """The disk is full when the first state was written."""
    run, kept, save = small_disk / "run", {}, loop.save_state

    def saved(*args):
        save(*args)
        if not kept:
            leave_room(small_disk, 0)
            kept.update(tree(run / "best"))

    monkeypatch.setattr(loop, "save_state", saved)
    command = arguments("unsup-simcse", "text.txt", run)
    message = refused(*command)
    assert message.endswith("make room, and run the command again")
    assert tree(run / "best") == kept
    SentenceEncoder.load(run, device="cpu")
    assert [path.name for path in (run / "state").iterdir()] == ["step-000000005"]
    assert not (run / "result.json").exists()

    (small_disk / "ballast").unlink()
    assert "resuming after 5 of 13 steps" in worked(*command, "--resume").err
    for which in ("best", "last"):
        assert weights(run, which) == weights(whole, which)


def test_encode_goes_on_when_there_is_room_again(unsupervised, shelf, small_disk):
    leave_room(small_disk, 12_288)
    output = small_disk / "rows.npy"
    how = ("--precision", "fp32", "--shard-size", 40)
    command = ("encode", unsupervised[0], shelf / "text.txt", output, *how)
    message = refused(*command)
    assert "No space left on device" in message
    assert "make room, and run the command again" in message
    assert not output.exists()
    (small_disk / "ballast").unlink()
    worked(*command)
    assert [path.name for path in small_disk.iterdir()] == [output.name]
    assert np.load(output).shape == (len(SENTENCES), 16)
