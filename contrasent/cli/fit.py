"""``contrasent fit``, ``export`` and ``push``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import PositiveInt

from contrasent.cli.parameters import command, print_json
from contrasent.options import (
    AsJson,
    DataFolder,
    Listed,
    Named,
    NewFolder,
    OnDevice,
    Pooling,
    shared,
)
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from contrasent.fitting.maps import Embedding, FittedEncoder
    from contrasent.fitting.text import FittingText
    from contrasent.formats import Parity
    from contrasent.model.encoder import SentenceEncoder


@settings
class FitOptions(DataFolder, NewFolder):
    """The options of every command that fits something to text."""

    data: list[str]
    """Text to fit on: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging Face dataset
    id, every sentence of a row; or sts, or an STS task such as stsb or stsb-dev, which shows the
    test sentences to the fit. Give it once for each."""

    columns: Listed | None = None
    """Comma-separated sentence columns of the files: names, or numbers from 0."""

    def open_text(self) -> FittingText:
        """The text, once it is known that ``output`` can be written."""
        from contrasent.fitting.maps import require_output
        from contrasent.fitting.text import open_fitting_text

        require_output(self.output)
        text = open_fitting_text(self.data, self.columns, self.data_dir)
        for origin in text.origins:
            columns = f"; {origin.columns}" if origin.columns else ""
            typer.echo(f"{origin.source}: {origin.sentences} sentences{columns}", err=True)
        if text.is_target:
            tasks = ", ".join(origin.source for origin in text.origins if origin.target)
            typer.echo(f"target text: the test sentences of {tasks} were seen", err=True)
        return text


@settings
class MapOptions(FitOptions, Named, Pooling, OnDevice):
    """The options of every command that fits a map to an encoder."""

    max_tokens: PositiveInt | None = None
    """Cut the sentences to fit on there, at most where the encoder does; the papers took 64."""

    precision: str = "fp32"
    """fp32, bf16 or auto, to embed the text in."""

    def load(self, model: str) -> SentenceEncoder:
        """The encoder, which has to be one that can take a map."""
        from contrasent.errors import ConfigError
        from contrasent.fitting.maps import refuse_second
        from contrasent.model.encoder import SentenceEncoder
        from contrasent.model.word_encoder import are_words

        if are_words(model):
            raise ConfigError(
                f"{model} holds word vectors, and the folder of their means has no place for a "
                "whitening or a flow; 'contrasent fit sif' weighs them and takes out what all "
                "sentences share, or fit on an encoder trained over them ('contrasent train "
                "infersent')"
            )
        encoder = SentenceEncoder.load(
            model, pooler=self.pooler, head=self.head, device=self.device
        )
        refuse_second(encoder)
        return encoder

    @property
    def embedding(self) -> Embedding:
        """How the text is embedded."""
        from contrasent.fitting.maps import Embedding

        return Embedding(precision=self.precision, max_tokens=self.max_tokens)


def _fit(kind: str, options: MapOptions, chosen: Mapping[str, Any]) -> FittedEncoder:
    """The encoder with a map of a kind, once its settings and the text are looked at."""
    from contrasent.fitting.maps import FITTERS

    settings = FITTERS[kind].read(chosen)
    text, encoder = options.open_text(), options.load(options.model)
    return FITTERS[kind].fit(encoder, text, settings, options.embedding, show_progress=True)


@settings
class WhiteningOptions(MapOptions):
    """Options of ``whitening``."""

    dimensions: int | None = None
    """Keep this many, those of the largest variance; else all in which embeddings differ."""


@command
def whitening(options: WhiteningOptions) -> None:
    """Whiten an encoder's embeddings: mean 0, covariance the identity (BERT-whitening).

    OUTPUT is the encoder with the map as a Dense module, which sentence-transformers loads too.
    """
    fitted = _fit("whitening", options, {"dimensions": options.dimensions})
    facts = fitted.info["transform"]
    typer.echo(
        f"{facts['dimensions']} of {facts['width']} dimensions kept, with "
        f"{facts['variance_kept']:.2%} of the variance; embeddings differ in {facts['rank']}",
        err=True,
    )
    _save(fitted, options.output)


@settings
class FlowOptions(MapOptions):
    """Options of ``flow``."""

    levels: int = 3
    """Levels; each halves what it hands on."""

    depth: int = 3
    """Steps of a level."""

    coupling_width: int = 32
    """Width of the hidden layers."""

    learning_rate: float = 0.001
    """Learning rate, held constant."""

    batch_size: int = 64
    """Sentences of an update; 64 are the 32 pairs of the paper's code."""

    epochs: int = 1
    """How often the text is read."""

    dropout: Annotated[bool, Spelling(flag="--dropout/--no-dropout")] = False
    """Leave the encoder's dropout on, as the paper's code does; every sentence is then embedded
    anew in every epoch."""

    seed: int = 1234
    """Seed of the weights, the order of the sentences, and dropout."""


@command
def flow(options: FlowOptions) -> None:
    """Map an encoder's embeddings to a normal distribution by an invertible network (BERT-flow).

    OUTPUT is the encoder with the network. sentence-transformers refuses the folder, unless this
    package is installed beside it and the folder is trusted with trust_remote_code=True.
    """
    fitted = _fit("flow", options, shared(options, FlowOptions, MapOptions))
    likelihood = fitted.info["transform"]["bits_per_dimension"]
    typer.echo(
        f"bits per dimension of {likelihood['sentences']} of the sentences: "
        f"{likelihood['before']:.4f} before, {likelihood['after']:.4f} after",
        err=True,
    )
    _save(fitted, options.output)


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
    from contrasent.errors import ConfigError
    from contrasent.fitting.maps import save_fitted
    from contrasent.fitting.sif import fit_sif
    from contrasent.model.word_encoder import WordEncoder, are_words

    if not are_words(options.words):
        raise ConfigError(
            f"{options.words} is no file of word vectors; its name must end in .txt or .vec"
        )
    text = options.open_text()
    encoder, info = fit_sif(
        WordEncoder.load(options.words),
        text,
        smoothing=options.smoothing,
        components=options.components,
        frequencies=options.frequencies,
    )
    save_fitted(encoder, info, options.output)
    typer.echo(f"{options.output}: {encoder.transform_described}")


def _save(fitted: FittedEncoder, output: Path) -> None:
    from contrasent.fitting.maps import save_fitted

    save_fitted(fitted.encoder, fitted.info, output)
    typer.echo(f"{output}: {fitted.info['transform']['described']}")
    typer.echo(f"next: contrasent evaluate {shlex.quote(str(output))}", err=True)


_NONE = "none"


@settings
class ExportOptions(Named, Pooling, DataFolder, AsJson):
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

    overwrite: bool = False
    """Replace an export that is there already."""


@command
def export(options: ExportOptions) -> None:
    """Write an encoder in the format of another library, checked against the encoder."""
    from dataclasses import asdict

    from contrasent.errors import pick
    from contrasent.formats import FORMATS, export
    from contrasent.model.encoder import SentenceEncoder

    pick("format", options.format, FORMATS)
    tasks = options.tasks
    chosen: dict[str, Any] = {} if tasks is None else {"tasks": [] if tasks == [_NONE] else tasks}
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
