"""The encoder of an index: what is kept of it, and how it is found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict

from contrasent.errors import CheckpointError
from contrasent.model.conventions import Conventions
from contrasent.model.protocol import Encoder

if TYPE_CHECKING:
    from contrasent.model.loading import LoadedEncoder
    from contrasent.search.index import Index

STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Maker:
    """The encoder whose vectors the index holds.

    Attributes:
        name: the name or absolute folder it was loaded from.
        width: D, dimensions of a vector.
        precision: what matrix products ran in, as it was asked for.
        prompt_name: the prompt of all texts, if it was chosen; else texts have the encoder's
            prompt for documents, and queries that for queries.
        truncate_dim: how many dimensions were kept of an embedding; None for all.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: str
    fingerprint: str
    pooler: str
    head: str
    width: int
    precision: str
    engine: str = "torch"
    prompt_name: str | None = None
    truncate_dim: int | None = None

    def require(self, encoder: Encoder, folder: Path) -> None:
        """Make sure that ``encoder`` is this one, which built the index in ``folder``."""
        fingerprint = encoder.fingerprint()
        if fingerprint != self.fingerprint:
            raise CheckpointError(
                f"{folder} was built with {self.name} (pooler {self.pooler}, head "
                f"{self.head}, engine {self.engine}, fingerprint {self.fingerprint}), not with "
                f"{encoder.name} (pooler {encoder.pooler}, head {encoder.head_name}, engine "
                f"{encoder.engine}, fingerprint {fingerprint}): their vectors cannot be compared; "
                "use that encoder, or build an index with this one"
            )


def maker_of(encoder: Encoder, precision: str) -> Maker:
    """What is kept of the encoder of an index."""
    conventions: Conventions = getattr(encoder, "conventions", Conventions())
    local = Path(encoder.name).expanduser()  # absolute, to be found from anywhere
    return Maker(
        name=str(local.resolve()) if local.exists() else encoder.name,
        fingerprint=encoder.fingerprint(),
        pooler=encoder.pooler,
        head=encoder.head_name,
        width=encoder.width,
        precision=precision,
        engine=encoder.engine,
        prompt_name=conventions.default_prompt_name if conventions.chosen else None,
        truncate_dim=conventions.truncate_dim,
    )


def encoder_of(index: Index, name: str | None = None, device: str | None = None) -> LoadedEncoder:
    """Load the encoder that the index names, or ``name``, which must be equal to it."""
    from contrasent.model.loading import load_encoder

    maker = index.manifest.encoder
    try:
        encoder = load_encoder(
            name or maker.name,
            pooler=maker.pooler,
            head=maker.head,
            engine=maker.engine,
            device=device,
            truncate_dim=maker.truncate_dim,
            prompt_name=maker.prompt_name,
        )
    except CheckpointError as error:
        if name is not None:
            raise
        raise CheckpointError(
            f"{index.folder} was built with {maker.name}, which cannot be loaded: {error}; "
            "if the encoder has moved, say where it is with --encoder FOLDER"
        ) from error
    index.require(encoder)
    return encoder
