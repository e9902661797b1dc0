"""The mistakes of a first hour: the command, what the message holds (what was given, what is
expected, the remedy), exit code 2, no trace of Python, and nothing left behind."""

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


NLI = "premise\thypothesis\tlabel\np\te\te\n"
FILES = {
    "header.csv": table(0, 1, 2, 3, head="ticket_id,subject,description,created"),
    "ticket.csv": table(1, 2, head="ticket,article"),
    "ids.csv": table(0, 1),
    "labels.csv": "".join(f"{row[1]},{row[0] > 'T-0003'}\n" for row in 2 * ROWS),
    "chinese.csv": "标题,内容\n" + 4 * "打印机坏了,我的打印机从周一起就不能工作了\n",
    "semicolon.csv": "sent0;sent1\na dog;the dog\n",
    "flat.tsv": "a dog\tthe dog\t3\na cat\tsad\t3\nred\tgreen\t3\n",
    "words.tsv": "a dog\tthe dog\thigh\na cat\tsad\tlow\n",
    "list.yaml": "- a\n- b\n",
    "many.yaml": "train:\n  epochs: many\n",
    "empty.txt": "",
    "lines.txt": "a line\n" * 150,
    "nli.tsv": NLI,
    "zero.tsv": NLI.replace("e\n", "0\n"),
    "hidden.tsv": f"{NLI}p\tx\thidden\n",
    "three.tsv": f"{NLI}p\tx\t3\n",
    "five.jsonl": '{"image": "a", "caption": 5}',
    "comma.txt": "a,b,entailment\n",
}  # fmt: skip


@pytest.fixture
def desk(tmp_path, monkeypatch, tiny_bert):
    """A folder with an encoder, text, and files that are wrong in one way each."""
    folder = prepare(tmp_path, monkeypatch, tiny_bert)
    (folder / "text.txt").write_text(TEXT)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "taken").mkdir()
    (folder / "taken" / "thesis.txt").write_text("mine")
    return folder


SHORT = {"PLAIN": PLAIN, "QUIET": QUIET}
MISTAKES = [
    line.split(" => ")
    for line in Path(__file__).with_name("mistakes.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
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
