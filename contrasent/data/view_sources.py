"""Where the sentences of a batch come from: copies, columns, edited words, following sentences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from typing_extensions import override

from contrasent.data.augment import Edit
from contrasent.data.documents import Documents
from contrasent.data.token_store import IndexArray, TextStore, TokenSource, TokenStore
from contrasent.errors import ConfigError

Packed = tuple[IndexArray, IndexArray]
"""``(T,)`` int64 token ids of S sentences end to end, and ``(S + 1,)`` int64 offsets."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What is drawn in an epoch, each sentence by itself: no order of batches changes it."""

    seed: int
    epoch: int

    def of(self, example: int, view: int) -> Generator:
        """Random numbers of one view of one example."""
        return np.random.default_rng([self.seed, self.epoch, example, view + 1])


class ViewSource(ABC):
    """N examples of V sentences each.

    Attributes:
        views: V.
    """

    views: int

    @abstractmethod
    def __len__(self) -> int:
        """N, the number of examples."""

    @abstractmethod
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        """Token ids of many examples, view by view.

        Args:
            examples: ``(B,)`` int64, numbers of examples.
            draws: for what differs from epoch to epoch.

        Returns:
            V * B sentences.
        """

    def following(self, examples: IndexArray) -> Packed | None:  # noqa: ARG002 - none here
        """The B sentences after the anchors, in their documents; None if they are not given."""
        return None

    def labels(self, examples: IndexArray) -> IndexArray | None:  # noqa: ARG002 - none here
        """``(B,)`` int64, the class of each example; None if they have none."""
        return None

    def places(self, examples: IndexArray) -> IndexArray | None:  # noqa: ARG002 - none here
        """``(B,)`` int64, ``Batch.places`` of the anchors; None if they are not given."""
        return None


class Columns(ViewSource):
    """The sentences of a store as they are; one per example is given as every view."""

    def __init__(self, store: TokenStore, views: int | None = None) -> None:
        """Choose among the sentences of an example.

        Args:
            store: the examples.
            views: V, sentences per example that the objective takes; None takes what there is.
                A store with one sentence per example gives it V times, for dropout to vary; of
                one with more than V the first V are used, as when hard negatives are left out.

        Raises:
            ConfigError: the store does not have so many.
        """
        self._store, self._chosen = store, _chosen_views(store.views, views)
        self.views = len(self._chosen)

    @override
    def __len__(self) -> int:
        return len(self._store)

    @override
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        return self._store.gather(examples, self._chosen)

    @override
    def labels(self, examples: IndexArray) -> IndexArray | None:
        return self._store.labels(examples)


@dataclass(frozen=True, slots=True)
class EditedWords(ViewSource):
    """A sentence, and copies of it with edited words, edited anew every epoch.

    The text is edited and then made tokens, so that the tokens are those of the edited text for
    any tokenizer. A copy whose words stayed, or are none to the tokenizer, is the sentence itself.

    Attributes:
        store: tokens of one sentence per example.
        texts: all sentences of the source.
        numbers: ``(N,)`` int64, which of ``texts`` is the sentence of an example.
        tokenizer: made the tokens of ``store``.
        edit: edits the words of a sentence.
        views: V.
        anchors: edit the first view too.
    """

    store: TokenStore
    texts: TextStore
    numbers: IndexArray
    tokenizer: TokenSource
    edit: Edit
    views: int
    anchors: bool = False

    @override
    def __len__(self) -> int:
        return len(self.store)

    @override
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        copies = [
            (int(example), view)
            for view in range(0 if self.anchors else 1, self.views)
            for example in examples
        ]
        edited = [self._edited_text(example, draws.of(example, view)) for example, view in copies]
        ids, _ = self.tokenizer.ids(edited, self.store.manifest.max_tokens)
        pairs = zip(ids, copies, strict=True)
        found = [row if len(row) else self.store.tokens(example, 0) for row, (example, _) in pairs]
        if not self.anchors:
            found = [*(self.store.tokens(int(example), 0) for example in examples), *found]
        offsets = np.zeros(len(found) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in found], out=offsets[1:])
        return np.concatenate(found).astype(np.int64), offsets

    def _edited_text(self, example: int, random: Generator) -> str:
        text = self.texts[int(self.numbers[example])]
        words = text.split()
        edited = self.edit(words, random)
        return text if edited == words else " ".join(edited)


@dataclass(frozen=True, slots=True)
class NextSentences(ViewSource):
    """A sentence, and for every other view one of those after it in its document.

    Only for examples that have a next sentence: see :class:`WithNext`.

    Attributes:
        store: tokens of one sentence per example, in the order of the text.
        documents: of the same sentences.
        reach: one of so many next sentences is drawn, or of fewer where the document ends.
        views: V.
    """

    store: TokenStore
    documents: Documents
    reach: int
    views: int

    @override
    def __len__(self) -> int:
        return len(self.store)

    @override
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        after = np.minimum(self.reach, self.documents.ends[examples] - examples - 1)
        steps = [
            draws.of(int(example), view).integers(1, int(count) + 1) if self.reach > 1 else 1
            for view in range(1, self.views)
            for example, count in zip(examples, after, strict=True)
        ]
        others = np.tile(examples, self.views - 1) + np.array(steps, dtype=np.int64)
        return self.store.gather(np.concatenate([examples, others]), (0,))


class WithNext(ViewSource):
    """Those examples of a source whose sentence has a next one in its document."""

    def __init__(
        self, source: ViewSource, store: TokenStore, documents: Documents, *, following: bool
    ) -> None:
        """Choose the examples.

        Args:
            source: an example for every sentence of ``store``.
            store: tokens of one sentence per example, in the order of the text.
            documents: of the same sentences.
            following: give the next sentences beside the views.
        """
        self.views = source.views
        self._source, self._store = source, store
        self._sentences = documents.with_next()
        self._gives_following = following

    @override
    def __len__(self) -> int:
        return len(self._sentences)

    @override
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        return self._source.gather(self._sentences[examples], draws)

    @override
    def following(self, examples: IndexArray) -> Packed | None:
        if not self._gives_following:
            return None
        return self._store.gather(self._sentences[examples] + 1, (0,))


class WithPlaces(ViewSource):
    """The examples of a source, one for every sentence of a text, and where each stands in it."""

    def __init__(self, source: ViewSource, documents: Documents) -> None:
        """Number the sentences of ``documents`` so that no two documents are near each other."""
        self.views = source.views
        self._source, self._places = source, documents.places()

    @override
    def __len__(self) -> int:
        return len(self._source)

    @override
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        return self._source.gather(examples, draws)

    @override
    def places(self, examples: IndexArray) -> IndexArray:
        return self._places[examples]


def told(views: int) -> str:
    """How many sentences an example has, and what they are."""
    hard = views - 2
    what = {1: "1 sentence", 2: "2 (anchor, positive)", 3: "3 (anchor, positive, hard negative)"}
    return f"{what.get(views, f'{views} (anchor, positive, {hard} hard negatives)')} per example"


def _chosen_views(there: int, wanted: int | None) -> Sequence[int]:
    if wanted is None or wanted == there:
        return tuple(range(there))
    if there == 1 and wanted > 1:
        return (0,) * wanted
    if wanted < 1:
        raise ConfigError(f"views must be at least 1, not {wanted}")
    if there > wanted > 1:
        return tuple(range(wanted))
    raise ConfigError(
        f"the data has {told(there)}, but the objective takes {told(wanted)}; "
        f"{_remedy(there, wanted)}"
    )


def _remedy(there: int, wanted: int) -> str:
    if there > wanted:
        return f"choose {wanted} of its columns with data.columns, or another objective"
    return "give data with more columns, such as sent0,sent1,hard_neg, or take another objective"
