"""How the papers turn cosines into the numbers of their tables, by name.

SimCSE, appendix B, Table B.1, lists them; the same encoder differs by several points between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from contrasent.errors import pick
from contrasent.metrics import METRICS

AGGREGATIONS = ("all", "mean", "wmean")
"""One correlation over all pairs; mean over the subsets; that mean weighted by their pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """What a number of a table is.

    Attributes:
        name: as ``--protocol`` takes it, with what was changed of it.
        source: the paper.
        metrics: what its tables show, ``spearman`` or ``pearson`` or both.
        aggregation: one of :data:`AGGREGATIONS`.
        regressor: STS-B and SICK-R are scored by what SentEval's regressor, fitted on their
            training splits, predicts, and not by cosines.
        every_split: tasks of which the pairs of all splits are scored in place of the test split.
        note: where SentEval's files cannot give its numbers; else empty.
    """

    name: str
    source: str
    metrics: tuple[str, ...] = ("spearman",)
    aggregation: str = "all"
    regressor: bool = False
    every_split: tuple[str, ...] = ()
    note: str = ""


_MTEB_NOTE = (
    "MTEB scores the text as it was written, SentEval's STS12-16 are tokenised and partly in "
    "lower case, so only pairs (SICK-R all splits, 9,927), metric and aggregation are MTEB's; "
    "its own runner gives its own numbers"
)

PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(name="simcse", source="Gao et al. 2021"),
        Protocol(name="diffcse", source="Chuang et al. 2022"),
        Protocol(name="hill", source="Hill et al. 2016", metrics=("pearson", "spearman")),
        Protocol(
            name="infersent",
            source="Conneau et al. 2017",
            metrics=("pearson",),
            aggregation="mean",
            regressor=True,
        ),
        Protocol(
            name="senteval",
            source="Conneau & Kiela 2018",
            metrics=("pearson",),
            aggregation="mean",
            regressor=True,
        ),
        Protocol(name="sbert", source="Reimers & Gurevych 2019"),
        Protocol(name="isbert", source="Zhang et al. 2020"),
        Protocol(name="flow", source="Li et al. 2020", aggregation="wmean"),
        Protocol(name="whitening", source="Su et al. 2021", aggregation="wmean"),
        Protocol(
            name="bgt", source="Wieting et al. 2020", metrics=("pearson",), aggregation="mean"
        ),
        Protocol(name="declutr", source="Giorgi et al. 2021", aggregation="mean"),
        Protocol(
            name="mteb",
            source="Muennighoff et al. 2023",
            every_split=("sickr",),
            note=_MTEB_NOTE,
        ),
    )
}
"""Every row of SimCSE's Table B.1, DiffCSE, which scores as SimCSE does, and MTEB."""

SIMCSE = PROTOCOLS["simcse"]

FITTED = ("stsb", "sickr")
"""Tasks with training and dev splits, which a protocol with a regressor fits it to."""


def protocol(
    name: str = "simcse",
    *,
    metric: str | None = None,
    aggregation: str | None = None,
    regressor: bool | None = None,
) -> Protocol:
    """A protocol by name, with single parts of it changed.

    Raises:
        ConfigError: no such protocol, metric or aggregation.
    """
    found = PROTOCOLS[pick("protocol", name, PROTOCOLS)]
    changed = []
    if metric is not None and (pick("metric", metric, METRICS),) != found.metrics:
        found, changed = replace(found, metrics=(metric,)), [f"metric {metric}"]
    if aggregation not in (None, found.aggregation):
        found = replace(found, aggregation=pick("aggregation", str(aggregation), AGGREGATIONS))
        changed.append(f"aggregation {aggregation}")
    if regressor not in (None, found.regressor):
        found = replace(found, regressor=bool(regressor))
        changed.append("regressor" if regressor else "no regressor")
    if changed:
        found = replace(found, name=f"{name} with {', '.join(changed)}")
    return found
