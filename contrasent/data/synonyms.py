"""Synonyms of English words from WordNet, as NLTK reads it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from contrasent.errors import DataError, MissingExtraError

# Words of closed classes. WordNet has no such classes, so what it knows of these words is of
# others: "in" is indium, "us" is America, "was" is Washington. nlpaug, which the paper used, leaves
# them to a part-of-speech tagger, which replaces nothing but nouns, verbs, adjectives and adverbs.
FUNCTION_WORDS = frozenset(
    word
    for line in (
        "a an the this that these those my your his her its our their whose some any no every",
        "each either neither both all half much many few several another such what which i you",
        "he she it we they me him us them mine yours hers ours theirs myself yourself himself",
        "herself itself ourselves yourselves themselves who whom one ones somebody someone",
        "something anybody anyone anything nobody nothing everybody everyone everything of in",
        "to for with on at by from about as into like through after over between out against",
        "during without before under around among across behind beyond below above near since",
        "until up down off along inside outside toward towards upon within except per via than",
        "despite onto past beside besides throughout amid amidst underneath beneath unto",
        "opposite versus plus minus and or but nor so yet if because although though unless",
        "while whereas whether once when where why how there not can could will would shall",
        "should may might must ought am is are was were be been being have has had having do",
        "does did done doing",
    )
    for word in line.split()
)
_REMEMBERED = 1 << 16


class WordNet:
    """Synonyms by word, each looked up once.

    Attributes:
        version: of the data, such as ``3.0``.
    """

    def __init__(self) -> None:
        """Read WordNet's index, which takes seconds.

        Raises:
            MissingExtraError: NLTK is not installed.
            DataError: WordNet is not there, or cannot be read.
        """
        self._reader = _reader()
        self.version = str(self._reader.get_version())
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


def _reader() -> Any:
    """NLTK's reader of WordNet, with all indices in memory."""
    try:
        from nltk import corpus
        from nltk.corpus.reader.wordnet import WordNetError
    except ImportError as error:
        raise MissingExtraError(
            "view synonym needs the package nltk: pip install 'contrasent[synonyms]'"
        ) from error
    try:
        corpus.wordnet.ensure_loaded()
        return corpus.wordnet
    except LookupError as error:
        raise DataError(
            "view synonym needs WordNet, which NLTK does not find: get it once with "
            "'python -m nltk.downloader wordnet'. It then works offline; in another folder than "
            "NLTK's own if the environment variable NLTK_DATA names that"
        ) from error
    except (OSError, ValueError, AssertionError, WordNetError) as error:
        raise DataError(
            f"NLTK cannot read its WordNet ({type(error).__name__}: {error}); get it again with "
            "'python -m nltk.downloader --force wordnet'"
        ) from error
