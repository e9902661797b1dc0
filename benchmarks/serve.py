"""Requests per second and latency of the server: ``python -m benchmarks.serve MODEL``.

Closed loop: so many clients, each sending the next sentence when its answer has come. Open loop:
requests at a rate that does not wait for answers, most of them for sentences that came before
(Zipf); a latency counts from the moment at which the request was due. The clients are in this
process and the server on the loopback, so both share the processor. ``--infinity PYTHON`` measures
infinity-emb of that interpreter in the same run.
"""

import argparse
import asyncio
import json
import random
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

from psutil import Process

_WORDS = """
    the a of to and in is was for on that with as it by at from his her they are this which be
    river market paper engine doctor winter music school window letter garden bridge summer city
    runs builds reads finds brings opens writes carries paints teaches follows leaves enters
"""


@dataclass(frozen=True)
class Measured:
    """A run; latencies in milliseconds."""

    server: str
    loop: str
    seconds: float
    answered: int
    refused: int
    failed: int
    per_second: float
    median: float
    p99: float
    slowest: float


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._path = path
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def embed(self, text: str) -> int:
        """The status of the answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = json.dumps({"input": text, "model": "model"}).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", answer, re.IGNORECASE)
        await self._reader.readexactly(int(length[1]) if length else 0)
        if b"connection: close" in answer.lower():
            self.close()
            self._writer = None
        return int(answer.split(b" ", 2)[1])

    def close(self) -> None:
        """Leave."""
        if self._writer is not None:
            self._writer.close()


def sentences(seed: int) -> Iterator[str]:
    """Distinct sentences of about 25 tokens."""
    choose = random.Random(seed)
    while True:
        yield " ".join(choose.choices(_WORDS.split(), k=choose.randint(16, 28)))


def repeated(seed: int, exponent: float = 1.2) -> Iterator[str]:
    """Sentences by Zipf's law, of 2,000."""
    choose, source = random.Random(seed), sentences(seed)
    texts = [next(source) for _ in range(2000)]
    weights = [1 / rank**exponent for rank in range(1, len(texts) + 1)]
    while True:
        yield from choose.choices(texts, weights, k=1000)


async def closed_loop(
    port: int, path: str, clients: int, seconds: float
) -> list[tuple[int, float]]:
    """Status and latency of each request."""
    end, results = time.perf_counter() + seconds, list[tuple[int, float]]()

    async def one(number: int) -> None:
        client, texts = Client(port, path), sentences(number + int(time.time()))
        while (start := time.perf_counter()) < end:
            status = await client.embed(next(texts))
            results.append((status, time.perf_counter() - start))
        client.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    return results


async def open_loop(
    port: int, path: str, rate: float, seconds: float, texts: Iterator[str]
) -> list[tuple[int, float]]:
    """Status, 0 for a connection that broke, and latency since the request was due."""
    free, results = list[Client](), list[tuple[int, float]]()

    async def one(due: float, text: str) -> None:
        client = free.pop() if free else Client(port, path)
        try:
            status = await client.embed(text)
            free.append(client)
        except (OSError, asyncio.IncompleteReadError):
            status = 0
        results.append((status, time.perf_counter() - due))

    start, tasks = time.perf_counter(), []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(one(due, next(texts))))
    await asyncio.gather(*tasks)
    for client in free:
        client.close()
    return results


def measured(
    server: str, loop: str, seconds: float, results: Sequence[tuple[int, float]]
) -> Measured:
    """The figures of a run; latencies are of answered requests."""
    good = [latency * 1000 for status, latency in results if status == 200] or [float("nan")] * 2
    refused = sum(status in (429, 503) for status, _ in results)
    answered = sum(status == 200 for status, _ in results)
    cuts = quantiles(good * 2 if len(good) == 1 else good, n=100)
    return Measured(
        server=server,
        loop=loop,
        seconds=seconds,
        answered=answered,
        refused=refused,
        failed=len(results) - answered - refused,
        per_second=round(answered / seconds, 1),
        median=round(cuts[49], 2),
        p99=round(cuts[98], 2),
        slowest=round(max(good), 2),
    )


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own, from the moment it answers."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 300
        while time.monotonic() < end and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> list[Measured]:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rate", type=float, default=100, help="requests/s of the open loop")
    parser.add_argument("--overload", type=float, default=5, help="times what 32 clients got")
    parser.add_argument("--infinity", metavar="PYTHON", help="an interpreter with infinity-emb")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--options", default="", help="of contrasent serve, as one argument")
    given = parser.parse_args(arguments)
    results: list[Measured] = []
    port = free_port()
    command = [sys.executable, "-m", "contrasent", "serve", given.model, "--port", str(port)]
    with running([*command, *shlex.split(given.options)], port) as process:
        results += _runs("contrasent", port, "/v1/embeddings", given)
        memory = Process(process.pid).memory_info
        before = memory().rss
        rate = given.overload * results[-2].per_second if len(results) > 1 else 0
        flood = open_loop(port, "/v1/embeddings", rate, given.seconds, sentences(99))
        results.append(
            measured("contrasent", f"overload {rate:.0f}/s", given.seconds, asyncio.run(flood))
        )
        print(f"memory: {before / 1e6:.0f} MB, after the overload {memory().rss / 1e6:.0f} MB")
    if given.infinity:
        port = free_port()
        start = "from infinity_emb.cli import cli; cli()"
        command = [given.infinity, "-c", start, "v2", "--model-id", given.model]
        with running([*command, "--port", str(port), "--device", "cpu"], port):
            results += _runs("infinity-emb", port, "/embeddings", given)
    names = list(asdict(results[0]))
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    for result in results:
        print(f"| {' | '.join(map(str, asdict(result).values()))} |")
    if given.json:
        lines = json.dumps([asdict(result) for result in results], indent=1)
        Path(given.json).write_text(lines + "\n", encoding="utf-8")
    return results


def _runs(server: str, port: int, path: str, given: argparse.Namespace) -> list[Measured]:
    asyncio.run(closed_loop(port, path, 8, 2))  # the first calls compile products
    results = []
    for clients in given.clients:
        run = asyncio.run(closed_loop(port, path, clients, given.seconds))
        results.append(measured(server, f"closed, {clients} clients", given.seconds, run))
    texts = repeated(7)
    zipf = asyncio.run(open_loop(port, path, given.rate, given.seconds, texts))
    results.append(measured(server, f"open, {given.rate:g}/s, Zipf", given.seconds, zipf))
    return results


if __name__ == "__main__":
    main()
