"""The encoders that a run leaves, whole at every moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contrasent.files import remove_folder, write_text
from contrasent.model.checkpoint import INFO_FILE
from contrasent.model.encoder import SentenceEncoder
from contrasent.records import Record
from contrasent.train.folder import twin_of


def save_encoders(
    folder: Path,
    encoder: SentenceEncoder,
    twin: SentenceEncoder | None,
    info: Mapping[str, Any],
    save: Callable[[SentenceEncoder, Path, Mapping[str, Any]], None] = SentenceEncoder.save,
) -> None:
    """Write the encoder that is evaluated, and its twin beside it.

    Two folders cannot be replaced at one moment. So the old twin is removed before the first
    folder is replaced, and the new one written after: wherever this is cut off, a twin that is
    there was saved at the step of the encoder beside it, and one that would not fit is missing.
    A resumed run comes back to the same step, and writes both.

    Args:
        folder: of the encoder.
        encoder: of the first view.
        twin: of the others, or None.
        info: kept in both; the twin's says whose twin it is, and has no dev scores.
        save: how the first is written.
    """
    beside = twin_of(folder)
    if twin is not None:
        remove_folder(beside)
    save(encoder, folder, info)
    if twin is not None:
        twin.save(beside, {**info, "dev_spearman": {}, "twin_of": folder.name})


def add_scores(folder: Path, records: Sequence[Record]) -> None:
    """Put the scores over whole tasks beside what is kept with the encoder in ``folder``."""
    path = folder / INFO_FILE
    info = json.loads(path.read_text(encoding="utf-8"))
    info["scores"] = [asdict(record) for record in records if record.aggregation != "subset"]
    write_text(path, json.dumps(info, indent=2, ensure_ascii=False) + "\n")
