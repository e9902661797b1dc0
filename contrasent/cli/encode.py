"""``contrasent encode``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import PositiveInt

from contrasent.cli.parameters import command, load
from contrasent.options import InPrecision, Loading, Named, TextColumn
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from contrasent.model.loading import LoadedEncoder
    from contrasent.profiling import StepProfile
    from contrasent.search.shards import Written


@settings
class EncodeOptions(Named, Loading, InPrecision, TextColumn):
    """Options of ``encode``."""

    source: Annotated[str, Spelling(argument=True, metavar="INPUT")]
    """A file or data set with one sentence per row, the URL of a Parquet file or of a folder of
    them, as s3://bucket/folder; - reads lines of standard input. Blank lines are left out, so they
    have no row in OUTPUT."""

    output: Annotated[Path, ARGUMENT]
    """.npy: a float32 matrix, a row per sentence; .parquet: columns text, embedding; with --shards
    a folder."""

    batch_tokens: int | None = None
    """Tokens computed at once; memory grows with it."""

    normalize: bool | None = None
    """Scale every row to length 1; else as the encoder was saved."""

    shard_size: int = 65536
    """Sentences written at a time; a kill loses no more than that."""

    shards: str | None = None
    """npy or parquet: leave a folder of shards of this kind, with manifest.json, instead of one
    file."""

    workers: PositiveInt = 1
    """Processes that share the work; on GPUs, one for each."""

    shard: Annotated[str | None, Spelling(metavar="I/N")] = None
    """Be worker I of N, all with the same INPUT and OUTPUT, on any machines; who finishes last
    makes OUTPUT."""

    ray: bool = False
    """Let Ray place the workers, on the cluster of RAY_ADDRESS."""

    unique: bool = False
    """Leave out sentences that came before; INPUT is read once. A .parquet OUTPUT says which
    sentence a row is of."""

    overwrite: bool = False
    """Replace OUTPUT, and shards made from something else."""

    profile: Annotated[Path | None, Spelling(metavar="FILE.json.gz")] = None
    """Record batches 4 to 6 into this trace, and tell where their time went."""


@command
def encode(options: EncodeOptions) -> None:
    """Write the embedding of every sentence to a file; safe to run again after an interruption."""
    from contrasent.profiling import StepProfile, keep_few_compiled_products
    from contrasent.search.sentences import open_sentences
    from contrasent.search.shards import Settings, require_output, write_embeddings
    from contrasent.search.workers import Worker, end_with_parent

    settings = Settings(
        batch_tokens=options.batch_tokens,
        normalize=options.normalize,
        precision=options.precision,
        shard_size=options.shard_size,
        keep=options.shards or "",
    )
    end_with_parent()
    worker = None if options.shard is None else Worker.parse(options.shard)
    shared = options.workers > 1 or options.ray
    _refuse_at_odds(
        options.source, options.shard, options.profile, overwrite=options.overwrite, shared=shared
    )
    require_output(
        options.output, options.overwrite, settings.keep, shared=options.shard is not None
    )
    keep_few_compiled_products()
    recorded = None if options.profile is None else StepProfile(options.profile)
    with open_sentences(options.source, options.columns, unique=options.unique) as sentences:
        total = sentences.count()
        typer.echo(f"{sentences.source}: {total} sentences; {sentences.examples.columns}", err=True)
        if skipped := sentences.examples.skipped:
            typer.echo(
                f"{skipped} rows without a sentence are left out: the rows of {options.output} are "
                "those of the other rows, in order",
                err=True,
            )
        encoder = load(options, options.model)
        others = (
            partial(_run_workers, options.workers, encoder, ray=options.ray) if shared else None
        )
        with _recording(recorded, encoder):
            written = write_embeddings(
                encoder,
                sentences,
                options.output,
                settings,
                overwrite=options.overwrite,
                show_progress=not shared,
                worker=worker,
                run_others=others,
            )
    _report(options.output, written, encoder.max_tokens)
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
