"""``contrasent quickstart``."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import Device

if TYPE_CHECKING:
    from contrasent.quickstart import Outcome

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


def _scores(outcome: Outcome) -> None:
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


def _hits(outcome: Outcome) -> None:
    for query, hits in outcome.hits.items():
        typer.echo(f"\nNearest to: {query}")
        for hit in hits:
            typer.echo(f"  {hit.score:.3f}  {shorten(hit.text, _SHOWN, placeholder=' ...')}")


def _next(outcome: Outcome, output: Path) -> None:
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
