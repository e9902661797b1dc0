"""Tables and figures of the papers: rows, columns, and how the encoder of a row is made.

The YAML of ``papers`` holds the plan: ``systems`` are what several tables share, ``scales`` how
much is done, and a file for each paper its tables. A row is settings over a system, a column is
what is measured, and the published numbers are found by their names.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from contrasent.errors import ConfigError, pick
from contrasent.evaluation import STS, STS_TASKS, TRANSFER, TRANSFER_TASKS
from contrasent.recipe import Recipe, load_recipe, read_mapping, validate
from contrasent.settings import settings

SMOKE, PAPER = "smoke", "paper"
"""Scales: tiny and shipped; the papers' own."""

TARGET = "target"
"""In place of data: the sentences of the task that is scored."""

SAMPLE = "sample:"
"""Before a material: a sample of it, of one size for all."""

PAIRS = "stsb>4"
"""Of alignment and uniformity, unless a column says otherwise: SimCSE, section 3."""

_FOLDER = Path(__file__).parent


@settings
class System:
    """How an encoder is made, or what else a row is about."""

    # trained; the start as it is; a map fitted; a text or a task; or published only
    make: Literal["train", "start", "whitening", "flow", "data", "cited"] = "train"
    recipe: str = ""  # for train
    data: str = ""  # the material, or target, it is trained or fitted on; or what the row is about
    start: str = ""  # the model's id, or a material; empty for the recipe's
    of: str = ""  # the system whose encoder it is made from, in place of a start
    # systems that it is trained to follow, in the order of the objective's settings
    teachers: list[str] = Field(default_factory=list)
    pooler: str | None = None  # in place of the recipe's or the encoder's
    head: str = ""  # mlp: scored with the head that training keeps, and leaves out when it selects
    step: Literal["best", "last"] = "best"  # of the training run that it comes from
    trace: bool = False  # alignment and uniformity are measured every ten steps of the training
    aggregation: str = ""  # of the subsets of STS tasks, where it is not all pairs together
    count: str = ""  # trained: parameters are counted of all that is trained
    settings: dict[str, Any] = Field(default_factory=dict)  # of the recipe, by dotted name
    published: str = ""  # the published row whose numbers stand beside, if of another name
    note: str = ""  # what has to be known to read it


@settings
class PaperMaterial:
    """A file that the user brings, or that is made of another."""

    about: str  # what it has to hold, and how to get it
    of: str = ""  # the material that it can be made of
    smoke: str = ""  # the shipped file in place of it, in the package


@settings
class PaperScale:
    """How much is done; one code for all."""

    about: str  # when to take it
    preset: str  # SentEval's settings of the transfer tasks' classifiers
    # rows taken of a text, by its name; ``full`` of any, ``sample`` where one is asked for
    rows: dict[str, int] = Field(default_factory=dict)
    # settings in place of a recipe's; those of a row go before them
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    # settings of every training run; they go before those of a row
    train: dict[str, Any] = Field(default_factory=dict)
    # settings of a run whose alignment and uniformity are followed
    trace: dict[str, Any] = Field(default_factory=lambda: {"evaluation.geometry_every": 10})


_GROUPED = ("group", "deviation")
_GEOMETRY = ("alignment", "uniformity", "partition_ratio", "mean_cosine", "spectrum", *_GROUPED)
OF_TEXTS = ("examples", "overlap")
_MEASURES = {
    **dict.fromkeys((*STS_TASKS, "sts"), "sts"),
    **{f"{task}-dev": "sts-dev" for task in STS_TASKS},
    **dict.fromkeys((*TRANSFER_TASKS, "transfer"), "transfer"),
    "transfer-dev": "transfer-dev",
    **{f"recall@{k}": "retrieval" for k in (1, 5, 10)},
    **dict.fromkeys(("parameters", "layers", "width"), "size"),
    **dict.fromkeys(OF_TEXTS, "text"),
}


@dataclass(frozen=True, slots=True)
class PaperColumn:
    """A column: its heading, and what it shows, read from words that ``simcse.yaml`` explains."""

    heading: str
    text: str  # as the plan has it
    kind: str = "measured"  # or ``setting``, ``protocol``, ``machine``, ``trace``
    name: str = ""  # in results, such as ``stsb-dev``; else what is asked of the kind
    measure: str = ""  # that gives it, such as ``geometry:stsb>4``
    minus: tuple[str, str] | None = None  # table and heading of a published number
    of_generator: bool = False
    # recipes that stand for others in this column
    recipes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, heading: str, text: str) -> "PaperColumn":
        """Read the words of a column."""
        kind, _, rest = text.partition(":")
        if kind in ("setting", "protocol", "machine", "trace"):
            return cls(heading, text, kind, rest)
        if kind == "delta":
            name, table, printed = rest.split(":")
            return replace(cls.parse(heading, name), text=text, minus=(table, printed))
        if kind == "generator":
            return replace(cls.parse(heading, rest), text=text, of_generator=True)
        if kind in _GEOMETRY:
            pairs = rest.partition(":")[2] if kind in _GROUPED else rest
            measure = f"geometry:{pairs or PAIRS}"
        elif kind in ("neighbours", "pairs"):
            measure = text
        else:
            measure = _MEASURES[kind.partition("/")[0]]
        return cls(heading, text, name=text, measure=measure)

    @property
    def task(self) -> str:
        """The task without its split, ``sts`` or ``transfer``."""
        return self.text.partition("/")[0].removesuffix("-dev")

    @property
    def is_score(self) -> bool:
        """It is in [-1, 1] and printed x 100."""
        scores = ("sts", "transfer", "retrieval", "text")
        return self.measure.startswith(scores) and self.name != "examples"

    @property
    def is_of_geometry(self) -> bool:
        """It is a number of the geometry of embeddings, of an encoder or in its training."""
        return self.kind == "trace" or self.measure.startswith("geometry:")


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
    figure: str = ""  # what is drawn, one of `FIGURES`; empty for a table
    panels: int = 0  # rows of a panel of the figure; 0 for one panel
    study: str = ""  # the study's table with the same rows and columns
    note: str = ""  # what has to be known to read it, as a sentence

    @property
    def name(self) -> str:
        """Such as ``simcse/TE.1``."""
        return f"{self.paper}/{self.number}"

    @property
    def heading(self) -> str:
        """Such as ``Gao et al. 2021, Table E.1: Transfer tasks``."""
        kinds = {"F": f"Figure {self.number[1:]}", "T": f"Table {self.number[1:]}"}
        source = read_plan("scales")["papers"][self.paper]
        return f"{source}, {kinds.get(self.number[0], self.number)}: {self.title}"

    def printed(self, row: PaperRow, heading: str) -> str | None:
        """The published number; None if there is none."""
        return published(self.paper, self.number).get(row.published, {}).get(heading)

    def columns_of(self, row: PaperRow) -> list[PaperColumn]:
        """The columns in which a row has a cell: those of the published row, if there is one.

        What a figure draws is printed nowhere, so its rows have a cell in every column; a text has
        them in columns of texts, an encoder in the others, but for those of a training's course if
        it was not trained.
        """
        printed = None if self.figure else published(self.paper, self.number).get(row.published)
        if printed is None:
            make = row.raw.get("make", "train")
            columns = [it for it in self.columns if make == "train" or it.kind != "trace"]
            return [it for it in columns if (it.text in OF_TEXTS) == (make == "data")]
        return [it for it in self.columns if it.heading in printed]


@cache
def published(paper: str, table: str) -> dict[str, dict[str, str]]:
    """The numbers of a table as they are printed, by row and column; nothing if it has none.

    ``paper`` is as commands name it, ``table`` such as ``T5``, ``TE.1``, ``F3`` or ``text``.
    """
    rows: dict[str, dict[str, str]] = {}
    for line in published_lines():
        if (line["paper"], line["table"]) == (paper, table):
            rows.setdefault(line["row"], {})[line["column"]] = line["value"]
    return rows


@cache
def published_lines() -> list[dict[str, str]]:
    """Every published number with its unit and where the paper has it from."""
    with (_FOLDER / "published.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def read_plan(name: str) -> dict[str, Any]:
    """A file of ``papers``: of a paper, or ``systems``, ``scales``, ``claims``."""
    content, _ = read_mapping(_FOLDER / "papers" / f"{name}.yaml")
    return content


@cache
def load_tables() -> dict[str, PaperTable]:
    """Every table and figure by its name, in the order of the papers."""
    return {
        f"{paper}/{number}": _table(paper, number, values)
        for paper in read_plan("scales")["papers"]
        for number, values in read_plan(paper).items()
    }


def _table(paper: str, number: str, values: dict[str, Any]) -> PaperTable:
    base = _resolved(values.get("like", {}))
    rows, columns = [], []
    for label, own in values["rows"].items():
        whole = isinstance(own, str) or "like" in own or "make" in own
        rows.append(PaperRow(str(label), _resolved(own) if whole else {**base, **own}))
    for heading, own in values["columns"].items():
        text, recipes = (own, {}) if isinstance(own, str) else (own["value"], own["recipes"])
        columns.append(replace(PaperColumn.parse(heading, text), recipes=recipes))
    more = {key: it for key, it in values.items() if key not in ("like", "rows", "columns")}
    if note := more.get("note"):
        more["note"] = f"{note[0].upper()}{note[1:]}."
    return PaperTable(paper, number, rows=tuple(rows), columns=tuple(columns), **more)


def _resolved(row: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(row, str):
        return _resolved(read_plan("systems")[row])
    own = {key: value for key, value in row.items() if key != "like"}
    return {**(_resolved(row["like"]) if "like" in row else {}), **own}


def system_row(name: str) -> PaperRow:
    """A shared system as a row of its own."""
    return PaperRow(name, _resolved(name))


@cache
def load_scales() -> tuple[dict[str, PaperMaterial], dict[str, PaperScale]]:
    """Materials and scales by their names."""
    materials, scales = (read_plan("scales")[name].items() for name in ("materials", "scales"))
    return (
        {name: validate(PaperMaterial, values, name) for name, values in materials},
        {name: validate(PaperScale, values, name) for name, values in scales},
    )


def choose(
    names: Sequence[str], rows: Sequence[str] = (), tasks: Sequence[str] = ()
) -> list[PaperTable]:
    """Tables by their names: a table, a paper, ``baselines`` or ``all``, which is the default.

    Keeps rows with one of these labels, or with one of these words in them, and columns of these
    tasks, such as ``stsb`` or ``transfer``. ConfigError if there is no such table, or nothing left.
    """
    groups = {**dict.fromkeys(STS, "sts"), **dict.fromkeys(TRANSFER, "transfer")}
    tables, plan, wanted = load_tables(), read_plan("scales"), list[str]()
    for name in names or ["all"]:
        paper, _, number = name.lower().partition("/")
        if name == "baselines":
            wanted += plan["baselines"]
        elif number:
            forms = [f"{paper}/{kind}{number}" for kind in ("", "t", "f")]
            exact = [key for key in tables if key.lower() in forms]
            wanted += exact or [pick("table", name, tables)]
        else:
            pick("paper", paper, [*plan["papers"], "all"])
            wanted += [key for key, it in tables.items() if paper in ("all", it.paper)]
    chosen, whole = [], ", ".join(rows)
    every = [row.label.lower() for name in wanted for row in tables[name].rows]
    words = [whole] if any(whole.lower() in it for it in every) else rows  # labels have commas too
    unknown = [word for word in words if not any(word.lower() in it for it in every)]
    for table in map(tables.__getitem__, dict.fromkeys(wanted)):
        labels, asked = {row.label for row in table.rows}, set[str]()
        for word in words:
            asked |= labels & {word} or {it for it in labels if word.lower() in it.lower()}
        kept = tuple(row for row in table.rows if row.label in asked)
        columns = [
            it
            for it in table.columns
            if not tasks or {it.text, it.task, groups.get(it.task, it.task)} & set(tasks)
        ]
        if kept and columns:
            chosen.append(replace(table, rows=kept, columns=tuple(columns)))
    if unknown or not chosen:
        raise ConfigError(
            f"no table has a row with {' or '.join(unknown or rows) or 'any name'} and a column of "
            f"{' or '.join(tasks) or 'any task'}; 'contrasent reproduce commands' shows them"
        )
    return chosen


def recipe_of(system: System, scale: PaperScale, **own: Any) -> tuple[Recipe, str]:
    """A system's recipe at a scale with a job's ``own`` settings, and the id of its start."""
    overrides = {**scale.recipes.get(system.recipe, {}), **system.settings, **scale.train}
    if system.pooler:
        overrides["encoder.pooler"] = system.pooler
    if system.trace:
        overrides |= {"evaluation.geometry_pairs": PAIRS, **scale.trace}
    recipe = packaged(system.recipe)
    return load_recipe(recipe, overrides | own), system.start or recipe.encoder.name


packaged = cache(load_recipe)
"""A recipe as it is packaged, read once."""
