"""Rows of a table: materials, and how an encoder is taken, trained or fitted."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.readers import lines
from contrasent.errors import DataError
from contrasent.evaluation.embed import DescribedEncoder, Embeddings
from contrasent.files import sha256_of, writing
from contrasent.fitting.text import FittingText, open_fitting_text
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import resolve
from contrasent.model.loading import load_encoder
from contrasent.model.transforms.base import Transform
from contrasent.model.word_encoder import WordEncoder
from contrasent.recipe import Recipe, load_recipe
from contrasent.reproduce.plan import STS_TEXT, Material, Plan, PlanRow, Scale

_ROWS_AT_ONCE = 4096


class _OfRow:
    """An encoder under the name of its row; all else that tables tell of it stays visible."""

    def __init__(self, encoder: DescribedEncoder, name: str) -> None:
        self.name = name
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    @property
    def pooler(self) -> str:
        """How token states became the embedding."""
        return self._encoder.pooler


class CachedEncoder(_OfRow):
    """An encoder that computes each sentence once."""

    def __init__(self, encoder: DescribedEncoder, name: str) -> None:
        """Wrap ``encoder`` under the ``name`` of its row."""
        super().__init__(encoder, name)
        self._rows: dict[str, int] = {}
        self._embeddings: list[Embeddings] = []

    def encode(
        self, sentences: list[str], *, precision: str = "fp32", show_progress: bool = False
    ) -> np.ndarray:
        """Embed N sentences, ``(N, D)``."""
        new = list(dict.fromkeys(it for it in sentences if it not in self._rows))
        if new:
            found = self._encoder.encode(new, precision=precision, show_progress=show_progress)
            self._rows.update({it: len(self._rows) + k for k, it in enumerate(new)})
            self._embeddings = [np.concatenate([*self._embeddings, found])]
        whole = self._embeddings[0]
        return np.ascontiguousarray(whole[[self._rows[it] for it in sentences]])


class TransformedEncoder(_OfRow):
    """An encoder with a transform, which maps the embeddings that are known without it."""

    def __init__(
        self, encoder: SentenceEncoder, transform: Transform, plain: CachedEncoder, name: str
    ) -> None:
        """Wrap ``encoder``, which ends in ``transform``; ``plain`` is it without that."""
        super().__init__(encoder, name)
        self._transform = transform
        self._device = encoder.device
        self._plain = plain

    def encode(
        self, sentences: list[str], *, precision: str = "fp32", show_progress: bool = False
    ) -> np.ndarray:
        """Embed N sentences, ``(N, K)``."""
        rows = self._plain.encode(sentences, precision=precision, show_progress=show_progress)
        blocks = np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE))
        return np.concatenate([self._mapped(block) for block in blocks])

    def _mapped(self, rows: Embeddings) -> Embeddings:
        import torch

        with torch.no_grad():
            found = self._transform(torch.from_numpy(rows).to(self._device))
        mapped: Embeddings = found.cpu().numpy()
        return mapped


class Family:
    """Rows that are made from one another, whose maps share the embeddings they are maps of."""

    def __init__(self, builder: RowBuilder) -> None:
        """Know nothing yet."""
        self._builder = builder
        self._plain: dict[tuple[str, str], CachedEncoder] = {}

    def encoder(self, name: str) -> CachedEncoder | TransformedEncoder:
        """The encoder of a row, made now if it is not there.

        Raises:
            ContrasentError: it cannot be made.
        """
        encoder, row = self._builder.make(name), self._builder.plan.rows[name]
        key = str(self._builder.source(name)), encoder.pooler
        if not isinstance(encoder, SentenceEncoder) or encoder.normalize:
            return CachedEncoder(encoder, name)
        if encoder.transform is not None:
            if key not in self._plain:
                self._plain[key] = CachedEncoder(self._builder.plain(name), name)
            return TransformedEncoder(encoder, encoder.transform, self._plain[key], name)
        once = CachedEncoder(encoder, name)
        if row.make == "start":
            self._plain[key] = once
        return once


_CUT = (".txt", ".csv")


@dataclass(frozen=True, slots=True)
class MaterialFile:
    """One material as the rows of a table use it.

    Attributes:
        source: what the user named.
        path: what is read: that, or its beginning.
        sha256: of what is read.
        lines: of the beginning; None if all is read.
    """

    source: str
    path: str
    sha256: str
    lines: int | None


def bring(
    plan: Plan, scale: Scale, given: Mapping[str, str], folder: Path
) -> dict[str, MaterialFile]:
    """Find every material, and write the beginnings of long texts into ``folder``.

    Raises:
        CheckpointError: an encoder is not there.
        DataError: a text is not there, or has nothing in it.
    """
    return {
        name: _brought(plan.materials[name], scale.lines.get(name), source, folder / name)
        for name, source in given.items()
    }


def _brought(material: Material, limit: int | None, source: str, target: Path) -> MaterialFile:
    if material.kind == "encoder":
        return MaterialFile(source, source, _folder_sha256(resolve(source)), None)
    path = Path(source).expanduser()
    if not path.is_file():
        raise DataError(f"{source} is not there; it is to be {material.about}")
    if limit is None:
        return MaterialFile(source, str(path), sha256_of(path), None)
    suffix = next((it for it in _CUT if path.name.removesuffix(".gz").endswith(it)), None)
    if suffix is None:
        known = ", ".join(_CUT)
        raise DataError(f"{source} cannot be cut at {limit} rows; bring one of {known}, also .gz")
    cut = target.with_suffix(suffix)
    taken = _rows(path, limit) if suffix == ".csv" else _beginning(path, limit, material.blocks)
    count = 0
    with writing(cut) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        for line in taken:
            file.write(line)
            count += 1
    if not count:
        raise DataError(f"{source} has no line; it is to be {material.about}")
    return MaterialFile(source, str(cut), sha256_of(cut), count)


def _rows(path: Path, limit: int) -> Iterator[str]:
    """The first rows of a table, whose cells may hold line ends."""
    text = (line for _, line in lines(path))
    for row in islice(csv.reader(text), limit):
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerow(row)
        yield buffer.getvalue()


def _beginning(path: Path, limit: int, blocks: bool) -> Iterator[str]:
    """The first lines; of documents, those that end within them, and the first one whole."""
    held: list[str] = []
    taken = 0
    for _, line in lines(path):
        if not blocks:
            if taken == limit:
                return
            taken += 1
            yield f"{line.rstrip()}\n"
            continue
        held.append(f"{line.rstrip()}\n")
        if not line.strip():
            if taken and taken + len(held) > limit:
                return
            yield from held
            taken += len(held)
            held = []
    if blocks and (not taken or taken + len(held) <= limit):
        yield from held


def _folder_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path)}\n".encode())
    return digest.hexdigest()


_RUN, _FITTED = "run", "fitted"
_PAPERS_TOKENS = 64


@dataclass(frozen=True, slots=True)
class RowBuilder:
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

    def make(self, name: str) -> DescribedEncoder:
        """The encoder of a row; what a run or fit of before left is gone on with.

        Raises:
            ContrasentError: it cannot be made.
        """
        row = self.plan.rows[name]
        makers: dict[str, Callable[[str, PlanRow], DescribedEncoder]] = {
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

    def _loaded(self, name: str, row: PlanRow) -> SentenceEncoder:
        return SentenceEncoder.load(
            self.source(name), pooler=row.pooler, head="none", device=self.device
        )

    def _trained(self, name: str, row: PlanRow) -> DescribedEncoder:
        from contrasent.training.run import train

        del row
        run = self.folder / name / _RUN
        train(self.recipe(name), run, resume=True, device=self.device)
        return load_encoder(run, device=self.device)

    def _whitened(self, name: str, row: PlanRow) -> SentenceEncoder:
        from contrasent.fitting.maps import Embedding, fit_whitening

        fitted = fit_whitening(
            self._loaded(name, row), self._text(row), None, Embedding(max_tokens=_PAPERS_TOKENS)
        )
        fitted.encoder.save(self._place(name), fitted.info)
        return SentenceEncoder.load(self._place(name), device=self.device)

    def _flowed(self, name: str, row: PlanRow) -> SentenceEncoder:
        from contrasent.fitting.maps import Embedding, fit_glow

        fitted, _ = fit_glow(
            self._loaded(name, row), self._text(row), None, Embedding(max_tokens=_PAPERS_TOKENS)
        )
        fitted.encoder.save(self._place(name), fitted.info)
        return SentenceEncoder.load(self._place(name), device=self.device)

    def _sif(self, name: str, row: PlanRow) -> WordEncoder:
        from contrasent.fitting.sif import fit_sif

        made, info = fit_sif(WordEncoder.load(self.source(name)), self._text(row))
        made.save(self._place(name), info)
        return WordEncoder.load(self._place(name))

    def _place(self, name: str) -> Path:
        return self.folder / name / _FITTED

    def _text(self, row: PlanRow) -> FittingText:
        source = STS_TEXT if row.data == STS_TEXT else self.materials[row.data]
        return open_fitting_text([source], None, self.data_dir)
