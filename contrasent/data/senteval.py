"""SentEval's data and the papers' training files: where they lie, their download and checks.

SentEval's data is compared with published hashes. A training file has none: its rows are counted.
"""

import csv
import os
import shutil
import tarfile
from functools import cache
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlretrieve

from contrasent import files
from contrasent.errors import CheckpointError, DataError, is_disk_full
from contrasent.progress import Advance

DATA_VARIABLE = "CONTRASENT_DATA"  # of the environment: the folder, if ``--data-dir`` names none

PARTS = ("STS", "SICK", "MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC")


@cache
def manifest() -> dict[str, str]:
    """SHA-256 of every file of the seven STS tasks, by path."""
    text = Path(__file__).with_name("senteval.sha256").read_text(encoding="utf-8")
    pairs = (line.split("  ", maxsplit=1) for line in text.splitlines())
    return {path: sha256 for sha256, path in pairs if "LICENSE" not in path}


def differences(root: Path) -> dict[str, str]:
    """Files of a folder by path: ``missing``, or ``differs`` from the published one."""
    wrong = {}
    for path, sha256 in manifest().items():
        if not (root / path).is_file():
            wrong[path] = "missing"
        elif files.sha256_of(root / path) != sha256:
            wrong[path] = "differs"
    return wrong


def default_folder() -> Path:
    """The folder that ``contrasent data fetch`` fills if no other is named."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "contrasent" / "senteval"


def named_folder(data_dir: str | Path | None = None) -> Path:
    """``data_dir``, else what ``CONTRASENT_DATA`` names, else :func:`default_folder`."""
    named = data_dir or os.environ.get(DATA_VARIABLE)
    return Path(named).expanduser() if named else default_folder()


def senteval_root(data_dir: str | Path | None = None) -> Path:
    """The folder that holds ``STS`` and ``SICK``, perhaps inside :func:`named_folder`."""
    folder = named_folder(data_dir)
    for inside in (".", "downstream", "data/downstream"):
        if any((folder / inside / part).is_dir() for part in PARTS):
            return folder / inside
    if not folder.is_dir() and folder != default_folder():
        origin = "--data-dir" if data_dir else DATA_VARIABLE
        raise DataError(f"no folder {folder} ({origin}); {how_to_get_data()}")
    return folder


class MissingDataError(DataError):
    """A task's files are not there; ``path`` is the first one."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is missing; {how_to_get_data()}")
        self.path = path


def how_to_get_data() -> str:
    """What a user without SentEval's data can do."""
    return (
        f"get SentEval's data with 'contrasent data fetch' (into {default_folder()}), or name a "
        f"folder in its layout with --data-dir or {DATA_VARIABLE}"
    )


_PUBLISHED = "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main"
SENTEVAL_URL = f"{_PUBLISHED}/senteval.tar"
"""SentEval's prepared data as the authors of SimCSE publish it."""

_ANCHOR = "STS/STSBenchmark/sts-test.csv"


def fetch(folder: Path, url: str = SENTEVAL_URL, advance: Advance = lambda **_: None) -> None:
    """Download, unpack and check SentEval's data, a tar; ``folder`` appears whole or not at all."""
    files.refuse_existing(folder, "remove it, or name another with --data-dir")
    try:
        with files.exclusive(folder), files.writing_folder(folder) as partial:
            archive, unpacked = partial / "archive", partial / "unpacked"
            _download(url, archive, advance)
            with tarfile.open(archive) as tar:
                names = [name for name in tar.getnames() if f"/{name}".endswith(f"/{_ANCHOR}")]
                for name in [*tar.getnames(), *(member.linkname for member in tar)]:
                    files.inside(unpacked, name)  # Python before 3.11.4 has no filter
                tar.extraction_filter = getattr(tarfile, "data_filter", None)
                tar.extractall(unpacked)
            root = unpacked / (names[0].removesuffix(_ANCHOR) if names else "")
            if wrong := [f"{path} {what}" for path, what in differences(root).items()]:
                what = f"{len(wrong)} files that the STS tasks need are not the published ones"
                raise DataError(f"{url}: {what}, nothing was kept: {', '.join(wrong)}")
            for part in list(root.iterdir()):
                part.rename(partial / part.name)
            shutil.rmtree(unpacked)
            archive.unlink()
    except (tarfile.TarError, EOFError, CheckpointError) as error:
        raise DataError(f"{url}: unsafe or no whole tar archive, nothing kept: {error}") from error


def _download(url: str, target: Path, advance: Advance) -> None:
    if "://" not in url and Path(url).is_file():
        shutil.copyfile(url, target)
        return
    try:
        urlretrieve(url, target, lambda n, size, end: advance(completed=n * size, total=end))
    except (OSError, HTTPException, ValueError) as error:
        if is_disk_full(error):
            raise
        what = f"cannot download {url}: {error}"
        raise DataError(f"{what}; try again, or name a file with --url") from error


TRAINING_FILES = {
    "wiki1m": ("wiki1m_for_simcse.txt", 1_000_000),
    "nli": ("nli_for_simcse.csv", 275_601),
}
"""Files as the authors of SimCSE publish them, and their sentences, or triplets below a header.

Gao et al. 2021, section 3 and their repository: 275,601 triplets, where the paper says 314k pairs.
"""


def fetch_training_file(
    name: str, folder: Path | None, url: str | None, advance: Advance = lambda **_: None
) -> Path:
    """Download one of :data:`TRAINING_FILES`, unless it is there, and count its rows."""
    file, wanted = TRAINING_FILES[name]
    path = (folder or default_folder().parent) / file

    def require_rows(path: Path, source: str) -> None:
        with path.open(encoding="utf-8", errors="replace", newline="") as text:
            rows = sum(1 for _ in csv.reader(text)) - 1 if name == "nli" else sum(1 for _ in text)
        if rows != wanted:
            what = f"{source} has {rows:,} rows; it is not the published {file} of {wanted:,}"
            raise DataError(f"{what}; choose with --url, or remove the file")

    if path.is_file():
        files.tidy_lock(path)
        require_rows(path, str(path))
        return path
    url = url or f"{_PUBLISHED}/{file}"
    with files.exclusive(path), files.writing(path) as part:
        _download(url, part, advance)
        require_rows(part, url)
    return path
