"""Model cards, and publishing an encoder on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from contrasent.errors import CheckpointError, first_line
from contrasent.files import read_json, write_text
from contrasent.model.conventions import read_conventions
from contrasent.model.hub import (
    CARD,
    INFO_FILE,
    encoder_folder,
    hub_id,
    places_of,
    resolve,
    section,
)

_CARD = Path(__file__).with_name("model_card.md.jinja")
_PATH = re.compile(r"(?<![\w:/.~])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\",;:]+[/\\])*([^\s/\\'\",;:]+)")
_ON_TEI = ("cls", "mean", "last")
_TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "contrasent")
_WIDTHS = ("out_features", "width", "word_embedding_dimension", "embedding_dimension")


def write_card(folder: Path) -> None:
    """Write the card of the encoder in ``folder``."""
    write_text(folder / CARD, card_text(folder))


def card_text(folder: Path, name: str | None = None) -> str:
    """The card of the encoder in ``folder``, which is called ``name`` on the hub."""
    import yaml
    from jinja2 import Environment, StrictUndefined

    known = without_paths(read_json(folder / INFO_FILE))
    recipe, data = section(known, "recipe"), section(known, "data")
    base = hub_id(_first_start(folder))
    link = base and f"[{base}](https://huggingface.co/{base})"
    start = PurePath(section(recipe, "encoder").get("name") or "a sentence encoder").name
    objective = str(section(recipe, "objective").get("name") or "contrasent")
    title = name or f"{start} trained with {objective}"
    scores, before = _main(known.get("scores")), _main(known.get("scores_before"))
    modules = read_json(folder / "modules.json")
    is_ours = any(module["type"].startswith("contrasent.") for module in modules)
    files = [folder / module["path"] / "config.json" for module in modules if module["path"]]
    configs = [read_json(it) for it in files if it.is_file()]
    source = str(section(recipe, "data").get("file") or "").partition(":")[0].partition("@")[0]
    is_dataset = "/" in source and hub_id(source) and not PurePath(source).suffix
    dataset = f"[{source}](https://huggingface.co/datasets/{source})" if is_dataset else ""
    licence = f"that of {dataset}" if dataset else "not known here: name it before you publish"
    count = f", {data['examples']:,} examples" if "examples" in data else ""
    facts = [
        ("Starts from", link or start),
        # what the last module that says so gives
        ("Embedding", f"{[it[w] for it in configs for w in _WIDTHS if w in it][-1]} dimensions"),
        ("Longest text", f"{known['max_tokens']} tokens" if known.get("max_tokens") else ""),
        ("Pooler, head", f"{known.get('pooler')}, {known.get('head')}"),
        ("Length 1", "yes" if known.get("normalize") else "no: compare by cosine"),
        *(
            (f"Prompt `{prompt}`", f"`{text!r}`" if text else "")
            for prompt, text in read_conventions(folder).prompts.items()
        ),
        ("Training text", f"{data.get('source', '')}{count}" if data else ""),
        ("Its SHA-256", f"`{data.get('sha256', 'not known')}`" if data else ""),
        ("Its licence", licence if data else ""),
        ("Map after the pooler", section(known, "transform").get("described") or ""),
    ]
    metadata: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [*_TAGS, *([objective] if recipe else [])],
    }
    metadata |= {"base_model": base} if base else {}
    metadata |= {"datasets": [source]} if is_dataset else {}
    results = [
        {
            "task": {"type": "semantic-similarity", "name": "Semantic Similarity"},
            "dataset": {"name": f"{score['task']} {score['split']}", "type": score["task"]},
            "metrics": [{"type": score["metric"], "value": round(score["value"], 4)}],
        }
        for score in scores.values()
    ]
    metadata |= {"model-index": [{"name": title, "results": results}]} if results else {}
    page = Environment(trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    page.filters |= {"cell": lambda text: text.replace("|", "\\|"), "score": _printed}
    yml: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": False}
    return page.from_string(_CARD.read_text(encoding="utf-8")).render(
        metadata=yaml.safe_dump(metadata, **yml),
        title=title,
        facts=facts,
        recipe=yaml.safe_dump(recipe, **yml) if recipe else "",
        step=known.get("step", "?"),
        scores=[(score, before.get(key)) for key, score in scores.items()],
        gains=known.get("gains") or (),
        overlaps=[(it["task"], it["overlap"]) for it in scores.values() if it.get("overlap")],
        name=name or "path/to/this/folder",
        trusted=is_ours,
        on_tei=known.get("pooler") in _ON_TEI and not is_ours,
        base_link=link,
    )


def _first_start(folder: Path) -> str:
    """The name that the first of the runs behind an encoder started from; empty if not known."""
    name, seen, place = "", set[Path](), encoder_folder([folder])
    while place is not None and place not in seen:
        seen.add(place)
        try:
            info = read_json(place / INFO_FILE)
        except CheckpointError:
            return ""
        name = str(section(info, "recipe", "encoder").get("name") or "")
        place = encoder_folder(places_of(name, place)) if name else None
    return name


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


def _printed(score: Mapping[str, Any] | None) -> str:
    """A score x 100 with its interval; empty for none."""
    if score is None:
        return ""
    between = score.get("interval")
    ends = f" ({100 * between['low']:.2f} to {100 * between['high']:.2f})" if between else ""
    return f"{100 * score['value']:.2f}{ends}"


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
