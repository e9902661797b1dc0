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
    LeftOutError,
    draw_key,
    pair,
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


def nli(
    sources: Sequence[SourceRows],
    make: str = "triplets",
    *,
    per: str = "entailment",
    contradictions: int = 1,
    order: Sequence[str] | None = None,
    seed: int = 0,
) -> DataKind:
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
    pick("value of --make", make, MAKE)
    pick("value of --per", per, PER)
    negatives = _NEGATIVES.get(make, ())
    for option, given in (
        (f"--per {per}", per != PER[0]),
        (f"--contradictions {contradictions}", contradictions > 1),
    ):
        if given and not negatives:
            raise ConfigError(f"{option} is for triplets, not for --make {make}; leave it out")
    labels = [NliLabels(it.source, it.label_names, order) for it in sources]
    wanted = (ENTAILMENT, *negatives) if negatives else _PAIRS.get(make, LABELS)

    def parse(source: int, cells: Sequence[Any], where: str, counts: Counts) -> Any:
        first, second, mark = cells
        label = labels[source].understood(mark, where)
        if label is None:
            raise LeftOutError("unlabelled")
        counts.label(label)
        if label not in wanted:
            raise LeftOutError("other")
        premise, hypothesis = pair(first, second, where)
        if negatives:
            return premise, (label, hypothesis)
        return (premise, hypothesis, *([label] if make == _LABELLED else []))

    header: tuple[str, ...] = (*PAIR, "label") if make == _LABELLED else PAIR
    contents = f"pairs of premise and hypothesis, labels: {', '.join(wanted)}"
    group = None
    if negatives:
        count = contradictions + len(negatives) - 1
        header = TRIPLET if count == 1 else (*PAIR, *(f"hard_neg_{k + 1}" for k in range(count)))
        contents = f"premise, {', '.join(wanted)}; one of these for each {per}"
        group = partial(_triplets, negatives, per, contradictions, seed)
    fewer = f", or with fewer than {contradictions} contradictions" * (contradictions > 1)
    return DataKind(
        sources=sources,
        contents=contents,
        parse=parse,
        group=group,
        header=header,
        labels=[it.described for it in labels],
        wording={
            "unlabelled": "without a gold label",
            "other": "with another label",
            "group": "premise",
            "incomplete": f"without each of {', '.join((ENTAILMENT, *negatives))}{fewer}",
        },
    )


def _triplets(
    negatives: Sequence[str],
    per: str,
    several: int,
    seed: int,
    premise: str,
    members: list[tuple[str, str]],
    counts: Counts,
) -> Iterator[Example]:
    """Triplets of a premise, from its hypotheses with their labels."""

    def shuffled(label: str, hypotheses: list[str]) -> list[str]:
        return sorted(hypotheses, key=lambda it: draw_key(seed, label, premise, it))

    unique = dict.fromkeys(members)
    counts.repeated += len(members) - len(unique)
    entailed = [hypothesis for label, hypothesis in unique if label == ENTAILMENT]
    drawn = []
    for wanted in negatives:
        matching = [hypothesis for label, hypothesis in unique if label == wanted]
        fit = [hypothesis for hypothesis in matching if hypothesis not in entailed]
        counts.contested += len(matching) - len(fit)
        drawn.append(shuffled(wanted, fit))
    if not (entailed and all(drawn) and len(drawn[0]) >= several):
        counts.incomplete += 1
        return
    if per == "premise":
        entailed = shuffled(ENTAILMENT, entailed)[:1]
    for number, positive in enumerate(entailed):
        first, *others = drawn
        contradictions = (first[(number * several + k) % len(first)] for k in range(several))
        rest = (these[number % len(these)] for these in others)
        yield (premise, positive, *contradictions, *rest)
