"""How many words two sentences share."""

from __future__ import annotations

import re
from collections import Counter

_WORD = re.compile(r"\w+")


class Overlap:
    """Mean lexical overlap of pairs: F1 between two bags of words (SimCSE, section 4).

    The paper does not say what a word is; here it is a run of letters and digits, in lower case. A
    pair without words has no overlap, and does not count.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._pairs = 0

    def add(self, first: str, second: str) -> None:
        """Count a pair."""
        score = f1(first, second)
        if score is not None:
            self._total += score
            self._pairs += 1

    @property
    def mean(self) -> float | None:
        """Mean F1 in [0, 1]; None if no pair had words."""
        return self._total / self._pairs if self._pairs else None


def f1(first: str, second: str) -> float | None:
    """``2 |A & B| / (|A| + |B|)`` of the bags of words A and B; None if both are empty."""
    words, others = _WORD.findall(first.lower()), _WORD.findall(second.lower())
    if not (words or others):
        return None
    left, shared = Counter(words), 0
    for word in others:
        if left[word] > 0:
            left[word] -= 1
            shared += 1
    return 2 * shared / (len(words) + len(others))
