"""Commands that measure the numbers of a report again, made from what the numbers say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.neighbours import Neighbours
from contrasent.evaluation.task_names import STS, TRANSFER, TaskName
from contrasent.model.pooling import POOLERS
from contrasent.records import Record
from contrasent.report.html.compared import baseline_row
from contrasent.report.html.contents import Contents, PageRow
from contrasent.report.html.mteb import is_mteb
from contrasent.report.labels import Used

_ASKED = 12
"""Queries that a command names one by one."""

_UNTOLD = ("--columns", "--data-dir")

_DRAWN = re.compile(r"(\d+) of the corpus, drawn")


def commands(contents: Contents, rows: Sequence[PageRow]) -> list[str]:
    """What to call to get the numbers again, in the order of the report."""
    found = [_mteb(it) if it.mteb else _evaluate(it) for it in _together(rows)]
    found += [_analyze(it) for it in contents.geometries]
    found += [_neighbours(it) for it in contents.neighbours]
    return [shlex.join([*it, *_given(contents, it[1])]) for it in dict.fromkeys(map(tuple, found))]


def is_called(contents: Contents) -> bool:
    """The command that writes the report measured all of its numbers."""
    options = [word.partition("=")[0] for word in contents.command]
    return bool(options) and "--from" not in options


def _given(contents: Contents, name: str) -> list[str]:
    """What numbers do not tell, as the command that writes the report was given it."""
    words = contents.command[2:] if contents.command[1:2] == (name,) else ()
    found = []
    for k, word in enumerate(words):
        option, joined, value = word.partition("=")
        if option in _UNTOLD:
            found += [option, value if joined else words[k + 1]]
    return found


@dataclass(slots=True)
class _Call:
    """Encoders that one command scores.

    Attributes:
        mteb: it is MTEB that does so.
        protocol: of the correlations.
        how: of the classifiers.
        used: the encoders, the one that others are compared with first.
        records: their scores.
    """

    mteb: bool
    protocol: str | None
    how: dict[str, str | int]
    used: list[Used]
    records: list[Record]

    @property
    def compares(self) -> bool:
        return any(it.compared for it in self.records)


def _together(rows: Sequence[PageRow]) -> list[_Call]:
    """Encoders that were used alike share a command, and so do those that were compared."""
    first = _baselines(rows)
    found: dict[tuple[object, ...], _Call] = {}
    for row in sorted(rows, key=lambda row: first.get(row.label, "") != row.label):
        for mteb in (False, True):
            records = [it for it in row.records if is_mteb(it) == mteb]
            if not records:
                continue
            named = next((it.protocol for it in records if it.protocol), None)
            how = next((it.classifier for it in records if it.classifier), None) or {}
            key = (mteb, named, tuple(how.items()), first.get(row.label, _options(row.like)))
            call = found.setdefault(key, _Call(mteb, named, how, [], []))
            call.used.append(row.like)
            call.records += records
    return list(found.values())


def _baselines(rows: Sequence[PageRow]) -> dict[str, str]:
    """The label of the row that a row was compared with; that row is its own."""
    found: dict[str, str] = {}
    for row in rows:
        with_rows = [baseline_row(it.compared, row, rows) for it in row.records if it.compared]
        for baseline in with_rows[:1]:
            if baseline is not None:
                found[row.label] = found[baseline.label] = baseline.label
    return found


def _evaluate(call: _Call) -> list[str]:
    tasks = dict.fromkeys(TaskName(it.task, it.split).label for it in call.records)
    words = ["contrasent", "evaluate", *dict.fromkeys(it.encoder for it in call.used)]
    words += ["--tasks", ",".join(_short(tasks)), *_shared(call.used), *_protocol(call.protocol)]
    sure = next((it.interval for it in call.records if it.interval), None)
    words += ["--confidence", f"{sure.confidence:g}"] if sure else []
    words += ["--compare"] if call.compares else []
    for option, name in (("classifier", "name"), ("preset", "preset"), ("classifier-seed", "seed")):
        words += [f"--{option}", str(call.how[name])] if name in call.how else []
    return words


def _mteb(call: _Call) -> list[str]:
    encoders = dict.fromkeys(it.encoder for it in call.used)
    tasks = dict.fromkeys(it.task for it in call.records)
    return ["contrasent", "mteb", *encoders, "--tasks", ",".join(tasks), *_shared(call.used)]


def _analyze(found: Geometry) -> list[str]:
    like = found.records[0]
    return ["contrasent", "analyze", like.encoder, "--pairs", found.pairs, *_options(like)]


def _neighbours(found: Neighbours) -> list[str]:
    words = ["contrasent", "neighbours", found.encoder, "--corpus", found.corpus]
    drawn = _DRAWN.match(found.asked)
    if drawn:
        words += ["--sample", drawn[1]]
    elif len(found.queries) <= _ASKED:
        words += [word for query in found.queries for word in ("--query", query.text)]
    else:
        words += ["--queries", found.asked]
    return [*words, "--top-k", str(found.top_k), *_options(found)]


def _shared(used: Sequence[Used]) -> list[str]:
    """Options that all encoders have; where they differ, they are the encoders' own."""
    first, *others = [_pairs(it) for it in used]
    return [word for pair in first if all(pair in other for other in others) for word in pair]


def _options(used: Used) -> tuple[str, ...]:
    """How the encoder is used."""
    return tuple(word for pair in _pairs(used) for word in pair)


def _pairs(used: Used) -> list[tuple[str, str]]:
    known = [
        ("--pooler", used.pooler if used.pooler in POOLERS else None),
        ("--head", used.head),
        ("--engine", used.engine),
        ("--precision", used.precision),
    ]
    return [(option, value) for option, value in known if value]


def _protocol(name: str | None) -> list[str]:
    """A protocol with what was changed of it, as options."""
    if name is None:
        return []
    base, _, changed = name.partition(" with ")
    words = ["--protocol", base]
    for part in filter(None, changed.split(", ")):
        option, _, value = part.partition(" ")
        if part in ("regressor", "no regressor"):
            words.append(f"--{part.replace(' ', '-')}")
        else:
            words += [f"--{option}", value]
    return words


def _short(labels: Iterable[str]) -> list[str]:
    """The labels, all seven tasks of a kind by its one name."""
    found = list(labels)
    for name, members in (("sts", STS), ("transfer", TRANSFER)):
        if set(members) <= set(found):
            first = min(found.index(member) for member in members)
            found[first:first] = [name]
            found = [label for label in found if label not in members]
    return found
