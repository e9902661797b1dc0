"""Random edits of a sentence's words (Gao et al. 2021, Table 1), as pure functions.

Words are what stands between white space. The numbers drawn come from the generator that is
passed in, and at least one word always stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from numpy.random import Generator

Edit = Callable[[Sequence[str], Generator], list[str]]
"""From the words of a sentence to the words of its edited copy."""

_WORD = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


def whole_words(share: float, words: int, random: Generator) -> int:
    """How many of ``words`` words a share is: rounded up or down, so that the mean is exact.

    0.1 of 7 words is one word in 7 of 10 draws and none in the others. Rounding to the nearest
    would leave every sentence of fewer than 5 words as it is.
    """
    return int(share * words + random.random())


def crop(words: Sequence[str], random: Generator, share: float) -> list[str]:
    """Keep words that stand together: 1 - ``share`` of them, from anywhere in the sentence."""
    count = max(1, len(words) - whole_words(share, len(words), random))
    start = int(random.integers(len(words) - count + 1))
    return list(words[start : start + count])


def delete_words(words: Sequence[str], random: Generator, share: float) -> list[str]:
    """Leave out ``share`` of the words, any of them."""
    count = min(whole_words(share, len(words), random), len(words) - 1)
    gone = set(random.permutation(len(words))[:count].tolist())
    return [word for place, word in enumerate(words) if place not in gone]


def delete_one_word(words: Sequence[str], random: Generator) -> list[str]:
    """Leave out one word, any of them; an only word stays."""
    if len(words) == 1:
        return list(words)
    gone = int(random.integers(len(words)))
    return [*words[:gone], *words[gone + 1 :]]


def replace_words(
    words: Sequence[str],
    random: Generator,
    share: float | None,
    synonyms: Callable[[str], Sequence[str]],
) -> list[str]:
    """Put a synonym, any of those it has, for some of the words.

    Punctuation around a word stays. A synonym begins with a capital where the word does, and is
    all capitals where the word is.

    Args:
        words: of the sentence.
        random: draws the words and their synonyms.
        share: how many of all words are replaced, as far as so many have a synonym; None is one.
        synonyms: of a word without punctuation around it; empty for a word that is not replaced.
    """
    left = 1 if share is None else whole_words(share, len(words), random)
    edited = list(words)
    for place in random.permutation(len(words)).tolist() if left else ():
        before, word, after = _parts(words[place])
        if found := synonyms(word):
            drawn = found[int(random.integers(len(found)))]
            edited[place] = f"{before}{_in_the_case_of(word, drawn)}{after}"
            left -= 1
        if not left:
            break
    return edited


def _parts(word: str) -> tuple[str, str, str]:
    """A word between what is no letter, digit or underscore: ``("big",`` is ``("``, big, ``",``."""
    match = _WORD.fullmatch(word)
    return (match[1], match[2], match[3]) if match else ("", word, "")


def _in_the_case_of(word: str, synonym: str) -> str:
    if len(word) > 1 and word.isupper():
        return synonym.upper()
    return synonym[0].upper() + synonym[1:] if word[:1].isupper() else synonym
