"""A soak: a server, a training and workers that encode, killed at random and started again.

``python -m benchmarks.crasher --minutes 60 --output docs/results/soak.csv``. Every five seconds
a process and its workers are killed with probability 0.3. A server's index is read after each kill:
it must hold whatever the server acknowledged, and of other requests all or nothing. A training and
an encoding must end with the bytes of one that was left alone, and leave nothing behind.
"""

import argparse
import csv
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from benchmarks.machine import described
from contrasent.files import write_text, writing
from contrasent.reproduce import SMOKE_MODEL
from contrasent.search import Index

_EVERY, _SHARE, _CLIENTS, _TEXTS = 5.0, 0.3, 4, 3
_DRAW = random.Random(0)
_ENCODER = ("--pooler", "mean", "--device", "cpu", "--precision", "fp32")

_ENCODE = ("encode", "encoder", "text.txt", "rows.npy", "--workers", 2, "--shard-size", 500)
_ENCODE += _ENCODER
_TRAIN = (
    *("train", "unsup-simcse", "--encoder", "encoder", "--data", "text.txt", "--output", "run"),
    *("--max-steps", 500, "--batch-size", 32, "--precision", "fp32", "--evaluation.every", 25),
    *("--evaluation.task", "none", "--evaluation.final", "none"),
)


@dataclass
class Soak:
    """What one of the three went through; ``wrong`` describes whatever was lost or left."""

    kills: int = 0
    completed: int = 0
    acknowledged: int = 0
    wrong: list[str] = field(default_factory=list)


def start(folder: Path, *words: object) -> subprocess.Popen[bytes]:
    """Start a command in a group of its own, so that its workers are killed with it."""
    command = [sys.executable, "-m", "contrasent", *map(str, words)]
    with (folder / "said.txt").open("wb") as said:
        own = {"cwd": folder, "start_new_session": True}
        return subprocess.Popen(command, stdout=said, stderr=said, **own)


def succeed(folder: Path, *words: object) -> None:
    """Run a command that must end well."""
    if start(folder, *words).wait():
        raise RuntimeError((folder / "said.txt").read_text())


def survives(process: subprocess.Popen[bytes], end: float, works: Callable[[], bool]) -> bool:
    """Whether a process ends by itself, rather than be killed at some time once it ``works``."""
    while process.poll() is None and not works() and time.monotonic() < end:
        time.sleep(0.1)
    while True:
        try:
            process.wait(_EVERY)
            return True
        except subprocess.TimeoutExpired:
            if _DRAW.random() < _SHARE or time.monotonic() > end:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return False


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}


def soak_command(folder: Path, words: Sequence[object], file: str, end: float) -> Soak:
    """Kill a command until it ends, compare its file with one of a whole run, and begin anew."""
    soak = Soak()
    succeed(folder, *words)
    whole, listing = (folder / file).read_bytes(), names(folder)
    again = [*words, "--resume"] if words[0] == "train" else words
    output, said = folder / Path(file).parts[0], folder / "said.txt"
    shutil.rmtree(output) if output.is_dir() else output.unlink()
    while time.monotonic() < end:
        process = start(folder, *again)
        if not survives(process, end, lambda: said.stat().st_size > 0):
            soak.kills += 1
            continue
        soak.completed += 1
        if process.returncode or (folder / file).read_bytes() != whole:
            soak.wrong.append((folder / "said.txt").read_text()[-500:])
        soak.wrong += [f"left: {name}" for name in names(folder) - listing]
        shutil.rmtree(output) if output.is_dir() else output.unlink()
    return soak


class Load:
    """Clients that add and remove texts, and remember what the server acknowledged."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/index"
        self.there: dict[str, str] = {}
        self.gone: set[str] = set()
        self.open: list[list[str]] = []  # ids of requests without an answer
        self.ending, self.lock, self.answers = threading.Event(), threading.Lock(), 0

    def work(self) -> None:
        """Change the index until the end."""
        own: list[str] = []
        while not self.ending.is_set():
            new, removed = {uuid4().hex: uuid4().hex for _ in range(_TEXTS)}, own[:1]
            body = {"texts": [*new.values()], "ids": [*new], "remove": removed}
            sent = json.dumps(body).encode()
            request = urllib.request.Request(self.url, sent, {"content-type": "application/json"})
            with self.lock:
                for name in removed:  # until the answer comes, it may be there or not
                    self.there.pop(name, None)
            try:
                urllib.request.urlopen(request, timeout=60).close()
            except OSError:
                with self.lock:
                    self.open.append([*new])
                own = own[1:]
                time.sleep(0.2)
                continue
            with self.lock:
                self.answers += 1
                self.there |= new
                self.gone.update(removed)
            own = [*own[1:], *new]

    def wrong(self, index: Index) -> list[str]:
        """What an index lacks, or should not hold."""
        found = {i: t for rows in index.blocks() for i, t in zip(rows.ids, rows.texts, strict=True)}
        with self.lock:
            lost = [name for name, text in self.there.items() if found.get(name) != text]
            back = [name for name in self.gone if name in found]
            half = [ids for ids in self.open if 0 < sum(name in found for name in ids) < _TEXTS]
        return [f"lost: {it}" for it in lost] + [f"back: {it}" for it in [*back, *half]]


def soak_server(folder: Path, end: float) -> Soak:
    """Kill a server that writes to its index, and look for whatever it acknowledged."""
    soak = Soak()
    succeed(folder, "index", "build", "encoder", "text.txt", "index", *_ENCODER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    load, where = Load(port), ("--port", port)
    with ThreadPoolExecutor(_CLIENTS) as clients:
        for _ in range(_CLIENTS):
            clients.submit(load.work)
        while time.monotonic() < end:
            process = start(folder, "serve", "encoder", "--index", "index", *where, *_ENCODER)
            answered = load.answers
            if survives(process, end, lambda before=answered: load.answers > before):
                soak.wrong.append((folder / "said.txt").read_text()[-500:])
                break
            soak.kills += 1
            time.sleep(0.5)  # until clients have noticed
            soak.wrong += load.wrong(Index.open(folder / "index"))
        load.ending.set()
    soak.acknowledged = load.answers
    return soak


def main() -> None:
    """Run the three, a third of the time each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with TemporaryDirectory() as base:
        folder = Path(base)
        os.environ["CONTRASENT_CACHE"] = str(folder / "cache")
        lines = (f"text {n} of a few words\n" for n in range(30_000))
        write_text(folder / "text.txt", "".join(lines))
        shutil.copytree(SMOKE_MODEL, folder / "encoder")
        third, now = 20 * given.minutes, time.monotonic
        weights = "run/last/model.safetensors"
        found = {"serve": soak_server(folder, now() + third)}
        found["train"] = soak_command(folder, _TRAIN, weights, now() + third)
        found["encode"] = soak_command(folder, _ENCODE, "rows.npy", now() + third)
    machine = described()
    about = f"{machine['processor']}, {machine['cores']} cores"
    rows = [["what", "minutes", "kills", "completed", "acknowledged", "wrong", "machine"]]
    for name, soak in found.items():
        print(name, soak)
        counts = (soak.kills, soak.completed, soak.acknowledged, len(soak.wrong))
        rows.append([name, given.minutes / 3, *counts, about])
    with writing(given.output) as partial, partial.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    sys.exit(any(soak.wrong for soak in found.values()))


if __name__ == "__main__":
    main()
