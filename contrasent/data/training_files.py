"""The papers' training files: their download, resumed where it was cut off, and their checks."""

from __future__ import annotations

import csv
import shutil
from dataclasses import dataclass
from pathlib import Path

from contrasent.data.senteval import Advance, blocks, default_folder
from contrasent.errors import DataError
from contrasent.files import sha256_of, write_text

_PUBLISHED = "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main"


@dataclass(frozen=True, slots=True)
class TrainingFile:
    """A file as the authors of SimCSE publish it.

    Attributes:
        file: its name.
        rows: sentences, or triplets without the header (Gao et al. 2021, section 3 and
            their repository: 275,601 triplets, where the paper says 314k pairs).
        header: the first line; None of sentences, one in each line.
    """

    file: str
    rows: int
    header: str | None = None

    @property
    def url(self) -> str:
        """Where it is published."""
        return f"{_PUBLISHED}/{self.file}"


TRAINING_FILES = {
    "wiki1m": TrainingFile("wiki1m_for_simcse.txt", 1_000_000),
    "nli": TrainingFile("nli_for_simcse.csv", 275_601, "sent0,sent1,hard_neg"),
}


def fetch_training_file(
    name: str, folder: Path | None, url: str | None, advance: Advance = lambda _, __: None
) -> tuple[Path, str, bool]:
    """Download one of :data:`TRAINING_FILES`, unless it is there, and check it.

    A download that was cut off goes on where it was, if the server can; the file appears whole or
    not at all. Its SHA-256, of which none is published, is kept beside it when it is first seen.

    Args:
        name: of the file.
        folder: for the file; None for the one beside SentEval's.
        url: another address than the authors', or a local file.
        advance: is told of the bytes that have arrived.

    Returns:
        The path, its hash, and whether that was compared with one kept before.

    Raises:
        DataError: it cannot be had, is cut off, or does not hold what it should.
    """
    wanted = TRAINING_FILES[name]
    path = (folder or default_folder().parent) / wanted.file
    if not path.is_file():
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _download(url or wanted.url, part, advance)
            _check(wanted, part, url or wanted.url)
            _compare(path, sha256_of(part))
            part.replace(path)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error}; try again to go on") from error
    else:
        _check(wanted, path, str(path))
    sha256 = sha256_of(path)
    known = _compare(path, sha256)
    if not known:
        write_text(_kept(path), f"{sha256}  {path.name}\n")
    return path, sha256, known


def _download(url: str, part: Path, advance: Advance) -> None:
    if "://" not in url:
        if not Path(url).is_file():
            raise DataError(f"no file {url}; --url takes http://, https:// or a local path")
        shutil.copyfile(url, part)
        return
    arrived, total = part.stat().st_size if part.is_file() else 0, None
    with part.open("ab") as file:
        for block, total in blocks(url, arrived):
            file.write(block)
            arrived += len(block)
            advance(arrived, total)
    if total is not None and arrived < total:
        raise DataError(
            f"{url}: the download stopped after {arrived:,} of {total:,} bytes; the same command "
            "goes on from there"
        )


def _check(wanted: TrainingFile, path: Path, source: str) -> None:
    """Refuse, and remove if it is a download, what has other rows than the published file."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        first = file.readline().strip("\r\n")
        file.seek(0)
        rows = sum(1 for _ in csv.reader(file)) - 1 if wanted.header else sum(1 for _ in file)
    if rows != wanted.rows or (wanted.header and first != wanted.header):
        if path.name.endswith(".part"):
            path.unlink()
        raise DataError(
            f"{source} has {rows:,} rows and begins with {first[:40]!r}; the published "
            f"{wanted.file} has {wanted.rows:,}"
            + (f" under the header {wanted.header}" if wanted.header else "")
            + "; take another address with --url, or remove the file"
        )


def _kept(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _compare(path: Path, sha256: str) -> bool:
    """Whether a hash is the one kept before; False if none is, a DataError if it is another."""
    kept = _kept(path)
    if not kept.is_file():
        return False
    known = kept.read_text(encoding="utf-8").split()[0]
    if known != sha256:
        raise DataError(
            f"{path}: sha256 {sha256[:12]}..., but {kept} recorded {known[:12]}... when it was "
            "first downloaded; remove both to take the new one"
        )
    return True
