"""Rows of a table: materials, and how an encoder is taken, trained or fitted."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
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


class _NamedEncoder:
    """An encoder under the name of its row, otherwise as it is."""

    def __init__(self, encoder: DescribedEncoder, name: str) -> None:
        self.name = name
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    @property
    def pooler(self) -> str:
        """How token states became the embedding."""
        return self._encoder.pooler


class CachedEncoder(_NamedEncoder):
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
            rows = self._encoder.encode(new, precision=precision, show_progress=show_progress)
            self._rows.update({it: len(self._rows) + k for k, it in enumerate(new)})
            self._embeddings = [np.concatenate([*self._embeddings, rows])]
        whole = self._embeddings[0]
        return np.ascontiguousarray(whole[[self._rows[it] for it in sentences]])


class TransformedEncoder(_NamedEncoder):
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
        return np.concatenate([self._map(block) for block in blocks])

    def _map(self, rows: Embeddings) -> Embeddings:
        import torch

        with torch.no_grad():
            mapped = self._transform(torch.from_numpy(rows).to(self._device))
        embeddings: Embeddings = mapped.cpu().numpy()
        return embeddings


class Family:
    """Rows that are made from one another, whose maps share the embeddings they are maps of."""

    def __init__(self, builder: RowBuilder) -> None:
        """Know nothing yet."""
        self._builder = builder
        self._plain: dict[tuple[str, str], CachedEncoder] = {}

    def encoder(self, name: str) -> CachedEncoder | TransformedEncoder:
        """The encoder of a row, trained or fitted now if that is not done.

        Raises:
            ContrasentError: it cannot be made.
        """
        encoder = self._builder.make(name)
        key = str(self._builder.source(name)), encoder.pooler
        if not isinstance(encoder, SentenceEncoder) or encoder.normalize:
            return CachedEncoder(encoder, name)
        if encoder.transform is not None:
            if key not in self._plain:
                self._plain[key] = CachedEncoder(self._builder.plain(name), name)
            return TransformedEncoder(encoder, encoder.transform, self._plain[key], name)
        cached = CachedEncoder(encoder, name)
        if self._builder.plan.rows[name].make == "start":
            self._plain[key] = cached
        return cached


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
        name: _bring_one(plan.materials[name], scale.lines.get(name), source, folder / name)
        for name, source in given.items()
    }


def _bring_one(material: Material, limit: int | None, source: str, target: Path) -> MaterialFile:
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
    first = _first_documents if material.blocks else _first_lines
    first = _first_rows if suffix == ".csv" else first
    count = 0
    with writing(cut) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        for line in first(path, limit):
            file.write(line)
            count += 1
    if not count:
        raise DataError(f"{source} has no line; it is to be {material.about}")
    return MaterialFile(source, str(cut), sha256_of(cut), count)


def _first_rows(path: Path, limit: int) -> Iterator[str]:
    """The first rows of a table, whose cells may hold line ends."""
    text = (line for _, line in lines(path))
    for row in islice(csv.reader(text), limit):
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerow(row)
        yield buffer.getvalue()


def _first_lines(path: Path, limit: int) -> Iterator[str]:
    return (f"{line.rstrip()}\n" for _, line in islice(lines(path), limit))


def _first_documents(path: Path, limit: int) -> Iterator[str]:
    """Whole documents, with the blank lines after them, that end within the first lines.

    The first document is taken whatever its length.
    """
    taken = 0
    document: list[str] = []
    for line in chain((line for _, line in lines(path)), [None]):
        if line is not None:
            document.append(f"{line.rstrip()}\n")
        if line is None or not line.strip():
            if taken and taken + len(document) > limit:
                return
            yield from document
            taken += len(document)
            document = []


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
        """The encoder of a row; a run or a fit that was begun before is continued.

        Raises:
            ContrasentError: it cannot be made.
        """
        row = self.plan.rows[name]
        match row.make:
            case "words":
                return WordEncoder.load(self.source(name))
            case "start":
                return self.plain(name)
            case "train":
                return self._train(name)
            case "sif":
                return self._fit_sif(name, row)
            case _:
                return self._fit_map(name, row)

    def source(self, name: str) -> Path | str:
        """What a row is made from: a material, or what another row made."""
        above = self.plan.rows[name].of
        if not above:
            return self.materials[self.plan.rows[name].start]
        run_folder = self.folder / above / _RUN
        return run_folder if self.plan.rows[above].make == "train" else self.source(above)

    def plain(self, name: str) -> SentenceEncoder:
        """The encoder that a row starts from, without a head and without the row's map."""
        pooler = self.plan.rows[name].pooler
        return SentenceEncoder.load(
            self.source(name), pooler=pooler, head="none", device=self.device
        )

    def _train(self, name: str) -> DescribedEncoder:
        from contrasent.training.run import train

        run = self.folder / name / _RUN
        train(self.recipe(name), run, resume=True, device=self.device)
        return load_encoder(run, device=self.device)

    def _fit_map(self, name: str, row: PlanRow) -> SentenceEncoder:
        from contrasent.fitting.maps import Embedding, fit_glow, fit_whitening

        given = self.plain(name), self._text(row), None, Embedding(max_tokens=_PAPERS_TOKENS)
        fitted = fit_whitening(*given) if row.make == "whitening" else fit_glow(*given)[0]
        place = self.folder / name / _FITTED
        fitted.encoder.save(place, fitted.info)
        return SentenceEncoder.load(place, device=self.device)

    def _fit_sif(self, name: str, row: PlanRow) -> WordEncoder:
        from contrasent.fitting.sif import fit_sif

        encoder, info = fit_sif(WordEncoder.load(self.source(name)), self._text(row))
        place = self.folder / name / _FITTED
        encoder.save(place, info)
        return WordEncoder.load(place)

    def _text(self, row: PlanRow) -> FittingText:
        source = STS_TEXT if row.data == STS_TEXT else self.materials[row.data]
        return open_fitting_text([source], None, self.data_dir)
