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
from contrasent.data.spans import CropsOfDocuments, Spans, SpansOfDocuments, long_documents
from contrasent.data.token_store import IndexArray, TokenStore, keep_texts, text_numbers, tokenize
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


@dataclass(frozen=True, slots=True)
class View:
    """One way to make the positive of a sentence."""

    edited: str = ""  # the edit of the sentence in words, with its share as ``{share}``
    # the edit of its text, for a share; None if that is not edited here
    edit: Callable[[float | None], Callable[[str, Generator], str]] | None = None
    # the edit of its token ids, for a share; None if they are not edited here
    edit_tokens: Callable[[float], Callable[[np.ndarray, Generator], np.ndarray]] | None = None
    takes_share: bool = False  # ``view.share`` says how much is edited
    share: float | None = None  # the share if the recipe does not give it; None for one word
    # the positive is one of so many sentences that follow; 0 if it is the sentence itself
    reach: int = 0
    drawn_once: bool = False  # the edit of a sentence is the same in every epoch
    # what decides the view beside recipe and text, to be kept with a run
    origin: Callable[[], dict[str, str]] = dict


def _words(edit: Edit) -> Callable[[str, Generator], str]:
    """The edit of a text by its words; a text whose words stay is left as it is."""

    def edited(text: str, random: Generator) -> str:
        words = text.split()
        changed = edit(words, random)
        return text if changed == words else " ".join(changed)

    return edited


def _shared(edited: str, share: float | None, **edit: Any) -> View:
    return View(edited, takes_share=True, share=share, **edit)


# The paper replaces one word by a synonym (Gao et al. 2021, Table 1), hence no share there.
VIEWS = MappingProxyType(
    {
        "dropout": View(),
        "crop": _shared(
            "without {share} of its words, taken from its ends",
            0.1,
            edit=lambda share: _words(partial(crop, share=share or 0.0)),
        ),
        "crop_sentences": _shared("without {share} of its sentences, taken from its ends", 0.5),
        "delete_words": _shared(
            "without {share} of its words",
            0.1,
            edit=lambda share: _words(partial(delete_words, share=share or 0.0)),
        ),
        "crop_prefix": _shared(
            "without the last {share} of its characters",
            0.1,
            edit=lambda share: lambda text, _: crop_prefix(text, share or 0.0),
        ),
        "delete_words_once": _shared(
            "without {share} of its words, the same ones in every epoch",
            0.1,
            edit=lambda share: _words(partial(keep_whole_words, share=share or 0.0)),
            drawn_once=True,
        ),
        "delete_one_word": View("without one of its words", lambda _: _words(delete_one_word)),
        "repeat": _shared(
            "with up to {share} of its tokens repeated",
            0.32,
            edit_tokens=lambda share: partial(repeat_tokens, share=share),
        ),
        "synonym": _shared(
            "with synonyms for {share} of its words",
            None,
            edit=lambda share: _words(
                partial(replace_words, share=share, synonyms=WordNet().synonyms)
            ),
            origin=lambda: {"wordnet": WordNet().version},
        ),
        "mlm": _shared("with {share} of its tokens replaced by {generator}", 0.15),
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

    DataError if the data cannot be read or does not have what the view needs, such as WordNet;
    MissingExtraError of synonyms without NLTK; ConfigError if the data has another number of
    sentences per example, or there is no room in the cache.
    """
    if settings.name == "crop_sentences":
        return _open_crops(settings, examples, tokenizer, max_tokens, views)
    view, next_needed = VIEWS[settings.name], Need.NEXT_SENTENCES in needs
    asked = [need for need in Need if need in needs & {*COLUMNS, Need.NEXT_SENTENCES}]
    lengths = None
    if view.reach or asked:
        reason = f"view.name {settings.name} takes a sentence's positive from those after it"
        reason = reason if view.reach else f"the objective needs {asked[0].value}"
        lengths = require_documents(examples, reason)
        logger.info("%d documents of %.1f sentences in the mean", len(lengths), lengths.mean())
    origin: dict[str, Any] = {**view.origin()}
    store = tokenize(examples, tokenizer, max_tokens, progress)
    source = _open_source(settings, examples, tokenizer, store, views)
    values = {need: store.column(need) for need in Need if need in needs}
    chosen = None
    if lengths is not None:
        documents = documents_of(lengths, store)
        origin["documents"] = len(np.unique(documents.ends))
        values |= {need: numbers(documents) for need, numbers in COLUMNS.items() if need in needs}
        if view.reach:
            source = NextSentences(store, documents, view.reach, views)
        if view.reach or next_needed:
            chosen = documents.with_next()
    columns = {need: numbers for need, numbers in values.items() if numbers is not None}
    if own_columns is not None:
        rows = text_numbers(store)
        columns |= {  # a matrix of all rows stays on disk
            need: numbers if len(rows) == len(numbers) else numbers[rows]
            for need, numbers in own_columns(examples).items()
        }
    if chosen is not None or columns:
        source = WithNeeds(source, columns, chosen, store if next_needed else None)
    kept = store.manifest
    described = "premise, hypothesis and their label"
    if Need.LABELS.name not in kept.columns:
        described = _describe(settings, views, examples.views)
    described += ", and where it stands in its document" * (Need.POSITIONS in needs)
    described += "; beside it, the next sentence of its document" * next_needed
    unlabelled = f", {kept.unlabelled} rows without a label left out" if kept.unlabelled else ""
    left_out = (
        f"{kept.cut} sentences cut at {max_tokens} tokens, {kept.skipped} rows with an empty "
        f"sentence skipped{unlabelled}"
    )
    return Views(source, left_out, described, origin)


def _open_source(
    settings: ViewSettings, examples: Examples, tokenizer: Tokenizer, store: TokenStore, views: int
) -> ViewSource:
    """The sentences of ``store``, edited if the view edits them."""
    view, both, share = VIEWS[settings.name], settings.sides == "both", share_of(settings)
    if view.edit_tokens is not None:
        longest = tokenizer.max_tokens or store.manifest.max_tokens
        edit_tokens = view.edit_tokens(share or 0.0)
        return EditedTokens(store, tokenizer.template, edit_tokens, views, longest, both)
    if view.edit is None:
        return Columns(store, views)
    edit, texts = view.edit(share), keep_texts(examples)
    looked_at = min(len(texts), _LOOKED_AT)
    if all(len(texts[number].split()) == 1 for number in range(looked_at)):
        raise DataError(
            f"view.name {settings.name} edits words between white space, but none of the first "
            f"{looked_at} sentences of {examples.source} has two; put spaces between its words, or "
            "choose view.name dropout"
        )
    numbers = text_numbers(store)
    return EditedText(store, texts, numbers, tokenizer, edit, views, both, view.drawn_once)


def _open_crops(
    settings: ViewSettings, examples: Examples, tokenizer: Tokenizer, max_tokens: int, views: int
) -> Views:
    remedy = "give texts of several sentences, or choose view.name dropout"
    documents = long_documents(examples, keep_texts(examples), "sentences", 2, remedy)
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
    remedy = "give longer documents, or lower objective.max_words or objective.anchors"
    documents = long_documents(examples, keep_texts(examples), "words", spans.words, remedy)
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
