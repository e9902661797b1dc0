"""``contrasent data fetch``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contrasent.data.senteval import Difference


def fetch(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder to fill or check; else $CONTRASENT_DATA, else the folder where "
            "'contrasent evaluate' looks by itself.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Archive to take: http://, https:// or a local path; else SimCSE's.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the folder with the published files.")
    ] = False,
) -> None:
    """Download SentEval's data and check every file of the STS tasks by its published hash."""
    from contrasent.data.senteval import differences, manifest, named_folder, senteval_root
    from contrasent.errors import DataError

    folder = named_folder(data_dir)
    root = senteval_root(data_dir) if check or folder.is_dir() else folder
    found = differences(root)
    if not check and any(difference.needed for difference in found):
        found = _download(folder, url)
        root = folder
    for difference in found:
        typer.echo(f"{root / difference.path}: {difference.what}", err=True)
    wrong = sum(difference.needed for difference in found)
    if wrong:
        raise DataError(
            f"{wrong} of {len(manifest())} files under {root} are missing or not the published "
            "ones; 'contrasent data fetch --data-dir NEW' downloads them into a new folder"
        )
    typer.echo(f"{root}: {len(manifest()) - len(found)} files are the published ones")


def _download(folder: Path, url: str | None) -> list[Difference]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from contrasent.data import fetch as source

    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("downloading", total=None)

        def advance(arrived: int, total: int | None) -> None:
            progress.update(task, completed=arrived, total=total)

        return source.fetch(folder, url or source.SENTEVAL_URL, advance)
