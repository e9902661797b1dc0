"""``contrasent fit``, ``export`` and ``push``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.parameters import command, print_json
from contrasent.options import (
    AsJson,
    DataFolder,
    FlowSettings,
    Listed,
    MapOptions,
    Named,
    Pooling,
    Replacing,
    WhiteningSettings,
    shared,
)
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from contrasent.formats import Parity


@settings
class FitOptions(DataFolder):
    """The options of every command that fits something to text."""

    data: list[str]
    """Text to fit on: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging Face dataset
    id, every sentence of a row; or sts, or an STS task such as stsb or stsb-dev, which shows the
    test sentences to the fit. Give it once for each."""

    columns: Annotated[Listed | None, Spelling(of=MapOptions)] = None

    output: Path
    """The folder to write; it must not exist."""


@settings
class WhiteningOptions(Named, FitOptions, MapOptions, WhiteningSettings):
    """Options of ``whitening``."""


@command
def whitening(options: WhiteningOptions) -> None:
    """Whiten an encoder's embeddings: mean 0, covariance the identity (BERT-whitening).

    OUTPUT is the encoder with the map as a Dense module, which sentence-transformers loads too.
    """
    facts = _fit("whitening", options, WhiteningSettings)
    typer.echo(
        f"{facts['dimensions']} of {facts['width']} dimensions kept, with "
        f"{facts['variance_kept']:.2%} of the variance; embeddings differ in {facts['rank']}",
        err=True,
    )
    _announce(options.output, facts["described"])


@settings
class FlowOptions(Named, FitOptions, MapOptions, FlowSettings):
    """Options of ``flow``."""


@command
def flow(options: FlowOptions) -> None:
    """Map an encoder's embeddings to a normal distribution by an invertible network (BERT-flow).

    OUTPUT is the encoder with the network. sentence-transformers refuses the folder, unless this
    package is installed beside it and the folder is trusted with trust_remote_code=True.
    """
    facts = _fit("flow", options, FlowSettings)
    likelihood = facts["bits_per_dimension"]
    typer.echo(
        f"bits per dimension of {likelihood['sentences']} of the sentences: "
        f"{likelihood['before']:.4f} before, {likelihood['after']:.4f} after",
        err=True,
    )
    _announce(options.output, facts["described"])


def _fit(kind: str, options: WhiteningOptions | FlowOptions, cls: type[Any]) -> dict[str, Any]:
    """Fit a map of a kind, whose settings are of ``cls``; what is kept of it beside the encoder."""
    from contrasent import api
    from contrasent.files import read_json
    from contrasent.model.hub import INFO_FILE

    chosen = shared(options, MapOptions) | shared(options, cls)
    api.fit(
        options.model,
        kind,
        data=options.data,
        output=options.output,
        show_progress=True,
        **chosen,
    )
    facts: dict[str, Any] = read_json(options.output / INFO_FILE)["transform"]
    return facts


def _announce(output: Path, described: object) -> None:
    typer.echo(f"{output}: {described}")
    typer.echo(f"next: contrasent evaluate {shlex.quote(str(output))}", err=True)


@settings
class SifOptions(FitOptions):
    """Options of ``sif``."""

    words: Annotated[str, ARGUMENT]
    """Word vectors: a .txt or .vec file of a word and its numbers per line, also .gz."""

    smoothing: Annotated[float, Spelling(flag="--a")] = 0.001
    """A word counts a / (a + its frequency)."""

    components: int = 1
    """Directions that all sentences share, taken out."""

    frequencies: Path | None = None
    """A word and its count per line; else words of the text are counted."""


@command
def sif(options: SifOptions) -> None:
    """Weigh word vectors by frequency and take out what all sentences share (SIF).

    OUTPUT holds the vectors too, and is an encoder for every command but train.
    """
    from contrasent.api import fitting_text
    from contrasent.errors import ConfigError
    from contrasent.fitting.maps import save_fitted
    from contrasent.fitting.sif import fit_sif
    from contrasent.model.lookup_encoders import WordEncoder, are_words

    if not are_words(options.words):
        raise ConfigError(
            f"{options.words} is no file of word vectors; its name must end in .txt or .vec"
        )
    text = fitting_text(options.data, options.output, options.columns, options.data_dir)
    encoder, info = fit_sif(
        WordEncoder.load(options.words),
        text,
        smoothing=options.smoothing,
        components=options.components,
        frequencies=options.frequencies,
    )
    save_fitted(encoder, info, options.output)
    typer.echo(f"{options.output}: {encoder.transform_described}")


@settings
class ExportOptions(Named, Pooling, DataFolder, AsJson, Replacing):
    """Options of ``export``."""

    output: Annotated[Path, ARGUMENT]
    """The folder of the export."""

    format: str
    """onnx and openvino (for sentence-transformers' backends, onnx also for fastembed), static (a
    table of vectors of word pieces: much faster, less exact), or simcse (a Hugging Face folder with
    the head as pooler.dense)."""

    tolerance: float = 0.0001
    """The largest gap between 1 and the cosine of a sentence's two embeddings; above it nothing is
    written. Not for static."""

    tasks: Listed | None = None
    """Scored before and after, as for evaluate, or none; else rated pairs that ship with the
    package."""

    dimensions: int | None = None
    """Dimensions of static; else 256."""

    data: str | None = None
    """Text to count word pieces in, for static; else their ranks in the vocabulary tell how
    frequent they are."""


@command
def export(options: ExportOptions) -> None:
    """Write an encoder in the format of another library, checked against the encoder."""
    from dataclasses import asdict

    from contrasent.errors import pick
    from contrasent.formats import FORMATS, export
    from contrasent.model.encoder import SentenceEncoder

    pick("format", options.format, FORMATS)
    tasks = options.tasks
    chosen: dict[str, Any] = {} if tasks is None else {"tasks": [] if tasks == ["none"] else tasks}
    encoder = SentenceEncoder.load(
        options.model, pooler=options.pooler, head=options.head, device="cpu"
    )
    parity = export(
        encoder,
        options.output,
        options.format,
        tolerance=options.tolerance,
        data_dir=options.data_dir,
        dimensions=options.dimensions,
        text=options.data,
        overwrite=options.overwrite,
        show_progress=True,
        **chosen,
    )
    if options.json:
        print_json({"output": str(options.output), **asdict(parity)})
    else:
        _print(options.output, parity)


def _print(output: Path, parity: Parity) -> None:
    typer.echo(f"{output}: {parity.format}")
    if parity.largest_gap is not None:
        typer.echo(
            f"largest gap of a cosine to 1: {parity.largest_gap:.1e}, of {parity.sentences} "
            "sentences"
        )
    for task, before in parity.before.items():
        after = parity.after[task]
        typer.echo(
            f"{task}: {100 * before:.2f} before, {100 * after:.2f} after "
            f"({100 * (after - before):+.2f})"
        )
    typer.echo(
        f"sentences/s in fp32: {parity.speed:,.0f} before, {parity.export_speed:,.0f} after "
        f"({parity.export_speed / parity.speed:.1f}x)"
    )


@settings
class PushOptions:
    """Options of ``push``."""

    run: Annotated[str, ARGUMENT]
    """A training run, or the folder of an encoder."""

    repository: Annotated[str, Spelling(argument=True, metavar="ORG/NAME")]
    """Its name on the Hugging Face Hub."""

    private: bool = False
    """Make the repository private if it is new."""

    dry_run: bool = False
    """Print what would be uploaded, and upload nothing."""


@command
def push(options: PushOptions) -> None:
    """Publish an encoder on the Hugging Face Hub, with its model card.

    Paths of this machine are left out of what is published. Edit the README.md in the folder to
    change the card; a card that was edited is published as it is.
    """
    from contrasent.model.card import publish, published_files

    folder, files = published_files(options.run, options.repository)
    typer.echo(f"{folder} as {options.repository}:", err=True)
    width = max(map(len, files))
    for name, content in files.items():
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        typer.echo(f"{name:<{width}}  {size:>13,} bytes")
    if options.dry_run:
        typer.echo("nothing was uploaded (--dry-run)", err=True)
        return
    typer.echo(publish(options.repository, files, private=options.private), err=True)
