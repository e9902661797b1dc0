"""Loading: a transformer or word vectors, by whatever name a user gives."""

from __future__ import annotations

from pathlib import Path

from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.engines import base as engines
from contrasent.model.static_encoder import StaticEncoder, is_static
from contrasent.model.word_encoder import WordEncoder, are_words

LoadedEncoder = SentenceEncoder | WordEncoder | StaticEncoder


def load_encoder(
    name: str | Path,
    *,
    pooler: str | None = None,
    head: str | None = None,
    engine: str = "torch",
    device: str | None = None,
) -> LoadedEncoder:
    """Load a transformer, or a table of vectors, which takes no argument but a CPU as ``device``.

    ``name`` may also be a folder with a StaticEmbedding, a ``.txt`` or ``.vec`` file of word
    vectors, gzipped or not, or a folder that ``contrasent fit sif`` made of one; the rest, and
    errors, as in `SentenceEncoder.load`.
    """
    static = is_static(name)
    if not static and not are_words(name):
        return SentenceEncoder.load(name, pooler=pooler, head=head, device=device, engine=engine)
    engines.require("torch" if engine == "static" else engine, device)
    encoder = StaticEncoder.load(name) if static else WordEncoder.load(name)
    asked = {"pooler": (pooler, encoder.pooler), "head": (head, encoder.head_name)}
    for part, (given, used) in {**asked, "engine": (engine, encoder.engine)}.items():
        if given not in (None, used) and (part, given) != ("engine", "torch"):
            raise ConfigError(f"{name} holds word vectors, which have no {part}: leave it out")
    return encoder
