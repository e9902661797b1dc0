"""Pairs and triplets from sentence pairs labelled entailment, neutral or contradiction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from contrasent.data.build.base import PAIR, TRIPLET, Example, Kind, Said, draw_key, pair, watched
from contrasent.data.build.columns import Wanted
from contrasent.data.build.counts import Reading
from contrasent.data.build.labels import CONTRADICTION, ENTAILMENT, LABELS, NEUTRAL, NliLabels
from contrasent.data.build.records import Records
from contrasent.errors import ConfigError, DataError, pick

WANTED = Wanted(
    roles=("premise", "hypothesis", "label"),
    names=(
        ("sentence1", "premise", "context", "sentence_a", "text1", "text_a"),
        ("sentence2", "hypothesis", "sentence_b", "text2", "text_b"),
        ("gold_label", "label", "entailment_judgment"),
    ),
    ranked=("label",),
)

_NEGATIVES = MappingProxyType(
    {"triplets": (CONTRADICTION,), "triplets+neutral": (CONTRADICTION, NEUTRAL)}
)
_PAIRS = MappingProxyType({**{label: (label,) for label in LABELS}, "all": LABELS})
_LABELLED = "labelled"
MAKE = (*_NEGATIVES, *_PAIRS, _LABELLED)
PER = ("entailment", "premise")

_Group = list[tuple[str, str]]


class Nli(Kind):
    """SNLI, MultiNLI, ANLI and their like (SimCSE, section 4 and tables 4 and 7).

    Args:
        sources: rows of premise, hypothesis and label.
        make: ``triplets`` of premise, entailment and contradiction; ``triplets+neutral``, with a
            neutral hypothesis as second hard negative; or pairs of the premise with hypotheses of
            one label, or of ``all``; or ``labelled`` pairs, their label in a third column.
        per: a triplet for each ``entailment``, as the paper's text has it, or for each ``premise``.
            What is not written for each is drawn: the paper samples one contradiction. Where a
            premise has several entailments, its contradictions are dealt out among them.
        order: names of labels that are numbers, from 0; None if they are words.
        seed: of the drawing.

    Raises:
        ConfigError: a setting that does not exist.
    """

    def __init__(
        self,
        sources: Sequence[Records],
        make: str = "triplets",
        *,
        per: str = "entailment",
        order: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sources)
        self._make = pick("value of --make", make, MAKE)
        self._per = pick("value of --per", per, PER)
        if per != "entailment" and make not in _NEGATIVES:
            raise ConfigError(f"--per {per} is for triplets, not for --make {make}; leave it out")
        self._seed = seed
        self._labels = [NliLabels(it.source, it.label_names, order) for it in sources]
        self.labels = [labels.described for labels in self._labels]
        self._groups: dict[str, _Group] | None = None
        negatives = _NEGATIVES.get(make, ())
        self.said = Said(
            unlabelled="without a gold label",
            other="with another label",
            group="premise",
            incomplete=f"without each of {', '.join((ENTAILMENT, *negatives))}",
        )
        self.made = (
            f"premise, {', '.join((ENTAILMENT, *negatives))}; one of these for each {per}"
            if negatives
            else f"pairs of premise and hypothesis, labels: {', '.join(_PAIRS.get(make, LABELS))}"
        )
        if len(negatives) == 2:
            self.header = (*TRIPLET[:2], "hard_neg_1", "hard_neg_2")
        elif negatives:
            self.header = TRIPLET
        elif make == _LABELLED:
            self.header = (*PAIR, "label")

    @override
    def examples(self, reading: Reading) -> Iterator[Example]:
        if self._make not in _NEGATIVES:
            for example, label in self._rows(reading, _PAIRS.get(self._make, LABELS)):
                yield (*example, label) if self._make == _LABELLED else example
            return
        # Triplets need all hypotheses of a premise, which need not stand together in a file.
        if self._groups is None:
            self._groups = self._grouped(reading)
        for premise, group in self._groups.items():
            yield from self._triplets(premise, group, reading)

    def _rows(self, reading: Reading, wanted: Sequence[str]) -> Iterator[tuple[Example, str]]:
        """Premise and hypothesis with their label, of rows with one of the wanted labels."""
        counts = reading.counts
        for source, labels in zip(self.sources, self._labels, strict=True):
            for where, (first, second, mark) in watched(source, reading):
                label = self._label(labels, mark, where, reading)
                if label is None:
                    continue
                if label not in wanted:
                    counts.other += 1
                elif (found := pair(first, second, where, reading)) is not None:
                    yield found, label

    @staticmethod
    def _label(labels: NliLabels, mark: Any, where: str, reading: Reading) -> str | None:
        try:
            label = labels.understood(mark, where)
        except DataError as error:
            reading.trouble(error)
            return None
        if label is None:
            reading.counts.unlabelled += 1
        else:
            reading.counts.label(label)
        return label

    def _grouped(self, reading: Reading) -> dict[str, _Group]:
        """Labels and hypotheses of each premise, in the order of the sources."""
        groups: dict[str, _Group] = {}
        for (premise, hypothesis), label in self._rows(
            reading, (ENTAILMENT, *_NEGATIVES[self._make])
        ):
            groups.setdefault(premise, []).append((label, hypothesis))
        return groups

    def _triplets(self, premise: str, group: _Group, reading: Reading) -> Iterator[Example]:
        counts = reading.counts
        unique = dict.fromkeys(group)
        counts.repeated += len(group) - len(unique)
        entailed = [hypothesis for label, hypothesis in unique if label == ENTAILMENT]
        drawn = []
        for wanted in _NEGATIVES[self._make]:
            found = [hypothesis for label, hypothesis in unique if label == wanted]
            fit = [hypothesis for hypothesis in found if hypothesis not in entailed]
            counts.contested += len(found) - len(fit)
            drawn.append(self._shuffled(premise, wanted, fit))
        if not (entailed and all(drawn)):
            counts.incomplete += 1
            return
        if self._per == "premise":
            entailed = self._shuffled(premise, ENTAILMENT, entailed)[:1]
        for number, positive in enumerate(entailed):
            yield (premise, positive, *(these[number % len(these)] for these in drawn))

    def _shuffled(self, premise: str, label: str, hypotheses: list[str]) -> list[str]:
        return sorted(hypotheses, key=lambda it: draw_key(self._seed, label, premise, it))
