"""``contrasent encode``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import Loading, Model, Precision, grouped
from contrasent.cli.search import Columns

if TYPE_CHECKING:
    from contrasent.model.loading import LoadedEncoder
    from contrasent.profiling import StepProfile
    from contrasent.search.shards import Written


@grouped
def encode(  # noqa: PLR0913 - the arguments are the command's options
    *,
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file or data set with one sentence per row, the URL of a Parquet file or of a "
            "folder of them, as s3://bucket/folder; - reads lines of standard input. Blank lines "
            "are left out, so they have no row in OUTPUT.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            help=".npy: a float32 matrix, a row per sentence; .parquet: columns text, embedding; "
            "with --shards a folder."
        ),
    ],
    loading: Loading,
    precision: Precision = "auto",
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens computed at once; memory grows with it.")
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Scale every row to length 1; else as the encoder was saved.",
        ),
    ] = None,
    columns: Columns = None,
    shard_size: Annotated[
        int, typer.Option(help="Sentences written at a time; a kill loses no more than that.")
    ] = 65_536,
    shards: Annotated[
        str | None,
        typer.Option(
            help="npy or parquet: leave a folder of shards of this kind, with manifest.json, "
            "instead of one file."
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that share the work; on GPUs, one for each.")
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Be worker I of N, all with the same INPUT and OUTPUT, on any machines; who "
            "finishes last makes OUTPUT.",
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Let Ray place the workers, on the cluster of RAY_ADDRESS."),
    ] = False,
    unique: Annotated[
        bool,
        typer.Option(
            "--unique",
            help="Leave out sentences that came before; INPUT is read once. A .parquet OUTPUT says "
            "which sentence a row is of.",
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace OUTPUT, and shards made from something else."),
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json.gz",
            help="Record batches 4 to 6 into this trace, and tell where their time went.",
        ),
    ] = None,
) -> None:
    """Write the embedding of every sentence to a file; safe to run again after an interruption."""
    from contrasent.profiling import StepProfile, keep_few_compiled_products
    from contrasent.search.sentences import open_sentences
    from contrasent.search.shards import Settings, require_output, write_embeddings
    from contrasent.search.workers import Worker, end_with_parent

    settings = Settings(
        batch_tokens=batch_tokens,
        normalize=normalize,
        precision=precision,
        shard_size=shard_size,
        keep=shards or "",
    )
    end_with_parent()
    worker = None if shard is None else Worker.parse(shard)
    shared = workers > 1 or ray
    _refuse_at_odds(source, shard, profile, overwrite=overwrite, shared=shared)
    require_output(output, overwrite, settings.keep, shared=shard is not None)
    keep_few_compiled_products()
    recorded = None if profile is None else StepProfile(profile)
    with open_sentences(source, columns, unique=unique) as sentences:
        total = sentences.count()
        typer.echo(f"{sentences.source}: {total} sentences; {sentences.examples.columns}", err=True)
        if skipped := sentences.examples.skipped:
            typer.echo(
                f"{skipped} rows without a sentence are left out: the rows of {output} are those "
                "of the other rows, in order",
                err=True,
            )
        encoder = loading.load(model)
        others = partial(_run_workers, workers, encoder, ray=ray) if shared else None
        with _recording(recorded, encoder):
            written = write_embeddings(
                encoder,
                sentences,
                output,
                settings,
                overwrite=overwrite,
                show_progress=not shared,
                worker=worker,
                run_others=others,
            )
    _report(output, written, encoder.max_tokens)
    if recorded is not None:
        typer.echo(recorded.summary, err=True)


def _refuse_at_odds(
    source: str, shard: str | None, profile: Path | None, *, overwrite: bool, shared: bool
) -> None:
    """Raise ConfigError for options that do not go together."""
    from contrasent.errors import ConfigError

    if shared and shard is not None:
        raise ConfigError(f"--shard {shard} is one worker, and --workers starts all; give one")
    if (shared or shard is not None) and source == "-":
        raise ConfigError("each worker reads INPUT, but - can be read once; name a file")
    if (shared or shard is not None) and profile is not None:
        raise ConfigError("--profile records one process; leave --workers, --shard and --ray out")
    if (shared or shard is not None) and overwrite:
        raise ConfigError(
            "--overwrite would let each worker remove what the others wrote; remove OUTPUT, and "
            "the folder of its shards if there is one, and start the workers without it"
        )


def _run_workers(count: int, encoder: LoadedEncoder, *, ray: bool) -> None:
    """Start the workers, and wait for them."""
    import sys

    import torch

    from contrasent.search.workers import commands, run_processes, run_ray

    device = getattr(encoder, "device", torch.device("cpu"))
    devices = torch.cuda.device_count() if device.type == "cuda" else 0
    (run_ray if ray else run_processes)(commands(sys.argv[1:], count), devices)


def _recording(
    recorded: StepProfile | None, encoder: LoadedEncoder
) -> AbstractContextManager[object]:
    from contrasent.errors import ConfigError
    from contrasent.model.encoder import SentenceEncoder

    if recorded is None:
        return nullcontext()
    if not isinstance(encoder, SentenceEncoder):
        raise ConfigError(f"{encoder.name} holds word vectors: nothing to --profile")
    return recorded.of_forward(encoder.backbone)


def _report(output: Path, written: Written, max_tokens: int) -> None:
    if written.already:
        typer.echo(f"{output} is made already", err=True)
        return
    if written.resumed:
        typer.echo(f"{written.resumed} rows came from shards of an earlier run", err=True)
    if written.truncated:
        typer.echo(
            f"{written.truncated} sentences were longer than {max_tokens} tokens and cut", err=True
        )
    new = written.rows - written.resumed
    rate = f", {new / written.seconds:.0f} sentences/s" if new else ""
    if written.missing:
        typer.echo(
            f"{output} is made by the worker that finishes last: {written.missing} shards are "
            f"missing, {written.rows} rows are written{rate}",
            err=True,
        )
        return
    typer.echo(f"{output}: {written.rows} rows of {written.width} dimensions{rate}", err=True)
