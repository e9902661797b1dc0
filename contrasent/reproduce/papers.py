"""Tables and figures of the papers: rows, columns, and how the encoder of a row is made.

The YAML of ``papers`` holds the plan: ``systems`` are what several tables share, ``scales`` how
much is done, and a file for each paper its tables. A row is settings over a system, a column is
what is measured, and the published numbers are found by their names.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from contrasent.errors import ConfigError, pick
from contrasent.recipe import Recipe, load_recipe, read_mapping, validate
from contrasent.settings import settings

NAMES = {
    "simcse": "simcse",
    "diffcse": "diffcse",
    "study": "simcse_study",
    "successors": "successors",
}
"""Papers as commands name them, and as the published numbers do."""

_SOURCES = {
    "simcse": "Gao et al. 2021",
    "diffcse": "Chuang et al. 2022",
    "study": "Pandey and Sholokhov",
    "baselines": "Baselines",
    "successors": "Successors",
}
_BASELINES = ("simcse/T5", "simcse/TE.1", "diffcse/T1", "diffcse/T2", "baselines/further")
"""What ``baselines`` stands for."""

ALL = "all"
TARGET = "target"
"""In place of data: the sentences of the task that is scored."""

SAMPLE = "sample:"
"""Before a material: a sample of it, of one size for all."""


@settings
class System:
    """How an encoder is made, or what else a row is about."""

    make: Literal["train", "start", "whitening", "flow", "sif", "data", "cited"] = "train"
    """Trained; the start as it is; a map fitted; a text or a task; or published only."""

    recipe: str = ""
    """For train."""

    data: str = ""
    """The material, or target, that it is trained or fitted on; or what the row is about."""

    start: str = ""
    """The model, by its id, or the material that it starts from; empty for the recipe's."""

    of: str = ""
    """The system whose encoder it is made from, in place of a start."""

    teachers: list[str] = Field(default_factory=list)
    """Systems that it is trained to follow, in the order of the objective's settings."""

    pooler: str | None = None
    """In place of the recipe's or the encoder's."""

    head: str = ""
    """mlp: scored with the head that its training keeps, and leaves out when it selects."""

    trace: bool = False
    """Alignment and uniformity are measured every ten steps of the training."""

    aggregation: str = ""
    """Of the subsets of STS tasks, where it is not all pairs together."""

    count: str = ""
    """trained: parameters are counted of all that is trained."""

    settings: dict[str, Any] = Field(default_factory=dict)
    """Of the recipe, by dotted name."""

    published: str = ""
    """The published row whose numbers stand beside, where it has another name."""

    note: str = ""
    """What has to be known to read it."""


@settings
class PaperMaterial:
    """A file that the user brings, or that is made of another."""

    about: str
    """What it has to hold, and how to get it."""

    of: str = ""
    """The material that it can be made of."""


@settings
class PaperScale:
    """How much is done; one code for all."""

    about: str
    """When to take it."""

    preset: str
    """SentEval's settings of the transfer tasks' classifiers."""

    rows: dict[str, int] = Field(default_factory=dict)
    """Rows taken of a text, by its name; ``full`` of any, ``sample`` where one is asked for."""

    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings in place of a recipe's; those of a row go before them."""

    train: dict[str, Any] = Field(default_factory=dict)
    """Settings of every training run; they go before those of a row."""

    trace: dict[str, Any] = Field(default_factory=lambda: {"evaluation.geometry_every": 10})
    """Settings of a run whose alignment and uniformity are followed."""

    seconds: dict[str, float]
    """What a job takes about, by its recipe or its kind, until one was made."""


@cache
def published(paper: str, table: str) -> dict[str, dict[str, str]]:
    """The numbers of a table as they are printed, by row and column; nothing if it has none.

    Args:
        paper: as commands name it.
        table: such as ``T5``, ``TE.1`` or ``F3``; ``text`` are numbers of the running text.
    """
    rows: dict[str, dict[str, str]] = {}
    for line in published_lines():
        if (line["paper"], line["table"]) == (NAMES.get(paper), table):
            rows.setdefault(line["row"], {})[line["column"]] = line["value"]
    return rows


@cache
def published_lines() -> list[dict[str, str]]:
    """Every published number with its unit and where the paper has it from."""
    with (files("contrasent") / "reproduce" / "published.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, slots=True)
class PaperColumn:
    """What is measured, such as ``stsb-dev`` or ``alignment:stsb-test>4``."""

    heading: str  # as the table names it
    value: str  # see :func:`contrasent.reproduce.measures.measure_of`
    recipes: Mapping[str, str]  # recipes that stand for others in this column


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row: its label, and how its encoder is made."""

    label: str
    raw: Mapping[str, Any]

    def system(self, scale: str, column: PaperColumn | None = None) -> System:
        """As it is made at a scale, for a column."""
        raw = dict(self.raw)
        raw |= raw.pop("at", {}).get(scale, {})
        dotted = {key: raw.pop(key) for key in list(raw) if "." in key}
        system = validate(System, {**raw, "settings": dotted}, self.label)
        recipes = {} if column is None else column.recipes
        return replace(system, recipe=recipes.get(system.recipe, system.recipe))

    @property
    def published(self) -> str:
        """The name of the published row."""
        return str(self.raw.get("published") or self.label)


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table or figure of a paper."""

    paper: str  # as commands name it
    number: str  # such as ``T5``, ``TE.1`` or ``F2``; ``text`` are numbers of the running text
    title: str  # in a few words
    rows: tuple[PaperRow, ...]  # in the order of the paper
    columns: tuple[PaperColumn, ...]  # in the order of the paper
    figure: str = ""  # what is drawn: trajectories, plane, spectra or densities; empty for a table
    panels: int = 0  # rows of a panel of the figure; 0 for one panel
    study: str = ""  # the study's table with the same rows and columns
    note: str = ""  # what has to be known to read it

    @property
    def name(self) -> str:
        """Such as ``simcse/TE.1``."""
        return f"{self.paper}/{self.number}"

    @property
    def file_name(self) -> str:
        """Of its files, without the ending."""
        return self.name.replace("/", "-")

    @property
    def heading(self) -> str:
        """Such as ``Gao et al. 2021, Table E.1: Transfer tasks``."""
        kinds = {"F": f"Figure {self.number[1:]}", "T": f"Table {self.number[1:]}"}
        where = kinds.get(self.number[0], self.number)
        return f"{_SOURCES[self.paper]}, {where}: {self.title}"

    def printed(self, row: PaperRow, column: PaperColumn) -> str | None:
        """The published number; None if there is none."""
        rows = published(self.paper, self.number)
        return rows.get(row.published, {}).get(column.heading)

    def printed_by_study(self, row: PaperRow, column: PaperColumn) -> str | None:
        """The number of the reproducibility study; None if there is none."""
        rows = published("study", self.study)
        return rows.get(row.published, {}).get(column.heading)

    @property
    def swapped_recipes(self) -> list[tuple[str, str, str]]:
        """Columns of other recipes: heading, recipe of the rows, recipe of the column."""
        return [
            (column.heading, recipe, other)
            for column in self.columns
            for recipe, other in column.recipes.items()
        ]

    def columns_of(self, row: PaperRow) -> list[PaperColumn]:
        """The columns in which a row has a cell: those of the published row, if there is one.

        What a figure draws is printed nowhere, so its rows have a cell in every column; a text has
        them in columns of texts, an encoder in the others.
        """
        printed = None if self.figure else published(self.paper, self.number).get(row.published)
        if printed is None:
            is_text = row.raw.get("make") == "data"
            return [it for it in self.columns if (it.value in OF_TEXTS) == is_text]
        return [it for it in self.columns if it.heading in printed]


OF_TEXTS = ("examples", "overlap")
"""Values of columns that are measured of training texts."""

_FOLDER = Path(str(files("contrasent"))) / "reproduce" / "papers"


@cache
def load_tables() -> dict[str, PaperTable]:
    """Every table and figure by its name, in the order of the papers.

    ConfigError if the plan names a system that is not there, or a setting that no system has.
    """
    tables = {}
    for paper in _SOURCES:
        content, _ = read_mapping(_FOLDER / f"{paper}.yaml")
        for number, values in content.items():
            table = _table(paper, number, values)
            tables[table.name] = table
    return tables


@cache
def load_scales() -> tuple[dict[str, PaperMaterial], dict[str, PaperScale]]:
    """Materials and scales by their names."""
    content, _ = read_mapping(_FOLDER / "scales.yaml")
    materials = content["materials"].items()
    return (
        {name: validate(PaperMaterial, values, name) for name, values in materials},
        {name: validate(PaperScale, values, name) for name, values in content["scales"].items()},
    )


def load_claims() -> dict[str, dict[str, Any]]:
    """The papers' claims by their numbers, such as ``S1``, as ``claims.yaml`` has them."""
    return read_mapping(_FOLDER / "claims.yaml")[0]


def chosen_tables(names: Sequence[str]) -> list[PaperTable]:
    """The tables of these names: a table, a paper, or all; each once.

    ConfigError if there is no such paper or table.
    """
    tables = load_tables()
    chosen: dict[str, PaperTable] = {}
    for name in names:
        if name == "baselines":
            chosen |= {key: tables[key] for key in _BASELINES}
            continue
        paper, _, number = name.lower().partition("/")
        if name != ALL:
            pick("paper", paper, [*_SOURCES, ALL])
        among = {k: it for k, it in tables.items() if name == ALL or it.paper == paper}
        if number:
            forms = (f"{paper}/{number}", f"{paper}/t{number}", f"{paper}/f{number}")
            exact = {key for key in among if key.lower() in forms}
            among = {key: among[key] for key in exact} or {
                name: among[pick("table", name, among)]  # raises, and names the nearest one
            }
        chosen |= among
    return list(chosen.values())


def recipe_of(system: System, scale: PaperScale) -> tuple[dict[str, Any], str]:
    """Settings of a system's recipe at a scale, and the id of the model that it starts from."""
    overrides = {**scale.recipes.get(system.recipe, {}), **system.settings, **scale.train}
    if system.pooler:
        overrides["encoder.pooler"] = system.pooler
    if system.trace:
        overrides |= {"evaluation.geometry_pairs": "stsb>4", **scale.trace}
    return overrides, system.start or packaged(system.recipe).encoder.name


@cache
def packaged(recipe: str) -> Recipe:
    """A recipe as it is packaged, read once."""
    return load_recipe(recipe)


@cache
def _systems() -> dict[str, dict[str, Any]]:
    content, _ = read_mapping(_FOLDER / "systems.yaml")
    return content


def system_row(name: str) -> PaperRow:
    """A shared system as a row of its own."""
    return PaperRow(name, _resolved(name))


def _resolved(row: str | Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a system, by its name or with those of what it is like."""
    if isinstance(row, str):
        return _resolved(_systems()[pick("system", row, _systems())])
    like = row.get("like")
    own = {key: value for key, value in row.items() if key != "like"}
    return {**(_resolved(like) if like else {}), **own}


def _table(paper: str, number: str, values: dict[str, Any]) -> PaperTable:
    base = values.get("like", {})

    def row(label: str, own: str | Mapping[str, Any]) -> PaperRow:
        if isinstance(own, str) or "like" in own or "make" in own:
            return PaperRow(label, _resolved(own))
        return PaperRow(label, {**_resolved(base), **own})

    def column(heading: str, value: str | Mapping[str, Any]) -> PaperColumn:
        if isinstance(value, str):
            return PaperColumn(heading, value, {})
        return PaperColumn(heading, value["value"], value["recipes"])

    known = {"like", "rows", "columns"}
    more = {key: value for key, value in values.items() if key not in known}
    try:
        return PaperTable(
            paper,
            number,
            rows=tuple(row(str(label), own) for label, own in values["rows"].items()),
            columns=tuple(column(name, value) for name, value in values["columns"].items()),
            **more,
        )
    except TypeError as error:
        raise ConfigError(f"{paper}/{number}: {error}") from error
