"""``contrasent fit``, ``export``, ``push``, ``serve`` and ``mcp``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import Field

from contrasent import options
from contrasent.cli.app import AsJson, print_facts, say, tell
from contrasent.errors import ConfigError
from contrasent.files import read_json, refuse_existing
from contrasent.serve import McpOptions, ServeOptions, run_mcp, run_server
from contrasent.settings import (
    ARGUMENT,
    FlowSettings,
    Spelling,
    StaticSettings,
    WhiteningSettings,
    settings,
    shared,
)


@settings
class FitMap(options.Named, options.MapOptions):
    """The options of every command that fits a map to an encoder."""

    data: list[str]
    """Text to fit on: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging Face dataset
    id, every sentence of a row; or sts, or an STS task such as stsb or stsb-dev, which shows the
    test sentences to the fit. Give it once for each."""

    output: Path
    """The folder to write; it must not exist."""

    def __call__(self) -> None:
        from contrasent.fitting import FITTERS, fit
        from contrasent.model import INFO_FILE

        kind = type(self).__name__.removesuffix("Command").lower()
        chosen = shared(self, options.MapOptions) | shared(self, FITTERS[kind].settings)
        fit(self.model, kind, data=self.data, output=self.output, show_progress=True, **chosen)
        facts = read_json(self.output / INFO_FILE)["transform"]
        say(f"{self.output}: {facts['described']}")
        for name in facts.keys() & {"variance_kept", "bits_per_dimension", "held_out_cosine"}:
            tell(f"{name}: {facts[name]}")


@settings
class WhiteningCommand(FitMap, WhiteningSettings):
    """Whiten an encoder's embeddings: mean 0, covariance the identity (BERT-whitening).

    OUTPUT is the encoder with the map as a Dense module, which sentence-transformers loads too.
    """


@settings
class FlowCommand(FitMap, FlowSettings):
    """Map an encoder's embeddings to a normal distribution by an invertible network (BERT-flow).

    OUTPUT is the encoder with the network. sentence-transformers refuses the folder, unless this
    package is installed beside it and the folder is trusted with trust_remote_code=True.
    """


@settings
class StaticCommand(FitMap, StaticSettings):
    """Fit a table of word pieces whose means follow an encoder's embeddings, by least squares.

    OUTPUT embeds many times faster, on a CPU, and can stand beside the encoder (export --query).
    """


@settings
class ExportCommand(options.Named, options.Pooling, AsJson, options.Replacing):
    """Write an encoder in the format of another library, checked against the encoder."""

    output: Annotated[Path, ARGUMENT]
    """The folder of the export."""

    format: str | None = None
    """onnx (for sentence-transformers' backend, and fastembed), or onnx-int8 (with a smaller graph
    beside, also for transformers.js)."""

    query: str | None = None
    """In place of a format: an encoder of queries. The export is a Router of sentence-transformers,
    with MODEL for documents."""

    tolerance: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The largest gap of the cosine of two embeddings to 1, above which nothing is written; else
    0.0001, for onnx-int8 0.05."""

    def __call__(self) -> None:
        from contrasent.model import Router, SentenceEncoder, export, load_encoder

        if self.query is not None and (self.format, self.tolerance) == (None, None):
            if not self.overwrite:
                refuse_existing(self.output, "pass --overwrite to replace it")
            document = load_encoder(self.model, pooler=self.pooler, head=self.head, device="cpu")
            Router(load_encoder(self.query, device="cpu"), document).save(self.output)
            lines = [f"{self.output}: queries by {self.query}, documents by {self.model}"]
            print_facts({"output": str(self.output), "format": "router"}, lines, json=self.json)
            return
        if self.format is None or self.query is not None:
            raise ConfigError("give --format, or for a Router --query without --tolerance")
        encoder = SentenceEncoder.load(self.model, pooler=self.pooler, head=self.head, device="cpu")
        parity = export(
            encoder, self.output, self.format, tolerance=self.tolerance, overwrite=self.overwrite
        )
        gap = f"{parity.largest_gap:.1e}, of {parity.sentences} sentences"
        lines = [f"{self.output}: {parity.format}", f"largest gap of a cosine to 1: {gap}"]
        print_facts({"output": str(self.output), **asdict(parity)}, lines, json=self.json)


@settings
class PushCommand:
    """Publish an encoder on the Hugging Face Hub, with its model card.

    Paths of this machine are left out of what is published. Edit the README.md in the folder to
    change the card; a card that was edited is published as it is.
    """

    run: Annotated[str, ARGUMENT]
    """A training run, or the folder of an encoder."""

    repository: Annotated[
        str, Spelling(argument=True, metavar="ORG/NAME"), Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)?$")
    ]
    """Its name on the Hugging Face Hub."""

    private: bool = False
    """Make the repository private if it is new."""

    dry_run: bool = False
    """Print what would be uploaded, and upload nothing."""

    def __call__(self) -> None:
        from contrasent.model import publish, published_files

        folder, files = published_files(self.run, self.repository)
        tell(f"{folder} as {self.repository}:")
        for name, content in files.items():
            size = content.stat().st_size if isinstance(content, Path) else len(content)
            say(f"{size:>13,}  {name}")
        if not self.dry_run:
            tell(publish(self.repository, files, private=self.private))


@settings
class ServeCommand(ServeOptions):
    """Serve embeddings and search over HTTP.

    The routes are OpenAI's (/v1/embeddings) and text-embeddings-inference's (/embed); /docs lists
    all of them, and / is a page for people. With --index texts are searched, added and removed.
    SIGTERM ends the server after it has answered what it has begun.
    """

    def __call__(self) -> None:
        run_server(self)


@settings
class McpCommand(McpOptions):
    """Let agents search indexes, over the Model Context Protocol (MCP).

    The tools are search, similar (to a text of the index) and, with --allow-add, add. An agent
    starts the command itself and speaks to it over standard input and output; with --port it is a
    server over HTTP.
    """

    def __call__(self) -> None:
        run_mcp(self)
