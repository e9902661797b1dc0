"""``contrasent fit``, ``import``, ``export`` and ``push``."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Device,
    Head,
    Json,
    Model,
    Pooler,
    grouped,
    listed,
    print_json,
)

if TYPE_CHECKING:
    from contrasent.fitting.maps import Embedding, FittedEncoder
    from contrasent.fitting.text import FittingText
    from contrasent.formats import Parity
    from contrasent.model.encoder import SentenceEncoder


Output = Annotated[Path, typer.Option(help="The folder to write; it must not exist.")]


@dataclass(frozen=True)
class FitOptions:
    """The options of every command that fits something to text."""

    data: Annotated[
        list[str],
        typer.Option(
            help="Text to fit on: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging "
            "Face dataset id, every sentence of a row; or sts, or an STS task such as stsb or "
            "stsb-dev, which shows the test sentences to the fit. Give it once for each."
        ),
    ]
    output: Output
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated sentence columns of the files: names, or numbers from 0."
        ),
    ] = None
    data_dir: DataDir = None

    def open_text(self) -> FittingText:
        """The text, once it is known that ``output`` can be written."""
        from contrasent.fitting.maps import require_output
        from contrasent.fitting.text import open_fitting_text

        require_output(self.output)
        text = open_fitting_text(self.data, listed(self.columns), self.data_dir)
        for origin in text.origins:
            columns = f"; {origin.columns}" if origin.columns else ""
            typer.echo(f"{origin.source}: {origin.sentences} sentences{columns}", err=True)
        if text.is_target:
            tasks = ", ".join(origin.source for origin in text.origins if origin.target)
            typer.echo(f"target text: the test sentences of {tasks} were seen", err=True)
        return text


@dataclass(frozen=True)
class MapOptions(FitOptions):
    """The options of every command that fits a map to an encoder."""

    pooler: Pooler = None
    head: Head = None
    device: Device = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cut the sentences to fit on there, at most where the encoder does; the papers "
            "took 64.",
        ),
    ] = None
    precision: Annotated[str, typer.Option(help="fp32, bf16 or auto, to embed the text in.")] = (
        "fp32"
    )

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


@grouped
def whitening(
    model: Model,
    options: MapOptions,
    dimensions: Annotated[
        int | None,
        typer.Option(
            help="Keep this many, those of the largest variance; else all in which embeddings "
            "differ."
        ),
    ] = None,
) -> None:
    """Whiten an encoder's embeddings: mean 0, covariance the identity (BERT-whitening).

    OUTPUT is the encoder with the map as a Dense module, which sentence-transformers loads too.
    """
    from contrasent.fitting.maps import FITTERS

    settings = FITTERS["whitening"].read({"dimensions": dimensions})
    text, encoder = options.open_text(), options.load(model)
    how = options.embedding
    fitted = FITTERS["whitening"].fit(encoder, text, settings, how, show_progress=True)
    facts = fitted.info["transform"]
    typer.echo(
        f"{facts['dimensions']} of {facts['width']} dimensions kept, with "
        f"{facts['variance_kept']:.2%} of the variance; embeddings differ in {facts['rank']}",
        err=True,
    )
    _save(fitted, options.output)


@grouped
def flow(  # noqa: PLR0913 - the arguments are the command's options
    model: Model,
    options: MapOptions,
    levels: Annotated[int, typer.Option(help="Levels; each halves what it hands on.")] = 3,
    depth: Annotated[int, typer.Option(help="Steps of a level.")] = 3,
    coupling_width: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Learning rate, held constant.")] = 1e-3,
    batch_size: Annotated[
        int, typer.Option(help="Sentences of an update; 64 are the 32 pairs of the paper's code.")
    ] = 64,
    epochs: Annotated[int, typer.Option(help="How often the text is read.")] = 1,
    dropout: Annotated[
        bool,
        typer.Option(
            help="Leave the encoder's dropout on, as the paper's code does; every sentence is then "
            "embedded anew in every epoch."
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the weights, the order of the sentences, and dropout.")
    ] = 1234,
) -> None:
    """Map an encoder's embeddings to a normal distribution by an invertible network (BERT-flow).

    OUTPUT is the encoder with the network. sentence-transformers refuses the folder, unless this
    package is installed beside it and the folder is trusted with trust_remote_code=True.
    """
    from contrasent.fitting.maps import FITTERS

    chosen = {
        "levels": levels,
        "depth": depth,
        "coupling_width": coupling_width,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "epochs": epochs,
        "dropout": dropout,
        "seed": seed,
    }
    settings = FITTERS["flow"].read(chosen)
    text, encoder = options.open_text(), options.load(model)
    how = options.embedding
    fitted = FITTERS["flow"].fit(encoder, text, settings, how, show_progress=True)
    likelihood = fitted.info["transform"]["bits_per_dimension"]
    typer.echo(
        f"bits per dimension of {likelihood['sentences']} of the sentences: "
        f"{likelihood['before']:.4f} before, {likelihood['after']:.4f} after",
        err=True,
    )
    _save(fitted, options.output)


@grouped
def sif(
    words: Annotated[
        str,
        typer.Argument(
            help="Word vectors: a .txt or .vec file of a word and its numbers per line, also .gz."
        ),
    ],
    options: FitOptions,
    smoothing: Annotated[
        float, typer.Option("--a", help="A word counts a / (a + its frequency).")
    ] = 1e-3,
    components: Annotated[
        int, typer.Option(help="Directions that all sentences share, taken out.")
    ] = 1,
    frequencies: Annotated[
        Path | None,
        typer.Option(help="A word and its count per line; else words of the text are counted."),
    ] = None,
) -> None:
    """Weigh word vectors by frequency and take out what all sentences share (SIF).

    OUTPUT holds the vectors too, and is an encoder for every command but train.
    """
    from contrasent.errors import ConfigError
    from contrasent.fitting.maps import save_fitted
    from contrasent.fitting.sif import fit_sif
    from contrasent.model.word_encoder import WordEncoder, are_words

    if not are_words(words):
        raise ConfigError(f"{words} is no file of word vectors; its name must end in .txt or .vec")
    text = options.open_text()
    encoder, info = fit_sif(
        WordEncoder.load(words),
        text,
        smoothing=smoothing,
        components=components,
        frequencies=frequencies,
    )
    save_fitted(encoder, info, options.output)
    typer.echo(f"{options.output}: {encoder.transform_described}")


def _save(fitted: FittedEncoder, output: Path) -> None:
    from contrasent.fitting.maps import save_fitted

    save_fitted(fitted.encoder, fitted.info, output)
    typer.echo(f"{output}: {fitted.info['transform']['described']}")
    typer.echo(f"next: contrasent evaluate {shlex.quote(str(output))}", err=True)


_NONE = "none"


def export(  # noqa: PLR0913 - the arguments are the command's options
    *,
    model: Model,
    output: Annotated[Path, typer.Argument(help="The folder to write.")],
    format: Annotated[  # noqa: A002 - the option's name
        str,
        typer.Option(
            help="onnx and openvino (for sentence-transformers' backends, onnx also for "
            "fastembed), static (a table of vectors of word pieces: much faster, less exact), or "
            "simcse (a Hugging Face folder with the head as pooler.dense)."
        ),
    ],
    pooler: Pooler = None,
    head: Head = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="The largest gap between 1 and the cosine of a sentence's two embeddings; above "
            "it nothing is written. Not for static."
        ),
    ] = 1e-4,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Scored before and after, as for evaluate, or none; else rated pairs that ship "
            "with the package."
        ),
    ] = None,
    data_dir: DataDir = None,
    dimensions: Annotated[int | None, typer.Option(help="Dimensions of static; else 256.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Text to count word pieces in, for static; else their ranks in the vocabulary "
            "tell how frequent they are."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an export that is there already.")
    ] = False,
    json: Json = False,
) -> None:
    """Write an encoder in the format of another library, checked against the encoder."""
    from dataclasses import asdict

    from contrasent.errors import pick
    from contrasent.formats import FORMATS, export
    from contrasent.model.encoder import SentenceEncoder

    pick("format", format, FORMATS)
    chosen = {} if tasks is None else {"tasks": [] if tasks == _NONE else listed(tasks) or []}
    encoder = SentenceEncoder.load(model, pooler=pooler, head=head, device="cpu")
    parity = export(
        encoder,
        output,
        format,
        tolerance=tolerance,
        data_dir=data_dir,
        dimensions=dimensions,
        text=data,
        overwrite=overwrite,
        show_progress=True,
        **chosen,
    )
    if json:
        print_json({"output": str(output), **asdict(parity)})
    else:
        _print(output, parity)


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


def push(
    run: Annotated[str, typer.Argument(help="A training run, or the folder of an encoder.")],
    repository: Annotated[
        str, typer.Argument(metavar="ORG/NAME", help="Its name on the Hugging Face Hub.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository private if it is new.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be uploaded, and upload nothing.")
    ] = False,
) -> None:
    """Publish an encoder on the Hugging Face Hub, with its model card.

    Paths of this machine are left out of what is published. Edit the README.md in the folder to
    change the card; a card that was edited is published as it is.
    """
    from contrasent.model.loading import Publication

    publication = Publication.of(run, repository)
    typer.echo(f"{publication.folder} as {repository}:", err=True)
    width = max(map(len, publication.sizes))
    for name, size in publication.sizes.items():
        typer.echo(f"{name:<{width}}  {size:>13,} bytes")
    if dry_run:
        typer.echo("nothing was uploaded (--dry-run)", err=True)
        return
    typer.echo(publication.push(private=private), err=True)
