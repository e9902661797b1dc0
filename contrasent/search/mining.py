"""Hard negatives of pairs from a corpus: near the anchor, and clearly farther than its positive.

Anchors are embedded as queries, all others as documents, and compared by the similarity that the
encoder states. A negative is as near to the anchor as the margin lets it be (TopK-PercPos of
Moreira et al. 2024, NV-Retriever, arXiv:2407.15831). What would be a false negative is passed over:
the anchor, all its positives, and whatever equals one of them in letters and digits.

Shapes: P pairs, N sentences of the corpus, D embedding width.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.build import Example, sentence_header, write_rows
from contrasent.data.examples import Examples
from contrasent.errors import DataError
from contrasent.model.backbones.base import default_device
from contrasent.model.protocol import Encoder, role_options, similarities, similarity_of
from contrasent.progress import progress_bar

_NO_LETTER = re.compile(r"[\W_]+")
_SCORES = 1 << 26
"""Scores that are computed at once."""


@dataclass(frozen=True, slots=True)
class Mined:
    """Pairs with their hard negatives."""

    # anchor, positive and negatives of each pair that has all of them, in the order of the pairs
    examples: list[Example]
    pairs: int  # P, how many there were
    corpus: int  # different sentences that negatives were taken from
    without: int  # pairs that are left out, because too few of those are far enough
    within_margin: float  # sentences that were too near to be a negative, in the mean over pairs
    positives: np.ndarray  # ``(E,)``, scores of anchor and positive of the examples
    hardest: np.ndarray  # ``(E, negatives)``, scores of anchor and negatives, largest first
    similarity: str  # by which they are compared, such as ``cosine``

    @property
    def header(self) -> tuple[str, ...]:
        """Names of the sentences of an example."""
        return sentence_header(len(self.examples[0]))

    def write(self, output: Path) -> None:
        """Write the examples."""
        write_rows(output, self.header, self.examples)


def letters(text: str) -> str:
    """Letters and digits of a sentence without their case; of one without any, the sentence."""
    return _NO_LETTER.sub("", text).casefold() or text


def read_pairs(examples: Examples) -> list[tuple[str, str]]:
    """Anchor and positive of each example; hard negatives that it has already are left out."""
    pairs = [example[:2] for example in examples]
    if examples.views < 2 or not pairs:
        raise DataError(
            f"{examples.source} has one sentence in a row, or no row ({examples.columns}), but "
            "mining needs an anchor and its positive; give a file with two columns, or choose them"
        )
    return pairs  # type: ignore[return-value]


def find_negatives(
    encoder: Encoder,
    pairs: Sequence[tuple[str, str]],
    corpus: Iterable[str] | None = None,
    negatives: int = 1,
    margin: float = 0.05,
    *,
    precision: str = "auto",
    show_progress: bool = False,
) -> Mined:
    """Find hard negatives of each pair in ``corpus``, by default the positives; see above."""
    import torch

    distinct: dict[str, str] = {}
    for text in (positive for _, positive in pairs) if corpus is None else corpus:
        distinct.setdefault(letters(text), text)
    similarity, device = similarity_of(encoder), default_device()
    how: dict[str, Any] = {"precision": precision, "show_progress": show_progress}
    how["normalize"] = True if similarity == "cosine" else None
    anchors = [*dict.fromkeys(anchor for anchor, _ in pairs)]
    texts = [*dict.fromkeys(chain(distinct.values(), (positive for _, positive in pairs)))]
    queries, documents = (
        torch.from_numpy(encoder.encode(side, **how | role_options(encoder, role))).to(device)
        for side, role in ((anchors, "query"), (texts, "document"))
    )
    row_of_anchor, row_of_text = ({it: n for n, it in enumerate(its)} for its in (anchors, texts))
    rows = np.array([(row_of_anchor[a], row_of_text[p]) for a, p in pairs])
    false_negatives = _false_negatives(pairs, [*distinct])
    parts = []
    bar = progress_bar("comparing", len(pairs), shown=show_progress)
    with bar as advance:
        block = max(_SCORES // len(distinct), 1)
        for start in range(0, len(pairs), block):
            of_anchors, of_positives = rows[start : start + block].T
            asked = queries[of_anchors]
            nearness = similarities(similarity, asked, documents[of_positives], pairwise=True)
            scores = similarities(similarity, asked, documents[: len(distinct)])
            left_out = false_negatives[start : start + block]
            row = np.repeat(np.arange(len(left_out)), [len(columns) for columns in left_out])
            column = torch.tensor([*chain(*left_out)], dtype=torch.int64)
            scores[torch.from_numpy(row), column] = -inf
            too_near = scores > (nearness - margin * nearness.abs()).unsqueeze(1)
            best, numbers = scores.masked_fill_(too_near, -inf).topk(min(negatives, len(distinct)))
            parts.append([it.cpu().numpy() for it in (numbers, best, nearness, too_near.sum(1))])
            advance(len(nearness))
    chosen, hardest, positives, too_many = map(np.concatenate, zip(*parts, strict=True))
    whole = np.isfinite(hardest[:, -1]) & (hardest.shape[1] == negatives)
    examples = [
        (*pairs[number], *(texts[row] for row in chosen[number]))
        for number in np.flatnonzero(whole).tolist()
    ]
    if not examples:
        raise DataError(
            f"none of the {len(pairs)} pairs has {negatives} sentences of the corpus whose "
            f"{similarity} is {margin:.0%} below its positive's; lower the margin or the number of "
            "negatives, or take a larger corpus or another encoder"
        )
    return Mined(
        examples=examples,
        pairs=len(pairs),
        corpus=len(distinct),
        without=len(pairs) - len(examples),
        within_margin=float(too_many.mean()),
        positives=positives[whole],
        hardest=hardest[whole],
        similarity=similarity,
    )


def _false_negatives(pairs: Sequence[tuple[str, str]], corpus: list[str]) -> list[list[int]]:
    """For each pair the sentences of the corpus that are its anchor or one of its positives."""
    numbers = {key: number for number, key in enumerate(corpus)}
    keys = [(letters(anchor), letters(positive)) for anchor, positive in pairs]
    together: defaultdict[str, set[str]] = defaultdict(set)
    for anchor, positive in keys:
        together[anchor] |= {anchor, positive}
        together[positive].add(anchor)
    return [[numbers[key] for key in together[anchor] if key in numbers] for anchor, _ in keys]
