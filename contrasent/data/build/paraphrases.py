"""Pairs from captions of one image, duplicate questions and machine-made paraphrases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from contrasent.data.build.base import Counts, DataKind, Example, LeftOutError, pair
from contrasent.data.build.nli import yes_or_no
from contrasent.data.rows import SourceRows, as_text, score_of
from contrasent.errors import ConfigError

_NUMBERED = re.compile(r"(.+)#\d+", re.DOTALL)


def captions(sources: Sequence[SourceRows]) -> DataKind:
    """Any two captions of an image (SimCSE, section 4): 10 pairs of 5 captions.

    An image is what stands before ``#k`` in Flickr's files, and otherwise the whole cell. Equal
    names in two sources are two images.
    """
    return DataKind(
        sources=sources,
        contents="pairs of captions of one image",
        parse=_caption,
        group=_any_two,
        wording={"group": "image", "incomplete": "with fewer than two captions"},
    )


def _caption(
    source: int, cells: Sequence[Any], where: str, _: Counts
) -> tuple[tuple[int, str], str]:
    """The image, and a caption of it."""
    image, caption = str("" if cells[0] is None else cells[0]).strip(), as_text(cells[1], where)
    if not (image and caption):
        raise LeftOutError("empty")
    numbered = _NUMBERED.fullmatch(image)
    return (source, numbered[1] if numbered else image), caption


def _any_two(_: object, members: list[str], counts: Counts) -> Iterator[Example]:
    unique = list(dict.fromkeys(members))
    counts.repeated += len(members) - len(unique)
    counts.incomplete += len(unique) < 2
    return combinations(unique, 2)


def duplicates(sources: Sequence[SourceRows]) -> DataKind:
    """Questions, or any two sentences, that are said to mean the same (Quora's, MRPC, PAWS)."""

    def parse(_: int, cells: Sequence[Any], where: str, counts: Counts) -> Example:
        first, second, mark = cells
        same = yes_or_no(mark, where)
        if same is None:
            raise LeftOutError("unlabelled")
        counts.label("duplicate" if same else "not")
        if not same:
            raise LeftOutError("other")
        return pair(first, second, where)

    return DataKind(
        sources=sources,
        contents="pairs of duplicates",
        parse=parse,
        labels=["1 = duplicate, 0 = not"] * len(sources),
        wording={"other": "whose sentences are no duplicates"},
    )


def paraphrases(
    sources: Sequence[SourceRows], min_score: float | None = None, max_score: float | None = None
) -> DataKind:
    """Sentences with their paraphrases (ParaNMT), all or those of a range of scores."""
    low = -float("inf") if min_score is None else min_score
    high = float("inf") if max_score is None else max_score
    scored = not (min_score is None and max_score is None)
    if not low <= high:
        raise ConfigError(f"no score lies between {low:g} and {high:g}")
    without = next((source.source for source in sources if source.width < 3), None)
    if scored and without:
        raise ConfigError(
            f"{without} has no column of scores for --min-score and --max-score; name it with "
            "--columns, or leave them out"
        )

    def parse(_: int, cells: Sequence[Any], where: str, __: Counts) -> Example:
        first, second, *score = cells
        if scored and (score[0] is None or not str(score[0]).strip()):
            raise LeftOutError("unlabelled")
        if scored and not low <= score_of(score[0], where) <= high:
            raise LeftOutError("other")
        return pair(first, second, where)

    return DataKind(
        sources=sources,
        contents="pairs of sentence and paraphrase"
        + (f" with scores from {low:g} to {high:g}" if scored else ""),
        parse=parse,
        wording={"unlabelled": "without a score", "other": "with another score"},
    )
