"""How the encoder of a row is made: taken as it is, trained, or fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.config import Recipe, load_recipe
from contrasent.evaluate.described import Encoder
from contrasent.evaluate.fitting_text import FittingText, open_fitting_text
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import load_encoder
from contrasent.model.words import WordEncoder
from contrasent.reproduce.plan import STS_TEXT, Plan, Row, Scale

_RUN, _FITTED = "run", "fitted"
_PAPERS_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where rows are made, and of what.

    Attributes:
        plan: the table.
        scale: how much is done.
        materials: what is read for each, by its name.
        folder: has a folder for every row.
        data_dir: SentEval's folder.
        device: what computes; None takes the accelerator if there is one.
    """

    plan: Plan
    scale: Scale
    materials: Mapping[str, str]
    folder: Path
    data_dir: str | None
    device: str | None = None

    def recipe(self, name: str) -> Recipe:
        """All settings of a row that is trained."""
        row = self.plan.rows[name]
        overrides: dict[str, Any] = {
            "encoder.name": str(self.source(name)),
            "data.file": self.materials[row.data],
            **({"encoder.pooler": row.pooler} if row.pooler else {}),
            **({"evaluation.data_dir": self.data_dir} if self.data_dir else {}),
            **(row.short if self.scale.short else {}),
            **self.scale.train,
        }
        return load_recipe(row.recipe, overrides)

    def make(self, name: str) -> Encoder:
        """The encoder of a row; what a run or fit of before left is gone on with.

        Raises:
            ContrasentError: it cannot be made.
        """
        row = self.plan.rows[name]
        makers: dict[str, Callable[[str, Row], Encoder]] = {
            "words": lambda name, _: WordEncoder.load(self.source(name)),
            "start": self._loaded,
            "train": self._trained,
            "sif": self._sif,
            "whitening": self._whitened,
            "flow": self._flowed,
        }
        return makers[row.make](name, row)

    def source(self, name: str) -> Path | str:
        """What a row is made from: a material, or what another row made."""
        above = self.plan.rows[name].of
        if not above:
            return self.materials[self.plan.rows[name].start]
        made = self.folder / above / _RUN
        return made if self.plan.rows[above].make == "train" else self.source(above)

    def plain(self, name: str) -> SentenceEncoder:
        """What the map of a row was fitted for, without the map."""
        return self._loaded(name, self.plan.rows[name])

    def _loaded(self, name: str, row: Row) -> SentenceEncoder:
        return SentenceEncoder.load(
            self.source(name), pooler=row.pooler, head="none", device=self.device
        )

    def _trained(self, name: str, row: Row) -> Encoder:
        from contrasent.train.run import train

        del row
        run = self.folder / name / _RUN
        train(self.recipe(name), run, resume=True, device=self.device)
        return load_encoder(run, device=self.device)

    def _whitened(self, name: str, row: Row) -> SentenceEncoder:
        from contrasent.train.fitting import Embedding, fit_whitening

        fitted = fit_whitening(
            self._loaded(name, row), self._text(row), None, Embedding(max_tokens=_PAPERS_TOKENS)
        )
        fitted.encoder.save(self._place(name), fitted.info)
        return SentenceEncoder.load(self._place(name), device=self.device)

    def _flowed(self, name: str, row: Row) -> SentenceEncoder:
        from contrasent.train.fitting import Embedding, fit_glow

        fitted, _ = fit_glow(
            self._loaded(name, row), self._text(row), None, Embedding(max_tokens=_PAPERS_TOKENS)
        )
        fitted.encoder.save(self._place(name), fitted.info)
        return SentenceEncoder.load(self._place(name), device=self.device)

    def _sif(self, name: str, row: Row) -> WordEncoder:
        from contrasent.train.sif import fit_sif

        made, info = fit_sif(WordEncoder.load(self.source(name)), self._text(row))
        made.save(self._place(name), info)
        return WordEncoder.load(self._place(name))

    def _place(self, name: str) -> Path:
        return self.folder / name / _FITTED

    def _text(self, row: Row) -> FittingText:
        source = STS_TEXT if row.data == STS_TEXT else self.materials[row.data]
        return open_fitting_text([source], None, self.data_dir)
