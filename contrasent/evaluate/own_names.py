"""How a user names own data: a file, files that belong together, or a data set of the hub."""

from __future__ import annotations

import re
from pathlib import Path

from contrasent.data.hub import dataset_parts
from contrasent.errors import ConfigError

CLASSIFY = "classify:"
"""Stands before sentences with labels, where their columns do not say that they are."""

RETRIEVE = "retrieve:"
"""Stands before queries, documents and relevance."""

OWN_FILE = re.compile(r"\.((tsv|csv|jsonl|txt|qrels)(\.gz)?|parquet|npy)$", re.IGNORECASE)


def joined_sources(text: str) -> tuple[str, ...]:
    """What stands between the ``+`` of a name, each with its home folder written out.

    A ``+`` that is part of a file's name or of a data set's split is left alone: all pieces have to
    be files by their endings, or ids of data sets.
    """
    text = text.strip()
    pieces = [piece.strip() for piece in text.split("+")]
    if Path(text).expanduser().exists() or not all(map(_is_source, pieces)):
        pieces = [text]
    return tuple(str(Path(piece).expanduser()) if piece else piece for piece in pieces)


def require_source(text: str, prefix: str, form: str) -> None:
    """Make sure that something stands behind a prefix.

    Args:
        text: what a user named, without white space around it.
        prefix: what it begins with.
        form: what is to stand behind it.

    Raises:
        ConfigError: nothing does.
    """
    if not text.removeprefix(prefix).strip():
        raise ConfigError(f"{text!r} names nothing to read; give {prefix}{form}")


def short_name(text: str) -> str:
    """A name of own data for tables: the last part of every path."""
    named = text.removeprefix(CLASSIFY).removeprefix(RETRIEVE)
    return "+".join(Path(piece).name for piece in joined_sources(named))


def _is_source(piece: str) -> bool:
    return bool(OWN_FILE.search(piece) or ("/" in piece and dataset_parts(piece)))
