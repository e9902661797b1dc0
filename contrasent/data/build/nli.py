"""Pairs and triplets from sentence pairs labelled entailment, neutral or contradiction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from contrasent.data.build.base import (
    PAIR,
    TRIPLET,
    Counts,
    DataKind,
    Example,
    Reading,
    SourceDescription,
    draw_key,
    pair,
    parse_rows,
)
from contrasent.data.rows import SourceRows
from contrasent.errors import ConfigError, DataError, pick

ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS = ("entailment", "neutral", "contradiction")

_NLI = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), ENTAILMENT),
    **dict.fromkeys(("neutral", "n"), NEUTRAL),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), CONTRADICTION),
}
_YES_OR_NO = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}
_NONE = {"", "-", "-1", "none", "nan"}


class NliLabels:
    """Understands the labels of one source.

    Words are known; numbers are not, as data sets count the three labels in different orders, and a
    wrong guess would train contradictions as positives. So they need names: the data set's own, or
    the user's.

    Raises:
        ConfigError: ``order``, the user's names for the numbers from 0, does not name each of the
            three labels once, or says something else than ``own_names``, the source's.
    """

    def __init__(
        self, source: str, own_names: Sequence[str] | None, order: Sequence[str] | None
    ) -> None:
        meanings = None if own_names is None else [_NLI.get(name.lower()) for name in own_names]
        asked = None if order is None else _ordered(order)
        if meanings is not None and None in meanings:
            meanings = None
        if meanings and asked and meanings != asked:
            raise ConfigError(
                f"{source}: --labels {','.join(asked)} is not the data set's own order, "
                f"{','.join(map(str, meanings))}; leave --labels out"
            )
        self._source = source
        self._numbers = meanings or asked
        if self._numbers is None:
            self.described = "words such as entailment, or their first letters"
        else:
            listed = ", ".join(f"{number} = {name}" for number, name in enumerate(self._numbers))
            self.described = f"{listed} ({'the data set says so' if meanings else 'as asked for'})"

    def understood(self, label: Any, where: str) -> str | None:
        """One of :data:`LABELS`; None if the row has none, and an error if it is not known."""
        word = "" if label is None else str(label).strip().lower()
        if word in _NLI:
            return _NLI[word]
        if word in _NONE:
            return None
        if not (word.isascii() and word.isdecimal()):
            raise DataError(
                f"{where}: unknown label {label!r}; known are {', '.join(LABELS)}, "
                "their first letters, and - for none"
            )
        if self._numbers is None:
            raise ConfigError(
                f"{where}: the label is the number {word}, and {self._source} does not say what "
                "it stands for; name the numbers from 0 on, as --labels "
                "entailment,neutral,contradiction, after the data set's description"
            )
        if int(word) >= len(self._numbers):
            raise DataError(f"{where}: label {word}, but only 0 to {len(self._numbers) - 1} known")
        return self._numbers[int(word)]


def yes_or_no(label: Any, where: str) -> bool | None:
    """Whether two questions are duplicates; None if the row does not say."""
    word = "" if label is None else str(label).strip().lower()
    if word in _NONE:
        return None
    if word not in _YES_OR_NO:
        raise DataError(
            f"{where}: unknown label {label!r}; 1 or true says that the two mean the same, "
            "0 or false that they do not"
        )
    return _YES_OR_NO[word]


def _ordered(order: Sequence[str]) -> list[str]:
    named = [_NLI.get(name.strip().lower(), "") for name in order]
    if sorted(named) != sorted(LABELS):
        raise ConfigError(
            f"--labels {','.join(order)} does not name each of {', '.join(LABELS)} once; "
            "give them in the order of their numbers, from 0"
        )
    return named


_NEGATIVES = MappingProxyType(
    {"triplets": (CONTRADICTION,), "triplets+neutral": (CONTRADICTION, NEUTRAL)}
)
_PAIRS = MappingProxyType({**{label: (label,) for label in LABELS}, "all": LABELS})
_LABELLED = "labelled"
MAKE = (*_NEGATIVES, *_PAIRS, _LABELLED)
PER = ("entailment", "premise")

_Group = list[tuple[str, str]]


class Nli(DataKind):
    """SNLI, MultiNLI, ANLI and their like (SimCSE, section 4 and tables 4 and 7).

    Args:
        sources: rows of premise, hypothesis and label.
        make: ``triplets`` of premise, entailment and contradiction; ``triplets+neutral``, with a
            neutral hypothesis as second hard negative; or pairs of the premise with hypotheses of
            one label, or of ``all``; or ``labelled`` pairs, their label in a third column.
        per: a triplet for each ``entailment``, as the paper's text has it, or for each ``premise``.
            What is not written for each is drawn: the paper samples one contradiction. Where a
            premise has several entailments, its contradictions are dealt out among them.
        contradictions: of the premise that each triplet has as hard negatives, all different; the
            paper has one, and found no difference with more (footnote 7).
        order: names of labels that are numbers, from 0; None if they are words.
        seed: of the drawing.
    """

    def __init__(
        self,
        sources: Sequence[SourceRows],
        make: str = "triplets",
        *,
        per: str = "entailment",
        contradictions: int = 1,
        order: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sources)
        self._make = pick("value of --make", make, MAKE)
        self._per = pick("value of --per", per, PER)
        if per != "entailment" and make not in _NEGATIVES:
            raise ConfigError(f"--per {per} is for triplets, not for --make {make}; leave it out")
        if contradictions > 1 and make not in _NEGATIVES:
            raise ConfigError(
                f"--contradictions {contradictions} is for triplets, not for --make {make}; leave "
                "it out"
            )
        self._seed, self._contradictions = seed, contradictions
        self._labels = [NliLabels(it.source, it.label_names, order) for it in sources]
        self.labels = [labels.described for labels in self._labels]
        self._groups: dict[str, _Group] | None = None
        negatives = _NEGATIVES.get(make, ())
        self.wording = SourceDescription(
            unlabelled="without a gold label",
            other="with another label",
            group="premise",
            incomplete=f"without each of {', '.join((ENTAILMENT, *negatives))}"
            + (f", or with fewer than {contradictions} contradictions" * (contradictions > 1)),
        )
        self.contents = (
            f"premise, {', '.join((ENTAILMENT, *negatives))}; one of these for each {per}"
            if negatives
            else f"pairs of premise and hypothesis, labels: {', '.join(_PAIRS.get(make, LABELS))}"
        )
        count = contradictions + len(negatives) - 1
        if negatives and count > 1:
            self.header = (*PAIR, *(f"hard_neg_{number + 1}" for number in range(count)))
        elif negatives:
            self.header = TRIPLET
        elif make == _LABELLED:
            self.header = (*PAIR, "label")

    def examples(self, reading: Reading) -> Iterator[Example]:
        if self._make not in _NEGATIVES:
            for example, label in self._rows(reading, _PAIRS.get(self._make, LABELS)):
                yield (*example, label) if self._make == _LABELLED else example
            return
        # Triplets need all hypotheses of a premise, which need not stand together in a file.
        if self._groups is None:
            self._groups = {}
            wanted = (ENTAILMENT, *_NEGATIVES[self._make])
            for (premise, hypothesis), label in self._rows(reading, wanted):
                self._groups.setdefault(premise, []).append((label, hypothesis))
        for premise, group in self._groups.items():
            yield from self._triplets(premise, group, reading)

    def _rows(self, reading: Reading, wanted: Sequence[str]) -> Iterator[tuple[Example, str]]:
        """Premise and hypothesis with their label, of rows with one of the wanted labels."""
        for source, labels in zip(self.sources, self._labels, strict=True):
            yield from parse_rows(source, reading, partial(_labelled_pair, labels, wanted))

    def _triplets(self, premise: str, group: _Group, reading: Reading) -> Iterator[Example]:
        counts = reading.counts
        unique = dict.fromkeys(group)
        counts.repeated += len(group) - len(unique)
        entailed = [hypothesis for label, hypothesis in unique if label == ENTAILMENT]
        drawn = []
        for wanted in _NEGATIVES[self._make]:
            matching = [hypothesis for label, hypothesis in unique if label == wanted]
            fit = [hypothesis for hypothesis in matching if hypothesis not in entailed]
            counts.contested += len(matching) - len(fit)
            drawn.append(self._shuffled(premise, wanted, fit))
        several = self._contradictions
        if not (entailed and all(drawn) and len(drawn[0]) >= several):
            counts.incomplete += 1
            return
        if self._per == "premise":
            entailed = self._shuffled(premise, ENTAILMENT, entailed)[:1]
        for number, positive in enumerate(entailed):
            first, *others = drawn
            contradictions = (first[(number * several + k) % len(first)] for k in range(several))
            rest = (these[number % len(these)] for these in others)
            yield (premise, positive, *contradictions, *rest)

    def _shuffled(self, premise: str, label: str, hypotheses: list[str]) -> list[str]:
        return sorted(hypotheses, key=lambda it: draw_key(self._seed, label, premise, it))


def _labelled_pair(
    labels: NliLabels, wanted: Sequence[str], cells: Sequence[Any], where: str, counts: Counts
) -> tuple[Example, str] | None:
    first, second, mark = cells
    label = labels.understood(mark, where)
    if label is None:
        counts.unlabelled += 1
        return None
    counts.label(label)
    if label not in wanted:
        counts.other += 1
        return None
    sentences = pair(first, second, where, counts)
    return None if sentences is None else (sentences, label)
