"""Requests: which tables are asked for, with what, and what a folder was asked for so far."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from contrasent.errors import ConfigError
from contrasent.evaluation.task_names import STS, TRANSFER
from contrasent.files import write_text
from contrasent.recipe import validate
from contrasent.reproduce.papers import ALL, PaperTable, chosen_tables, load_tables

_FILE = "request.json"


@dataclass(frozen=True, slots=True)
class PaperRequest:
    """Tables to reproduce, and what with.

    Attributes:
        scale: ``smoke``, ``small`` or ``paper``.
        given: files, folders and ids by material, or by the id of a model.
        seeds: of the training runs; every cell is their mean.
        data_dir: SentEval's folder.
        jobs: jobs that are worked on at once, each with its share of the cores.
        device: what computes; None takes the accelerator if there is one.
    """

    scale: str
    given: Mapping[str, str]
    seeds: tuple[int, ...]
    data_dir: str | None = None
    jobs: int = 1
    device: str | None = None


@dataclass(frozen=True, slots=True)
class TablePart:
    """The rows and columns of a table that were asked for, by label and heading."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FolderRequest:
    """What the commands of a folder asked for, taken together.

    A command that asks for some rows leaves the others in the files of its table, and one that
    makes nothing, such as ``list``, needs not be given the materials again.
    """

    scale: str = "small"
    given: dict[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    data_dir: str | None = None
    tables: dict[str, TablePart] = field(default_factory=dict)
    device: str | None = None

    @classmethod
    def read(cls, output: Path) -> FolderRequest:
        """What was kept in a folder; ConfigError if it is damaged."""
        path = output / _FILE
        if not path.is_file():
            return cls()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path} is damaged: {error}; remove it") from error
        return validate(cls, content, str(path))

    def request(
        self,
        scale: str | None,
        given: Mapping[str, str],
        seeds: tuple[int, ...],
        data_dir: str | None,
        device: str | None = None,
    ) -> PaperRequest:
        """A request, in which what is not given is as before; of another scale nothing is."""
        if scale is not None and scale != self.scale:
            return PaperRequest(scale, given, seeds, data_dir, device=device)
        given = {**self.given, **given}
        data_dir, device = data_dir or self.data_dir, device or self.device
        return PaperRequest(self.scale, given, seeds, data_dir, device=device)

    def extended(self, request: PaperRequest, tables: Iterable[PaperTable]) -> FolderRequest:
        """With a further request; ConfigError if it is of another scale."""
        if self.tables and request.scale != self.scale:
            raise ConfigError(
                f"the folder's tables are of scale {self.scale}; name another --output for "
                f"{request.scale}"
            )
        parts = dict(self.tables)
        for table in tables:
            before = parts.get(table.name, TablePart((), ()))
            rows = (*before.rows, *(row.label for row in table.rows))
            columns = (*before.columns, *(column.heading for column in table.columns))
            parts[table.name] = TablePart(tuple(dict.fromkeys(rows)), tuple(dict.fromkeys(columns)))
        seeds = tuple(sorted({*self.seeds, *request.seeds}))
        given = {name: absolute(path) for name, path in request.given.items()}
        data_dir = request.data_dir and absolute(request.data_dir)
        return FolderRequest(request.scale, given, seeds, data_dir, parts, request.device)

    def part(self, name: str) -> PaperTable:
        """The rows and columns of a table that were asked for, in its order."""
        table, part = load_tables()[name], self.tables[name]
        rows = tuple(row for row in table.rows if row.label in part.rows)
        columns = tuple(it for it in table.columns if it.heading in part.columns)
        return replace(table, rows=rows, columns=columns)

    def write(self, output: Path) -> None:
        """Keep it in a folder."""
        write_text(output / _FILE, json.dumps(asdict(self), indent=1) + "\n")


def absolute(path: str) -> str:
    """A path for commands that are run elsewhere; an id as it is."""
    place = Path(path).expanduser()
    return str(place.resolve()) if place.exists() else path


def named_rows(text: str) -> list[str]:
    """The words and labels of rows between commas; a label may have commas itself."""
    every = {row.label for table in load_tables().values() for row in table.rows}
    labels = "|".join(map(re.escape, sorted(every, key=len, reverse=True)))
    found = re.findall(rf"\s*((?:{labels})(?=\s*(?:,|$))|[^,]+)", text)
    return [it.strip() for it in found if it.strip()]


def choose(
    names: Sequence[str], rows: Sequence[str] = (), tasks: Sequence[str] = ()
) -> list[PaperTable]:
    """Tables by their names, all by default.

    Args:
        names: as :func:`contrasent.reproduce.papers.chosen_tables` takes them.
        rows: keep only rows with one of these labels, or with one of these words in them.
        tasks: keep only columns of these tasks, such as ``stsb`` or ``transfer``.

    Raises:
        ConfigError: there is no such paper or table, or no row or column is left.
    """
    chosen = []
    for table in chosen_tables(names or [ALL]):
        kept = [row for row in table.rows if not rows or _is_named(row.label, table, rows)]
        columns = [it for it in table.columns if not tasks or _is_of(it.value, tasks)]
        if kept and columns:
            chosen.append(replace(table, rows=tuple(kept), columns=tuple(columns)))
    if not chosen:
        raise ConfigError(
            f"no table has a row with {' or '.join(rows) or 'any name'} and a column of "
            f"{' or '.join(tasks) or 'any task'}; 'contrasent reproduce commands' shows them"
        )
    return chosen


def _is_named(label: str, table: PaperTable, words: Sequence[str]) -> bool:
    """Whether a word is the label, or a part of it where no other label is that word."""
    labels = {row.label for row in table.rows}
    return any(word == label if word in labels else word.lower() in label.lower() for word in words)


def _is_of(value: str, tasks: Sequence[str]) -> bool:
    task = value.partition("/")[0].removesuffix("-dev")
    groups = {**dict.fromkeys(STS, "sts"), **dict.fromkeys(TRANSFER, "transfer")}
    return bool({value, task, groups.get(task, task)} & set(tasks))
