"""The encoder's form on disk: a sentence-transformers folder plus ``contrasent.json``.

Also read: plain Hugging Face folders, the published SimCSE and DiffCSE checkpoints, and the
folders that their training scripts wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.data.tokens import Tokenizer
from contrasent.errors import CheckpointError, pick, warn
from contrasent.files import writing_folder
from contrasent.model import st_modules
from contrasent.model.backbones.base import Backbone
from contrasent.model.heads import MlpHead
from contrasent.model.hub import resolve
from contrasent.model.pooling import POOLERS
from contrasent.model.weights import load_backbone, quiet, read_tensors
from contrasent.records import installed_versions

INFO_FILE = "contrasent.json"
HEADS = ("mlp", "none")

_BERT, _ROBERTA = ("bert-base-uncased", "bert-large-uncased"), ("roberta-base", "roberta-large")
PUBLISHED_HEADS = {
    **{f"princeton-nlp/sup-simcse-{name}": "mlp" for name in _BERT + _ROBERTA},
    **{f"princeton-nlp/unsup-simcse-{name}": "none" for name in _BERT + _ROBERTA},
    **{
        f"voidism/diffcse-{name}-{kind}": "none"
        for name in ("bert-base-uncased", "roberta-base")
        for kind in ("sts", "trans")
    },
}
"""Published checkpoints say nowhere in their files whether the stored head is for inference."""

_STORED_HEADS = ("mlp.dense", "pooler.dense", "bert.pooler.dense", "roberta.pooler.dense")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an encoder is made of."""

    backbone: Backbone
    tokenizer: Tokenizer
    pooler: str
    head: MlpHead | None
    normalize: bool
    max_tokens: int | None


def read(name: str | Path, *, pooler: str | None = None, head: str | None = None) -> Parts:
    """Read the parts of an encoder; arguments and errors as `SentenceEncoder.load`."""
    if pooler is not None:
        pick("pooler", pooler, POOLERS)
    if head is not None:
        pick("head", head, HEADS)
    folder = resolve(name)
    stated = st_modules.read(folder) if st_modules.is_in(folder) else None
    if stated is None:
        stated = _plain(str(name), folder, pooler, head)
    backbone = load_backbone(stated.transformer)
    tokenizer = Tokenizer.load(stated.transformer)
    embeddings: Any = backbone.model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if tokenizer.vocabulary > rows:
        raise CheckpointError(
            f"the tokenizer in {folder} has {tokenizer.vocabulary} token ids, its weights only "
            f"{rows}: they belong to different models"
        )
    wanted = stated.head if head is None else head
    return Parts(
        backbone=backbone,
        tokenizer=tokenizer,
        pooler=pooler or _saved_name(folder, stated.pooler, backbone.depth),
        head=_head(stated, folder, backbone.width) if wanted == "mlp" else None,
        normalize=stated.normalize,
        max_tokens=stated.max_tokens,
    )


def says_how_it_embeds(name: str | Path) -> bool:
    """Whether ``name`` is a sentence encoder, and not a plain masked language model.

    Raises:
        CheckpointError: there is no such encoder.
    """
    return str(name) in PUBLISHED_HEADS or st_modules.is_in(resolve(name))


def write(folder: str | Path, parts: Parts, info: Mapping[str, Any]) -> None:
    """Write ``parts`` as a sentence-transformers folder, replacing ``folder`` as a whole."""
    with writing_folder(folder) as partial:
        with quiet():
            parts.backbone.model.save_pretrained(partial)
        parts.tokenizer.save(partial)
        st_modules.write(
            partial,
            pooler=parts.pooler,
            head=parts.head,
            normalize=parts.normalize,
            max_tokens=parts.max_tokens,
            width=parts.backbone.width,
            depth=parts.backbone.depth,
        )
        made = {
            "pooler": parts.pooler,
            "head": "none" if parts.head is None else "mlp",
            "normalize": parts.normalize,
            "max_tokens": parts.max_tokens,
        }
        write_info(partial, {**made, **info})


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Write ``contrasent.json``, with the versions that are installed."""
    made = {"format": 1, **info, "versions": installed_versions()}
    text = json.dumps(made, indent=2, ensure_ascii=False) + "\n"
    (folder / INFO_FILE).write_text(text, encoding="utf-8")


def _plain(name: str, folder: Path, pooler: str | None, head: str | None) -> st_modules.Stated:
    """What a folder without `modules.json` is taken for."""
    published = PUBLISHED_HEADS.get(name)
    if published is None and (pooler is None or head is None):
        warn(
            f"{folder} does not say how it makes an embedding: taking pooler "
            f"{pooler or 'cls'!r} with head {head or 'none'!r}. Supervised SimCSE checkpoints "
            "need head 'mlp'; pass pooler and head to choose, and to silence this"
        )
    return st_modules.Stated(transformer=folder, pooler="cls", head=published or "none")


def _saved_name(folder: Path, name: str, depth: int) -> str:
    """Of several poolers that are one in a shallow model, the one the encoder was saved with."""
    path = folder / INFO_FILE
    if not path.is_file() or not st_modules.is_in(folder):
        return name
    try:
        saved = POOLERS.get(json.loads(path.read_text(encoding="utf-8"))["pooler"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    stated = POOLERS[name]
    if saved is None or saved.first_only != stated.first_only:
        return name
    return saved.name if saved.shares(depth) == stated.shares(depth) else name


def _head(stated: st_modules.Stated, folder: Path, width: int) -> MlpHead:
    """The stored head.

    Raises:
        CheckpointError: none is stored, so that it would be random; or it is one for embeddings
            of another width.
    """
    names: tuple[str, ...] = _STORED_HEADS
    source = stated.transformer
    if stated.dense is not None:
        names, source = ("linear",), stated.dense
    tensors = read_tensors(source, [f"{n}.{part}" for n in names for part in ("weight", "bias")])
    for name in names:
        weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
        if weight is not None and bias is not None:
            if weight.shape[1:] != (width,) or bias.shape != weight.shape[:1]:
                raise CheckpointError(
                    f"the head in {source} has weights {list(weight.shape)} and "
                    f"{list(bias.shape)}, which do not fit embeddings of {width} numbers"
                )
            head = MlpHead(weight.shape[1], weight.shape[0])
            head.linear.load_state_dict({"weight": weight, "bias": bias})
            return head
    raise CheckpointError(
        f"{folder} stores no Linear+Tanh head ({', '.join(names)}), and a random one would spoil "
        "every embedding; load it with head 'none', or train a head"
    )
