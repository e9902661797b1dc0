"""An index that follows files: what changed in them is embedded, what disappeared is removed.

A file is split into passages by headings and paragraphs. Each is a row with the path of its file
and a hash of all that it was made from: a file whose hash is there is left alone.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from contrasent import model
from contrasent.data.readers import CONTROL, first_words, without_markup
from contrasent.data.rows import open_rows_of, require_cell
from contrasent.encode.shards import FILE
from contrasent.errors import ConfigError, DataError, first_line, require_extra, warn
from contrasent.files import recover_folder, sha256_of
from contrasent.model.protocol import Encoder
from contrasent.options import SyncOptions
from contrasent.search.index import Index, embedded
from contrasent.search.metadata import RESERVED
from contrasent.search.words import words
from contrasent.settings import checked, takes

_TABLES, _HTML = (".jsonl", ".parquet", ".csv", ".tsv"), (".html", ".htm")
_KINDS = (".txt", ".md", ".markdown", *_HTML, *_TABLES)
_FORMAT = 2
_AT_ONCE = 16_384  # passages after which the index is written, so that a kill loses no more
_ROOM = 32  # tokens that a passage leaves for its heading and special ones
_HEADING = re.compile(
    r"^(`{3,}(?![^\n]*`)|~~~).*?(?:^\1|\Z)|^(#{1,6})[ \t]+([^\n]+?)[ \t#]*$", re.M | re.S
)
_HEADING_TAG = re.compile(r"<h([1-6])\b[^>]*>(.*?)</h\1\s*>", re.I | re.S)
_BLOCK_TAG = re.compile(r"(?=</?(?:p|div|li|ul|ol|tr|section|article|d[dlt])\b)", re.I)
_MARK = "\x01"  # of headings, until what merely looks like one is no longer at a line's start
_TITLE_TAG = re.compile(r"<title\b[^>]*>(.*?)</title\s*>", re.I | re.S)

Section = tuple[str, str, dict[str, Any]]  # heading, text below it, what is known of them


@dataclass(frozen=True, slots=True)
class Synced:
    """The files that an index follows, and what became of them."""

    files: int
    changed: int  # files that are new, or not as before
    removed: int  # files that disappeared
    passages: int  # of those that changed
    embedded: int  # texts whose vectors were computed


@takes(SyncOptions)
def sync_index(
    index: str | Path,
    paths: str | Path | Sequence[str | Path],
    encoder: Encoder | str | None = None,
    *,
    device: str | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Synced:
    """Make an index follow files, as ``contrasent index sync`` does.

    Texts that came from elsewhere are left alone. The next call finishes what a death cut off.

    Args:
        index: the folder of an index, which need not be there yet.
        paths: files and folders of text, Markdown, HTML, JSON lines, Parquet, CSV and TSV.
        encoder: the encoder of a new index, or its name; else the one that the index names.
        device: where it computes.
        show_progress: a progress bar on standard error.
        **options: by name.

    Example:
        >>> contrasent.sync_index("my-index", ["docs"], "runs/mine").embedded  # doctest: +SKIP
    """
    require_extra("splitting files into passages", "sync", "semchunk")
    asked, folder = checked(SyncOptions, options), Path(index)
    if asked.overlap >= asked.tokens:
        raise ConfigError(f"--overlap {asked.overlap} is not below --tokens {asked.tokens}")
    paths = [paths] if isinstance(paths, str | Path) else paths
    base, roots = folder.resolve().parent, [Path(path).resolve() for path in paths]
    beside = f"{base.as_posix()}/"  # files there can be moved together with the index
    files = {it.as_posix().removeprefix(beside): it for root in roots for it in _files(root)}
    recover_folder(folder)
    is_new = encoder is not None and not (folder / FILE).exists()
    opened = None if is_new else Index.open(folder)
    writer = _Writer(opened, folder, encoder, device, asked, show_progress)
    if opened is not None and encoder not in (None, opened.manifest.encoder.name):
        opened.require(writer.encoder)
    rows, hashes, changed = dict[str, list[str]](), dict[str, str](), 0
    if opened is not None and {"path", "_file"} <= opened.manifest.columns.keys():
        stored = opened.snapshot  # pyarrow would import pandas to leave out removed rows
        columns = stored.table.select(["id", "path", "_file"]).to_pydict().values()
        for identity, name, digest, is_live in zip(*columns, stored.live.tolist(), strict=True):
            if is_live and digest is not None and identity.startswith(f"{name}#"):  # ours
                rows.setdefault(name, []).append(identity)
                hashes[name] = digest
    absent = rows.keys() - files
    gone = {name for name in absent if any((base / name).is_relative_to(root) for root in roots)}
    if lost := sorted(name for name in absent - gone if not (base / name).exists()):
        what = "name its folder too, and move an index together with its files"
        warn(f"{base / lost[0]} is not there ({len(lost)} such files): {what}")
    for name, path in files.items():
        try:
            name.encode()  # or it is left, too: a table holds UTF-8
            columns = asked.columns if path.suffix.lower() in _TABLES else None
            made_of = f"{_FORMAT} {asked.tokens} {asked.overlap} {columns} {sha256_of(path)}"
            digest = hashlib.sha256(made_of.encode()).hexdigest()
            sections = [] if hashes.get(name) == digest else [*_sections(path, columns)]
        except (OSError, ValueError) as error:
            warn(f"{path} is left as it was: {first_line(error)}")
            continue
        if hashes.get(name) != digest:
            changed += name in rows or any(body for _, body, _ in sections)  # not empty ones again
            writer.replace(rows.get(name, []), sections, name, digest)
    writer.removed += [identity for name in gone for identity in rows[name]]
    synced = writer.write()
    if 2 * synced.snapshot.live[: synced.manifest.segments[0].rows].sum() < len(synced):
        synced.optimize(show_progress=show_progress)
    return Synced(len(files), changed, len(gone), writer.passages, writer.embedded)


@dataclass
class _Writer:
    """Passages that wait to be written, and the encoder, which is loaded for the first one."""

    index: Index | None  # None if it is still to be built
    folder: Path
    named: Encoder | str | None
    device: str | None
    asked: SyncOptions
    show_progress: bool
    passages: int = 0
    embedded: int = 0
    removed: list[str] = field(default_factory=list)
    new: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    @cached_property
    def encoder(self) -> Any:
        """The encoder of the index."""
        load: Any = model.encoder_of if self.index is None else self.index.encoder
        return load(self.named, device=self.device)

    @cached_property
    def split(self) -> Callable[[str], list[str]]:
        """Split a text into pieces that the encoder can read."""
        from semchunk.semchunk import chunkerify

        tokenizer = getattr(self.encoder.route("document"), "tokenizer", None)

        def count(text: str) -> int:
            return len(words(text) if tokenizer is None else tokenizer.pieces([text])[0])

        most = self.encoder.limit("document")
        size = min(self.asked.tokens, max(1, most - _ROOM)) if most else self.asked.tokens
        splitter: Any = chunkerify(count, size, memoize=False)
        return partial(splitter, overlap=self.asked.overlap or None)

    def replace(self, rows: list[str], sections: list[Section], name: str, digest: str) -> None:
        """Take the passages of a file in place of its rows."""
        self.removed += rows
        for heading, body, known in sections:
            begins = f"{first_words(heading, _ROOM // 2)}\n" if heading else ""
            for piece in self.split(body) if body else ():
                text = f"{begins}{piece}"
                content = hashlib.sha256(f"{sorted(known.items())}\n{text}".encode()).hexdigest()
                self.new[f"{name}#{content[:12]}"] = text, {**known, "path": name, "_file": digest}
        if len(self.new) >= _AT_ONCE:
            self.write()

    def write(self) -> Index:
        """Write what waits, all or nothing; the index."""
        ids, texts = [*self.new], [text for text, _ in self.new.values()]
        metadata = [known for _, known in self.new.values()]
        if self.index is None:
            how: Any = {"metadata": metadata, "show_progress": self.show_progress}
            self.index = Index.build(self.encoder, texts, self.folder, ids, **how)
            self.embedded += len(texts)
        elif texts or self.removed:
            vectors = self._vectors(self.index, texts)
            self.index.change(self.removed, vectors, texts, ids, metadata=metadata, missing_ok=True)
        self.passages += len(texts)
        self.new, self.removed = {}, []
        return self.index

    def _vectors(self, index: Index, texts: list[str]) -> np.ndarray:
        """Vectors ``(n, D)``, of texts that are in the index already those that it has."""
        known = sorted((row, text) for text, row in index.snapshot.rows_of(texts, "text").items())
        stored = index.snapshot.vectors_at([row for row, _ in known])
        vectors = {text: vector for (_, text), vector in zip(known, stored, strict=True)}
        if new := [text for text in dict.fromkeys(texts) if text not in vectors]:
            shown = self.show_progress
            for rows, of_rows in embedded(self.encoder, new, index.manifest, show_progress=shown):
                vectors |= dict(zip(of_rows, rows, strict=True))
        self.embedded += len(new)
        return np.array([vectors[text] for text in texts]).reshape(-1, index.manifest.encoder.width)


def _files(root: Path) -> Iterator[Path]:
    if not root.is_dir() and not (root.is_file() and root.suffix.lower() in _KINDS):
        raise DataError(f"{root} is no folder, and no file of {', '.join(_KINDS)}")
    if root.is_file():
        yield root
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for link in filter(Path.is_symlink, (Path(folder, name) for name in below)):
            warn(f"{link} is a link to a folder, and left out; name it as a path of its own")
        paths = (Path(folder, name) for name in sorted(names) if name.lower().endswith(_KINDS))
        yield from (it for it in paths if it.name[0] != "." and not it.is_fifo())


def _sections(path: Path, columns: str | None) -> Iterator[Section]:
    """The sections of a file: those between headings, or the rows of a table."""
    kind = path.suffix.lower()
    if kind in _TABLES:
        yield from _table_rows(path, columns)
        return
    text, title = path.read_text(encoding="utf-8-sig"), None
    if "\0" in text:
        raise ValueError("it holds a NUL byte, so no UTF-8; convert it")
    if kind in _HTML:
        title = next(map(_plain, _TITLE_TAG.findall(text)), None)
        text = _as_markdown(_TITLE_TAG.sub("", text))
    matches = () if kind == ".txt" else _HEADING.finditer(text)
    marks = [(*match.span(), len(match[2]), match[3]) for match in matches if match[3]]
    title = title or next((name for *_, level, name in marks if level == 1), None)
    start, headings = 0, dict[int, str]()
    for end, after, level, name in [*marks, (len(text), 0, 0, "")]:
        body = CONTROL.sub("", text[start:end]).strip()
        known = {"title": title, "heading": " > ".join(headings.values()) or None}
        heading, depth = next(reversed(headings.values()), ""), max(headings, default=0)
        alone = not body and level <= depth  # no text comes, nor a section
        yield ("", heading, known) if alone else (heading, body, known)
        start, headings = after, {n: it for n, it in headings.items() if n < level} | {level: name}


def _as_markdown(html: str) -> str:
    """HTML as text with headings as in Markdown, and blank lines between paragraphs."""

    def heading(tag: re.Match[str]) -> str:
        name = _plain(tag[2])
        return f"\n\n{_MARK * int(tag[1])} {name}\n\n" if name else "\n\n"

    text, *_ = without_markup(_BLOCK_TAG.sub("\n\n", _HEADING_TAG.sub(heading, html)))
    tidy = re.sub(r"[^\S\n]*\n\s*\n[^\S\n]*", "\n\n", text)
    return re.sub(r"^(?=#|```|~~~)", " ", tidy, flags=re.MULTILINE).replace(_MARK, "#")


def _plain(html: str) -> str:
    return " ".join(without_markup(html)[0].split())


def _table_rows(path: Path, columns: str | None) -> Iterator[Section]:
    rows = open_rows_of(str(path), "passages", columns and [columns], named=True)
    for (where, (text,)), (_, known) in zip(rows.rows(), rows.beside(RESERVED), strict=True):
        for cell in (text, *map(str, [*known, *known.values()])):
            require_cell(cell, where)
        yield "", (text or "").strip(), known
