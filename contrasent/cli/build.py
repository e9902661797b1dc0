"""``contrasent data build``: nli, captions, duplicates, paraphrases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import Json, grouped, listed, print_json
from contrasent.progress import reading_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contrasent.data.build.base import DataKind
    from contrasent.data.columns import ColumnSpec
    from contrasent.data.rows import SourceRows

Sources = Annotated[
    list[str],
    typer.Argument(
        help="Files (.csv, .tsv, .jsonl, .parquet; others hold tabs; each also .gz) or data sets "
        "on the Hugging Face hub as org/name:config@split."
    ),
]


@dataclass(frozen=True)
class BuildOptions:
    """The options of every command that builds training files."""

    output: Annotated[
        Path, typer.Option(help="The file to write: .csv, .tsv or .jsonl, each also .gz.")
    ]
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated columns of every source, in the order of the text above: header "
            "names, or numbers from 0; else known by name."
        ),
    ] = None
    sample: Annotated[
        int | None, typer.Option(min=1, help="Draw so many of the examples; else all.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of whatever is drawn.")] = 0
    skip_unreadable: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable", help="Leave rows out that cannot be read; else end there."
        ),
    ] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUTPUT if it is there.")
    ] = False
    json: Json = False


@grouped
def nli(
    sources: Sources,
    options: BuildOptions,
    make: Annotated[
        str,
        typer.Option(
            help="triplets (premise, entailment, contradiction), triplets+neutral (and a neutral "
            "hypothesis as second hard negative), pairs with: entailment, neutral, contradiction, "
            "all; or labelled: all pairs, and a column label."
        ),
    ] = "triplets",
    per: Annotated[
        str,
        typer.Option(
            help="Write a triplet for each entailment, its hard negatives drawn, or for each "
            "premise, all drawn."
        ),
    ] = "entailment",
    labels: Annotated[
        str | None,
        typer.Option(
            help="What the numbers of labels mean, from 0: such as "
            "entailment,neutral,contradiction. For sources with numbers that do not say it."
        ),
    ] = None,
) -> None:
    """Make triplets or pairs from natural language inference: premise, hypothesis, label.

    Reads SNLI, MultiNLI, ANLI and the like; InferSent's parallel lines by the name of s1.*.
    """
    from contrasent.data.build.nli import WANTED, Nli

    order = listed(labels)

    def kind(found: Sequence[SourceRows]) -> DataKind:
        return Nli(found, make, per=per, order=order, seed=options.seed)

    _build(kind, WANTED, sources, options)


@grouped
def captions(sources: Sources, options: BuildOptions) -> None:
    """Make pairs of any two captions of an image: image, caption.

    Reads Flickr's lines of image.jpg#k, tab, caption, and tables of image and caption.
    """
    from contrasent.data.build.paraphrases import CAPTIONS, Captions

    _build(Captions, CAPTIONS, sources, options)


@grouped
def duplicates(sources: Sources, options: BuildOptions) -> None:
    """Make pairs of duplicate questions: first question, second question, label 0 or 1.

    Reads Quora's question pairs (also GLUE's QQP), MRPC, PAWS and the like.
    """
    from contrasent.data.build.paraphrases import DUPLICATES, Duplicates

    _build(Duplicates, DUPLICATES, sources, options)


@grouped
def paraphrases(
    sources: Sources,
    options: BuildOptions,
    min_score: Annotated[float | None, typer.Option(help="Leave lower scores out.")] = None,
    max_score: Annotated[float | None, typer.Option(help="Leave higher scores out.")] = None,
) -> None:
    """Make pairs of sentences and their paraphrases: reference, paraphrase and, if any, score.

    Reads ParaNMT's lines of reference, tab, paraphrase, tab, score, and tables.
    """
    from contrasent.data.build.paraphrases import PARAPHRASES, Paraphrases

    def kind(found: Sequence[SourceRows]) -> DataKind:
        return Paraphrases(found, min_score, max_score)

    _build(kind, PARAPHRASES, sources, options)


def _build(
    kind: Callable[[Sequence[SourceRows]], DataKind],
    wanted: ColumnSpec,
    sources: Sequence[str],
    options: BuildOptions,
) -> None:
    from contrasent.data.build.write import build, require_output
    from contrasent.data.rows import open_rows_of
    from contrasent.report.training_text import built_lines

    require_output(options.output, sources, options.overwrite)
    columns = listed(options.columns)
    made = kind([open_rows_of(source, wanted, columns) for source in sources])
    with reading_progress("rows") as advance:
        built = build(
            made,
            options.output,
            sample=options.sample,
            seed=options.seed,
            skip_unreadable=options.skip_unreadable,
            progress=advance,
        )
    if options.json:
        print_json(asdict(built), indent=2)
    else:
        typer.echo("\n".join(built_lines(built, made)))
