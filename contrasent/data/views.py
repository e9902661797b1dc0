"""Views: from the recipe's ``view`` and the data to the sentences of every batch.

A view is a row of `VIEWS`; most are random edits of a sentence's words (Gao et al. 2021, Table 1).
Words are what stands between white space, and at least one always stays.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.random import Generator

from contrasent.data import documents, loader
from contrasent.data.batch import Need, Packed, end_to_end
from contrasent.data.examples import Examples
from contrasent.data.loader import TokenStore
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import DataError, logger, require_extra
from contrasent.settings import ViewSettings

_LOOKED_AT = 1000
_MOST_REPEATED = 10
_TRIES = 100
_WORD = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


def whole_words(share: float, words: int, random: Generator) -> int:
    """A share of ``words`` words as a number of words, rounded so that the mean is exact.

    0.1 of 7 words is one word in 7 of 10 draws and none in the others.
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
    return [words[place] for place in np.sort(random.permutation(len(words))[:count])]


def delete_words(words: Sequence[str], random: Generator, share: float) -> list[str]:
    """Leave out ``share`` of the words, any of them."""
    count = min(whole_words(share, len(words), random), len(words) - 1)
    gone = set(random.permutation(len(words))[:count].tolist())
    return [word for place, word in enumerate(words) if place not in gone]


def delete_one_word(words: Sequence[str], random: Generator, _: object = None) -> list[str]:
    """Leave out one word, any of them; an only word stays."""
    if len(words) == 1:
        return list(words)
    gone = int(random.integers(len(words)))
    return [*words[:gone], *words[gone + 1 :]]


def repeat_tokens(ids: np.ndarray, random: Generator, share: float) -> np.ndarray:
    """Repeat some of the L token ``ids``, each once (Wu et al. 2022, ESimCSE)."""
    count = int(random.integers(max(1, min(_MOST_REPEATED, int(share * len(ids))))))
    chosen = np.isin(np.arange(len(ids)), random.permutation(len(ids))[:count])
    return np.repeat(ids, 1 + chosen)


def replace_words(
    words: Sequence[str],
    random: Generator,
    share: float | None,
    synonyms: Callable[[str], Sequence[str]],
) -> list[str]:
    """Put a synonym, any it has, for ``share`` of the words, or for one if that is None."""
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


_FUNCTION_WORDS = Path(__file__).with_name("function_words.txt")
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.read_text(encoding="utf-8").split())
"""Words of closed classes, which WordNet lacks: its "in" is indium, its "us" America. nlpaug, which
the paper used, replaces nothing but nouns, verbs, adjectives and adverbs."""

_REMEMBERED = 1 << 16


class WordNet:
    """Synonyms by word, each looked up once; reading its index takes seconds."""

    def __init__(self) -> None:
        require_extra("view synonym", "synonyms", "nltk")
        from nltk import corpus
        from nltk.corpus.reader.wordnet import WordNetError

        try:
            corpus.wordnet.ensure_loaded()
        except (LookupError, OSError, ValueError, AssertionError, WordNetError) as error:
            how = "python -m nltk.downloader --force wordnet"
            raise DataError(f"view synonym needs WordNet, which NLTK cannot read: {how}") from error
        self._reader: Any = corpus.wordnet
        self.version = str(self._reader.get_version())  # of the data, such as ``3.0``
        self.synonyms = lru_cache(_REMEMBERED)(self._synonyms)

    def _synonyms(self, word: str) -> tuple[str, ...]:
        """The lemmas of all synsets of a word, whatever its part of speech, without itself."""
        lowered = word.lower()
        if not lowered or lowered in FUNCTION_WORDS:
            return ()
        synsets = self._reader.synsets(lowered)
        names = (it.replace("_", " ") for synset in synsets for it in synset.lemma_names())
        return tuple(dict.fromkeys(name for name in names if name.lower() != lowered))


TextEdit = Callable[[str, Generator], str]


@dataclass(frozen=True, slots=True)
class View:
    """One way to make the positive of a sentence."""

    edits: bool = True  # the positive is an edited copy of the sentence
    takes_share: bool = True  # ``view.share`` says how much is edited
    share: float | None = 0.1  # the share if the recipe does not give it; None for one word
    # the edit of its text, for a share; None if that is not edited here
    edit: Callable[[float | None], TextEdit] | None = None
    # the edit of its token ids, for a share; None if they are not edited here
    edit_tokens: Callable[[float], Callable[[np.ndarray, Generator], np.ndarray]] | None = None
    # the positive is one of so many sentences that follow; 0 if it is the sentence itself
    reach: int = 0
    drawn_once: bool = False  # the edit of a sentence is the same in every epoch
    # what decides the view beside recipe and text, to be kept with a run
    origin: Callable[[], dict[str, str]] = dict


def _by_words(edit: Callable[..., list[str]]) -> Callable[[float | None], TextEdit]:
    """The edit of a text by its words; a text whose words stay is left as it is."""

    def edited(text: str, random: Generator, share: float | None) -> str:
        words = text.split()
        changed = edit(words, random, share)
        return text if changed == words else " ".join(changed)

    return lambda share: partial(edited, share=share)


def _by_synonyms(share: float | None) -> TextEdit:
    return _by_words(partial(replace_words, synonyms=WordNet().synonyms))(share)


_NO_EDIT = View(edits=False, takes_share=False, share=None)
# The paper replaces one word by a synonym (Gao et al. 2021, Table 1), hence no share there.
VIEWS = MappingProxyType(
    {
        "dropout": _NO_EDIT,
        "crop": View(edit=_by_words(crop)),
        "crop_sentences": View(share=0.5),
        "delete_words": View(edit=_by_words(delete_words)),
        "crop_prefix": View(edit=lambda share: lambda text, _: crop_prefix(text, share or 0.0)),
        "delete_words_once": View(edit=_by_words(keep_whole_words), drawn_once=True),
        "delete_one_word": View(takes_share=False, share=None, edit=_by_words(delete_one_word)),
        "repeat": View(share=0.32, edit_tokens=lambda share: partial(repeat_tokens, share=share)),
        "synonym": View(
            share=None, edit=_by_synonyms, origin=lambda: {"wordnet": WordNet().version}
        ),
        "mlm": View(share=0.15),
        "next_sentence": replace(_NO_EDIT, reach=1),
        "next_3_sentences": replace(_NO_EDIT, reach=3),
    }
)


@dataclass(frozen=True, slots=True)
class Views:
    """The views of the data."""

    source: loader.ViewSource  # gives the sentences of a batch
    left_out: str  # what is not taken from the data, in words, with counts
    skipped: int = 0  # rows that have an empty sentence
    # what decides the views beside recipe and text, to be kept with a run
    origin: dict[str, Any] = field(default_factory=dict)


def share_of(settings: ViewSettings) -> float | None:
    """The share that a view edits; None for one word, and for views that take no share."""
    return VIEWS[settings.name].share if settings.share is None else settings.share


def open_views(  # noqa: PLR0913 - what views are made of, by name
    settings: ViewSettings,
    examples: Examples,
    tokenizer: Tokenizer,
    max_tokens: int,
    *,
    views: int,
    needs: frozenset[Need] = frozenset(),
    own_columns: Callable[[Examples], Mapping[Need, np.ndarray]] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Views:
    """Read the data once, and make the source of all batches.

    The view ``mlm`` is made of tokens later, on the device: here it is the sentence V times.
    ``needs`` is what the objective reads of an example besides ``views`` sentences.
    """
    if settings.name == "crop_sentences":
        return _open_crops(settings, examples, tokenizer, max_tokens, views)
    view, next_needed = VIEWS[settings.name], Need.NEXT_SENTENCES in needs
    asked = [need for need in Need if need in needs & {Need.POSITIONS, Need.NEXT_SENTENCES}]
    lengths = None
    if view.reach or asked:
        reason = f"view.name {settings.name} takes a sentence's positive from those after it"
        reason = reason if view.reach else f"the objective needs {asked[0].value}"
        lengths = documents.require_documents(examples, reason)
        logger.info("%d documents of %.1f sentences in the mean", len(lengths), lengths.mean())
    origin: dict[str, Any] = {**view.origin()}
    store = loader.tokenize(examples, tokenizer, max_tokens, progress)
    source = _open_source(settings, examples, tokenizer, store, views)
    values = {need: store.column(need) for need in Need if need in needs}
    if lengths is not None:
        ends = documents.document_ends(lengths, store)
        origin["documents"] = len(np.unique(ends))
        values |= {Need.POSITIONS: documents.positions(ends)} if Need.POSITIONS in needs else {}
        if view.reach:
            source = loader.next_sentences(store, ends, view.reach, views)
        if view.reach or next_needed:
            chosen = np.flatnonzero(np.arange(1, len(ends) + 1) < ends)
            source = replace(source, examples=chosen, text=store if next_needed else None)
    columns = {need: numbers for need, numbers in values.items() if numbers is not None}
    if own_columns is not None:
        rows = loader.text_numbers(store)
        columns |= {  # a matrix of all rows stays on disk
            need: numbers if len(rows) == len(numbers) else numbers[rows]
            for need, numbers in own_columns(examples).items()
        }
    kept = store.manifest
    unlabelled = f", {kept.unlabelled} rows without a label left out" if kept.unlabelled else ""
    skipped = f"{kept.skipped} rows with an empty sentence skipped{unlabelled}"
    left_out = f"{kept.cut} sentences cut at {max_tokens} tokens, {skipped}"
    return Views(replace(source, columns=columns), left_out, kept.skipped, origin)


def _open_source(
    settings: ViewSettings, examples: Examples, tokenizer: Tokenizer, store: TokenStore, views: int
) -> loader.ViewSource:
    view, both, share = VIEWS[settings.name], settings.sides == "both", share_of(settings)
    limit = store.manifest.max_tokens
    if view.edit_tokens is not None:
        longest, around = tokenizer.max_tokens or limit, tokenizer.template
        edit_tokens = view.edit_tokens(share or 0.0)

        def edit_row(example: int, random: Generator) -> np.ndarray:
            row = store.tokens(example, 0)
            start, end = len(around.before), len(row) - len(around.after)
            edited = np.concatenate([row[:start], edit_tokens(row[start:end], random), row[end:]])
            return row if longest and len(edited) > longest else edited

        return loader.edited(
            store, lambda *copies: list(map(edit_row, *copies)), views, anchors=both
        )
    if view.edit is None:
        return loader.plain(store, views)
    edit, texts = view.edit(share), documents.keep_texts(examples)
    numbers = loader.text_numbers(store)
    looked_at = min(len(texts), _LOOKED_AT)
    if all(len(texts[number].as_py().split()) == 1 for number in range(looked_at)):
        raise DataError(
            f"view.name {settings.name} edits words between white space, but none of the first "
            f"{looked_at} sentences of {examples.source} has two; choose view.name dropout"
        )

    # The text is edited and then made tokens: those of the edited text for any tokenizer.
    def edit_all(examples: list[int], randoms: list[Generator]) -> list[np.ndarray]:
        copies = zip(examples, randoms, strict=True)
        return tokenizer.ids([edit(texts[numbers[k]].as_py(), it) for k, it in copies], limit)[0]

    return loader.edited(store, edit_all, views, anchors=both, drawn_once=view.drawn_once)


def _open_crops(
    settings: ViewSettings, examples: Examples, tokenizer: Tokenizer, max_tokens: int, views: int
) -> Views:
    """Consecutive sentences from anywhere in a document, for each view or all but the first."""
    share, both = share_of(settings) or 0.0, settings.sides == "both"

    def draw(sentences: list[str], document: int, draws: loader.Draws) -> Iterator[list[str]]:
        randoms = [draws.of(document, view) for view in range(views)]
        while True:
            crops = [crop(sentences, random, share) for random in randoms]
            yield [" ".join(part) for part in (crops if both else [sentences, *crops[1:]])]

    remedy = "give texts of several sentences, or choose view.name dropout"
    texts = documents.long_documents(examples, documents.split_sentences, 2, remedy)
    return _drawn(texts, draw, tokenizer, max_tokens, views)


def open_spans(
    spans: documents.Spans, examples: Examples, tokenizer: Tokenizer, max_tokens: int
) -> Views:
    """As :func:`open_views`, for ``spans`` of the documents, anchors before positives."""

    def draw(words: list[str], document: int, draws: loader.Draws) -> Iterator[list[str]]:
        random = draws.of(document, 0)
        while True:
            yield [" ".join(words[start:end]) for start, end in spans.draw(len(words), random)]

    remedy = "give longer documents, or lower objective.max_words or objective.anchors"
    texts = documents.long_documents(examples, str.split, spans.words, remedy)
    return _drawn(texts, draw, tokenizer, max_tokens, spans.views)


def _drawn(
    texts: documents.Texts,
    draw: Callable[[list[str], int, loader.Draws], Iterator[list[str]]],
    tokenizer: Tokenizer,
    limit: int,
    views: int,
) -> Views:
    """V texts of each document, made tokens, drawn anew every epoch and while one has no token."""
    short = texts.total - len(texts.documents)
    left_out = f"{short} of {texts.total} documents left out, which are too short"
    if short > len(texts.documents):
        logger.warning("%s; a view of parts is for longer texts", left_out)

    def tokens_of(document: int, draws: loader.Draws) -> list[np.ndarray]:
        parts = texts.parts(texts.documents[document])
        for drawn in islice(draw(parts, document, draws), _TRIES):
            rows, _ = tokenizer.ids(drawn, limit)
            if all(map(len, rows)):
                return rows
        what = f"some part of a document, such as {drawn[0][:40]!r}"
        raise DataError(f"{what}, had no token in {_TRIES} draws; draw longer spans")

    def gather(examples: loader.IndexArray, draws: loader.Draws) -> Packed:
        rows = [tokens_of(int(document), draws) for document in examples]
        return end_to_end([row for view in zip(*rows, strict=True) for row in view])

    source = loader.ViewSource(np.arange(len(texts.documents)), views, gather)
    return Views(source, left_out, origin={"documents": texts.total})
