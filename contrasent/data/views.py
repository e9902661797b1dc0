"""From the recipe's ``view`` and the data to the sentences of every batch, checked at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from contrasent.data import augment
from contrasent.data.augment import Edit, WordNet
from contrasent.data.documents import documents_of, require_documents
from contrasent.data.examples import Examples
from contrasent.data.spans import Spans, SpansOfDocuments, long_enough
from contrasent.data.token_store import (
    IndexArray,
    TextStore,
    TokenSource,
    TokenStore,
    keep_texts,
    text_numbers,
    tokenize,
)
from contrasent.data.view_sources import (
    Columns,
    EditedWords,
    NextSentences,
    ViewSource,
    WithNext,
    WithPlaces,
    told,
)
from contrasent.errors import ConfigError, DataError
from contrasent.settings import ViewSettings

logger = logging.getLogger("contrasent")

# What share is if nobody says. The paper replaces one word by a synonym (Table 1), hence None.
_SHARES = MappingProxyType({"crop": 0.1, "delete_words": 0.1, "mlm": 0.15, "synonym": None})
_EDITS = frozenset({*_SHARES, "delete_one_word"})
_REACH = MappingProxyType({"next_sentence": 1, "next_3_sentences": 3})
_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class Views:
    """The views of the data.

    Attributes:
        source: gives the sentences of a batch.
        left_out: what is not taken from the data, in words, with counts.
        described: what an example is, in words.
        origin: what decides the views beside recipe and text, to be kept with a run.
    """

    source: ViewSource
    left_out: str
    described: str
    origin: dict[str, Any] = field(default_factory=dict)


def share_of(settings: ViewSettings) -> float | None:
    """The share that a view edits; None for one word, and for views that take no share."""
    return settings.share if settings.share is not None else _SHARES.get(settings.name)


def check_view(settings: ViewSettings, data_views: int) -> None:
    """Make sure that the settings go together, and with the data.

    Args:
        settings: of the recipe.
        data_views: sentences per example of the data.

    Raises:
        ConfigError: a setting that the view does not have is set, or one that it needs is not;
            the data brings its own positives.
    """
    name = settings.name
    if name != "dropout" and data_views > 1:
        raise ConfigError(
            f"view.name is {name}, which makes the positive of a single sentence, but the data "
            f"has {told(data_views)}; choose one of its columns with data.columns, or view.name "
            "dropout"
        )
    if settings.share is not None and name not in _SHARES:
        raise ConfigError(
            f"view.share is {settings.share:g}, but the view {name} takes none; leave it out, or "
            f"choose view.name {', '.join(_SHARES)}"
        )
    if settings.sides == "both" and name not in _EDITS:
        raise ConfigError(
            f"view.sides is both, but the view {name} edits no sentence; leave it out, or choose "
            f"view.name {', '.join(sorted(_EDITS))}"
        )
    if settings.generator is not None and name != "mlm":
        raise ConfigError(
            f"view.generator is {settings.generator}, but the view {name} has none; leave it out, "
            "or choose view.name mlm"
        )


def open_views(  # noqa: PLR0913 - what recipe and objective ask for, by name
    settings: ViewSettings,
    examples: Examples,
    tokenizer: TokenSource,
    max_tokens: int,
    *,
    views: int,
    following: bool = False,
    ordered: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Views:
    """Read the data once, and make the source of all batches.

    The view ``mlm`` is made of tokens later, on the device: here it is the sentence V times.

    Args:
        settings: which views; :func:`check_view` has seen them.
        examples: the data.
        tokenizer: of the encoder.
        max_tokens: tokens kept of a sentence, special tokens included.
        views: V, sentences per example that the objective takes.
        following: the objective needs the sentence after each anchor.
        ordered: the objective needs to know where in its document each anchor stands.
        progress: is told now and then how many examples are tokenised.

    Raises:
        DataError: the data cannot be read or does not have what the view needs; WordNet is not
            there for synonyms.
        MissingExtraError: synonyms without NLTK.
        ConfigError: the data has too few or too many sentences per example; there is no room
            in the cache.
    """
    lengths = _document_lengths(settings.name, examples, following=following, ordered=ordered)
    edit, origin = _edit(settings)
    store = tokenize(examples, tokenizer, max_tokens, progress=progress)
    described = "premise, hypothesis and their label"
    if not store.manifest.labelled:
        described = _described(settings, views, examples.views)
    source: ViewSource = Columns(store, views)
    if edit is not None:
        texts = keep_texts(examples)
        _refuse_single_words(texts, examples.source, settings.name)
        numbers, both = text_numbers(store), settings.sides == "both"
        source = EditedWords(store, texts, numbers, tokenizer, edit, views, both)
    if lengths is not None:
        documents = documents_of(lengths, store)
        if settings.name in _REACH:
            source = NextSentences(store, documents, _REACH[settings.name], views)
        if ordered:
            source = WithPlaces(source, documents)
            described += ", and where it stands in its document"
        else:
            source = WithNext(source, store, documents, following=following)
        origin = {**origin, "documents": documents.count}
        described += "; beside it, the next sentence of its document" if following else ""
    return Views(source, _left_out(store, max_tokens), described, origin)


def open_spans(spans: Spans, examples: Examples, tokenizer: TokenSource, max_tokens: int) -> Views:
    """Read the data once, and make the source of all batches, for spans of documents.

    Args:
        spans: which.
        examples: documents, as :func:`contrasent.data.spans.long_enough` reads them.
        tokenizer: of the encoder.
        max_tokens: tokens kept of a span, special tokens included.

    Raises:
        DataError: the data cannot be read, or fewer than 2 documents are long enough.
        ConfigError: there is no room in the cache.
    """
    documents = long_enough(examples, keep_texts(examples), spans)
    source = SpansOfDocuments(documents, tokenizer, spans, max_tokens, spans.views)
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
    found = store.manifest
    unlabelled = f", {found.unlabelled} rows without a label left out" if found.unlabelled else ""
    return (
        f"{found.cut} sentences cut at {max_tokens} tokens, {found.skipped} rows with an empty "
        f"sentence skipped{unlabelled}"
    )


def _document_lengths(
    name: str, examples: Examples, *, following: bool, ordered: bool
) -> IndexArray | None:
    if name in _REACH:
        need = f"view.name {name} takes a sentence's positive from those after it"
    elif following:
        need = "the objective needs the sentence after each anchor"
    elif ordered:
        need = "the objective needs to know which sentences follow each other"
    else:
        return None
    lengths = require_documents(examples, need)
    mean = lengths.mean()
    logger.info("%d documents of %.1f sentences in the mean", len(lengths), mean)
    return lengths


def _edit(settings: ViewSettings) -> tuple[Edit | None, dict[str, Any]]:
    """How words are edited, None if not at all, and what decides it beside the recipe."""
    share = share_of(settings)
    if settings.name == "synonym":
        wordnet = WordNet()
        found = partial(augment.replace_words, share=share, synonyms=wordnet.synonyms)
        return found, {"wordnet": wordnet.version}
    if settings.name == "crop" and share is not None:
        return partial(augment.crop, share=share), {}
    if settings.name == "delete_words" and share is not None:
        return partial(augment.delete_words, share=share), {}
    return augment.delete_one_word if settings.name == "delete_one_word" else None, {}


def _refuse_single_words(texts: TextStore, source: str, name: str) -> None:
    """Refuse text without spaces, which no edit of words would change."""
    looked_at = min(len(texts), _LOOKED_AT)
    if all(len(texts[number].split()) == 1 for number in range(looked_at)):
        raise DataError(
            f"view.name {name} edits words between white space, but none of the first {looked_at} "
            f"sentences of {source} has two; put spaces between its words, or choose view.name "
            "dropout"
        )


def _described(settings: ViewSettings, views: int, there: int) -> str:
    """What an example is, in words; the data has ``there`` sentences for its views."""
    if views == 1:
        return "one sentence"
    if there > 1:
        hard = views - 2
        named = "anchor, positive" + (f", {hard} hard negative{'s' * (hard > 1)}" if hard else "")
        more = there - views
        return named + (f"; {more} more in the data not used" if more > 0 else "")
    if settings.name in _REACH:
        reach = _REACH[settings.name]
        others = "the next one" if reach == 1 else f"one of the next {reach}"
        return f"a sentence and {others} of its document"
    if settings.name not in _EDITS:
        dropout = "all with the same" if settings.fixed_dropout else "each with its own"
        return f"the same sentence {views} times, {dropout} dropout"
    how = _edited(settings)
    if settings.sides == "both":
        return f"the same sentence {views} times, each time {how}"
    return f"a sentence and the same {how}"


def _edited(settings: ViewSettings) -> str:
    share = share_of(settings)
    part = "one" if share is None else f"{share:.0%}"
    return {
        "crop": f"without {part} of its words, taken from its ends",
        "delete_words": f"without {part} of its words",
        "delete_one_word": "without one of its words",
        "synonym": f"with synonyms for {part} of its words",
        "mlm": f"with {part} of its tokens replaced by {settings.generator or 'its checkpoint'}",
    }[settings.name]
