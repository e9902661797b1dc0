"""Evaluation text that stands in training text too."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from contrasent.data.readers import stop
from contrasent.data.text import Examples
from contrasent.evaluate.kinds.base import Text
from contrasent.evaluate.suite import Suite
from contrasent.evaluate.tasks import TaskName

_SHOWN = 3
_NO_LETTER = re.compile(r"[\W_]+")
_NO_ASCII_LETTER = {code: None for code in range(128) if not chr(code).isalnum()}

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Counted:
    """How much of one task stands in training text.

    Attributes:
        task: its name.
        split: the split, or ``all`` where a transfer task has none.
        sentences: how many it has, repeated ones counted each time, as a score counts them.
        exact: those of them that training text has, but for white space.
        normalised: those that it has when only letters and digits in lower case are compared.
        pairs: pairs of sentences that belong together.
        pairs_seen: pairs of which training text has both sentences, anywhere, normalised.
        pairs_exact: pairs that are in one example of the training text, in either order.
        pairs_normalised: the same of letters and digits in lower case.
        first: where the first ones stand in the training text, and the sentences there.
    """

    task: str
    split: str
    sentences: int
    exact: int
    normalised: int
    pairs: int
    pairs_seen: int
    pairs_exact: int
    pairs_normalised: int
    first: tuple[tuple[str, str], ...]

    @property
    def heading(self) -> str:
        """How a table names it."""
        return TaskName(self.task, self.split).heading


@dataclass(frozen=True, slots=True)
class Leaks:
    """What was found in one source of training text.

    Attributes:
        source: the file or data set.
        columns: how its columns were understood.
        examples: how many were read.
        sha256: hash of content and columns.
        tasks: what of every task is in it.
    """

    source: str
    columns: str
    examples: int
    sha256: str
    tasks: tuple[Counted, ...]


def tidied(text: str) -> str:
    """A sentence with single spaces between its words."""
    return " ".join(text.split())


def normalised(text: str) -> str:
    """Letters and digits of a sentence in lower case, without anything between them."""
    lower = text.lower()
    # Most text is ASCII, where this is twice as fast as the expression, which it equals.
    return lower.translate(_NO_ASCII_LETTER) if lower.isascii() else _NO_LETTER.sub("", lower)


def fingerprint(suite: Suite) -> str:
    """Hexadecimal hash of all that :func:`find_leaks` looks for."""
    digest = hashlib.sha256()
    for text in suite.texts():
        digest.update(repr((text.task, text.split, text.sentences, text.pairs)).encode())
    return digest.hexdigest()


def find_leaks(
    training: Examples, suite: Suite, advance: Callable[[int], None] = lambda _: None
) -> Leaks:
    """Look for the text of tasks in training text, which is read once and not kept.

    Args:
        training: sentences, pairs or triplets.
        suite: the tasks.
        advance: is called with 1 for every example.

    Raises:
        DataError: a row of the training text cannot be read.
    """
    texts = list(suite.texts())
    exact, loose = _Found(tidied, texts), _Found(normalised, texts)
    count = 0
    for where, sentences in training.read(stop):
        count += 1
        advance(1)
        if loose.look_at(where, sentences):
            exact.look_at(where, sentences)
    return Leaks(
        source=training.source,
        columns=training.columns,
        examples=count,
        sha256=training.sha256,
        tasks=tuple(_counted(text, exact, loose) for text in texts),
    )


class _Found:
    """What training text has of the tasks' sentences, compared in one form."""

    def __init__(self, form: Callable[[str], str], texts: Sequence[Text]) -> None:
        self._form = form
        self._sentences = {form(sentence) for text in texts for sentence in text.sentences} - {""}
        self._pairs = {self.key(pair) for text in texts for pair in text.pairs}
        self.where: dict[str, tuple[str, str]] = {}
        self._together: set[Pair] = set()

    def look_at(self, where: str, sentences: Sequence[str]) -> bool:
        """Note what one example has; False if no stricter form can find anything in it."""
        known = []
        anything = False
        for sentence in sentences:
            key = self._form(sentence)
            if key in self._sentences:
                known.append(key)
                self.where.setdefault(key, (where, sentence))
            anything |= not key
        for one, other in combinations(sorted(known), 2):
            if (one, other) in self._pairs:
                self._together.add((one, other))
        return anything or bool(known)

    def key(self, pair: Pair) -> Pair:
        """A pair without its order."""
        one, other = sorted(map(self._form, pair))
        return one, other

    def of_sentences(self, text: Text) -> list[str]:
        """The keys of its sentences that were found, repeated ones each time."""
        return [key for sentence in text.sentences if (key := self._form(sentence)) in self.where]

    def of_pairs(self, text: Text) -> int:
        """How many of its pairs were found."""
        return sum(self.key(pair) in self._together for pair in text.pairs)


def _counted(text: Text, exact: _Found, loose: _Found) -> Counted:
    found = loose.of_sentences(text)
    return Counted(
        task=text.task,
        split=text.split,
        sentences=len(text.sentences),
        exact=len(exact.of_sentences(text)),
        normalised=len(found),
        pairs=len(text.pairs),
        pairs_seen=sum(set(loose.key(pair)) <= loose.where.keys() for pair in text.pairs),
        pairs_exact=exact.of_pairs(text),
        pairs_normalised=loose.of_pairs(text),
        first=tuple(loose.where[key] for key in list(dict.fromkeys(found))[:_SHOWN]),
    )
