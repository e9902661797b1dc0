"""Materials: what a user gives, what is made of it, and what is tiny and made on the spot."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain, islice
from pathlib import Path

from contrasent.data.readers import lines
from contrasent.data.senteval import PARTS, senteval_root
from contrasent.data.views import VIEWS
from contrasent.errors import ConfigError, ContrasentError, DataError
from contrasent.files import sha256_of, writing
from contrasent.model.hub import find_download, resolve
from contrasent.reproduce import smoke
from contrasent.reproduce.papers import SAMPLE, load_scales

SMOKE, PAPER = "smoke", "paper"
ENCODER = "bert-base-uncased"
"""The model that ``--encoder`` stands in place of."""

_KEY = 16


class Materials:
    """Models, texts and tasks by their names in the plan, found or made once."""

    def __init__(
        self, scale: str, given: Mapping[str, str], folder: Path, *, download: bool = True
    ) -> None:
        """Know what a user gave.

        Args:
            scale: at ``smoke`` what is not given is tiny and made; at ``paper`` models are
                downloaded.
            given: folders, files and ids by material, or by the id of a model.
            folder: for what is made.
            download: whether models come from the hub; else one that is not there is its id.
        """
        self._download = download
        self._scale_name, self._given, self._folder = scale, dict(given), folder
        self._definitions, scales = load_scales()
        self._rows = scales[scale].rows
        self._models: dict[str, str | ContrasentError] = {}
        self._texts: dict[str, str | ContrasentError] = {}
        self._views: dict[str, str | ContrasentError] = {}

    def check(self) -> None:
        """Make sure that everything that was given is there.

        ContrasentError if something is not.
        """
        for name in self._given:
            self._source(name) if name in self._definitions else self.model(name)

    def model(self, name: str) -> str:
        """The folder in place of a model's id, or word vectors.

        ContrasentError if it cannot be had; the message says what to give.
        """
        return _once(self._models, name, self._model)

    def text(self, name: str) -> str:
        """The file of a material, cut to the rows of the scale.

        ContrasentError if it cannot be had; the message says what to give.
        """
        return _once(self._texts, name, self._text)

    def view(self, name: str) -> str:
        """What decides a view beside recipe and text, such as WordNet's version; often nothing.

        ContrasentError if it cannot be had; the message says what to get.
        """
        return _once(self._views, name, _origin_of_view)

    def _model(self, name: str) -> str:
        if name in self._definitions:
            return self.text(name)
        if name in self._given:
            return str(self._folder_of(self._given[name]))
        if self._scale_name == SMOKE:
            return str(smoke.make_model(name, self._folder / "models" / name.replace("/", "-")))
        if self._scale_name == PAPER:
            return str(self._folder_of(name))
        option = "--encoder FOLDER" if name == ENCODER else f"--material {name}=FOLDER"
        raise ConfigError(f"needs {option}: a model in place of {name}")

    def _folder_of(self, name: str) -> str | Path:
        if self._download or Path(name).expanduser().exists():
            return resolve(name)
        return find_download(name) or name

    def _text(self, name: str) -> str:
        plain = name.removeprefix(SAMPLE)
        limit = self._rows.get("sample" if plain != name else plain, self._rows.get("full"))
        source = self._source(plain)
        if limit is None or plain == "words":
            return str(source)
        return str(_beginning(source, plain, limit, self._folder / str(limit)))

    def _source(self, name: str) -> Path:
        definition = self._definitions[name]
        if name in self._given:
            path = Path(self._given[name]).expanduser()
            if not path.is_file():
                raise DataError(f"{path} is not there; it is to be {definition.about}")
            return path
        if definition.of in self._given or (definition.of and self._scale_name == SMOKE):
            return _derived(name, self._source(definition.of), self._folder / "derived")
        if self._scale_name == SMOKE:
            return smoke.make_material(name, self._folder / "texts")
        ways = [name, *([definition.of] if definition.of else [])]
        options = " or ".join(f"--material {way}=FILE" for way in ways)
        raise ConfigError(f"needs {options}: {definition.about}")


def _once(known: dict[str, str | ContrasentError], name: str, find: Callable[[str], str]) -> str:
    """What ``find`` gave the first time, or raised."""
    if name not in known:
        try:
            known[name] = find(name)
        except ContrasentError as error:
            known[name] = error
    found = known[name]
    if isinstance(found, ContrasentError):
        raise found
    return found


def _origin_of_view(name: str) -> str:
    try:
        return " ".join(VIEWS[name].origin().values())
    except ContrasentError as error:
        raise ConfigError(str(error).removeprefix(f"view {name} ")) from error


def content_hash(content: object) -> str:
    """A short hash of anything that JSON can hold."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY]


@cache
def file_sha256(path: str) -> str:
    """Of a file, computed once in a process."""
    return sha256_of(path)


@cache
def model_sha256(path: str) -> str:
    """Of a model's folder, or of a file of word vectors; of an id, where it is not here."""
    place = Path(path)
    if not place.exists():
        return content_hash(path)
    return _folder_sha256(place) if place.is_dir() else sha256_of(path)


STS_FOLDERS, TRANSFER_FOLDERS = PARTS[:2], PARTS[2:]
"""Of SentEval's data: what the tasks of a kind are read from."""


@cache
def data_sha256(data_dir: str | None, folders: tuple[str, ...] = STS_FOLDERS) -> str:
    """Of the files of these folders of SentEval's; empty without any."""
    root = senteval_root(data_dir)
    hashes = [_folder_sha256(root / it) for it in folders if (root / it).is_dir()]
    return content_hash(hashes) if hashes else ""


def _derived(name: str, labelled: Path, folder: Path) -> Path:
    """A material made of premises, hypotheses and labels, by SimCSE's rules (section 4)."""
    from contrasent.data.build import build, nli
    from contrasent.data.columns import NLI
    from contrasent.data.rows import open_rows_of

    source = open_rows_of(str(labelled), NLI)
    folder.mkdir(parents=True, exist_ok=True)
    origin = file_sha256(str(labelled))[:8]
    if name == "nli-sentences":
        path = folder / f"{name}-{origin}.txt"
        if not path.is_file():
            rows = (cells[:2] for _, cells in source.rows())
            sentences = (str(it).strip() for cells in rows for it in cells)
            with writing(path) as partial:
                partial.write_text("".join(f"{it}\n" for it in sentences if it), "utf-8")
        return path
    path = folder / f"{name}-{origin}.csv"
    if not path.is_file():
        build(nli([source], name), path)
    return path


def _beginning(source: Path, name: str, limit: int, folder: Path) -> Path:
    """The first lines or whole documents of a text; of a table as many rows, drawn."""
    from contrasent.data.columns import ColumnMap
    from contrasent.data.examples import text_kind
    from contrasent.data.rows import open_source

    kind = text_kind(str(source))
    text = kind == ".txt"
    path = folder / f"{name}-{file_sha256(str(source))[:8]}{'.txt' if text else '.csv'}"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if text:
        blocks = name == "documents"
        with writing(path) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(_head_of_text(source, limit, blocks=blocks))
        return path
    table = open_source(str(source), kind)
    rows = [cells for _, cells in table.rows(ColumnMap.every(table.first))]
    keyed = sorted(range(len(rows)), key=lambda k: content_hash(rows[k]))[:limit]
    header = [table.first] if any(table.first) else []
    with writing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [*header, *(rows[k] for k in sorted(keyed))]
        )
    return path


def _head_of_text(path: Path, limit: int, *, blocks: bool) -> Iterator[str]:
    """The first lines of a text; with ``blocks`` whole documents, which blank lines part."""
    return _first_documents(path, limit) if blocks else _first_lines(path, limit)


def _first_lines(path: Path, limit: int) -> Iterator[str]:
    return (f"{line.rstrip()}\n" for _, line in islice(lines(path), limit))


def _first_documents(path: Path, limit: int) -> Iterator[str]:
    """Whole documents, with the blank lines after them, that have so many next sentences at most.

    The first document is taken whatever its length.
    """
    taken = 0
    document: list[str] = []
    for line in chain((line for _, line in lines(path)), [None]):
        if line is not None:
            document.append(f"{line.rstrip()}\n")
        if line is None or not line.strip():
            anchors = sum(bool(it.strip()) for it in document) - 1
            if taken and taken + anchors > limit:
                return
            yield from document
            taken += max(0, anchors)
            document = []


def _folder_sha256(folder: Path) -> str:
    """Hash of the names and contents of all files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path)}\n".encode())
    return digest.hexdigest()
