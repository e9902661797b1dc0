"""Materials: what a user gives, what is made of it, and what is tiny and shipped.

The tiny ones show that everything runs, without a download. Their weights are random and their
ratings are dealt out to every task, so no number of scale ``smoke`` means anything.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby, islice
from pathlib import Path

from contrasent import data
from contrasent.data import build, lines, senteval
from contrasent.errors import ConfigError, ContrasentError, DataError
from contrasent.evaluation import Options, Suite, load_suite, preset_named
from contrasent.files import sha256_of, write_text
from contrasent.model import find_download, resolve
from contrasent.reproduce.papers import PAPER, SAMPLE, SMOKE, load_scales

ENCODER = "bert-base-uncased"
"""The model that ``--encoder`` stands in place of."""

_PACKAGE = Path(__file__).parents[1]
SMOKE_TASKS, SMOKE_MODEL = (_PACKAGE / "reproduce" / "smoke" / it for it in ("senteval", "model"))
"""What `scripts/make_smoke_data.py` makes: every task, a few rows each; the model for every id."""


class Materials:
    """Models, texts and tasks by their names in the plan, found or made once."""

    def __init__(
        self, scale: str, given: Mapping[str, str], folder: Path, *, download: bool = True
    ) -> None:
        """Know what a user gave, by material or id of a model; a DataError if it is not there.

        What is made goes to ``folder``. Without ``download``, a model that is not there is its id.
        """
        self._scale, self._given, self._folder = scale, dict(given), folder
        self._download = download
        self._definitions, scales = load_scales()
        self._rows = scales[scale].rows
        self._known: dict[tuple[str, str], str | ContrasentError] = {}
        for name in given:
            self._source(name) if name in self._definitions else self.get("model", name)

    def get(self, kind: str, name: str) -> str:
        """What there is of a name, found once; ContrasentError if it cannot be had, and how.

        A ``model`` is a folder in place of an id, or word vectors; a ``text`` the file of a
        material, cut to the rows of the scale; a ``view`` what decides it beside recipe and text,
        such as WordNet's version, often nothing.
        """
        if (kind, name) not in self._known:
            find = {"model": self._model, "text": self._text, "view": _origin_of_view}[kind]
            try:
                self._known[kind, name] = find(name)
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
            return str(SMOKE_MODEL)
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
            return _PACKAGE / definition.smoke
        ways = [name, *([definition.of] if definition.of else [])]
        options = " or ".join(f"--material {way}=FILE" for way in ways)
        raise ConfigError(f"needs {options}: {definition.about}")


def task_folder(scale: str, data_dir: str | None) -> str | None:
    """SentEval's folder, if it is given, or of scale smoke the one that is shipped."""
    return str(SMOKE_TASKS) if data_dir is None and scale == SMOKE else data_dir


def _origin_of_view(name: str) -> str:
    try:
        return " ".join(data.VIEWS[name].origin().values())
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


STS_FOLDERS, TRANSFER_FOLDERS = senteval.PARTS[:2], senteval.PARTS[2:]
"""Of SentEval's data: what the tasks of a kind are read from."""


@cache
def data_sha256(data_dir: str | None, folders: tuple[str, ...] = STS_FOLDERS) -> str:
    """Of the files of these folders of SentEval's; empty without any."""
    root = senteval.senteval_root(data_dir)
    hashes = [path_sha256(str(root / it)) for it in folders if (root / it).is_dir()]
    return content_hash(hashes) if hashes else ""


def _derived(name: str, labelled: Path, folder: Path) -> Path:
    sources = [data.open_rows_of(str(labelled), "nli")]
    plain = name == "nli-sentences"
    path = folder / f"{name}-{path_sha256(str(labelled))[:8]}.{'txt' if plain else 'csv'}"
    if path.is_file():
        return path
    if plain:
        sentences = (str(it).strip() for _, cells in sources[0].rows() for it in cells[:2])
        write_text(path, "".join(f"{it}\n" for it in sentences if it))
    else:
        build.build(build.nli(sources, name), path)
    return path


def _beginning(source: Path, name: str, limit: int, folder: Path) -> Path:
    kind = data.source_kind(str(source), data.TEXT_KINDS)
    path = folder / f"{name}-{path_sha256(str(source))[:8]}{'.txt' if kind == '.txt' else '.csv'}"
    if path.is_file():
        return path
    if kind == ".txt":
        texts: Iterable[str] = (line.rstrip() for _, line in islice(lines(source), limit))
        texts = _first_documents(source, limit) if name == "documents" else texts
        write_text(path, "".join(f"{line}\n" for line in texts))
        return path
    table = data.open_source(str(source), kind)
    rows = [cells for _, cells in table.choose(data.ColumnMap.every).rows()]
    kept = sorted(sorted(range(len(rows)), key=lambda k: content_hash(rows[k]))[:limit])
    header, *rest = [table.first] * any(table.first) + [rows[k] for k in kept]
    build.write_rows(path, header, rest)
    return path


def _first_documents(path: Path, limit: int) -> Iterator[str]:
    """Whole documents, with the blank lines after them, of so many next sentences at most.

    The first document is taken whatever its length.
    """
    taken, texts = 0, (line.rstrip() for _, line in lines(path))
    for is_document, group in groupby(texts, bool):
        document = [*group]
        if is_document and taken and taken + len(document) - 1 > limit:
            return
        yield from document
        taken += len(document) - 1 if is_document else 0


@cache
def read_suite(names: tuple[str, ...], data_dir: str | None, split: str, preset: str = "") -> Suite:
    """Tasks, read once in a process; the ``preset`` is that of the test parts."""
    # The papers' scripts score the dev parts by SentEval's quick settings.
    learning = preset_named(preset if preset and split == "test" else "dev")
    return load_suite(names, Options(data_dir, (split,), learning=learning))
