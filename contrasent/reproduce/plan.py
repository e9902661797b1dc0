"""Plans of tables: rows, how each encoder is made, scales, and the published numbers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from contrasent.errors import ConfigError, pick
from contrasent.recipe import load_recipe, read_mapping, validate
from contrasent.settings import settings

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


Citation = Annotated[list[str], Field(min_length=3, max_length=3)]
"""Paper, table and row of a published number."""

STS_TEXT = "sts"
"""In place of a material: the text of the STS tasks, all splits, without scores."""


@settings
class Material:
    """A file that the user brings."""

    about: str
    """What it has to hold."""

    kind: Literal["encoder", "file"] = "file"
    """An encoder to start from, or a file: text or word vectors."""

    blocks: bool = False
    """A text of documents with a blank line between: cut between two of them."""


@settings
class Scale:
    """How much is done."""

    about: str
    """When to take it."""

    tasks: list[str]
    """What is scored, as ``contrasent evaluate --tasks`` takes it."""

    preset: str = "test"
    """SentEval's settings of the transfer tasks' classifiers."""

    geometry: str = "stsb>4"
    """The pairs of alignment, and with them the sentences of uniformity."""

    lines: dict[str, PositiveInt] = Field(default_factory=dict)
    """So many lines are taken of a text, by its material; of others all."""

    short: bool = False
    """Rows are trained with their ``short`` settings."""

    train: dict[str, Any] = Field(default_factory=dict)
    """Settings of every training run, over those of the rows."""


@settings
class PlanRow:
    """A system, and how its encoder is made here."""

    label: str
    """As the table names it."""

    supervised: bool = False
    """It is trained on labels or pairs that people made."""

    make: Literal["cited", "words", "start", "train", "whitening", "flow", "sif"]
    """Published numbers only; word vectors or the start as they are; trained; or fitted."""

    of: str = ""
    """The row whose encoder it is made from; empty for a material."""

    start: str = "encoder"
    """The material that it is made from, unless it is made from a row."""

    recipe: str = ""
    """For train."""

    data: str = ""
    """The material that it is trained or fitted on, or sts."""

    pooler: str | None = None
    """For the start, and for what is made from it; null takes the recipe's or the encoder's."""

    short: dict[str, Any] = Field(default_factory=dict)
    """Settings of a short run, in place of the recipe's."""

    sts: Citation | None = None
    """Where its STS scores are published."""

    transfer: Citation | None = None
    """Where its accuracies are published."""

    study: Citation | None = None
    """Where the reproducibility study's STS scores are published."""

    note: str = ""
    """What has to be known to read it."""

    @property
    def citations(self) -> dict[str, Cited]:
        """The published rows, by ``sts``, ``transfer`` and ``study``."""
        named = {"sts": self.sts, "transfer": self.transfer, "study": self.study}
        return {what: cited(*where) for what, where in named.items() if where}


@settings
class Plan:
    """A table of systems that are made and scored alike."""

    title: str
    """Above the table."""

    materials: dict[str, Material]
    """What the user brings, by the name of its option."""

    scales: dict[str, Scale]
    """By name; the first is the usual one."""

    rows: dict[str, PlanRow]
    """By name, in the order of the table."""

    def needs(self, name: str) -> set[str]:
        """The materials that a row needs, also through the rows that it is made from."""
        row = self.rows[name]
        if row.make == "cited":
            return set()
        needed = {row.data} & set(self.materials)
        return needed | (self.needs(row.of) if row.of else {row.start})

    def families(self, chosen: Sequence[str]) -> Iterator[list[str]]:
        """Rows that are made from one another, each after what it is made from."""
        heads = [name for name in chosen if not self.rows[name].of]
        for head in heads:
            yield [name for name in chosen if self._first(name) == head]

    def with_ancestors(self, chosen: Sequence[str]) -> list[str]:
        """The rows, and all they are made from, in the order of the table."""
        wanted = set(chosen)
        for name in chosen:
            while name := self.rows[name].of:
                wanted.add(name)
        return [name for name in self.rows if name in wanted]

    def _first(self, name: str) -> str:
        return self._first(above) if (above := self.rows[name].of) else name


def tables() -> dict[str, Path]:
    """The tables by name."""
    folder = Path(str(files("contrasent") / "reproduce" / "tables"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_plan(name: str) -> Plan:
    """Read a table's plan and check that it is whole.

    Raises:
        ConfigError: no such table; or a row names a recipe, row, material or citation that is not
            there.
    """
    content, _ = read_mapping(tables()[pick("table", name, tables())])
    plan = validate(Plan, content, name)
    for scale in plan.scales.values():
        for material in scale.lines:
            pick("material", material, plan.materials)
    for key, row in plan.rows.items():
        if row.of:
            pick(f"row that {key} is made of", row.of, plan.rows)
        for material in {row.start, row.data} - {"", STS_TEXT}:
            pick(f"material of {key}", material, plan.materials)
        if row.recipe:
            load_recipe(row.recipe, row.short)
        _ = row.citations
    return plan


def chosen_rows(plan: Plan, asked: Sequence[str]) -> list[str]:
    """The rows that were asked for, all by default, with those that they are made from.

    Raises:
        ConfigError: there is no such row.
    """
    for name in asked:
        pick("row", name, plan.rows)
    return plan.with_ancestors(asked or list(plan.rows))


def missing_materials(
    plan: Plan, chosen: Sequence[str], given: Mapping[str, str | Path]
) -> dict[str, set[str]]:
    """The rows that cannot be made, each with the materials that were not given.

    Raises:
        ConfigError: no row can be made.
    """
    missing = {name: plan.needs(name) - set(given) for name in chosen}
    lacking = {name: materials for name, materials in missing.items() if materials}
    trained = [name for name in chosen if plan.rows[name].make != "cited" and name not in lacking]
    if not trained:
        options = ", ".join(f"--{key}" for key in plan.materials)
        raise ConfigError(f"nothing to make a row of: give some of {options}")
    return lacking
