"""Contents of a report: saved results, labels, rows, and what makes them hard to compare."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.errors import DataError
from contrasent.evaluation import geometry
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.evaluation.judgement import ExampleQuery
from contrasent.evaluation.neighbours import KIND as NEIGHBOURS
from contrasent.evaluation.neighbours import Neighbours, read_neighbours
from contrasent.records import Compared, Record, Usage, read_records
from contrasent.report.table import ABSENT, Table, text_table
from contrasent.search.groups import Groups


@dataclass(frozen=True, slots=True)
class Mean:
    """The average over the tasks of a metric beside that of another encoder."""

    like: Usage  # some result of the encoder
    metric: str  # of the tasks
    compared: Compared  # how the averages differ


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything a report shows; all of it can be read from files that commands saved."""

    records: tuple[Record, ...] = ()  # scores, of any number of encoders
    means: tuple[Mean, ...] = ()  # how their averages differ, which no record holds
    geometries: tuple[Geometry, ...] = ()  # how the embeddings of encoders lie in space
    runs: tuple[Trajectory, ...] = ()  # training runs that measured it
    neighbours: tuple[Neighbours, ...] = ()  # what encoders find in a corpus
    answer: tuple[str, ...] = ()  # what it comes to, in sentences
    tables: tuple[Table, ...] = ()  # of what was tried
    queries: tuple[ExampleQuery, ...] = ()  # what the encoder and BM25 find on a text
    clusters: Groups | None = None  # of a text, with a map
    command: str = ""  # the command line that writes the report
    # what its reader has to know, such as why a model has no numbers
    warnings: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[Record | Neighbours, ...]:
        """Results that say how their encoder was used, scores first."""
        return (*self.records, *(it.records[0] for it in self.geometries), *self.neighbours)


Identity = tuple[str, ...]
"""An encoder, and how it was used."""


def identity(used: Usage) -> Identity:
    """What two results have in common that stand in one row.

    Prompts of queries and documents follow from the encoder, and retrieval alone has them.
    """
    prompt = (used.prompts or {}).get("default", "")
    return (used.encoder, *(_use(used) | {"prompts": prompt}).values())


def _use(used: Usage) -> dict[str, str]:
    return {
        "pooler": used.pooler,
        "head": used.head or "",
        "transform": used.transform or "",
        "prompts": ", ".join(f"{name} {text!r}" for name, text in (used.prompts or {}).items()),
        "dimensions": str(used.dimensions or ""),
        "engine": used.engine or "",
        "similarity": used.similarity or "",
        "precision": used.precision,
        "cut at": f"{used.max_tokens} tokens" if used.max_tokens else "",
        "training seed": "" if used.seed is None else str(used.seed),
    }


@dataclass(frozen=True, slots=True)
class PageRow:
    """One encoder as it was used."""

    label: str  # its name in every table and figure; no two rows share it
    like: Usage  # a result of it, one that tells the most prompts
    records: tuple[Record, ...]  # its scores, each once


def rows_of(contents: Contents) -> dict[Identity, PageRow]:
    """The encoders in the order in which their numbers came, scores first.

    Of two records of one number the first is shown, or the one of the same value with more of a
    protocol, an interval and a comparison.
    """
    first: dict[Identity, Usage] = {}
    for used in contents.used:
        known = first.setdefault(identity(used), used)
        if len(used.prompts or ()) > len(known.prompts or ()):
            first[identity(used)] = used
    scores: dict[Identity, dict[tuple[object, ...], Record]] = {key: {} for key in first}
    for record in contents.records:
        shown, key = scores[identity(record)], _key(record)
        other = shown.setdefault(key, record)
        more, less = (
            sum(part is not None for part in (it.protocol, it.interval, it.compared))
            for it in (record, other)
        )
        if record.value == other.value and more > less:
            shown[key] = record
    return {
        key: PageRow(name, like, tuple(scores[key].values()))
        for name, (key, like) in zip(labels(list(first.values())), first.items(), strict=True)
    }


def _key(record: Record) -> tuple[object, ...]:
    how = tuple(sorted((record.classifier or {}).items()))
    place = (record.task, record.subset, record.split)
    return (*place, record.metric, record.aggregation, record.regressor, how)


def doubts(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[str]:
    """Reasons why numbers are hard to compare with one another."""
    seen = list[str]()
    hashes: dict[tuple[str, str], set[str]] = {}
    values: dict[tuple[object, ...], float] = {}
    for identified, row in rows.items():
        for record in row.records:
            values[identified, _key(record)] = record.value
            hashes.setdefault((record.task, record.split), set()).add(record.data_sha256)
            if (overlap := record.overlap or {}).get("sentences_seen"):
                seen.append(
                    f"{row.label} was trained on {overlap['file']}, which has "
                    f"{overlap['sentences_seen']:,} of the {overlap['sentences']:,} sentences of "
                    f"{record.task} ({record.split})"
                )
    seen += sorted(
        f"{rows[identity(it)].label}: {it.task} ({it.split}) was measured more than once, with "
        "different values; the first is shown"
        for it in contents.records
        if it.value != values[identity(it), _key(it)]
    )
    seen += [
        f"{task} ({split}): the encoders were scored on different data, see the hashes below"
        for (task, split), known in hashes.items()
        if len(known) > 1
    ]
    if len({tuple(sorted(row.like.versions.items())) for row in rows.values()}) > 1:
        seen.append("the numbers were computed with different versions of packages, see below")
    return list(dict.fromkeys(seen))


def settings_tables(contents: Contents, rows: Sequence[PageRow]) -> list[Table]:
    """How encoders were used, which data was read, which packages computed the numbers."""
    encoders = [
        {"row": row.label, "encoder": row.like.encoder, **_use(row.like)}
        | ({} if row.like.engine else {"engine": "torch"})
        for row in rows
    ]
    read = [
        {"task": it.corpus, "SHA-256 of what was read": it.corpus_sha256}
        if isinstance(it, Neighbours)
        else {"task": it.task, "split": it.split, "SHA-256 of what was read": it.data_sha256}
        for it in contents.used
    ]
    versions = [{"encoder": row.label, **row.like.versions} for row in rows]
    return [
        _facts_table(encoders, "encoders", "Encoders"),
        _facts_table(read, "data", "Data"),
        _facts_table(versions, "versions", "Versions"),
    ]


def _facts_table(facts: Sequence[Mapping[str, str]], name: str, title: str) -> Table:
    headings = list(dict.fromkeys(heading for each in facts for heading in each))
    lines = dict.fromkeys(tuple(it.get(of) or ABSENT for of in headings) for it in facts)
    return text_table(headings, lines, name, title)


def short_encoder(encoder: str) -> str:
    """The last part of a name; of ``best`` and ``last`` of a run, that of the run too."""
    path = Path(encoder)
    run = path.parent.name
    return f"{run}/{path.name}" if run and path.name in ("best", "last") else path.name or encoder


def described(label: str, used: Usage) -> str:
    """How the encoder was used whose row has this label."""
    encoder = f", encoder {used.encoder}" if used.encoder != label else ""
    return f"pooler {_everything(used)}{encoder}"


def labelled(geometries: Sequence[Geometry]) -> dict[str, Geometry]:
    """Geometries by labels as :func:`labels` makes them."""
    return dict(zip(labels([it.records[0] for it in geometries]), geometries, strict=True))


def labels(results: Sequence[Usage]) -> list[str]:
    """The short name of each encoder.

    Where that is not one's alone, it is followed by what tells them apart first: the pooler, the
    precision, everything known; or it is the whole name, in the end with a number.
    """
    short = [short_encoder(it.encoder) for it in results]
    ways = [(it.pooler, f"{it.pooler}, {it.precision}", _everything(it)) for it in results]
    used_as = [
        [f"{name} ({way[k]})" for name, way in zip(short, ways, strict=True)] for k in range(3)
    ]
    whole = [f"{it.encoder} ({way[1]})" for it, way in zip(results, ways, strict=True)]
    return _distinct(short, *used_as, whole)


def labelled_runs(runs: Sequence[Trajectory]) -> dict[str, Trajectory]:
    """Trajectories by the name of their folder, with a number where two folders share it."""
    return dict(zip(_distinct([run.label for run in runs]), runs, strict=True))


_WORDS = {
    "head": "head {}",
    "prompts": "prompts {}",
    "dimensions": "{} dimensions",
    "similarity": "compared by {}",
    "cut at": "sentences cut at {}",
    "training seed": "seed {}",
}


def _everything(used: Usage) -> str:
    known = {name: text for name, text in _use(used).items() if text}
    return ", ".join(_WORDS.get(name, "{}").format(text) for name, text in known.items())


def _distinct(*choices: Sequence[str]) -> list[str]:
    labels = []
    for row, last in enumerate(choices[-1]):
        unique = (names[row] for names in choices if names.count(names[row]) == 1)
        labels.append(next(unique, f"{last} #{row + 1}"))
    return labels


def read_saved(paths: Iterable[str | Path]) -> Contents:
    """Read files of measured geometry, training runs, records of scores and nearest neighbours.

    DataError if a path is not there, or is none of them.
    """
    saved: dict[str, Any] = defaultdict(list)
    for path in map(Path, paths):
        first: Any = {}
        if path.is_file():
            with suppress(ValueError), path.open(encoding="utf-8") as file:
                first = json.loads(file.readline())
        first = first if isinstance(first, dict) else {}
        if first.get("kind") == geometry.KIND:
            saved["geometries"] += geometry.read_geometry(path)
        elif first.get("kind") == NEIGHBOURS:
            saved["neighbours"] += read_neighbours(path)
        elif "metric" in first:
            saved["records"] += read_records(path)
        elif path.is_dir() or "step" in first:
            saved["runs"].append(geometry.read_trajectory(path))
        else:
            nothing = "no measured geometry, no scores, no nearest neighbours and no training run"
            raise DataError(
                f"{path} {f'holds {nothing}' if path.exists() else 'does not exist'}; name what "
                "'contrasent analyze --json', 'contrasent evaluate --json' or 'contrasent "
                "neighbours --json' wrote, or a run's folder"
            )
    fields: dict[str, Any] = {kind: tuple(rows) for kind, rows in saved.items()}
    return Contents(**fields)
