"""Search among many vectors: build time, memory, recall and latency of each kind of index.

``contrasent encode MODEL sentences.txt rows.npy --normalize``, then
``python -m benchmarks.search rows.npy --rows 1000000 --kinds flat,ivfpq``

The vectors are generated around real embeddings: ``normalise(a + (b - c) / 2)`` for embeddings a, b
and c of three random sentences, whose differences have the covariance of the embeddings. A tenth of
the sentences is held out: the queries are generated around those, in the same way.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil

from benchmarks.machine import high_water
from contrasent.search import Index

_CHUNK = 16_384
_QUERIES, _TOP_K = 300, 10


class GeneratedEncoder:
    """Generates the vectors of ``total`` rows in place of encoding their texts."""

    pooler, head_name, engine, normalize, max_tokens = "mean", "none", "torch", True, 256

    def __init__(self, embeddings: np.ndarray, total: int) -> None:
        self.name, self.width = "generated", embeddings.shape[1]
        self._embeddings, self._total = embeddings, total

    def fingerprint(self) -> str:
        """A name that no encoder has."""
        return "generated"

    def encode_stream(self, sentences: Iterable[str], **_: object) -> Iterator[np.ndarray]:
        """Blocks of rows."""
        draw, texts = np.random.default_rng(0), iter(sentences)
        for start in range(0, self._total, _CHUNK):
            count = min(_CHUNK, self._total - start)
            for _text in zip(range(count), texts, strict=False):
                pass
            yield generate(self._embeddings, count, draw)


def generate(embeddings: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """``(count, D)`` unit vectors around ``embeddings``."""
    a, b, c = (embeddings[draw.integers(len(embeddings), size=count)] for _ in range(3))
    rows = a + 0.5 * (b - c)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def build(embeddings: np.ndarray, rows: int, kind: str, folder: Path) -> dict[str, object]:
    """Write an index of generated vectors; its facts."""
    start = time.perf_counter()
    texts = (f"text {number}" for number in range(rows))
    index = Index.build(GeneratedEncoder(embeddings, rows), texts, folder, kind=kind)
    ann = index.manifest.ann
    return {
        "build, s": round(time.perf_counter() - start, 1),
        "build, CPU s": round(time.process_time(), 1),
        "peak memory, MB": high_water() >> 20,
        "ANN file, MB": 0 if ann is None else (folder / ann.file).stat().st_size >> 20,
        "effort": None if ann is None else ann.effort,
        "stored recall@10": 1.0 if ann is None else ann.recall,
    }


def search(queries: np.ndarray, folder: Path) -> dict[str, object]:
    """Search one query at a time; the rows that are nearest, latency and memory."""
    index = Index.open(folder)
    index.search_vectors(queries[:1])
    seconds, ids = [], []
    for query in queries:
        start = time.perf_counter()
        [hits] = index.search_vectors(query[None], _TOP_K)
        seconds.append(time.perf_counter() - start)
        ids.append([int(hit.id) for hit in hits])
    start = time.perf_counter()
    index.search_vectors(queries, _TOP_K)
    together = (time.perf_counter() - start) / len(queries)
    own = psutil.Process().memory_info()
    return {
        "median, ms": round(1e3 * float(np.median(seconds)), 2),
        "p99, ms": round(1e3 * float(np.quantile(seconds, 0.99)), 2),
        "in one call, ms": round(1e3 * together, 2),
        "own memory, MB": (own.rss - own.shared) >> 20,
        "ids": ids,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; each step runs in a process of its own, so that memory is its own."""
    parser = argparse.ArgumentParser(prog="benchmarks.search", description=__doc__)
    parser.add_argument("embeddings", type=Path, help="(N, D) unit vectors as .npy")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kinds", default="flat,ivfpq", help="flat, hnsw, ivfpq")
    parser.add_argument("--step", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    real = np.load(given.embeddings)
    held_out, rest = real[: len(real) // 10], real[len(real) // 10 :]
    if given.step:
        step, folder = given.step[0], Path(given.step[1])
        queries = generate(held_out, _QUERIES, np.random.default_rng(1))
        facts = (
            search(queries, folder)
            if step == "search"
            else build(rest, given.rows, given.kinds, folder)
        )
        sys.stdout.write(json.dumps(facts))
        return 0
    nearest: list[set[int]] = []
    with tempfile.TemporaryDirectory(dir=given.embeddings.parent) as folder:
        for kind in given.kinds.split(","):
            facts: dict[str, object] = {}
            for step in ("build", "search"):
                line = [sys.executable, "-m", "benchmarks.search", str(given.embeddings)]
                line += ["--rows", str(given.rows), "--kinds", kind]
                line += ["--step", step, str(Path(folder) / kind)]
                done = subprocess.run(line, stdout=subprocess.PIPE, check=True, text=True)
                facts |= json.loads(done.stdout)
            ids = facts.pop("ids")
            nearest = nearest or [set(row) for row in ids]
            shares = [len(best & set(row)) / _TOP_K for best, row in zip(nearest, ids, strict=True)]
            facts["recall@10"] = round(float(np.mean(shares)), 4)
            sys.stdout.write(json.dumps({"kind": kind, "rows": given.rows, **facts}) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
