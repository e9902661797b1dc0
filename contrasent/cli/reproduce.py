"""``contrasent reproduce`` and ``contrasent quickstart``."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import DataDir, Device, listed

if TYPE_CHECKING:
    from contrasent.quickstart import QuickstartResult


_ALL = "all together"
_SHOWN = 120


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

    def tell(stage: str) -> None:
        typer.echo(stage, err=True)

    outcome = run(output, overwrite=overwrite, device=device, tell=tell, show_progress=True)
    _scores(outcome)
    _hits(outcome)
    _next(outcome, output)


def _scores(outcome: QuickstartResult) -> None:
    from contrasent.quickstart import ENCODER, PARTS, POOLER, spearman

    typer.echo(
        f"\nSimilarity of sentences: {ENCODER} (pooler {POOLER}, fp32) before and after "
        f"{outcome.steps} steps\n"
        "Spearman correlation x 100 with people's judgement, Stack Exchange pairs of STS15/STS16\n"
    )
    rows = {
        name: (spearman(outcome.before, part), spearman(outcome.after, part))
        for name, part in {**{part: part for part in PARTS}, _ALL: ""}.items()
    }
    typer.echo(f"{'':<20}{'pairs':>6}{'before':>9}{'after':>9}{'change':>9}")
    for name, (before, after) in rows.items():
        values = f"{100 * before:>9.2f}{100 * after:>9.2f}{100 * (after - before):>+9.2f}"
        typer.echo(f"{name:<20}{PARTS.get(name, sum(PARTS.values())):>6}{values}")
    typer.echo("\n" + _verdict({name: after - before for name, (before, after) in rows.items()}))


def _verdict(changes: dict[str, float]) -> str:
    """What the changes say, good or bad, in sentences."""
    rounded = {name: round(100 * change, 2) for name, change in changes.items()}
    whole = rounded.pop(_ALL)
    fell = [f"{name} ({change:+.2f})" for name, change in rounded.items() if change < 0]
    said = [f"Training helped: {whole:+.2f} over all pairs."]
    if whole <= 0:
        said = [f"Training did not help: {whole:+.2f} over all pairs."]
    if fell:
        said.append(f"The score fell on {', '.join(fell)}.")
    said.append("This is one run; the pairs had no part in it, not even to choose a step.")
    return " ".join(said)


def _hits(outcome: QuickstartResult) -> None:
    for query, hits in outcome.hits.items():
        typer.echo(f"\nNearest to: {query}")
        for hit in hits:
            typer.echo(f"  {hit.score:.3f}  {shorten(hit.text, _SHOWN, placeholder=' ...')}")


def _next(outcome: QuickstartResult, output: Path) -> None:
    from contrasent.quickstart import ENCODER, PAIRS, POOLER, RECIPE

    index, encoder = shlex.quote(str(outcome.index)), shlex.quote(str(outcome.encoder))
    start = f"--encoder {ENCODER} --encoder.pooler {POOLER}"
    typer.echo(f"""
{output} holds the run (its encoder: {outcome.encoder}), the index, and results.json.
It took {sum(outcome.seconds.values()):.0f} s.

Next, with what is there:
  contrasent search {index} "something else"
  contrasent similarity {encoder} "a sentence" "another sentence"
  contrasent evaluate {ENCODER} {encoder} --pooler {POOLER} --tasks {shlex.quote(str(PAIRS))}

Next, with your own text, a sentence per line in sentences.txt:
  contrasent train {RECIPE} {start} --data sentences.txt --output runs/mine
  contrasent index build runs/mine sentences.txt my-index
  contrasent search my-index "what you look for"

The encoder is a sentence-transformers folder:
  SentenceTransformer({str(outcome.encoder)!r}).encode(["a sentence"])""")


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
    from contrasent.reproduce.document import page, write_table
    from contrasent.reproduce.results import read_lines
    from contrasent.reproduce.tables import Request
    from contrasent.reproduce.tables import reproduce as run

    materials = {
        "encoder": encoder,
        "words": words,
        "sentences": sentences,
        "documents": documents,
        "labelled": labelled,
        "triplets": triplets,
    }
    order = Request(
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
        outcome = run(order, output, lambda text: typer.echo(text, err=True))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the same command goes on with it") from error
    lines = read_lines(outcome, output)
    written = write_table(outcome, lines, table, output)
    text = page(outcome, lines, figure=False)
    console = Console()
    console.print(Markdown(text)) if console.is_terminal else typer.echo(text, nl=False)
    typer.echo(f"written: {', '.join(path.name for path in written)} in {output}", err=True)
    if outcome.failed:
        failures = "\n".join(f"  {name}: {why}" for name, why in outcome.failed.items())
        raise ContrasentError(f"rows that could not be made:\n{failures}")
