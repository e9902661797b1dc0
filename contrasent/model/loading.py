"""Loading: a transformer, a static table or word vectors, by whatever name a user gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import resolve
from contrasent.model.int8 import require_engine
from contrasent.model.lookup_encoders import StaticEncoder, WordEncoder, are_words
from contrasent.model.st_modules import is_static

LoadedEncoder: TypeAlias = SentenceEncoder | WordEncoder | StaticEncoder


def load_encoder(
    name: str | Path,
    *,
    pooler: str | None = None,
    head: str | None = None,
    engine: str = "torch",
    device: str | None = None,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
) -> LoadedEncoder:
    """Load an encoder of any kind: a transformer, a static table or word vectors.

    Args:
        name: as `SentenceEncoder` takes it; or a folder with a StaticEmbedding, or of model2vec; a
            ``.txt`` or ``.vec`` file of word vectors, gzipped or not, or a folder that ``contrasent
            fit sif`` made of one.
        pooler: of a transformer, as `SentenceEncoder` takes it.
        head: of a transformer, as there.
        engine: of a transformer, as there.
        device: of a transformer, as there.
        truncate_dim: keep only so many leading dimensions of an embedding.
        prompt_name: the prompt for every sentence, those that are queries or documents too.

    Raises:
        ContrasentError: as of `SentenceEncoder`.

    Example:
        >>> import contrasent
        >>> contrasent.load_encoder("glove.6B.300d.txt").encode(["a dog"])  # doctest: +SKIP
    """
    encoder: LoadedEncoder
    words = are_words(name)
    if words or is_static(resolve(name)):
        require_engine("torch" if engine == "static" else engine, device)
        encoder = WordEncoder.load(name) if words else StaticEncoder.load(name)
        given = {"pooler": pooler, "head": head, "engine": None if engine == "torch" else engine}
        used = {"pooler": encoder.pooler, "head": encoder.head_name, "engine": encoder.engine}
        for part, value in given.items():
            if value not in (None, used[part]):
                raise ConfigError(f"{name} holds word vectors, which have no {part}: leave it out")
    else:
        encoder = SentenceEncoder.load(name, pooler=pooler, head=head, device=device, engine=engine)
    if truncate_dim is not None:
        encoder.truncate_dim = truncate_dim
    if prompt_name is not None:
        chosen: dict[str, Any] = {"default_prompt_name": prompt_name, "chosen": True}
        encoder.conventions = replace(encoder.conventions, **chosen)
    return encoder
