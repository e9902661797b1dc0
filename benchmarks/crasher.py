"""A soak: a server, a training and workers that encode, killed at random and started again.

``python -m benchmarks.crasher --minutes 60 --output docs/results/soak.csv``. Every five seconds
a process and its workers are killed with probability 0.3. A server's index is read after each kill:
it must hold whatever the server acknowledged, and of other requests all or nothing. A training and
an encoding must end with the bytes of one that was left alone, and leave nothing behind.
"""

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from uuid import uuid4

import typer

from benchmarks.results import described
from contrasent.data import build
from contrasent.files import write_text
from contrasent.reproduce import SMOKE_MODEL
from contrasent.search import Index

_EVERY, _SHARE, _CLIENTS, _TEXTS = 5.0, 0.3, 4, 3
_DRAW, LOG = random.Random(0), "log.txt"
_ENCODER = "--pooler mean --device cpu --precision fp32"
_ENCODE = f"encode encoder text.txt rows.npy --workers 2 --shard-size 500 {_ENCODER}"
_TRAIN = (
    "train unsup-simcse --encoder encoder --data text.txt --output run --max-steps 500 "
    "--batch-size 32 --precision fp32 --evaluation.every 25 --evaluation.task none "
    "--evaluation.final none"
)


@dataclass
class Soak:
    """What one of the three went through; ``wrong`` describes whatever was lost or left."""

    kills: int = 0
    completed: int = 0
    acknowledged: int = 0
    wrong: list[str] = field(default_factory=list)


def start(folder: Path, words: str) -> subprocess.Popen[bytes]:
    """Start a command in a group of its own, so that its workers are killed with it."""
    command = [sys.executable, "-m", "contrasent", *words.split()]
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)


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


def soak_command(folder: Path, words: str, file: str, end: float) -> Soak:
    """Kill a command until it ends, compare its file with one of a whole run, and begin anew."""
    soak, output, log = Soak(), folder / Path(file).parts[0], folder / LOG
    start(folder, words).wait()
    whole, listing = (folder / file).read_bytes(), set(folder.iterdir())
    begin_anew = partial(shutil.rmtree, output) if output.is_dir() else output.unlink
    begin_anew()
    while time.monotonic() < end:
        process = start(folder, f"{words} --resume" if words == _TRAIN else words)
        if not survives(process, end, lambda: log.stat().st_size > 0):
            soak.kills += 1
            continue
        soak.completed += 1
        if process.returncode or (folder / file).read_bytes() != whole:
            soak.wrong.append(log.read_text()[-500:])
        soak.wrong += [f"left: {path.name}" for path in set(folder.iterdir()) - listing]
        begin_anew()
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
        mine: list[str] = []
        head = {"content-type": "application/json"}
        while not self.ending.is_set():
            new, removed = {uuid4().hex: uuid4().hex for _ in range(_TEXTS)}, mine[:1]
            body = {"texts": [*new.values()], "ids": [*new], "remove": removed}
            request = urllib.request.Request(self.url, json.dumps(body).encode(), head)
            with self.lock:
                for name in removed:  # until the answer comes, it may be there or not
                    self.there.pop(name, None)
            mine = mine[1:]
            try:
                urllib.request.urlopen(request, timeout=60).close()
            except OSError:
                with self.lock:
                    self.open.append([*new])
                time.sleep(0.2)
                continue
            with self.lock:
                self.answers += 1
                self.there |= new
                self.gone.update(removed)
            mine += new

    def wrong(self, index: Index) -> list[str]:
        """What an index lacks, or should not hold."""
        pairs = (zip(block.ids, block.texts, strict=True) for block in index.blocks())
        rows = dict(chain.from_iterable(pairs))
        with self.lock:
            lost = [f"lost: {name}" for name, text in self.there.items() if rows.get(name) != text]
            back = [f"back: {name}" for name in self.gone if name in rows]
            half = [ids for ids in self.open if 0 < len(rows.keys() & ids) < _TEXTS]
        return [*lost, *back, *(f"half: {ids}" for ids in half)]


def soak_server(folder: Path, end: float) -> Soak:
    """Kill a server that writes to its index, and look for whatever it acknowledged."""
    soak = Soak()
    start(folder, f"index build encoder text.txt index {_ENCODER}").wait()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    load = Load(port)
    with ThreadPoolExecutor(_CLIENTS) as clients:
        for _ in range(_CLIENTS):
            clients.submit(load.work)
        while time.monotonic() < end:
            process = start(folder, f"serve encoder --index index --port {port} {_ENCODER}")
            answered = load.answers
            if survives(process, end, lambda before=answered: load.answers > before):
                soak.wrong.append((folder / LOG).read_text()[-500:])
                break
            soak.kills += 1
            time.sleep(0.5)  # until clients have noticed
            soak.wrong += load.wrong(Index.open(folder / "index"))
        load.ending.set()
    soak.acknowledged = load.answers
    return soak


def main(output: Annotated[Path, typer.Option()], minutes: float = 60.0) -> None:
    """Run the three, a third of the time each."""
    with TemporaryDirectory() as base:
        folder, third, now = Path(base), 20 * minutes, time.monotonic
        os.environ["CONTRASENT_CACHE"] = str(folder / "cache")
        texts = (f"text {n} of a few words\n" for n in range(30_000))
        write_text(folder / "text.txt", "".join(texts))
        shutil.copytree(SMOKE_MODEL, folder / "encoder")
        weights = "run/last/model.safetensors"
        soaks = {"serve": soak_server(folder, now() + third)}
        soaks["train"] = soak_command(folder, _TRAIN, weights, now() + third)
        soaks["encode"] = soak_command(folder, _ENCODE, "rows.npy", now() + third)
    machine = "{processor}, {cores} cores".format(**described())
    names, rows = ("what", "minutes", *asdict(Soak()), "machine"), []
    for name, soak in soaks.items():
        print(name, soak)
        counts = {**asdict(soak), "wrong": len(soak.wrong)}
        rows.append([name, minutes / 3, *counts.values(), machine])
    build.write_rows(output, names, rows)
    sys.exit(any(soak.wrong for soak in soaks.values()))


if __name__ == "__main__":
    typer.run(main)
