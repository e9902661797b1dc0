"""The mistakes of a first hour: the command, what the message holds (what was given, what is
expected, the remedy), exit code 2, no trace of Python, and nothing left behind."""

import json
import shlex
from pathlib import Path

import pytest
from helpers.command_line import PLAIN, QUIET, call, prepare, tree

TEXT = "".join(f"My printer does not work since Monday, ticket {n}.\n" for n in range(20))
ROWS = [
    (f"T-{n:04}", f"My printer fails again {n}", f"Please turn number {n} off and on", "2024-01-02")
    for n in range(8)
]


def table(*numbers, head=None):
    lines = [",".join(row[n] for n in numbers) for row in ROWS]
    return "".join(f"{line}\n" for line in ([head, *lines] if head else lines))


GENERATED = {
    "header.csv": table(0, 1, 2, 3, head="ticket_id,subject,description,created"),
    "ticket.csv": table(1, 2, head="ticket,article"),
    "ids.csv": table(0, 1),
    "labels.csv": "".join(f"{row[1]},{row[0] > 'T-0003'}\n" for row in 2 * ROWS),
    "chinese.csv": "标题,内容\n" + 4 * "打印机坏了,我的打印机从周一起就不能工作了\n",
    "lines.txt": "a line\n" * 150,
    "text.txt": TEXT,
}
LINES = Path(__file__).with_name("mistakes.txt").read_text("utf-8").splitlines()
STATED = [line.split(maxsplit=2)[1:] for line in LINES if line.startswith("FILE ")]
FILES = GENERATED | {name: json.loads(content) for name, content in STATED}


@pytest.fixture
def desk(tmp_path, monkeypatch, tiny_starts):
    """A folder with encoders, text, and files that are wrong in one way each."""
    folder = prepare(tmp_path, monkeypatch, tiny_starts["bert"])
    (folder / "masked").symlink_to(tiny_starts["masked-lm"])
    (folder / "glove.txt").symlink_to(tiny_starts["glove"])
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


SHORT = {"PLAIN": PLAIN, "QUIET": QUIET}
MISTAKES = [line.split(" => ") for line in LINES if not line.startswith(("#", "FILE "))]
"""The command, and what its message has to hold."""


@pytest.mark.parametrize(("command", "held"), MISTAKES, ids=[it[-48:] for it, _ in MISTAKES])
def test_a_mistake_is_explained_and_leaves_nothing_behind(desk, command, held):
    before = tree(desk)
    said = call(*(it for word in shlex.split(command) for it in SHORT.get(word, (word,))))
    assert said.code == 2, said
    assert "Traceback" not in said.err
    message = said.err.rpartition("error: ")[2] if "error: " in said.err else said.err
    for part in held.split(" | "):
        assert part in message, message
    assert tree(desk) == before
