"""Materials: what a user gives, what is made of it, and what is tiny and made on the spot."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, islice
from pathlib import Path

from contrasent.data.readers import TEXT_KINDS, lines, source_kind
from contrasent.data.senteval import PARTS, senteval_root
from contrasent.data.views import VIEWS
from contrasent.errors import ConfigError, ContrasentError, DataError
from contrasent.files import sha256_of, writing
from contrasent.model.hub import find_download, resolve
from contrasent.reproduce import smoke
from contrasent.reproduce.papers import PAPER, SAMPLE, SMOKE, load_scales

ENCODER = "bert-base-uncased"
"""The model that ``--encoder`` stands in place of."""


class Materials:
    """Models, texts and tasks by their names in the plan, found or made once."""

    def __init__(
        self, scale: str, given: Mapping[str, str], folder: Path, *, download: bool = True
    ) -> None:
        """Know what a user gave; a DataError if it is not there.

        Args:
            scale: at ``smoke`` what is not given is tiny and made; at ``paper`` models are
                downloaded.
            given: folders, files and ids by material, or by the id of a model.
            folder: for what is made.
            download: whether models come from the hub; else one that is not there is its id.
        """
        self._scale, self._given, self._folder = scale, dict(given), folder
        self._download = download
        self._definitions, scales = load_scales()
        self._rows = scales[scale].rows
        self._known: dict[tuple[str, str], str | ContrasentError] = {}
        for name in given:
            self._source(name) if name in self._definitions else self.get("model", name)

    def get(self, kind: str, name: str) -> str:
        """What there is of a name, found the first time that it is asked for.

        ContrasentError if it cannot be had; the message says what to give.

        Args:
            kind: ``model``, the folder in place of an id, or word vectors; ``text``, the file of a
                material, cut to the rows of the scale; ``view``, what decides a view beside recipe
                and text, such as WordNet's version, often nothing.
            name: of the model, the material or the view.
        """
        if (kind, name) not in self._known:
            try:
                found = {"model": self._model, "text": self._text, "view": _origin_of_view}
                self._known[kind, name] = found[kind](name)
            except ContrasentError as error:
                self._known[kind, name] = error
        known = self._known[kind, name]
        if isinstance(known, ContrasentError):
            raise known
        return known

    def _model(self, name: str) -> str:
        if name in self._definitions:
            return self.get("text", name)
        if name not in self._given and self._scale == SMOKE:
            return str(smoke.make_model(name, self._folder / "models" / name.replace("/", "-")))
        if name not in self._given and self._scale != PAPER:
            option = "--encoder FOLDER" if name == ENCODER else f"--material {name}=FOLDER"
            raise ConfigError(f"needs {option}: a model in place of {name}")
        name = self._given.get(name, name)
        if self._download or Path(name).expanduser().exists():
            return str(resolve(name))
        return str(find_download(name) or name)

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
        if definition.of in self._given or (definition.of and self._scale == SMOKE):
            return _derived(name, self._source(definition.of), self._folder / "derived")
        if self._scale == SMOKE:
            return smoke.make_material(name, self._folder / "texts")
        ways = [name, *([definition.of] if definition.of else [])]
        options = " or ".join(f"--material {way}=FILE" for way in ways)
        raise ConfigError(f"needs {options}: {definition.about}")


def _origin_of_view(name: str) -> str:
    try:
        return " ".join(VIEWS[name].origin().values())
    except ContrasentError as error:
        raise ConfigError(str(error).removeprefix(f"view {name} ")) from error


def content_hash(content: object) -> str:
    """A short hash of anything that JSON can hold."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def path_sha256(path: str) -> str:
    """Of a file, of all names and contents of a folder, or of an id, where it is not here.

    Computed once in a process.
    """
    place = Path(path)
    if not place.is_dir():
        return sha256_of(place) if place.exists() else content_hash(path)
    digest = hashlib.sha256()
    for file in sorted(it for it in place.rglob("*") if it.is_file()):
        digest.update(f"{file.relative_to(place).as_posix()} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


STS_FOLDERS, TRANSFER_FOLDERS = PARTS[:2], PARTS[2:]
"""Of SentEval's data: what the tasks of a kind are read from."""


@cache
def data_sha256(data_dir: str | None, folders: tuple[str, ...] = STS_FOLDERS) -> str:
    """Of the files of these folders of SentEval's; empty without any."""
    root = senteval_root(data_dir)
    hashes = [path_sha256(str(root / it)) for it in folders if (root / it).is_dir()]
    return content_hash(hashes) if hashes else ""


def _derived(name: str, labelled: Path, folder: Path) -> Path:
    """A material made of premises, hypotheses and labels, by SimCSE's rules (section 4)."""
    from contrasent.data.build import build, nli
    from contrasent.data.columns import NLI
    from contrasent.data.rows import open_rows_of

    source = open_rows_of(str(labelled), NLI)
    folder.mkdir(parents=True, exist_ok=True)
    plain = name == "nli-sentences"
    path = folder / f"{name}-{path_sha256(str(labelled))[:8]}.{'txt' if plain else 'csv'}"
    if path.is_file():
        return path
    if plain:
        sentences = (str(it).strip() for _, cells in source.rows() for it in cells[:2])
        with writing(path) as partial:
            partial.write_text("".join(f"{it}\n" for it in sentences if it), "utf-8")
    else:
        build(nli([source], name), path)
    return path


def _beginning(source: Path, name: str, limit: int, folder: Path) -> Path:
    """The first lines or whole documents of a text; of a table as many rows, drawn."""
    from contrasent.data.columns import ColumnMap
    from contrasent.data.rows import open_source

    kind = source_kind(str(source), TEXT_KINDS)
    text = kind == ".txt"
    path = folder / f"{name}-{path_sha256(str(source))[:8]}{'.txt' if text else '.csv'}"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if text:
        first = (f"{line.rstrip()}\n" for _, line in islice(lines(source), limit))
        with writing(path) as partial, partial.open("w", encoding="utf-8") as file:
            file.writelines(_first_documents(source, limit) if name == "documents" else first)
        return path
    table = open_source(str(source), kind)
    rows = [cells for _, cells in table.choose(ColumnMap.every).rows()]
    kept = sorted(sorted(range(len(rows)), key=lambda k: content_hash(rows[k]))[:limit])
    header = [table.first] if any(table.first) else []
    with writing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([*header, *(rows[k] for k in kept)])
    return path


def _first_documents(path: Path, limit: int) -> Iterator[str]:
    """Whole documents, with the blank lines after them, of so many next sentences at most.

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
