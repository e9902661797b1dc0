"""What the numbers of a report rest on: settings, data, versions."""

from __future__ import annotations

from collections.abc import Sequence

from contrasent.report.html.contents import Contents, PageRow
from contrasent.report.html.grid import Cell, Grid
from contrasent.report.tables import ABSENT

_ENCODER = (
    *("row", "encoder", "pooler", "head", "transform", "cut at", "engine", "precision"),
    "training seed",
)


def settings_grids(contents: Contents, rows: Sequence[PageRow]) -> list[Grid]:
    """How encoders were used, which data was read, what computed the numbers."""
    return [_encoders(rows), _data(contents), _versions(rows)]


def _encoders(rows: Sequence[PageRow]) -> Grid:
    cells = []
    for row in rows:
        it = row.like
        longest = f"{it.max_tokens} tokens" if it.max_tokens else ABSENT
        seed = ABSENT if it.seed is None else str(it.seed)
        texts = (row.label, it.encoder, it.pooler, it.head or ABSENT, it.transform or ABSENT)
        cells.append(tuple(map(Cell, (*texts, longest, it.engine or "torch", it.precision, seed))))
    return Grid(
        "encoders", "Encoders", _ENCODER, tuple(cells), texts=frozenset(range(len(_ENCODER)))
    )


def _data(contents: Contents) -> Grid:
    measured = (found.records[0] for found in contents.geometries)
    read = [(it.task, it.split, it.data_sha256) for it in (*contents.records, *measured)]
    read += [(it.corpus, ABSENT, it.corpus_sha256) for it in contents.neighbours]
    return Grid(
        "data",
        "Data",
        ("task", "split", "SHA-256 of what was read"),
        tuple(tuple(map(Cell, it)) for it in dict.fromkeys(read)),
        texts=frozenset({1, 2}),
    )


def _versions(rows: Sequence[PageRow]) -> Grid:
    names = dict.fromkeys(name for row in rows for name in row.like.versions)
    cells = [
        (Cell(row.label), *(Cell(row.like.versions.get(name, ABSENT)) for name in names))
        for row in rows
    ]
    texts = frozenset(range(len(names) + 1))
    return Grid("versions", "Versions", ("encoder", *names), tuple(cells), texts=texts)
