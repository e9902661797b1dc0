"""What a report is made of, and which of its numbers belong to one encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.neighbours import Neighbours
from contrasent.evaluation.trajectory import Trajectory
from contrasent.records import Compared, Record
from contrasent.report.labels import Used, labels


@dataclass(frozen=True, slots=True)
class Mean:
    """The average over the tasks of a metric beside that of another encoder.

    Attributes:
        like: some result of the encoder.
        metric: of the tasks.
        compared: how the averages differ.
    """

    like: Used
    metric: str
    compared: Compared


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything a report shows; all of it can be read from files that commands saved.

    Attributes:
        records: scores, of any number of encoders.
        means: how their averages differ, which no record tells.
        geometries: how the embeddings of encoders lie in space.
        runs: training runs that measured it.
        neighbours: what encoders find in a corpus.
        command: the words of the command that writes the report.
        warnings: what its reader has to know, such as why a model has no numbers.
        published: show the points that papers print beside the encoders.
        supervised: encoders whose spectrum and cosines stand in panels of their own.
    """

    records: tuple[Record, ...] = ()
    means: tuple[Mean, ...] = ()
    geometries: tuple[Geometry, ...] = ()
    runs: tuple[Trajectory, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()
    command: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    published: bool = True
    supervised: tuple[str, ...] = ()


Identity = tuple[str | int | None, ...]
"""Encoder, pooler, head, transform, longest sentence, engine, precision and seed."""


def identity(used: Used) -> Identity:
    """What two results have in common that stand in one row."""
    return (
        used.encoder,
        used.pooler,
        used.head,
        used.transform,
        used.max_tokens,
        used.engine,
        used.precision,
        used.seed,
    )


@dataclass(frozen=True, slots=True)
class PageRow:
    """One encoder as it was used.

    Attributes:
        label: its name in every table and figure; no two rows share it.
        like: some result of it.
        records: its scores, each once.
    """

    label: str
    like: Used
    records: tuple[Record, ...]


def rows_of(contents: Contents) -> dict[Identity, PageRow]:
    """The encoders in the order in which their numbers came, scores first."""
    first: dict[Identity, Used] = {}
    measured = (found.records[0] for found in contents.geometries)
    used: tuple[Used, ...] = (*contents.records, *measured, *contents.neighbours)
    for it in used:
        first.setdefault(identity(it), it)
    own: dict[Identity, dict[tuple[object, ...], Record]] = {key: {} for key in first}
    for record in contents.records:
        mine, number = own[identity(record)], _number(record)
        if number not in mine or _says_more(record, mine[number]):
            mine[number] = record
    names = labels(list(first.values()))
    return {
        key: PageRow(name, like, tuple(own[key].values()))
        for name, (key, like) in zip(names, first.items(), strict=True)
    }


def doubts(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[str]:
    """What makes numbers of the report hard to compare with one another."""
    return [
        *_overlaps(rows.values()),
        *_contradictions(contents.records, rows),
        *_other_data(rows.values()),
        *_other_versions(rows.values()),
    ]


def _number(record: Record) -> tuple[object, ...]:
    """What two records have in common that are the same number, measured twice."""
    how = tuple(sorted((record.classifier or {}).items()))
    place = (record.task, record.subset, record.split)
    return (*place, record.metric, record.aggregation, record.regressor, how)


def _says_more(record: Record, other: Record) -> bool:
    """The same value, with a protocol, an interval or a comparison that the other has not."""

    def said(it: Record) -> int:
        return sum(part is not None for part in (it.protocol, it.interval, it.compared))

    return record.value == other.value and said(record) > said(other)


def _overlaps(rows: Iterable[PageRow]) -> list[str]:
    """Encoders that were trained on text of what they are scored on."""
    found: dict[str, None] = {}
    for row in rows:
        for record in row.records:
            seen = record.overlap or {}
            if seen.get("sentences_seen"):
                found.setdefault(
                    f"{row.label} was trained on {seen['file']}, which has "
                    f"{seen['sentences_seen']:,} of the {seen['sentences']:,} sentences of "
                    f"{record.task} ({record.split})"
                )
    return list(found)


def _contradictions(records: Sequence[Record], rows: Mapping[Identity, PageRow]) -> list[str]:
    shown = {
        (key, _number(record)): record.value for key, row in rows.items() for record in row.records
    }
    other = {
        (rows[identity(record)].label, record.task, record.split)
        for record in records
        if record.value != shown[identity(record), _number(record)]
    }
    return [
        f"{label}: {task} ({split}) was measured more than once, with different values; the first "
        "is shown"
        for label, task, split in sorted(other)
    ]


def _other_data(rows: Iterable[PageRow]) -> list[str]:
    hashes: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for record in row.records:
            hashes.setdefault((record.task, record.split), set()).add(record.data_sha256)
    return [
        f"{task} ({split}): the encoders were scored on different data, see the hashes below"
        for (task, split), found in hashes.items()
        if len(found) > 1
    ]


def _other_versions(rows: Iterable[PageRow]) -> list[str]:
    found = {tuple(sorted(row.like.versions.items())) for row in rows}
    if len(found) < 2:
        return []
    return ["the numbers were computed with different versions of packages, see below"]
