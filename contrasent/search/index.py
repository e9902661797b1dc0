"""The index folder: vectors, texts, ids, and the fingerprint of the encoder that made them."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.files import exclusive, recover_folder, refuse_existing, writing_folder
from contrasent.model.precision import PRECISIONS
from contrasent.model.protocol import Encoder
from contrasent.search.nearest import nearest
from contrasent.search.storage import (
    FILE,
    IndexManifest,
    Maker,
    SegmentRows,
    embed,
    read_manifest,
    read_segment,
    remove_unlisted,
    write_manifest,
    write_segment,
)

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.word_encoder import WordEncoder


def similarity(encoder: Encoder, a: str, b: str, *, precision: str = "auto") -> float:
    """Cosine of the embeddings of two texts, in [-1, 1]; an empty text is refused."""
    for text in (a, b):
        if not text.strip():
            raise DataError(f"{text!r} is empty; a similarity needs two texts")
    rows = np.concatenate([*encoder.encode_stream([a, b], precision=precision)]).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise CheckpointError(f"{encoder.name} gives a vector without a direction; check it")
    return float(np.clip(rows[0] @ rows[1] / (lengths[0] * lengths[1]), -1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Hit:
    """An indexed text that was found.

    Attributes:
        id: the id it was given, or the number of its row.
        score: its cosine with the query, in [-1, 1].
    """

    id: str
    text: str
    score: float


class Index:
    """Exact search by cosine over embedded texts that lie in a folder.

    ``len(index)`` is the number of texts. Vectors and texts stay on disk, memory-mapped.

    Attributes:
        manifest: its encoder and its segments.
    """

    def __init__(self, folder: Path, manifest: IndexManifest, rows: list[SegmentRows]) -> None:
        """Use :meth:`open` or :meth:`build`."""
        self.folder = folder
        self.manifest = manifest
        self._rows = rows
        self._checked: weakref.ref[Encoder] | None = None

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        texts: Iterable[str],
        folder: str | Path,
        ids: Sequence[str | int] | None = None,
        *,
        precision: str = "auto",
        overwrite: bool = False,
        show_progress: bool = False,
    ) -> Self:
        """Embed texts and write an index, as a whole or not at all.

        Args:
            encoder: what embeds the texts, and later the queries.
            texts: the texts, read once, as a stream.
            folder: where to write the index.
            ids: one different id per text; by default the numbers of the rows.
            precision: ``fp32``, ``bf16`` or ``auto``; queries use the same.
            overwrite: replace an index that is there already.
            show_progress: a progress bar on standard error.

        Raises:
            ConfigError: no such precision; or something else is at ``folder``, or an index and
                ``overwrite`` is off, or another process writes it.
            DataError: there is no text, a text is empty, or ids are repeated, empty or too few.
        """
        folder = Path(folder)
        require_folder(folder, overwrite)
        pick("precision", precision, PRECISIONS)
        local = Path(encoder.name).expanduser()  # absolute, to be found from anywhere
        maker = Maker(
            name=str(local.resolve()) if local.exists() else encoder.name,
            fingerprint=encoder.fingerprint(),
            pooler=encoder.pooler,
            head=encoder.head_name,
            width=encoder.width,
            precision=precision,
            engine=encoder.engine,
        )
        names = _require_ids(texts, ids, set())
        with exclusive(folder), writing_folder(folder.resolve()) as partial:
            blocks = embed(encoder, texts, precision, show_progress)
            first = write_segment(partial, 1, blocks, encoder.width, names)
            write_manifest(partial, IndexManifest(maker, (first,), ids is None))
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open an index.

        Raises:
            CheckpointError: there is none at ``folder``, or it is damaged.
        """
        folder = Path(folder)
        recover_folder(folder.resolve())
        manifest = read_manifest(folder)
        width = manifest.encoder.width
        rows = [read_segment(folder, segment, width) for segment in manifest.segments]
        return cls(folder, manifest, rows)

    def __len__(self) -> int:
        return self.manifest.rows

    def add(
        self,
        encoder: Encoder,
        texts: Iterable[str],
        ids: Sequence[str | int] | None = None,
        *,
        show_progress: bool = False,
    ) -> None:
        """Embed more texts with the encoder that built the index and append them, all or none.

        Raises:
            CheckpointError: another encoder built the index.
            ConfigError: another process writes to the index.
            DataError: as for :meth:`build`; or an id is in the index already.
        """
        self.require(encoder)
        with exclusive(self.folder):
            now = Index.open(self.folder)
            now.require(encoder)
            was = now.manifest
            names = _require_ids(texts, ids, now._known_ids(ids is None))
            remove_unlisted(self.folder, was.segments)
            blocks = embed(encoder, texts, was.encoder.precision, show_progress)
            number = len(was.segments) + 1
            more = write_segment(self.folder, number, blocks, encoder.width, names, was.rows)
            numbered = was.numbered and ids is None
            write_manifest(self.folder, IndexManifest(was.encoder, (*was.segments, more), numbered))
        grown = Index.open(self.folder)
        self.manifest, self._rows = grown.manifest, grown._rows

    def search(self, encoder: Encoder, queries: Sequence[str], top_k: int = 10) -> list[list[Hit]]:
        """The ``top_k`` texts nearest to each query by cosine, best first.

        Equal scores are in the order of the rows. Fewer hits than ``top_k`` come back only when
        the index holds fewer texts. An encoder is checked when it searches for the first time.

        Raises:
            CheckpointError: another encoder built the index.
            ConfigError: ``top_k`` is below 1, or one string was given instead of a list.
            DataError: a query is empty.
        """
        if isinstance(queries, str):
            raise ConfigError("queries must be a list of strings, not one string: put it in [ ]")
        for number, query in enumerate(queries):
            require_query(query, top_k, f"query {number}")
        if self._checked is None or self._checked() is not encoder:
            self.require(encoder)
            self._checked = weakref.ref(encoder)  # hashing all weights takes longer than a search
        precision = self.manifest.encoder.precision
        blocks = list(encoder.encode_stream(queries, normalize=True, precision=precision))
        if not blocks:
            return []
        nearby = nearest([rows.vectors for rows in self._rows], np.concatenate(blocks), top_k)
        return [[self._hit(row, score) for row, score in hits] for hits in nearby]

    def require(self, encoder: Encoder) -> None:
        """Make sure that ``encoder`` is the one that built the index; the refusal names both."""
        maker, fingerprint = self.manifest.encoder, encoder.fingerprint()
        if fingerprint != maker.fingerprint:
            raise CheckpointError(
                f"{self.folder} was built with {maker.name} (pooler {maker.pooler}, head "
                f"{maker.head}, engine {maker.engine}, fingerprint {maker.fingerprint}), not with "
                f"{encoder.name} (pooler {encoder.pooler}, head {encoder.head_name}, engine "
                f"{encoder.engine}, fingerprint {fingerprint}): their vectors cannot be compared; "
                "use that encoder, or build an index with this one"
            )

    def _hit(self, row: int, score: float) -> Hit:
        ends = list(accumulate(segment.rows for segment in self.manifest.segments))
        number = bisect_right(ends, row)
        rows, offset = self._rows[number], row - (ends[number - 1] if number else 0)
        return Hit(rows.ids[offset].as_py(), rows.texts[offset].as_py(), score)

    def _known_ids(self, numbering: bool) -> set[str]:
        """Ids that a new text must not have."""
        if not numbering:
            return {id_ for rows in self._rows for id_ in rows.ids.to_pylist()}
        if self.manifest.numbered:
            return set()
        raise DataError(
            f"the texts of {self.folder} have ids of their own, so the new ones need ids too: "
            "give them with --ids COLUMN (ids=[...] in Python)"
        )


def require_folder(folder: Path, overwrite: bool) -> None:
    """Make sure that an index can be built at ``folder``, before anything expensive happens."""
    recover_folder(folder.resolve())
    is_index = (folder / FILE).is_file()
    if not (is_index and overwrite):
        remedy = "it is not an index, so it is left alone: name another folder"
        if is_index:
            remedy = "pass --overwrite to replace it, or add to it with: contrasent index add"
        refuse_existing(folder, remedy)


def require_query(query: str, top_k: int, name: str = "the query") -> None:
    """Make sure that something is looked for."""
    if top_k < 1:
        raise ConfigError(f"top_k must be at least 1, not {top_k}")
    if not isinstance(query, str) or not query.strip():
        raise DataError(f"{name} is {query!r}; write what to look for")


def _require_ids(
    texts: Iterable[str], ids: Sequence[str | int] | None, known: set[str]
) -> list[str] | None:
    """The ids as text, checked before anything is embedded."""
    if isinstance(texts, str):
        raise ConfigError("texts must be a list of strings, not one string: put it in [ ]")
    if ids is None:
        return None
    if isinstance(texts, Sequence) and len(texts) != len(ids):
        raise DataError(f"there are {len(ids)} ids, but {len(texts)} texts")
    names, new = [str(name) for name in ids], set[str]()
    for row, name in enumerate(names):
        if not name.strip():
            raise DataError(f"the id of text {row} is empty; every text needs its own")
        if name in known:
            raise DataError(f"id {name!r} of text {row} is in the index already")
        if name in new:
            raise DataError(f"id {name!r} of text {row} was given to text {names.index(name)} too")
        new.add(name)
    return names


def encoder_of(
    index: Index, name: str | None = None, device: str | None = None
) -> SentenceEncoder | WordEncoder:
    """Load the encoder that the index names, or ``name``, which must be equal to it."""
    from contrasent.model.loading import load_encoder

    maker = index.manifest.encoder
    try:
        encoder = load_encoder(
            name or maker.name,
            pooler=maker.pooler,
            head=maker.head,
            engine=maker.engine,
            device=device,
        )
    except CheckpointError as error:
        if name is not None:
            raise
        raise CheckpointError(
            f"{index.folder} was built with {maker.name}, which cannot be loaded: {error}; "
            "if the encoder has moved, say where it is with --encoder FOLDER"
        ) from error
    index.require(encoder)
    return encoder
