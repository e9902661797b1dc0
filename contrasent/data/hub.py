"""Examples of a data set on the Hugging Face hub, streamed at one pinned revision."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from contrasent.data.columns import named_columns
from contrasent.data.examples import Examples, Row
from contrasent.data.readers import Trouble
from contrasent.errors import DataError, MissingExtraError


class HubExamples(Examples):
    """Examples of ``org/name[:config][@split]``; a null is an empty sentence.

    The revision is looked up once, so that every pass reads the same rows, and a hash of it stands
    for the content.
    """

    def __init__(self, source: str, parts: re.Match[str], columns: Sequence[str] | None) -> None:
        self._name, self._config = parts["name"], parts["config"]
        self._split = parts["split"] or "train"
        super().__init__(source, 0, "")
        _library()
        try:
            self.revision = _revision(self._name)
        except Exception as error:  # the HTTP client has its own family of errors
            raise self._unreadable(error) from error
        first = next(self._records(), None)
        if first is None:
            raise DataError(f"{source} is empty; it needs at least one row")
        self._names, self.columns = named_columns([*first], columns, f"{source}:1")
        self.views = len(self._names)

    @property
    @override
    def sha256(self) -> str:
        told = (self._name, self._config, self._split, self.revision, self._names)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        for number, record in enumerate(self._records(), start=1):
            cells = [record.get(name) for name in self._names]
            wrong = [cell for cell in cells if not (cell is None or isinstance(cell, str))]
            if wrong:
                trouble(DataError(f"{self.source}:{number}: {wrong[0]!r} is no text"))
            else:
                yield f"{self.source}:{number}", cells

    def _records(self) -> Iterator[dict[str, Any]]:
        load = _library().load_dataset
        settings = {"split": self._split, "revision": self.revision, "streaming": True}
        try:
            yield from load(self._name, self._config, **settings)
        except Exception as error:  # the library and its file systems raise all kinds
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        return DataError(
            f"cannot read the data set {self.source!r}: {told}; check the name, config and split "
            "(org/name:config@split), the network and HF_HUB_OFFLINE, or give a file instead: "
            "no file has that name"
        )


def _revision(name: str) -> str:
    """The commit that the data set stands at now."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(name).sha)


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            "reading a data set from the hub needs the package datasets: "
            "pip install 'contrasent[datasets]'"
        ) from error
    return datasets
