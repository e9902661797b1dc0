"""Killed, out of room, not allowed to write, or beside another process: at any file operation.

Whatever happens at an operation of a command, the command again (``--resume`` or ``--overwrite``
where it needs one) ends with the bits of one that nothing happened to, and nothing else is left.
For each commit some commands and operations are drawn, more by ``-m acceptance``, all by
``-m exhaustive``.
"""

import os
import random
import signal
import subprocess

import pytest
from helpers import crash
from helpers.crash_commands import ROWS, prepare, whole_index

QUICK = ("fit whitening", "encode", "index", "data", "evaluate", "export s")
BESIDE = 8  # times that a second process is started beside one that stands still


def commit():
    """The name of the commit, from which rows and operations are drawn."""
    words = ["git", "rev-parse", "HEAD"]
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()


LONG = ("encode workers", "index build milvus", "index add milvus")
SHORT = [
    row
    for row in ROWS
    if (row.name.startswith(QUICK) and row.name not in LONG) or row.name == "train unsup-simcse"
]
SOME = random.Random(commit()).sample(SHORT, 8)
MORE = random.Random(commit()).sample([row for row in ROWS if row not in SOME], 8)
HOW_OFTEN = (
    *(pytest.param(2, row, id=row.name) for row in SOME),
    *(pytest.param(5, row, id=f"{row.name}-more", marks=pytest.mark.acceptance) for row in MORE),
    *(pytest.param(None, row, id=f"{row.name}-all", marks=pytest.mark.exhaustive) for row in ROWS),
)


class Trials:
    """A command in a folder of its own, as often as wanted."""

    def __init__(self, row, base, starts):
        self.row, self.template, self.work = row, base / "template", base / "work" / "desk"
        self.work.parent.mkdir()
        prepare(row, self.template, starts)
        crash.fresh(self.template, self.work)
        for words in row.before:
            self.succeed(words)
        self.template = base / "before"
        crash.fresh(self.work, self.template)
        self.seen = [self.read()]
        whole = self.succeed(row.words)
        self.seen.append(self.read())
        self.operations = whole.operations
        self.done = (self.work / row.mark).read_bytes() if row.mark else None
        for words in row.after:
            self.succeed(words)
        self.expected = crash.contents(self.work)

    def succeed(self, words):
        ended = crash.run(words, self.work)
        assert ended.code == 0, (words, ended.said)
        return ended

    def read(self):
        """What a reader sees of an index."""
        return self.succeed((whole_index,)).said if self.row.is_read else ""

    def go_on(self):
        """End the command as its user would, after whatever happened to it."""
        row, words = self.row, self.row.words
        if self.done is None or (self.work / row.mark).read_bytes() != self.done:
            again = (*words, row.again) if row.again else words
            ended = crash.run(again if row.again == "--resume" else words, self.work)
            if ended.code == 2 and row.again == "--overwrite":
                assert "--overwrite" in ended.said, ended.said
                ended = crash.run(again, self.work)
            if ended.code and "exists already" not in ended.said:
                return [f"failed: {ended.said[-600:]}"]
        for words in row.after:
            self.succeed(words)
        return crash.differences(crash.contents(self.work), self.expected)

    def at(self, number, act):
        """What is wrong after something happened at an operation."""
        crash.fresh(self.template, self.work)
        ended = crash.run(self.row.words, self.work, number, act)
        wrong = []
        if act == crash.KILL:
            assert ended.code == -signal.SIGKILL, ended
            wrong += ["a reader sees another index"] * (self.read() not in self.seen)
        elif ended.code not in (0, 2) or "Traceback" in ended.said:
            wrong.append(f"ended with {ended.code}: {ended.said[-1500:]}")
        return wrong + self.go_on()

    def beside_another(self, number):
        """What is wrong after a second process worked where the first stood still."""
        crash.fresh(self.template, self.work)
        first = crash.run(self.row.words, self.work, number, crash.PAUSE, wait=False)
        assert crash.stops(first, 60)
        second = crash.run(self.row.words, self.work, wait=False)
        second.join(3)
        os.kill(first.pid, signal.SIGCONT)
        ends = [crash.end_of(first), crash.end_of(second)]
        wrong = [f"ended with {e.code}: {e.said[-1500:]}" for e in ends if e.code not in (0, 2)]
        if self.done is not None and not ends[0].code and not ends[1].code:
            return wrong
        return wrong + self.go_on()


@pytest.mark.slow
@pytest.mark.parametrize(("often", "row"), HOW_OFTEN)
def test_whatever_happens_the_command_again_ends_alike(often, row, tmp_path, tiny_starts):
    pytest.importorskip(row.needs)
    trials, draw = Trials(row, tmp_path, tiny_starts), random.Random(f"{commit()} {row.name}")
    wrong = []
    for act, number in points(trials.operations, draw)[:often]:
        found = trials.beside_another(number) if act == crash.PAUSE else trials.at(number, act)
        if found:
            wrong.append(f"{row.name}: {act} at {number}, {trials.operations[number - 1]}: {found}")
    assert not wrong, "\n".join(wrong)


def points(operations, draw):
    """What may happen to a command, and at which of its operations, in a drawn order."""
    numbers = {
        act: [n for n, operation in enumerate(operations, 1) if happens(act, operation)]
        for act in (crash.KILL, crash.FULL, crash.READ_ONLY, crash.PAUSE)
    }
    numbers[crash.READ_ONLY] = numbers[crash.READ_ONLY][:1]
    numbers[crash.PAUSE] = draw.sample(numbers[crash.PAUSE], min(BESIDE, len(numbers[crash.PAUSE])))
    every = [(act, number) for act in numbers for number in numbers[act]]
    return draw.sample(every, len(every))


def happens(act, operation):
    """Whether something may happen at an operation."""
    event = operation.split()[0]
    if act == crash.KILL:
        return event != "fsync"
    return act == crash.PAUSE or event not in ("os.remove", "os.rmdir")
