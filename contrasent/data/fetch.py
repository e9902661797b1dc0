"""Downloading SentEval's data, checked file by file before it gets its name."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from contrasent import __version__
from contrasent.data.senteval import Difference, differences
from contrasent.errors import ConfigError, DataError
from contrasent.files import writing_folder

SENTEVAL_URL = (
    "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/senteval.tar"
)
"""SentEval's prepared data as the authors of SimCSE publish it."""

Advance = Callable[[int, int | None], None]
"""Told how many bytes have arrived, and how many there are in all if the server says so."""

_ANCHOR = "STS/STSBenchmark/sts-test.csv"
_BLOCK = 1 << 20
_PATIENCE = 60  # seconds without a byte
_BY_HAND = (
    "Where there is a network, download {url}; then run 'contrasent data fetch --url FILE' with "
    "that file, or unpack it and name its folder with --data-dir or CONTRASENT_DATA"
)


def fetch(
    folder: Path, url: str = SENTEVAL_URL, advance: Advance = lambda _, __: None
) -> list[Difference]:
    """Download, unpack and check SentEval's data; ``folder`` appears whole or not at all.

    Args:
        folder: where ``STS`` and ``SICK`` will lie; must not hold anything yet.
        url: a tar archive: ``http``, ``https``, or a local path.
        advance: told about progress.

    Returns:
        Files that are not the published ones but that no STS task needs.

    Raises:
        ConfigError: ``folder`` holds something.
        DataError: the archive cannot be had, is damaged or unsafe, or a file that a task needs
            is missing in it or not the published one; the disk is full.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(
            f"{folder} holds something else already; remove it or name another with --data-dir"
        )
    try:
        with writing_folder(folder) as partial:
            archive, unpacked = partial / "archive", partial / "unpacked"
            _download(url, archive, advance)
            root = _unpack(archive, unpacked, url)
            found = differences(root)
            _refuse(found, url)
            for part in list(root.iterdir()):
                part.rename(partial / part.name)
            shutil.rmtree(unpacked)
            archive.unlink()
    except OSError as error:
        raise DataError(f"cannot write SentEval's data to {folder}: {error}") from error
    return found


def _download(url: str, target: Path, advance: Advance) -> None:
    if "://" not in url:
        if not Path(url).is_file():
            raise DataError(f"no file {url}; --url takes http://, https:// or a local path")
        shutil.copyfile(url, target)
        return
    with _opened(url) as response, target.open("wb") as file:
        announced = response.headers.get("Content-Length")
        total = int(announced) if announced else None
        arrived = 0
        while block := _block(response, url):
            file.write(block)
            arrived += len(block)
            advance(arrived, total)
    if total is not None and arrived != total:
        raise DataError(
            f"{url}: the download stopped after {arrived:,} of {total:,} bytes; try again"
        )


def _opened(url: str) -> HTTPResponse:
    if not url.startswith(("http://", "https://")):
        raise DataError(f"cannot fetch {url}; --url takes http://, https:// or a local path")
    request = Request(url, headers={"User-Agent": f"contrasent/{__version__}"})
    try:
        response: HTTPResponse = urlopen(request, timeout=_PATIENCE)
    except HTTPError as error:
        with error:
            raise DataError(_unreachable(url, f"{error.code} {error.reason}")) from error
    except (OSError, HTTPException, ValueError) as error:
        raise DataError(_unreachable(url, str(getattr(error, "reason", error)))) from error
    return response


def _block(response: BinaryIO | HTTPResponse, url: str) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, HTTPException) as error:
        raise DataError(_unreachable(url, str(error) or type(error).__name__)) from error


def _unreachable(url: str, reason: str) -> str:
    return f"cannot download {url}: {reason}. {_BY_HAND.format(url=url)}"


def _unpack(archive: Path, target: Path, url: str) -> Path:
    """Unpack into ``target``; returns the folder inside that holds ``STS``."""
    if not hasattr(tarfile, "data_filter"):
        raise ConfigError("unpacking safely needs Python 3.11.4 or newer")
    target.mkdir()
    try:
        with tarfile.open(archive) as tar:
            roots = {
                n.removesuffix(_ANCHOR) for n in tar.getnames() if f"/{n}".endswith(f"/{_ANCHOR}")
            }
            if len(roots) != 1:
                raise DataError(f"{url}: no SentEval data; {_ANCHOR} should be in it once")
            tar.extractall(target, filter="data")
    except tarfile.FilterError as error:
        raise DataError(f"{url}: unsafe archive, nothing was kept: {error}") from error
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{url}: not a whole tar archive: {error}") from error
    return target / roots.pop()


def _refuse(found: list[Difference], url: str) -> None:
    wrong = [f"{d.path} {d.what}" for d in found if d.needed]
    if wrong:
        raise DataError(
            f"{url}: {len(wrong)} files that the STS tasks need are not the published ones, "
            f"nothing was kept: {', '.join(wrong)}"
        )
