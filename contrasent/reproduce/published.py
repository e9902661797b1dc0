"""The numbers that the papers print, as the tables of this package quote them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from contrasent.errors import pick

PAPERS = {
    "simcse": "Gao et al. 2021",
    "simcse_study": "Pandey and Sholokhov",
    "diffcse": "Chuang et al. 2022",
}
"""By their names in ``published.csv``."""


@dataclass(frozen=True, slots=True)
class Cited:
    """One row of a published table.

    Attributes:
        paper: a name of :data:`PAPERS`.
        table: such as ``T5`` or ``TE.1``.
        row: as the data names it.
        values: by column, such as ``STS12`` or ``Avg``; correlation or accuracy x 100.
        note: where the paper has the number from, and how it was computed.
    """

    paper: str
    table: str
    row: str
    values: Mapping[str, float]
    note: str

    @property
    def source(self) -> str:
        """Such as ``Gao et al. 2021, Table E.1``."""
        return f"{PAPERS[self.paper]}, Table {self.table.removeprefix('T')}"


def cited(paper: str, table: str, row: str) -> Cited:
    """One row of a published table.

    Raises:
        ConfigError: there is no such row; the message names the nearest one.
    """
    known = _rows()
    name = pick("published row", f"{paper} {table} {row}", known)
    return known[name]


@cache
def _rows() -> dict[str, Cited]:
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    notes: dict[tuple[str, str, str], str] = {}
    with (files("contrasent") / "reproduce" / "published.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = line["paper"], line["table"], line["row"]
            values.setdefault(key, {})[line["column"]] = float(line["value"])
            notes.setdefault(key, line["note"])
    return {" ".join(key): Cited(*key, found, notes[key]) for key, found in values.items()}
