"""Search among many vectors, by each kind of index.

The vectors are generated around real embeddings: ``normalise(a + (b - c) / 2)`` for embeddings a, b
and c of three random sentences, whose differences have the covariance of the embeddings. A tenth of
the sentences is held out: the queries are generated around those, in the same way.
"""

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import psutil

from benchmarks.jobs import Values
from benchmarks.worker import high_water
from contrasent.search import Index

_CHUNK, _TOP_K = 16_384, 10


class GeneratedEncoder:
    """Generates vectors in place of encoding texts."""

    pooler, head_name, engine, normalize, max_tokens = "mean", "none", "torch", True, 256

    def __init__(self, embeddings: np.ndarray) -> None:
        self.name, self.width, self._embeddings = "generated", embeddings.shape[1], embeddings

    def fingerprint(self) -> str:
        """A name that no encoder has."""
        return "generated"

    def encode_stream(self, sentences: Iterable[str], **_: object) -> Iterator[np.ndarray]:
        """Blocks of rows."""
        draw, texts = np.random.default_rng(0), iter(sentences)
        while count := sum(1 for _ in islice(texts, _CHUNK)):
            yield generate(self._embeddings, count, draw)


def generate(embeddings: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """``(count, D)`` unit vectors around ``embeddings``."""
    a, b, c = (embeddings[draw.integers(len(embeddings), size=count)] for _ in range(3))
    rows = a + 0.5 * (b - c)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def build(embeddings: np.ndarray, rows: int, kind: str, folder: Path) -> dict[str, float]:
    """Write an index of generated vectors; its facts."""
    start = time.perf_counter()
    texts = (f"text {number}" for number in range(rows))
    index = Index.build(GeneratedEncoder(embeddings), texts, folder, kind=kind, words=False)
    facts = {"build, s": time.perf_counter() - start, "build, CPU s": time.process_time()}
    facts["build memory, MB"] = high_water() / 1e6
    if index.manifest.ann is not None:
        facts["ANN file, MB"] = (folder / index.manifest.ann.file).stat().st_size / 1e6
        facts["effort"] = index.manifest.ann.effort
    return facts


class Search:
    """An index of a kind, built in a process of its own, so that memory is of searching alone."""

    def __init__(self, embeddings: str, rows: int, kind: str, queries: int) -> None:
        real = np.load(embeddings)
        rest, draw = real[len(real) // 10 :], np.random.default_rng(1)
        self._queries = generate(real[: len(real) // 10], queries, draw)
        folder = Path(embeddings).with_name(f"{kind} index")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            self.facts = pool.submit(build, rest, rows, kind, folder).result()
        self._index = Index.open(folder)

    def round(self, _number: int, together: bool) -> Values:
        """Search, one query after the other, or all in one call."""
        blocks = [self._queries] if together else [row[None] for row in self._queries]
        seconds = []
        for block in blocks:
            start = time.perf_counter()
            self._index.search_vectors(block, _TOP_K)
            seconds.append(time.perf_counter() - start)
        return {"sentences": len(self._queries), **({} if together else {"calls": seconds})}

    def rows(self) -> np.ndarray:
        """``(Q, 10)``, the rows that are nearest."""
        hits = self._index.search_vectors(self._queries, _TOP_K)
        return np.array([[int(hit.id) for hit in row] for row in hits])

    def memory(self) -> int:
        """Bytes that are of this process alone."""
        memory = psutil.Process().memory_info()
        return int(memory.rss - memory.shared)
