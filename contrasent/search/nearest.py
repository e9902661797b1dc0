"""Nearest rows: exact, in the same order on every machine, or approximate by faiss.

The similarity is the one that an encoder states; for cosines all vectors have length 1.

Shapes: Q queries, N rows of a segment, D dimensions of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict, PositiveInt

from contrasent.errors import CheckpointError, ConfigError, pick
from contrasent.files import writing
from contrasent.metrics import pair_similarities

_QUERIES = 64
_RESCORED = 4_096
_EXTRA = 8
_OF_UNIT = {"cosine": "dot"}
"""What a similarity is of vectors of length 1."""

Live = np.ndarray | None
"""``(N,)`` bool: the rows that were not removed; None if none was."""


def nearest(
    segments: Sequence[np.ndarray],
    queries: np.ndarray,
    top_k: int,
    live: Sequence[Live] | None = None,
    ann: Ann | None = None,
    similarity: str = "cosine",
) -> list[list[tuple[int, float]]]:
    """For each query the ``top_k`` rows with the largest similarity, each with it, best first.

    faiss finds candidates in float32, where sums depend on the order of adding. All rows that
    rounding could have put among the best are then scored once more in float64, row by row, so
    that equal vectors have equal scores wherever they lie; equal scores are ordered by row.
    ``segments`` are ``(N, D)`` float32 each, whose rows are numbered through all of them;
    ``queries`` are ``(Q, D)``. The candidates of the first rows come from ``ann``, if it is given;
    the scores are exact all the same.
    """
    live = live or [None] * len(segments)
    lengths = [len(segment) for segment in segments]
    covered = 0 if ann is None else [*accumulate(lengths)].index(ann.rows) + 1
    hits: list[list[tuple[int, float]]] = []
    longest = _longest(segments[covered:], similarity)
    for start in range(0, len(queries), _QUERIES):
        block = np.ascontiguousarray(queries[start : start + _QUERIES], dtype=np.float32)
        margin = _margin(similarity, block, longest)
        exact = _candidates(segments[covered:], live[covered:], block, top_k, similarity, margin)
        if ann is not None:
            approximate = ann.candidates(lengths[:covered], block, top_k)
            exact = [first + last for first, last in zip(approximate, exact, strict=True)]
        for query, candidates in zip(block, exact, strict=True):
            hits.append(best_rows(segments, query, candidates, top_k, similarity))
    return hits


def _longest(segments: Sequence[np.ndarray], similarity: str) -> float:
    """Largest length of a row, as the sum of its sizes for manhattan."""
    if similarity == "cosine" or not segments:
        return 1.0
    order = 1 if similarity == "manhattan" else 2
    blocks = (s[start : start + _CHUNK] for s in segments for start in range(0, len(s), _CHUNK))
    return max(float(np.linalg.norm(block, ord=order, axis=1).max()) for block in blocks)


def _margin(similarity: str, queries: np.ndarray, longest: float) -> np.ndarray:
    """Twice the error ``(Q,)`` of a float32 score by :func:`_search`.

    A sum of D terms is off by at most D * 2**-24 of the sum of their sizes, whatever the order.
    faiss computes squared distances from squares and products. The threshold and the row compared
    with it may both be off.
    """
    order = 1 if similarity == "manhattan" else 2
    own = np.linalg.norm(queries, ord=order, axis=1)
    sizes = {"euclidean": (own + longest) ** 2, "manhattan": own + longest}
    if similarity == "cosine":
        own = np.ones(len(queries))
    return np.asarray(2.0 * queries.shape[1] * 2.0**-24 * sizes.get(similarity, own * longest))


def _candidates(
    segments: Sequence[np.ndarray],
    live: Sequence[Live],
    queries: np.ndarray,
    top_k: int,
    similarity: str,
    margin: np.ndarray,
) -> list[list[np.ndarray]]:
    """For each query and segment, the rows that may be among the ``top_k`` of all segments."""
    if not segments:
        return [[] for _ in queries]
    some = [
        _search_live(*each, queries, top_k + _EXTRA, similarity)
        for each in zip(segments, live, strict=True)
    ]
    together = np.concatenate(
        [_without_removed(*s, kept) for s, kept in zip(some, live, strict=True)], axis=1
    )
    last = min(top_k, together.shape[1]) - 1
    threshold = -np.sort(-together, axis=1)[:, last] - margin
    return [
        [
            _at_least(segment, kept, query, limit, scores[q], rows[q], similarity)
            for segment, kept, (scores, rows) in zip(segments, live, some, strict=True)
        ]
        for q, (query, limit) in enumerate(zip(queries, threshold, strict=True))
    ]


def _without_removed(scores: np.ndarray, rows: np.ndarray, live: Live) -> np.ndarray:
    return scores if live is None else np.where(live[rows], scores, -np.inf)


def _at_least(
    segment: np.ndarray,
    live: Live,
    query: np.ndarray,
    limit: float,
    scores: np.ndarray,
    rows: np.ndarray,
    similarity: str,
) -> np.ndarray:
    """Rows of a segment with a score of ``limit`` or more, asking for more until one is below."""
    while scores[-1] >= limit and len(rows) < len(segment):
        more_scores, more_rows = _search(segment, query[None], 2 * len(rows), similarity)
        scores, rows = more_scores[0], more_rows[0]
    wanted = scores >= limit
    return rows[wanted if live is None else wanted & live[rows]]


def _search_live(
    segment: np.ndarray, live: Live, queries: np.ndarray, count: int, similarity: str
) -> tuple[np.ndarray, np.ndarray]:
    """The best rows of a segment, among which ``count`` are live, or all that are."""
    scores, rows = _search(segment, queries, count, similarity)
    if live is not None:
        least = min(count, int(live.sum()))
        while int(live[rows].sum(axis=1).min()) < least:
            scores, rows = _search(segment, queries, 2 * rows.shape[1], similarity)
    return scores, rows


def faiss_metric(similarity: str) -> int:
    """What faiss calls a similarity."""
    import faiss

    distances = {"euclidean": faiss.METRIC_L2, "manhattan": faiss.METRIC_L1}
    return int(distances.get(similarity, faiss.METRIC_INNER_PRODUCT))


def _search(
    segment: np.ndarray, queries: np.ndarray, count: int, similarity: str
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 scores, larger is nearer, and rows; of euclidean distances the negative squares."""
    import faiss

    metric = faiss_metric(similarity)
    scores, rows = faiss.knn(queries, segment, min(count, len(segment)), metric)
    return (scores if metric == faiss.METRIC_INNER_PRODUCT else -scores), rows


def best_rows(
    segments: Sequence[np.ndarray],
    query: np.ndarray,
    candidates: list[np.ndarray],
    top_k: int,
    similarity: str,
) -> list[tuple[int, float]]:
    """The best of the candidates in each segment, by scores in float64, then by row."""
    numbers, scores, first = [], [], 0
    for segment, rows in zip(segments, candidates, strict=True):
        numbers.append(first + rows)
        for start in range(0, len(rows), _RESCORED):
            part = segment[rows[start : start + _RESCORED]]
            scores.append(pair_similarities(_OF_UNIT.get(similarity, similarity), part, query))
        first += len(segment)
    row, score = np.concatenate(numbers), np.concatenate([*scores, []])
    order = np.lexsort((row, -score))[:top_k]
    if similarity == "cosine":
        score = np.clip(score, -1.0, 1.0)
    return [(int(row[i]), float(score[i])) for i in order]


MILVUS = ("milvus", "milvus-hnsw")
"""The kinds that Milvus holds, exact and approximate."""
KINDS = ("flat", "hnsw", "ivfpq", *MILVUS)
_FLAT_BELOW, _HNSW_BELOW = 50_000, 300_000
"""Rows from which HNSW, and from which OPQ+IVF-PQ, is taken unless a kind is named."""
LEAST = {"ivfpq": 10_000}
"""Rows without which a kind cannot be trained."""
_CELL_ROWS = 64  # rows that a cell of the inverted file is trained with
_TRAINING_CODES = 32_768  # rows that the rotation and the codes are trained with
_CHUNK = 65_536
TARGET = 0.97
_MEASURED, _MEASURED_AT = 500, 10
_EFFORT = {"hnsw": (32, 1024), "ivfpq": (8, 1024)}
"""The least and the most effort."""
_RESCORE = {"hnsw": 4, "ivfpq": 20}
"""Candidates for each of the ``top_k``: a byte per dimension orders them better than a quarter."""


@dataclass(frozen=True, slots=True)
class AnnInfo:
    """An approximate index over the first rows of a folder, and how well it finds them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")
    file: str  # its name in the folder
    kind: str  # ``hnsw`` (32 links, int8 vectors) or ``ivfpq`` (OPQ, a byte for 4 dimensions)
    rows: PositiveInt  # rows that it covers
    effort: PositiveInt  # nodes visited (efSearch), or cells (nprobe)
    # share of the exact 10 nearest rows that are found, for rows as queries, each without itself
    recall: float
    queries: PositiveInt  # how many of them


def kind_for(rows: int, kind: str = "auto", similarity: str = "cosine") -> str:
    """The kind of index for a number of rows, or the one that is named.

    ConfigError if there is no such kind, there are too few rows for it, or it cannot rank by the
    similarity.
    """
    if pick("kind of index", kind, ("auto", *KINDS)) == "auto":
        if similarity == "manhattan":
            return "flat"
        return "flat" if rows < _FLAT_BELOW else "hnsw" if rows < _HNSW_BELOW else "ivfpq"
    if rows < LEAST.get(kind, 1):
        raise ConfigError(
            f"{kind} is trained on the vectors and needs {LEAST[kind]} of them, but there are "
            f"{rows}; choose flat or hnsw"
        )
    if similarity == "manhattan" and kind != "flat":
        raise ConfigError(
            f"{kind} cannot rank by manhattan, the similarity that the encoder states; choose flat"
        )
    return kind


def write_ann(
    segments: Sequence[np.ndarray],
    kind: str,
    folder: Path,
    number: int,
    start: Path | None,
    on_rows: Callable[[int], object],
    similarity: str,
) -> AnnInfo:
    """Write an approximate index of all rows as file ``number`` of ``folder``, and measure it.

    It is the one in ``start`` with more rows, if that is given. ``on_rows`` is called with the
    number of rows that were added.
    """
    import faiss

    index = _trained(segments, kind, similarity) if start is None else faiss.read_index(str(start))
    before = index.ntotal
    for segment in segments:
        for first in range(0, len(segment), _CHUNK):
            block = np.ascontiguousarray(segment[first : first + _CHUNK])
            if before < len(block):
                index.add(block[before:])
            before = max(before - len(block), 0)
            on_rows(len(block))
    info = _measured(segments, index, kind, f"segments/{number:06d}.faiss", similarity)
    with writing(folder / info.file) as path:
        faiss.write_index(index, str(path))
    return info


def _trained(segments: Sequence[np.ndarray], kind: str, similarity: str) -> Any:
    """An empty faiss index, trained on rows of ``segments``."""
    import faiss

    rows, width = sum(map(len, segments)), segments[0].shape[1]
    if kind == "hnsw":
        index = faiss.index_factory(width, "HNSW32,SQ8", faiss_metric(similarity))
        index.hnsw.efConstruction = 100
        training = _TRAINING_CODES
    else:
        codes = max(width // 4, 1)
        cells = min(int(2 * rows**0.5), rows // 39)
        name = f"OPQ{codes}_{min(4 * codes, width)},IVF{cells},PQ{codes}"
        index = faiss.index_factory(width, name, faiss_metric(similarity))
        rotation = faiss.downcast_VectorTransform(index.chain.at(0))
        rotation.max_train_points = _TRAINING_CODES
        rotation.niter, rotation.niter_pq_0 = 4, 10
        training = max(_CELL_ROWS * cells, _TRAINING_CODES)
    index.train(_sample(segments, training))
    return index


def _sample(segments: Sequence[np.ndarray], count: int, seed: int = 0) -> np.ndarray:
    """Rows drawn from all segments, in any order; all, if there are no more than ``count``."""
    draw, lengths = np.random.default_rng(seed), [*map(len, segments)]
    numbers = split_rows(lengths, np.sort(draw.permutation(sum(lengths))[:count]))
    of_each = zip(segments, numbers, strict=True)
    return draw.permutation(np.concatenate([segment[own] for segment, own in of_each])).astype(
        np.float32
    )


def split_rows(lengths: Iterable[int], numbers: np.ndarray) -> list[np.ndarray]:
    """Sorted row ``numbers`` as those within each segment."""
    bounds = [0, *accumulate(lengths)]
    cuts = np.searchsorted(numbers, bounds)
    return [numbers[a:b] - first for (a, b), first in zip(pairwise(cuts), bounds, strict=False)]


class Ann:
    """An approximate index by faiss over the first rows of an index; threads may share it.

    It keeps vectors in fewer bits, so :func:`nearest` scores its candidates once more. ``live``
    are the rows that may be found.
    """

    def __init__(
        self, index: Any, kind: str, effort: int, live: Live = None, file: tuple[int, int] = (0, 0)
    ) -> None:
        import faiss

        self.kind, self.effort, self.rows = kind, effort, int(index.ntotal)
        self._index, self._live, self._file = index, live, file
        self._only = None
        if live is not None:
            self._only = faiss.IDSelectorBitmap(np.packbits(live, bitorder="little"))

    @classmethod
    def open(cls, folder: Path, info: AnnInfo, last: Ann | None = None) -> Ann:
        """Map the file of ``info``, unless ``last`` is of that very file.

        CheckpointError if it is missing or damaged.
        """
        import faiss

        path = folder / info.file
        remedy = f"make it anew with: contrasent index optimize {folder}"
        try:
            status = path.stat()
            file = status.st_ino, status.st_mtime_ns
            if last is not None and last._file == file:
                return last
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[-200:]
            raise CheckpointError(f"{path} cannot be read ({reason}); {remedy}") from error
        if index.ntotal != info.rows:
            raise CheckpointError(f"{path} holds {index.ntotal} rows, not {info.rows}; {remedy}")
        return cls(index, info.kind, info.effort, file=file)

    def with_live(self, live: Live) -> Ann:
        """The same over other live rows."""
        return Ann(self._index, self.kind, self.effort, live, self._file)

    def candidates(
        self, lengths: Sequence[int], queries: np.ndarray, top_k: int
    ) -> list[list[np.ndarray]]:
        """For each query and segment, rows to be scored; all live ones, if it finds too few."""
        available = self.rows if self._live is None else int(self._live.sum())
        count = min(max(_RESCORE[self.kind] * top_k, 50), available)
        if not count:
            return [[np.empty(0, np.int64) for _ in lengths] for _ in queries]
        _, rows = self._index.search(queries, count, params=self._parameters(count))
        found = [np.sort(some[some >= 0]) for some in rows]
        return [
            split_rows(lengths, some if len(some) >= min(top_k, available) else self._all_live())
            for some in found
        ]

    def _all_live(self) -> np.ndarray:
        return np.arange(self.rows) if self._live is None else np.flatnonzero(self._live)

    def _parameters(self, count: int) -> Any:
        """Search parameters of this call only."""
        import faiss

        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(sel=self._only, efSearch=max(self.effort, count))
        cells = faiss.SearchParametersIVF(sel=self._only, nprobe=self.effort)
        return faiss.SearchParametersPreTransform(index_params=cells)


def _measured(
    segments: Sequence[np.ndarray], index: Any, kind: str, file: str, similarity: str
) -> AnnInfo:
    """Raise the effort of a faiss index of all rows until its recall reaches 0.97.

    The recall is the share of the exact 10 nearest rows that it finds, for queries around the rows,
    ``a + (b - c) / 2`` of three of them: rows themselves are found more easily than what users ask.
    Of rows at an equal distance any counts.
    """
    rows = sum(map(len, segments))
    a, b, c = (_sample(segments, _MEASURED, seed) for seed in range(3))
    queries = a + (b - c) / 2
    exact = nearest(segments, queries, _MEASURED_AT, similarity=similarity)
    effort, most = _EFFORT[kind]
    while True:
        approximate = Ann(index, kind, effort)
        found = nearest(segments, queries, _MEASURED_AT, ann=approximate, similarity=similarity)
        shares = [
            sum(score >= best[-1][1] for _, score in hits) / len(best)
            for hits, best in zip(found, exact, strict=True)
        ]
        recall = sum(shares) / len(shares)
        if recall >= TARGET or effort >= min(most, rows):
            return AnnInfo(file, kind, rows, effort, round(recall, 4), len(queries))
        effort *= 2
