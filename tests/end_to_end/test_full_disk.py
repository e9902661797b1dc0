"""A disk that fills up, a real one where a small one can be mounted, and too little memory: what
was saved stays whole, and the message says what to do."""

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command_line import refused, tree, worked
from helpers.crash import run
from helpers.crash_commands import through
from helpers.run_files import weights
from helpers.tiny_sentences import SENTENCES, sentence, write

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


def test_a_run_goes_on_when_there_is_room_again(arguments, small_disk, tmp_path, monkeypatch):
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
    worked(*arguments("unsup-simcse", "text.txt", tmp_path / "whole"))
    for which in ("best", "last"):
        assert weights(run, which) == weights(tmp_path / "whole", which)


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


def out_of(kind):
    """Ask for more memory than there is."""
    if kind == "torch":
        return torch.empty(2**50)
    if kind == "python":
        return bytearray(2**60)
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


RUN = "unsup-simcse --encoder bert --data text.txt --batch-size 8 --evaluation.task none"


@pytest.mark.parametrize("kind", ["torch", "python", "system"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("encode bert text.txt rows.npy", "try smaller batches or another --dev"),
        ("index build bert text.txt index", "try smaller batches or another --dev"),
        (f"train {RUN}", "--train.gradcache_chunk 128 takes .* a smaller --batch-size"),
    ],
    ids=["encode", "index", "train"],
)
def test_an_allocation_that_fails_names_what_to_lower(
    words, said, kind, shelf, tiny_bert, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").symlink_to(shelf / "text.txt")
    (tmp_path / "bert").symlink_to(tiny_bert)
    monkeypatch.setattr(SentenceEncoder, "forward", lambda *_, **__: out_of(kind))
    message = refused(*words.split())
    assert message.startswith("out of memory")
    assert re.search(said, message)


def limited(megabytes, *words):
    """Run a command with so much more memory than it starts with."""
    status = Path("/proc/self/status").read_text()
    data = int(re.search(r"VmData:\s+(\d+)", status)[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (data + megabytes * 2**20,) * 2)
    through(lambda: None, *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("megabytes", "words"),
    [
        (150, "encode bert text.txt rows.npy --batch-tokens 2000000"),
        (20, "index build bert text.txt out"),
    ],
    ids=["encode", "index"],
)
def test_a_real_limit_is_told(megabytes, words, tiny_bert, tmp_path):
    work = tmp_path / "desk" / "work"
    work.mkdir(parents=True)
    (work / "bert").symlink_to(tiny_bert)
    write(work / "text.txt", [sentence(n, 30) for n in range(20_000)])
    ended = run((limited, megabytes, *words.split(), "--precision", "fp32"), work)
    assert ended.code == 2, ended.said
    assert "\nerror: out of memory" in ended.said
    assert "Traceback" not in ended.said
