"""``contrasent reproduce`` and ``contrasent quickstart``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from contrasent.cli.options import DataDir, Device, listed


def quickstart(
    output: Annotated[Path, typer.Option(help="The folder to write.")] = Path("quickstart"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier quickstart wrote there.")
    ] = False,
    device: Device = None,
) -> None:
    """Train, score, index and search on shipped text, in a minute or two, without a network."""
    typer.echo("loading", err=True)
    from contrasent.quickstart import quickstart as run
    from contrasent.quickstart import summary

    result = run(
        output,
        overwrite=overwrite,
        device=device,
        tell=partial(typer.echo, err=True),
        show_progress=True,
    )
    typer.echo(summary(result, output))


def reproduce(  # noqa: PLR0913 - the arguments are the command's options
    table: Annotated[str, typer.Argument(help="The table: baselines.")],
    output: Annotated[
        Path,
        typer.Option(
            help="The folder; what is done in it already is kept, so that the same command goes "
            "on with a run that was cut off."
        ),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Start of every trained transformer: a masked language model, folder or id."
        ),
    ] = None,
    words: Annotated[
        str | None, typer.Option(help="Word vectors, a .txt or .vec file such as GloVe's.")
    ] = None,
    sentences: Annotated[
        str | None, typer.Option(help="Training text, one sentence per line, also .gz.")
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            help="Text in its order: a sentence per line, a blank line between documents."
        ),
    ] = None,
    labelled: Annotated[
        str | None,
        typer.Option(
            help="Premise, hypothesis, label: 'contrasent data build nli --make labelled'."
        ),
    ] = None,
    triplets: Annotated[
        str | None,
        typer.Option(help="Premise, entailment, contradiction: 'contrasent data build nli'."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="small: short runs, about an hour on two cores with a small encoder; smoke: two "
            "steps each; paper: the recipes as they are.",
            show_default="small",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Comma-separated rows, by name; else all.")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="What is scored, in place of the scale's tasks: such as sts,transfer."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Rows that are worked on at once, sharing the cores.")
    ] = 1,
    data_dir: DataDir = None,
    device: Device = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Make rows again that were made with other settings."),
    ] = False,
) -> None:
    """Make a table of the papers again: train, fit and score its rows, with the published numbers.

    A row whose material is not given is left out, and the table says so.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from contrasent.errors import ContrasentError
    from contrasent.reproduce.document import page, read_rows, write_table
    from contrasent.reproduce.reproduction import Request
    from contrasent.reproduce.reproduction import reproduce as run

    materials = {
        "encoder": encoder,
        "words": words,
        "sentences": sentences,
        "documents": documents,
        "labelled": labelled,
        "triplets": triplets,
    }
    request = Request(
        table=table,
        scale=scale,
        given={name: value for name, value in materials.items() if value is not None},
        rows=tuple(listed(rows or "")),
        tasks=tuple(listed(tasks or "")),
        data_dir=None if data_dir is None else str(data_dir),
        jobs=jobs,
        overwrite=overwrite,
        device=device,
    )
    try:
        reproduction = run(request, output, partial(typer.echo, err=True))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the same command goes on with it") from error
    made = read_rows(reproduction, output)
    written = write_table(reproduction, made, table, output)
    text = page(reproduction, made, figure=False)
    console = Console()
    console.print(Markdown(text)) if console.is_terminal else typer.echo(text, nl=False)
    typer.echo(f"written: {', '.join(path.name for path in written)} in {output}", err=True)
    if reproduction.failed:
        failures = "\n".join(f"  {name}: {why}" for name, why in reproduction.failed.items())
        raise ContrasentError(f"rows that could not be made:\n{failures}")
