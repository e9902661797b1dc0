"""Nearest rows: exact, in the same order on every machine, or approximate by faiss.

The similarity is the one that an encoder states; for cosines all vectors have length 1.

Shapes: Q queries, N rows of a segment, D dimensions of a vector.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from contrasent.encode.vectors import SmallVectors, Vectors
from contrasent.errors import ConfigError, pick
from contrasent.files import readable, writing
from contrasent.metrics import pair_similarities

_QUERIES = 64
_RESCORED = 4_096
_EXTRA = 8
_CHUNK, _SMALL = 65_536, 4_096  # rows; of small vectors, so many are float32 at once

Segments = Sequence[Vectors]
Live = np.ndarray | None  # ``(N,)`` bool: the rows that were not removed; None if none was
Recall = Callable[[Segments, "Ann | None"], float]


def nearest(
    segments: Segments,
    queries: np.ndarray,
    top_k: int,
    live: Live = None,
    ann: "Ann | None" = None,
    similarity: str = "cosine",
) -> list[list[tuple[int, float]]]:
    """For each query the ``top_k`` rows with the largest similarity, each with it, best first.

    faiss finds candidates in float32, those of the first rows ``ann``, if it is given. All that
    rounding could have put among the best are scored once more in float64, row by row, so that
    equal vectors have equal scores wherever they lie; equal scores are ordered by row. ``segments``
    are ``(N, D)`` each, ``queries`` ``(Q, D)`` float32.
    """
    covered = 0 if ann is None else ann.rows
    starts = [0, *accumulate(map(len, segments))]
    exact = [(n, s) for n, s in zip(starts, segments, strict=False) if n >= covered and len(s)]
    longest = 1.0
    if similarity != "cosine":
        order = 1 if similarity == "manhattan" else 2
        blocks = (s[n : n + _CHUNK] for _, s in exact for n in range(0, len(s), _CHUNK))
        longest = max((np.linalg.norm(b, order, axis=1).max() for b in blocks), default=1.0)
    hits: list[list[tuple[int, float]]] = []
    for start in range(0, len(queries), _QUERIES):
        block = np.ascontiguousarray(queries[start : start + _QUERIES], dtype=np.float32)
        margin = _margin(similarity, block, float(longest))
        candidates = [] if ann is None else [ann.candidates(block, top_k, live)]
        for first, segment in exact:
            step, some, asked, error = len(segment), segment, block, margin
            if isinstance(segment, SmallVectors):
                step, ranges = _SMALL, segment.ranges
                if ranges is not None and similarity in ("cosine", "dot"):
                    # products of bytes and of these queries have the order of those of rows
                    some, asked = SmallVectors(segment.codes, None), block * np.ptp(ranges, 0) / 255
                    error = _margin("dot", asked, 255.0 * len(ranges[0]) ** 0.5)
            for n in range(0, len(segment), step):
                rows, row = some[n : n + step], first + n
                kept = None if live is None else live[row : row + len(rows)]
                places = _candidates(rows, kept, asked, top_k, similarity, error)
                candidates.append([row + it for it in places])
        for query, *near in zip(block, *candidates, strict=True):
            hits.append(best_rows(segments, query, np.concatenate(near), top_k, similarity))
    return hits


def _margin(similarity: str, queries: np.ndarray, longest: float) -> np.ndarray:
    """Twice the error ``(Q,)`` of a float32 sum of D terms, at most D * 2**-24 of their sizes."""
    own = np.linalg.norm(queries, ord=1 if similarity == "manhattan" else 2, axis=1)
    size = {
        "cosine": np.full(len(queries), longest),
        "dot": own * longest,
        "euclidean": (own + longest) ** 2,
        "manhattan": own + longest,
    }
    return np.asarray(2.0 * queries.shape[1] * 2.0**-24 * size[similarity])


def _candidates(
    segment: np.ndarray,
    kept: Live,
    queries: np.ndarray,
    top_k: int,
    similarity: str,
    margin: np.ndarray,
) -> list[np.ndarray]:
    import faiss

    count, sign = top_k + _EXTRA, 1 if similarity in ("cosine", "dot") else -1
    if kept is not None and np.count_nonzero(kept) <= count:
        return [np.flatnonzero(kept)] * len(queries)
    chosen, left = [np.empty(0, np.int64)] * len(queries), np.arange(len(queries))
    while left.size:
        count = min(count, len(segment))
        scores, rows = faiss.knn(queries[left], segment, count, faiss_metric(similarity))
        scores *= sign  # larger is nearer; of euclidean distances they are the squares
        alive = np.ones(rows.shape, bool) if kept is None else kept[rows]
        best = np.sort(np.where(alive, scores, -np.inf))[:, -min(top_k, count)]
        limits = best - margin[left]
        wanted = alive & (scores >= limits[:, None])
        ended = (scores[:, -1] < limits) | (count == len(segment))
        for n in np.flatnonzero(ended):
            chosen[left[n]] = rows[n, wanted[n]]
        left, count = left[~ended], 2 * count
    return chosen


def faiss_metric(similarity: str) -> int:
    """What faiss calls a similarity."""
    import faiss

    distances = {"euclidean": faiss.METRIC_L2, "manhattan": faiss.METRIC_L1}
    return int(distances.get(similarity, faiss.METRIC_INNER_PRODUCT))


def best_rows(
    segments: Segments, query: np.ndarray, candidates: np.ndarray, top_k: int, similarity: str
) -> list[tuple[int, float]]:
    """The best of the candidates, by scores in float64, then by row."""
    rows, is_cosine = np.sort(candidates), similarity == "cosine"
    scores = row_similarities(segments, "dot" if is_cosine else similarity, query, rows)
    order = np.lexsort((rows, -scores))[:top_k]
    scores = np.clip(scores, -1.0, 1.0) if is_cosine else scores  # rounded ones are in order, too
    return [*zip(rows[order].tolist(), scores[order].tolist(), strict=True)]


def row_similarities(
    segments: Segments, similarity: str, query: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Similarities ``(R,)``, in float64, of a query ``(D,)`` and R sorted rows."""
    of_unit = "dot" if similarity == "cosine" else similarity  # vectors of cosines have length 1
    scores = np.concatenate(
        [
            pair_similarities(of_unit, segment[part], query)
            for segment, of_part in zip(segments, split_rows(map(len, segments), rows), strict=True)
            for part in np.array_split(of_part, len(of_part) // _RESCORED + 1)
        ]
    )
    return np.clip(scores, -1.0, 1.0) if similarity == "cosine" else scores


_TARGET, _LEAST_GAIN, _MEASURED, _MEASURED_AT = 0.97, 0.005, 500, 10
_TRAINING_CODES = 32_768  # rows that a rotation and codes are trained with
_CELL_ROWS = 64  # rows that a cell of an inverted file is trained with
_CALIBRATED = 100  # texts without which ranges of bytes are too narrow for others


def _hnsw(faiss: Any, width: int, _: int, metric: int) -> tuple[Any, int]:
    index = faiss.index_factory(width, "HNSW32,SQ8", metric)
    index.hnsw.efConstruction = 100
    return index, _TRAINING_CODES


def _hnsw_search(faiss: Any, effort: int, count: int, only: Any) -> Any:
    return faiss.SearchParametersHNSW(sel=only, efSearch=max(effort, count))


def _ivfpq(faiss: Any, width: int, rows: int, metric: int) -> tuple[Any, int]:
    codes = max(width // 4, 1)
    cells = min(int(2 * rows**0.5), rows // 39)
    name = f"OPQ{codes}_{min(4 * codes, width)},IVF{cells},PQ{codes}np"  # no polysemous codes
    index = faiss.index_factory(width, name, metric)
    rotation = faiss.downcast_VectorTransform(index.chain.at(0))
    rotation.max_train_points = _TRAINING_CODES
    rotation.niter, rotation.niter_pq_0 = 4, 10
    return index, max(_CELL_ROWS * cells, _TRAINING_CODES)


def _ivf_search(faiss: Any, effort: int, _: int, only: Any) -> Any:
    cells = faiss.SearchParametersIVF(sel=only, nprobe=effort)
    return faiss.SearchParametersPreTransform(index_params=cells)


def _rabitq(faiss: Any, width: int, rows: int, metric: int) -> tuple[Any, int]:
    cells = min(int(rows**0.5), rows // 39)
    index = faiss.index_factory(width, f"RR{width},IVF{cells},RaBitQ", metric)
    faiss.downcast_index(index.index).qb = 8  # bits of a query
    return index, _CELL_ROWS * cells


@dataclass(frozen=True, slots=True)
class IndexKind:
    """A kind of index; without ``make`` and ``milvus`` it is exact."""

    auto_below: float = 0  # texts below which ``auto`` takes it; 0 for never
    least: int = 1  # texts without which it cannot be trained
    # (faiss, D, rows, its metric) -> an empty index, and the number of rows to train it with
    make: Any = None
    parameters: Any = None  # (faiss, effort, candidates, selector of rows) -> those of a search
    effort: tuple[int, int] = (1, 1)  # least and most nodes visited (efSearch), or cells (nprobe)
    # candidates per ``top_k``: a byte per dimension orders them better than a quarter, or a bit
    rescore: int = 1
    milvus: dict[str, Any] | None = None  # Milvus's parameters of it


KINDS = {
    "flat": IndexKind(50_000),
    "hnsw": IndexKind(300_000, 1, _hnsw, _hnsw_search, (32, 1024), 4),
    "ivfpq": IndexKind(inf, 10_000, _ivfpq, _ivf_search, (8, 1024), 20),
    "binary": IndexKind(0, 100, _rabitq, _ivf_search, (8, 1024), 64),
    "milvus": IndexKind(milvus={"index_type": "FLAT"}),
    "milvus-hnsw": IndexKind(
        milvus={"index_type": "HNSW", "params": {"M": 32, "efConstruction": 100}}
    ),
}
"""To add a kind, write its row, and name it in the help of ``index build --kind``."""
MILVUS = tuple(name for name, kind in KINDS.items() if kind.milvus)


def kind_for(
    rows: float, kind: str = "auto", similarity: str = "cosine", vectors: str = "float32"
) -> str:
    """The kind of index for a number of rows and vectors, or the one that is named if it can be."""
    asked = pick("kind of index", kind, ("auto", *KINDS))
    if asked == "auto":
        fits = (name for name, row in KINDS.items() if rows < row.auto_below)
        kind = "flat" if similarity == "manhattan" else next(fits, "ivfpq")
    if vectors == "binary":
        kind = "binary"
    problem, what = "", kind if vectors == "float32" else f"{kind} with {vectors} vectors"
    if rows < (least := max(KINDS[kind].least, _CALIBRATED if vectors == "int8" else 1)):
        problem = f"{what} needs {least} texts, but there are {rows}"
    elif similarity == "manhattan" and kind != "flat":
        problem = f"{what} cannot rank by manhattan, as the encoder states"
    elif asked not in ("auto", kind) or (kind in MILVUS and vectors != "float32"):
        problem = f"{asked} has no {vectors} vectors"
    if problem:
        raise ConfigError(f"{problem}; choose flat with float32 vectors")
    return kind


@dataclass(frozen=True, slots=True)
class AnnInfo:
    """An approximate index over the first rows of a folder, and how well it finds them."""

    file: str  # its name in the folder
    kind: str  # a name of :data:`KINDS`
    rows: PositiveInt  # rows that it covers
    effort: PositiveInt  # nodes visited (efSearch), or cells (nprobe)
    # share of the exact 10 nearest rows that are found; of small vectors that are new, of float32's
    recall: float
    queries: PositiveInt  # how many of them


@dataclass(frozen=True, slots=True)
class VectorsInfo:
    """What vectors are kept as, and how well they find what float32 ones do, when it was built."""

    form: Literal["float32", "float16", "int8"] = "float32"
    recall: float = 1.0  # measured as that of `AnnInfo`


def write_ann(
    segments: Segments,
    kind: str,
    folder: Path,
    number: int,
    on_rows: Callable[[int], object],
    similarity: str,
    recall_of: Recall | None = None,  # beside the same rows before they were made small
) -> AnnInfo:
    """Write an approximate index of all rows as file ``number`` of ``folder``, and measure it."""
    import faiss

    rows = sum(map(len, segments))
    width, metric = segments[0][:1].shape[1], faiss_metric(similarity)
    index, training = KINDS[kind].make(faiss, width, rows, metric)
    index.train(_sample(segments, training))
    for segment in segments:
        for first in range(0, len(segment), _CHUNK):
            block = segment[first : first + _CHUNK]
            index.add(np.ascontiguousarray(block))
            on_rows(len(block))
    recall_of, effort = recall_of or recall_beside(segments, similarity), KINDS[kind].effort[0]
    recall = recall_of(segments, Ann(index, kind, effort))
    while recall < _TARGET and effort < min(KINDS[kind].effort[1], rows):
        more = recall_of(segments, Ann(index, kind, 2 * effort))
        if more < recall + _LEAST_GAIN:  # twice the time hardly finds more
            break
        recall, effort = more, 2 * effort
    file = f"segments/{number:06d}.faiss"
    with writing(folder / file) as path:
        faiss.write_index(index, str(path))
    return AnnInfo(file, kind, rows, effort, recall, min(rows, _MEASURED))


def recall_beside(full: Segments, similarity: str) -> Recall:
    """What measures a search of the same rows: the share that it finds of the 10 nearest ``full``.

    The queries are like rows, but none of them is one.
    """
    a, b, c = (_sample(full, _MEASURED, seed) for seed in range(3))
    queries = a + (b - c) / 2
    exact = nearest(full, queries, _MEASURED_AT, similarity=similarity)

    def recall(segments: Segments, ann: Ann | None) -> float:
        shares = []
        answers = nearest(segments, queries, _MEASURED_AT, ann=ann, similarity=similarity)
        for query, hits, best in zip(queries, answers, exact, strict=True):
            rows = np.array(sorted(row for row, _ in hits))
            scores = row_similarities(full, similarity, query, rows)
            shares.append(np.count_nonzero(scores >= best[-1][1]) / len(best))
        return round(sum(shares) / len(shares), 4)

    return recall


def _sample(segments: Segments, count: int, seed: int = 0) -> np.ndarray:
    draw, lengths = np.random.default_rng(seed), [*map(len, segments)]
    numbers = split_rows(lengths, np.sort(draw.permutation(sum(lengths))[:count]))
    rows = np.concatenate([segment[own] for segment, own in zip(segments, numbers, strict=True)])
    return draw.permutation(rows).astype(np.float32)


def split_rows(lengths: Iterable[int], numbers: np.ndarray) -> list[np.ndarray]:
    """Sorted row ``numbers`` as those within each segment."""
    bounds = [0, *accumulate(lengths)]
    cuts = np.searchsorted(numbers, bounds)
    return [numbers[a:b] - first for (a, b), first in zip(pairwise(cuts), bounds, strict=False)]


@dataclass(frozen=True, slots=True)
class Ann:
    """An approximate index by faiss of the first rows, in fewer bits; threads may share it."""

    index: Any
    kind: str
    effort: int

    @property
    def rows(self) -> int:
        """Rows that it covers, removed ones included."""
        return int(self.index.ntotal)

    @classmethod
    def open(cls, folder: Path, info: AnnInfo) -> "Ann":
        """Map the file of ``info``; CheckpointError if it is missing or damaged."""
        import faiss

        path = folder / info.file
        with readable(path, f"make it anew with: contrasent index optimize {folder}"):
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        return cls(index, info.kind, info.effort)

    def candidates(self, queries: np.ndarray, top_k: int, live: Live) -> list[np.ndarray]:
        """For each query the rows to be scored; all live ones, if it finds too few."""
        import faiss

        kind, kept = KINDS[self.kind], None if live is None else live[: self.rows]
        available = self.rows if kept is None else int(np.count_nonzero(kept))
        count = min(max(kind.rescore * top_k, 50), available)
        if kept is not None and available <= _RESCORED:
            return [np.flatnonzero(kept)] * len(queries)
        effort = self.effort * (self.rows // available)  # of few rows more have to be passed
        bits = None if kept is None else np.packbits(kept, bitorder="little")
        only = None if bits is None else faiss.IDSelectorBitmap(bits)
        how = kind.parameters(faiss, effort, count, only)
        numbers = [rows[rows >= 0] for rows in self.index.search(queries, count, params=how)[1]]
        least = min(top_k, available)
        if all(len(rows) >= least for rows in numbers):
            return numbers
        every = np.arange(self.rows) if kept is None else np.flatnonzero(kept)
        return [rows if len(rows) >= least else every for rows in numbers]
