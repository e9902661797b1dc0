"""Random edits of a sentence's words (Gao et al. 2021, Table 1), and WordNet's synonyms.

Words are what stands between white space. The numbers drawn come from the generator that is
passed in, and at least one word always stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import Generator

from contrasent.errors import DataError, MissingExtraError, install_command

Edit = Callable[[Sequence[str], Generator], list[str]]
"""From the words of a sentence to the words of its edited copy."""

_MOST_REPEATED = 10
_WORD = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


def whole_words(share: float, words: int, random: Generator) -> int:
    """A share of ``words`` words as a number of words, rounded so that the mean is exact.

    0.1 of 7 words is one word in 7 of 10 draws and none in the others. Rounding to the nearest
    would leave every sentence of fewer than 5 words as it is.
    """
    return int(share * words + random.random())


def crop(words: Sequence[str], random: Generator, share: float) -> list[str]:
    """Keep words that stand together: 1 - ``share`` of them, from anywhere in the sentence."""
    count = max(1, len(words) - whole_words(share, len(words), random))
    start = int(random.integers(len(words) - count + 1))
    return list(words[start : start + count])


def crop_prefix(text: str, share: float) -> str:
    """The first ``int((1 - share) * n)`` of n characters, as the reproducibility study crops."""
    return text[: int((1 - share) * len(text))]


def keep_whole_words(words: Sequence[str], random: Generator, share: float) -> list[str]:
    """Leave out words until ``int((1 - share) * n)`` of n are left, as the study does."""
    count = max(1, int((1 - share) * len(words)))
    kept = np.sort(random.permutation(len(words))[:count])
    return [words[place] for place in kept]


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


def repeat_tokens(ids: np.ndarray, random: Generator, share: float) -> np.ndarray:
    """Repeat some of the L token ``ids``, each once (Wu et al. 2022, ESimCSE).

    Their number is drawn from 0 to below ``share * L``, and below 10.
    """
    count = int(random.integers(max(1, min(_MOST_REPEATED, int(share * len(ids))))))
    chosen = np.isin(np.arange(len(ids)), random.permutation(len(ids))[:count])
    return np.repeat(ids, 1 + chosen)


def replace_words(
    words: Sequence[str],
    random: Generator,
    share: float | None,
    synonyms: Callable[[str], Sequence[str]],
) -> list[str]:
    """Put a synonym, any of those it has, for some of the words.

    Punctuation around a word stays. A synonym begins with a capital where the word does, and is all
    capitals where the word is. ``share`` of all words are replaced, as far as so many have
    ``synonyms``; None is one word.
    """
    left = 1 if share is None else whole_words(share, len(words), random)
    edited = list(words)
    for place in random.permutation(len(words)).tolist() if left else ():
        match = _WORD.fullmatch(words[place])
        before, word, after = match.groups() if match else ("", words[place], "")
        if choices := synonyms(word):
            drawn = choices[int(random.integers(len(choices)))]
            if len(word) > 1 and word.isupper():
                drawn = drawn.upper()
            elif word[:1].isupper():
                drawn = drawn[0].upper() + drawn[1:]
            edited[place] = f"{before}{drawn}{after}"
            left -= 1
        if not left:
            break
    return edited


# Words of closed classes. WordNet has no such classes, so what it knows of these words is of
# others: "in" is indium, "us" is America, "was" is Washington. nlpaug, which the paper used, leaves
# them to a part-of-speech tagger, which replaces nothing but nouns, verbs, adjectives and adverbs.
_OF_CLOSED_CLASSES = """
a an the this that these those my your his her its our their whose some any no every each either
neither both all half much many few several another such what which i you he she it we they me him
us them mine yours hers ours theirs myself yourself himself herself itself ourselves yourselves
themselves who whom one ones somebody someone something anybody anyone anything nobody nothing
everybody everyone everything of in to for with on at by from about as into like through after over
between out against during without before under around among across behind beyond below above near
since until up down off along inside outside toward towards upon within except per via than despite
onto past beside besides throughout amid amidst underneath beneath unto opposite versus plus minus
and or but nor so yet if because although though unless while whereas whether once when where why
how there not can could will would shall should may might must ought am is are was were be been
being have has had having do does did done doing
"""
FUNCTION_WORDS = frozenset(_OF_CLOSED_CLASSES.split())
_REMEMBERED = 1 << 16


class WordNet:
    """Synonyms by word, each looked up once."""

    def __init__(self) -> None:
        """Read WordNet's index, which takes seconds.

        MissingExtraError if NLTK is not installed; DataError if WordNet is not there, or cannot be
        read.
        """
        try:
            from nltk import corpus
            from nltk.corpus.reader.wordnet import WordNetError
        except ImportError as error:
            raise MissingExtraError(
                f"view synonym needs the package nltk: {install_command('synonyms')}"
            ) from error
        try:
            corpus.wordnet.ensure_loaded()
        except (LookupError, OSError, ValueError, AssertionError, WordNetError) as error:
            raise DataError(
                f"view synonym needs WordNet, which NLTK cannot read ({type(error).__name__}); get "
                "it once with 'python -m nltk.downloader --force wordnet'. It then works offline; "
                "in another folder than NLTK's own if the environment variable NLTK_DATA names that"
            ) from error
        self._reader: Any = corpus.wordnet
        self.version = str(self._reader.get_version())  # of the data, such as ``3.0``
        self.synonyms = lru_cache(_REMEMBERED)(self._synonyms)

    def _synonyms(self, word: str) -> tuple[str, ...]:
        """Words that share a meaning with ``word``, each once; several words have spaces between.

        The lemmas of all synsets of the word, whatever its part of speech and its inflection,
        without the word itself. Words of :data:`FUNCTION_WORDS` have none.
        """
        lowered = word.lower()
        if not lowered or lowered in FUNCTION_WORDS:
            return ()
        names = (
            name.replace("_", " ")
            for synset in self._reader.synsets(lowered)
            for name in synset.lemma_names()
        )
        return tuple(dict.fromkeys(name for name in names if name.lower() != lowered))
