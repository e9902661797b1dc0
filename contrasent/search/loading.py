"""The encoder that an index was built with, found again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrasent.errors import CheckpointError
from contrasent.search.index import Index

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.words import WordEncoder


def encoder_of(
    index: Index, name: str | None = None, device: str | None = None
) -> SentenceEncoder | WordEncoder:
    """Load the encoder that the index names, or ``name``, which must be equal to it.

    Raises:
        CheckpointError: it cannot be loaded, or is another encoder.
    """
    from contrasent.model.loading import load_encoder

    maker = index.manifest.encoder
    try:
        encoder = load_encoder(
            name or maker.name,
            pooler=maker.pooler,
            head=maker.head,
            engine=maker.engine,
            device=device,
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
