"""A server under load: it is a process of its own, on the loopback, and the clients are here.

Closed loop: so many clients, each sending the next sentence when its answer has come. Open loop:
requests at a rate that does not wait for answers; a latency counts from the moment at which the
request was due.
"""

import json
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, takewhile
from statistics import quantiles

import psutil

from benchmarks.jobs import Values
from benchmarks.worker import high_water

_WORDS = """
    the a of to and in is was for on that with as it by at from his her they are this which be
    river market paper engine doctor winter music school window letter garden bridge summer city
    runs builds reads finds brings opens writes carries paints teaches follows leaves enters
"""
_THREADS, _DEPTH = 256, 200

Answers = list[tuple[int, float]]
"""Status, 0 for a connection that broke, and seconds of each request."""


def sentences(seed: str) -> Iterator[str]:
    """Distinct sentences of about 25 tokens."""
    draw = random.Random(seed)
    while True:
        yield " ".join(draw.choices(_WORDS.split(), k=draw.randint(16, 28)))


def repeated(seed: str, exponent: float = 1.2) -> Iterator[str]:
    """Sentences by Zipf's law, of 2,000."""
    draw, source = random.Random(seed), sentences(seed)
    texts = [next(source) for _ in range(2000)]
    weights = [1 / rank**exponent for rank in range(1, len(texts) + 1)]
    while True:
        yield from draw.choices(texts, weights, k=1000)


class Client:
    """One connection that is kept open; leaner than a library's, as it shares the processor."""

    def __init__(self, port: int, path: str) -> None:
        self._port, self._file = port, None
        self._head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"

    def send(self, text: str) -> int:
        """The status of the answer; 0 if the connection broke."""
        body = json.dumps({"input": text, "model": "model"}).encode()
        try:
            if self._file is None:
                with socket.create_connection(("127.0.0.1", self._port), timeout=60) as connected:
                    self._file = connected.makefile("rwb")
            self._file.write(f"{self._head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            self._file.flush()
            lines = list(takewhile(lambda line: line not in (b"", b"\r\n"), self._file))
            head = dict(line.strip().lower().split(b": ", 1) for line in lines[1:])
            self._file.read(int(head[b"content-length"]))
            if head.get(b"connection") == b"close":
                self.close()
        except (OSError, LookupError, ValueError):
            self.close()
            return 0
        return int(lines[0].split()[1])

    def close(self) -> None:
        """Leave."""
        if self._file is not None:
            self._file.close()
        self._file = None


class Serve:
    """A server under loads; in the line that starts it, MODEL and PORT stand for theirs."""

    def __init__(
        self, line: str, path: str, folder: str, python: str, seconds: float, rate: float
    ) -> None:
        self._path, self._seconds, self._rate, self._fastest = path, seconds, rate, 0.0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        words = line.replace("MODEL", shlex.quote(folder)).replace("PORT", str(self._port))
        command = [python or sys.executable, *shlex.split(words)]
        with tempfile.TemporaryFile("w+") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
            while not self._answers():
                if self._process.poll() is not None:
                    log.seek(0)
                    *_, reason = ["the server ended", *log.read().strip().splitlines()]
                    raise (ImportError if "No module named" in reason else RuntimeError)(reason)
                time.sleep(0.2)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def __del__(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def memory(self) -> int:
        """The most bytes that the server and its workers have held."""
        server = psutil.Process(self._process.pid)
        return sum(high_water(it.pid) for it in [server, *server.children(recursive=True)])

    def round(self, number: int, load: str) -> Values:
        """Load the server: so many clients, ``zipf``, or ``overload``, 5 times what clients got."""
        start, seed = time.perf_counter(), f"{load} {number}"
        if load == "zipf":
            answers = self._open_loop(self._rate, repeated(seed))
        elif load == "overload":
            answers = self._open_loop(5 * self._fastest, sentences(seed))
        else:
            answers = self._closed_loop(int(load), seed)
        seconds = time.perf_counter() - start
        calls = [latency for status, latency in answers if status == 200]
        if len(calls) < 2:
            raise RuntimeError(f"{len(calls)} of {len(answers)} requests were answered")
        if load.isdigit():
            self._fastest = max(self._fastest, len(calls) / seconds)
        refused = sum(status in (429, 503) for status, _ in answers)
        return {
            "sentences": len(calls),
            "seconds": seconds,
            "calls": quantiles(calls, n=_DEPTH, method="inclusive"),
            "refused": refused,
            "failed": len(answers) - len(calls) - refused,
        }

    def _closed_loop(self, clients: int, seed: str) -> Answers:
        end = time.perf_counter() + self._seconds

        def answers(number: int) -> Answers:
            client, texts = Client(self._port, self._path), sentences(f"{seed} {number}")
            measured = Answers()
            while (start := time.perf_counter()) < end:
                measured.append((client.send(next(texts)), time.perf_counter() - start))
            client.close()
            return measured

        with ThreadPoolExecutor(clients) as pool:
            return list(chain.from_iterable(pool.map(answers, range(clients))))

    def _open_loop(self, rate: float, texts: Iterable[str]) -> Answers:
        start, free = time.perf_counter(), list[Client]()

        def answer(number: int, text: str) -> tuple[int, float]:
            due = start + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            try:
                client = free.pop()
            except IndexError:
                client = Client(self._port, self._path)
            measured = client.send(text), time.perf_counter() - due
            free.append(client)
            return measured

        with ThreadPoolExecutor(_THREADS) as pool:
            answers = list(pool.map(answer, range(int(rate * self._seconds)), texts))
        for client in free:
            client.close()
        return answers
