"""Views: from the recipe's ``view`` and the data to the sentences of every batch.

A view is a row of `VIEWS`. A number of each example that objectives may need is a row of
``labelled_pairs.SIDE_COLUMNS``, if it is read, or one of `COLUMNS`, if documents give it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.random import Generator

from contrasent.data.augment import (
    Edit,
    WordNet,
    crop,
    crop_prefix,
    delete_one_word,
    delete_words,
    keep_whole_words,
    repeat_tokens,
    replace_words,
)
from contrasent.data.batch import Need
from contrasent.data.examples import Examples
from contrasent.data.spans import (
    CropsOfDocuments,
    Spans,
    SpansOfDocuments,
    long_enough,
    of_several_sentences,
)
from contrasent.data.token_store import (
    IndexArray,
    TextStore,
    TokenStore,
    keep_texts,
    text_numbers,
    tokenize,
)
from contrasent.data.tokenizer import Tokenizer
from contrasent.data.view_sources import (
    Columns,
    Documents,
    EditedText,
    EditedTokens,
    NextSentences,
    ViewSource,
    WithNeeds,
    documents_of,
    require_documents,
)
from contrasent.errors import DataError
from contrasent.settings import ViewSettings

logger = logging.getLogger("contrasent")

_LOOKED_AT = 1000
_LABELLED = "premise, hypothesis and their label"
_BESIDE = {
    Need.POSITIONS: ", and where it stands in its document",
    Need.NEXT_SENTENCES: "; beside it, the next sentence of its document",
}


@dataclass(frozen=True, slots=True)
class View:
    """One way to make the positive of a sentence."""

    edited: str = ""  # the edit of the sentence in words, with its share as ``{share}``
    # the edit of its words, for a share; None if words are not edited here
    edit: Callable[[float | None], Edit] | None = None
    # the edit of its token ids, for a share; None if they are not edited here
    edit_tokens: Callable[[float], Callable[[np.ndarray, Generator], np.ndarray]] | None = None
    takes_share: bool = False  # ``view.share`` says how much is edited
    share: float | None = None  # the share if the recipe does not give it; None for one word
    # the positive is one of so many sentences that follow; 0 if it is the sentence itself
    reach: int = 0
    drawn_once: bool = False  # the edit of a sentence is the same in every epoch
    # the edit of its text, for a share, where that is not one of its words
    edit_text: Callable[[str, float], str] | None = None
    # what decides the view beside recipe and text, to be kept with a run
    origin: Callable[[], dict[str, str]] = dict


# The paper replaces one word by a synonym (Gao et al. 2021, Table 1), hence no share there.
VIEWS = MappingProxyType(
    {
        "dropout": View(),
        "crop": View(
            "without {share} of its words, taken from its ends",
            lambda share: partial(crop, share=share or 0.0),
            takes_share=True,
            share=0.1,
        ),
        "crop_sentences": View(
            "without {share} of its sentences, taken from its ends", takes_share=True, share=0.5
        ),
        "delete_words": View(
            "without {share} of its words",
            lambda share: partial(delete_words, share=share or 0.0),
            takes_share=True,
            share=0.1,
        ),
        "crop_prefix": View(
            "without the last {share} of its characters",
            takes_share=True,
            share=0.1,
            edit_text=crop_prefix,
        ),
        "delete_words_once": View(
            "without {share} of its words, the same ones in every epoch",
            lambda share: partial(keep_whole_words, share=share or 0.0),
            takes_share=True,
            share=0.1,
            drawn_once=True,
        ),
        "delete_one_word": View("without one of its words", lambda _: delete_one_word),
        "repeat": View(
            "with up to {share} of its tokens repeated",
            edit_tokens=lambda share: partial(repeat_tokens, share=share),
            takes_share=True,
            share=0.32,
        ),
        "synonym": View(
            "with synonyms for {share} of its words",
            lambda share: partial(replace_words, share=share, synonyms=WordNet().synonyms),
            takes_share=True,
            origin=lambda: {"wordnet": WordNet().version},
        ),
        "mlm": View(
            "with {share} of its tokens replaced by {generator}", takes_share=True, share=0.15
        ),
        "next_sentence": View(reach=1),
        "next_3_sentences": View(reach=3),
    }
)


COLUMNS: MappingProxyType[Need, Callable[[Documents], IndexArray]] = MappingProxyType(
    {Need.POSITIONS: Documents.positions}
)
"""Numbers ``(N,)`` of each sentence that the documents of the text give; others are read."""


@dataclass(frozen=True, slots=True)
class Views:
    """The views of the data."""

    source: ViewSource  # gives the sentences of a batch
    left_out: str  # what is not taken from the data, in words, with counts
    described: str  # what an example is, in words
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
    progress: Callable[[int], None] | None = None,
) -> Views:
    """Read the data once, and make the source of all batches.

    The view ``mlm`` is made of tokens later, on the device: here it is the sentence V times.
    ``max_tokens`` of a sentence are kept, special ones included; ``needs`` is what the objective
    reads of an example besides ``views`` sentences; ``progress`` is called now and then with the
    number of examples tokenised so far.

    Raises:
        DataError: the data cannot be read or does not have what the view needs; WordNet is not
            there for synonyms.
        MissingExtraError: synonyms without NLTK.
        ConfigError: the data has too few or too many sentences per example; there is no room
            in the cache.
    """
    if settings.name == "crop_sentences":
        return _open_crops(settings, examples, tokenizer, max_tokens, views)
    view, next_needed = VIEWS[settings.name], Need.NEXT_SENTENCES in needs
    lengths = _document_lengths(settings.name, examples, needs)
    origin: dict[str, Any] = {**view.origin()}
    store = tokenize(examples, tokenizer, max_tokens, progress)
    source = _open_source(settings, examples, tokenizer, store, views)
    documents = None if lengths is None else documents_of(lengths, store)
    chosen = None
    if documents is not None:
        origin["documents"] = documents.count
        if view.reach:
            source = NextSentences(store, documents, view.reach, views)
        if view.reach or next_needed:
            chosen = documents.with_next()
    values = {need: _numbers(need, store, documents) for need in Need if need in needs}
    columns = {need: numbers for need, numbers in values.items() if numbers is not None}
    if own_columns is not None:
        rows = text_numbers(store)
        columns |= {need: _at(numbers, rows) for need, numbers in own_columns(examples).items()}
    if chosen is not None or columns:
        source = WithNeeds(source, columns, chosen, store if next_needed else None)
    labelled = Need.LABELS.name in store.manifest.columns
    described = _LABELLED if labelled else _describe(settings, views, examples.views)
    described += "".join(words for need, words in _BESIDE.items() if need in needs)
    return Views(source, _left_out(store, max_tokens), described, origin)


def _open_source(
    settings: ViewSettings, examples: Examples, tokenizer: Tokenizer, store: TokenStore, views: int
) -> ViewSource:
    """The sentences of ``store``, edited if the view edits them."""
    view, both = VIEWS[settings.name], settings.sides == "both"
    if view.edit_tokens is not None:
        edit_tokens = view.edit_tokens(share_of(settings) or 0.0)
        longest = tokenizer.max_tokens or store.manifest.max_tokens
        return EditedTokens(store, tokenizer.template, edit_tokens, views, longest, both)
    edit = _text_edit(view, share_of(settings))
    if edit is None:
        return Columns(store, views)
    texts = keep_texts(examples)
    _refuse_single_words(texts, examples.source, settings.name)
    numbers = text_numbers(store)
    return EditedText(store, texts, numbers, tokenizer, edit, views, both, view.drawn_once)


def _text_edit(view: View, share: float | None) -> Callable[[str, Generator], str] | None:
    """The edit of a sentence, which leaves a text as it is if its words stay; None if none."""
    edit_text = view.edit_text
    if edit_text is not None:
        return lambda text, _: edit_text(text, share or 0.0)
    if view.edit is None:
        return None
    edit = view.edit(share)

    def edited(text: str, random: Generator) -> str:
        words = text.split()
        changed = edit(words, random)
        return text if changed == words else " ".join(changed)

    return edited


def _numbers(need: Need, store: TokenStore, documents: Documents | None) -> np.ndarray | None:
    """A number of each example; None if the data does not have it."""
    of_documents = COLUMNS.get(need)
    return of_documents(documents) if of_documents and documents else store.column(need)


def _at(numbers: np.ndarray, rows: IndexArray) -> np.ndarray:
    """Rows of a matrix, which stays on disk if they are all of it."""
    return numbers if len(rows) == len(numbers) else numbers[rows]


def _open_crops(
    settings: ViewSettings, examples: Examples, tokenizer: Tokenizer, max_tokens: int, views: int
) -> Views:
    documents = of_several_sentences(examples, keep_texts(examples))
    share, both = share_of(settings) or 0.0, settings.sides == "both"
    source = CropsOfDocuments(documents, tokenizer, max_tokens, views, share, both)
    count = len(documents) + documents.left_out
    left_out = f"{documents.left_out} of {count} texts left out, which have a single sentence"
    if documents.left_out > len(documents):
        logger.warning("%s; the view crop_sentences is for texts of several", left_out)
    return Views(source, left_out, _describe(settings, views, 1), {"documents": count})


def open_spans(spans: Spans, examples: Examples, tokenizer: Tokenizer, max_tokens: int) -> Views:
    """As :func:`open_views`, for ``spans`` of at most ``max_tokens`` of the documents in the data.

    DataError if the data cannot be read, or fewer than 2 documents are long enough; ConfigError if
    there is no room in the cache.
    """
    documents = long_enough(examples, keep_texts(examples), spans)
    source = SpansOfDocuments(documents, tokenizer, max_tokens, spans.views, spans)
    count = len(documents) + documents.left_out
    left_out = (
        f"{documents.left_out} of {count} documents left out, which have fewer than {spans.words} "
        "words"
    )
    described = (
        f"{spans.anchors} spans of a document, and {spans.positives} near each, of "
        f"{spans.shortest} to {spans.longest} words"
    )
    return Views(source, left_out, described, {"documents": count})


def _left_out(store: TokenStore, max_tokens: int) -> str:
    kept = store.manifest
    unlabelled = f", {kept.unlabelled} rows without a label left out" if kept.unlabelled else ""
    return (
        f"{kept.cut} sentences cut at {max_tokens} tokens, {kept.skipped} rows with an empty "
        f"sentence skipped{unlabelled}"
    )


def _document_lengths(name: str, examples: Examples, needs: frozenset[Need]) -> IndexArray | None:
    """Sentences of each document, where the view or the objective is about documents."""
    asked = [need for need in Need if need in needs & {*COLUMNS, Need.NEXT_SENTENCES}]
    if VIEWS[name].reach:
        reason = f"view.name {name} takes a sentence's positive from those after it"
    elif asked:
        reason = f"the objective needs {asked[0].value}"
    else:
        return None
    lengths = require_documents(examples, reason)
    logger.info("%d documents of %.1f sentences in the mean", len(lengths), lengths.mean())
    return lengths


def _refuse_single_words(texts: TextStore, source: str, name: str) -> None:
    """Refuse text without spaces, which no edit of words would change."""
    looked_at = min(len(texts), _LOOKED_AT)
    if all(len(texts[number].split()) == 1 for number in range(looked_at)):
        raise DataError(
            f"view.name {name} edits words between white space, but none of the first {looked_at} "
            f"sentences of {source} has two; put spaces between its words, or choose view.name "
            "dropout"
        )


def _describe(settings: ViewSettings, views: int, data_views: int) -> str:
    """An example in words; the data has ``data_views`` sentences for its views."""
    view = VIEWS[settings.name]
    if views == 1:
        return "one sentence"
    if data_views > 1:
        hard = views - 2
        named = "anchor, positive" + (f", {hard} hard negative{'s' * (hard > 1)}" if hard else "")
        more = data_views - views
        return named + (f"; {more} more in the data not used" if more > 0 else "")
    if view.reach:
        others = "the next one" if view.reach == 1 else f"one of the next {view.reach}"
        return f"a sentence and {others} of its document"
    if not view.edited:
        dropout = "all with the same" if settings.fixed_dropout else "each with its own"
        return f"the same sentence {views} times, {dropout} dropout"
    share, what = share_of(settings), "text" if settings.name == "crop_sentences" else "sentence"
    edited = view.edited.format(
        share="one" if share is None else f"{share:.0%}",
        generator=settings.generator or "its checkpoint",
    )
    if settings.sides == "both":
        return f"the same {what} {views} times, each time {edited}"
    return f"a {what} and the same {edited}"
