"""The real command line, run in this process with its output kept, and where mistakes are made."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise

import pytest

from contrasent.cli.app import main


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str


def call(*words, stdin=""):
    """Run ``contrasent WORDS`` in this process."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdout", "stderr")}
    streams["stdin"] = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(sys, "argv", ["contrasent", *map(str, words)])
        for name, stream in streams.items():
            patched.setattr(sys, name, stream)
        main()
    for name in ("stdout", "stderr"):
        streams[name].flush()
    out, err = (streams[name].buffer.getvalue().decode() for name in ("stdout", "stderr"))
    return Said(ended.value.code or 0, out, err)


def worked(*words, stdin=""):
    """Run a command that has to end well."""
    said = call(*words, stdin=stdin)
    assert said.code == 0, said.err
    return said


def refused(*words, stdin=""):
    """Run a command that has to end as a user's mistake does; returns its error message."""
    said = call(*words, stdin=stdin)
    assert said.code == 2, (said.code, said.out, said.err)
    assert "Traceback" not in said.err
    assert said.out == ""
    _, found, message = f"\n{said.err}".rpartition("\nerror: ")
    assert found, said.err
    return message.rstrip("\n")


def started(*words, **settings):
    """Start a command in a process of its own."""
    environment = {**os.environ, **settings.pop("env", {})}
    command = [sys.executable, "-m", "contrasent", *map(str, words)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **pipes, text=True, env=environment, **settings)


def tree(folder):
    """Every path below ``folder``, with the content of the files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def rows(result):
    """The table's cells, row by row, and what stands beneath it."""
    table, _, protocol = result.stdout.partition("\n\n")
    return [line.split() for line in table.split("\n")], protocol


PLAIN = ("--encoder", "tiny", "--data", "text.txt", "--output", "out")
QUIET = ("--evaluation.task", "none", "--evaluation.final", "none", "--max-steps", "2")


def train(*words):
    """The words of a command that works, unless others spoil it, also in place of its own."""
    return in_place(("train", "unsup-simcse", *PLAIN, *QUIET), words)


def in_place(words, others):
    """The words of a command and others, which take the place of the same options."""
    given = {it for it in map(str, others) if it.startswith("--")} - {"--data", "--overwrite"}
    kept = (it for on, it in pairwise(["", *words]) if on not in given and it not in given)
    return (*kept, *others)


def prepare(tmp_path, monkeypatch, encoder):
    """Make the folder one works in, with an encoder, text and scored pairs, and go there."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "text.txt").write_text("".join(f"a dog and {n} cats\n" for n in range(20)))
    (folder / "pairs.tsv").write_text("a dog\tthe dog\t5\na cat\tsad\t1\nred\tgreen\t2\n")
    (folder / "tiny").symlink_to(encoder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return folder
