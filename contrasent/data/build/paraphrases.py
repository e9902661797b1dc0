"""Pairs from captions of one image, duplicate questions and machine-made paraphrases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from contrasent.data.build.base import (
    Counts,
    DataKind,
    Example,
    Reading,
    SourceDescription,
    pair,
    parse_rows,
)
from contrasent.data.build.nli import yes_or_no
from contrasent.data.rows import SourceRows, as_text, score_of
from contrasent.errors import ConfigError

_NUMBERED = re.compile(r"(.+)#\d+", re.DOTALL)


class Captions(DataKind):
    """Any two captions of an image (SimCSE, section 4): 10 pairs of 5 captions.

    An image is what stands before ``#k`` in Flickr's files, and otherwise the whole cell. Equal
    names in two sources are two images.
    """

    contents = "pairs of captions of one image"
    wording = SourceDescription(group="image", incomplete="with fewer than two captions")

    def __init__(self, sources: Sequence[SourceRows]) -> None:
        super().__init__(sources)
        self._groups: dict[tuple[int, str], list[str]] | None = None

    def examples(self, reading: Reading) -> Iterator[Example]:
        # The captions of an image need not stand together in a file.
        if self._groups is None:
            self._groups = {}
            for number, source in enumerate(self.sources):
                for image, caption in parse_rows(source, reading, _caption):
                    self._groups.setdefault((number, image), []).append(caption)
        for captions in self._groups.values():
            unique = list(dict.fromkeys(captions))
            reading.counts.repeated += len(captions) - len(unique)
            reading.counts.incomplete += len(unique) < 2
            yield from combinations(unique, 2)


def _caption(cells: Sequence[Any], where: str, counts: Counts) -> tuple[str, str] | None:
    """The image, and a caption of it."""
    image, caption = str("" if cells[0] is None else cells[0]).strip(), as_text(cells[1], where)
    if not (image and caption):
        counts.empty += 1
        return None
    numbered = _NUMBERED.fullmatch(image)
    return numbered[1] if numbered else image, caption


class Duplicates(DataKind):
    """Questions, or any two sentences, that are said to mean the same (Quora's, MRPC, PAWS)."""

    contents = "pairs of duplicates"
    wording = SourceDescription(other="whose sentences are no duplicates")

    def __init__(self, sources: Sequence[SourceRows]) -> None:
        super().__init__(sources)
        self.labels = ["1 = duplicate, 0 = not"] * len(sources)

    def examples(self, reading: Reading) -> Iterator[Example]:
        for source in self.sources:
            yield from parse_rows(source, reading, _duplicates)


def _duplicates(cells: Sequence[Any], where: str, counts: Counts) -> Example | None:
    first, second, mark = cells
    same = yes_or_no(mark, where)
    if same is None:
        counts.unlabelled += 1
        return None
    counts.label("duplicate" if same else "not")
    counts.other += not same
    return pair(first, second, where, counts) if same else None


class Paraphrases(DataKind):
    """Sentences with their paraphrases (ParaNMT), all or those of a range of scores."""

    wording = SourceDescription(unlabelled="without a score", other="with another score")

    def __init__(
        self,
        sources: Sequence[SourceRows],
        min_score: float | None = None,
        max_score: float | None = None,
    ) -> None:
        super().__init__(sources)
        self._low = -float("inf") if min_score is None else min_score
        self._high = float("inf") if max_score is None else max_score
        if not self._low <= self._high:
            raise ConfigError(f"no score lies between {self._low:g} and {self._high:g}")
        self._scored = not (min_score is None and max_score is None)
        scores = f" with scores from {self._low:g} to {self._high:g}" if self._scored else ""
        self.contents = f"pairs of sentence and paraphrase{scores}"
        for source in sources:
            if self._scored and source.width < 3:
                raise ConfigError(
                    f"{source.source} has no column of scores for --min-score and --max-score; "
                    "name it with --columns, or leave them out"
                )

    def examples(self, reading: Reading) -> Iterator[Example]:
        for source in self.sources:
            yield from parse_rows(source, reading, self._pair)

    def _pair(self, cells: Sequence[Any], where: str, counts: Counts) -> Example | None:
        first, second, *score = cells
        if self._scored and not self._fits(score[0], where, counts):
            return None
        return pair(first, second, where, counts)

    def _fits(self, cell: Any, where: str, counts: Counts) -> bool:
        if cell is None or not str(cell).strip():
            counts.unlabelled += 1
            return False
        fits = self._low <= score_of(cell, where) <= self._high
        counts.other += not fits
        return fits
