"""A user's own scored pairs: a file of any known kind, or a data set on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from contrasent.data.build.columns import Wanted
from contrasent.data.build.records import as_text, open_records
from contrasent.errors import DataError
from contrasent.metrics import Vector

PAIRS = Wanted(
    roles=("first sentence", "second sentence", "score"),
    names=(
        (
            *("sentence1", "sentence_1", "sentence_a", "text1", "text_a", "sent0", "first"),
            *("question1", "premise", "anchor", "query"),
        ),
        (
            *("sentence2", "sentence_2", "sentence_b", "text2", "text_b", "sent1", "second"),
            *("question2", "hypothesis", "positive", "document"),
        ),
        (
            *("score", "similarity", "similarity_score", "relatedness_score", "gold", "rating"),
            *("label", "is_duplicate"),
        ),
    ),
    ranked=("score",),
    bare=(3,),
    mend="mend the row or take it out",
    otherwise="if it holds sentences with labels, name it classify:FILE",
)
_LEAST = 3

Pair = tuple[str, str, float]


def read_pairs(source: str, columns: Sequence[str] | None = None) -> tuple[list[Pair], str, str]:
    """Read all pairs of a file or data set.

    Args:
        source: a ``.tsv``, ``.csv``, ``.jsonl`` or ``.parquet`` file, or ``org/name:config@split``.
        columns: both sentences and the score, by name or by number from 0; None to know them by
            name, or by their order where there are three columns without a known name.

    Returns:
        The pairs, the hash of their source, and one line on how the columns were understood, empty
        if there was nothing to understand.

    Raises:
        ConfigError: ``columns`` does not fit.
        DataError: a row does not hold a pair and its score, or there are fewer than
            three; the message names file and line.
        MissingExtraError: a data set is asked for, but ``datasets`` is not installed.
    """
    records = open_records(source, PAIRS, columns)
    by_place = records.described.endswith(("(no header)", "(chosen by number)"))
    note = "" if by_place else f"{source}: {records.described}"
    pairs: list[Pair] = []
    for where, (first, second, score) in records.rows():
        if by_place and not pairs and not note and _is_heading(score):
            note = f"{where}: taken as a header, because {score!r} is not a number"
        else:
            _refuse_class(score, where)
            pairs.append(pair(where, as_text(first, where), as_text(second, where), score))
    if len(pairs) < _LEAST:
        raise DataError(f"{source} has {len(pairs)} pairs; a correlation needs at least {_LEAST}")
    return pairs, records.sha256, note


def require_different(source: str, gold: Vector) -> None:
    """Make sure that something can correlate with the scores, before anything is encoded.

    Raises:
        DataError: all are the same.
    """
    if (gold == gold[0]).all():
        raise DataError(
            f"{source}: the score of all {len(gold)} pairs is {gold[0]:g}, so there is no "
            "correlation; is the right column taken as the score?"
        )


def pair(where: str, first: str, second: str, score: Any) -> Pair:
    """A pair with single spaces between words, as SentEval's batcher makes them.

    Raises:
        DataError: a sentence is empty, or the score is no number; ``where`` begins the message.
    """
    tidy = " ".join(first.split()), " ".join(second.split())
    if not all(tidy):
        raise DataError(f"{where}: a sentence is empty")
    return *tidy, score_of(score, where)


def score_of(score: Any, where: str) -> float:
    """A finite number, from a cell of text or a value that is one.

    Raises:
        DataError: it is none.
    """
    if not is_number(score) or not isfinite(float(score)):
        told = score.strip() if isinstance(score, str) else score
        raise DataError(f"{where}: the score must be a number, not {told!r}")
    return float(score)


def is_number(score: Any) -> bool:
    """Whether a cell can be read as a number, NaN among them."""
    if score is None or isinstance(score, bool):
        return False
    try:
        float(score)
    except (TypeError, ValueError):
        return False
    return True


def columns_of(pairs: Sequence[Pair]) -> tuple[tuple[str, ...], tuple[str, ...], Vector]:
    """First sentences, second sentences and scores."""
    first, second, gold = zip(*pairs, strict=True)
    return first, second, np.array(gold, dtype=np.float64)


def _refuse_class(score: Any, where: str) -> None:
    if _is_heading(score):
        raise DataError(
            f"{where}: the score must be a number, not {score.strip()!r}; if it is a class to be "
            "learned, put classify: in front of the file"
        )


def _is_heading(score: Any) -> bool:
    return isinstance(score, str) and bool(score.strip()) and not is_number(score)
