"""The encoder's form on disk: a sentence-transformers folder plus ``contrasent.json``.

Also read: plain Hugging Face folders, the published SimCSE and DiffCSE checkpoints, and the
folders that their training scripts wrote.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import CheckpointError, ConfigError, pick, warn
from contrasent.files import read_json, recover_folder, refuse_existing, write_json, writing_folder
from contrasent.model import st_folder
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.word_lstm import WordLstm, require_pooler
from contrasent.model.heads import MlpHead
from contrasent.model.hub import INFO_FILE, resolve, write_card
from contrasent.model.pooling import POOLERS
from contrasent.model.protocol import EncoderParts
from contrasent.model.st_folder import is_static
from contrasent.model.st_modules import TANH, dense_rows, read_cnn, read_dense, write_dense
from contrasent.model.st_words import read_lstm, read_words
from contrasent.model.transforms.base import DenseMap, Transform, available, empty
from contrasent.model.transforms.folder import read_transform
from contrasent.model.weights import load_backbone, load_exact, merged_state, quiet, read_tensors
from contrasent.records import installed_versions

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from contrasent.model.encoder import SentenceEncoder

HEADS = ("mlp", "none")
KEPT_HEAD = "head"
"""Folder, inside an encoder's, of a head that was trained with it and is not part of it."""

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

_WITH_POOLER = ("bert", "roberta", "xlm-roberta")
"""Architectures that transformers gives a Linear and Tanh over [CLS]."""
_STORED_HEADS = ("mlp.dense", "pooler.dense", "bert.pooler.dense", "roberta.pooler.dense")


def read(name: str | Path, *, pooler: str | None = None, head: str | None = None) -> EncoderParts:
    """Read the parts of an encoder; arguments and errors as `SentenceEncoder.load`."""
    if pooler is not None:
        pick("pooler", pooler, POOLERS)
    if head is not None:
        pick("head", head, HEADS)
    folder = resolve(name)
    if is_static(folder):
        raise CheckpointError(
            f"{folder} holds a static table, and no transformer; load it with "
            f"contrasent.load_encoder({str(name)!r}), which takes every kind"
        )
    stated = st_folder.read(folder) if st_folder.is_in(folder) else None
    if stated is None:
        stated = _plain(str(name), folder, pooler, head)
    backbone, tokenizer, limit = _transformer(stated)
    info = _info(folder)
    saved = _saved_name(info, stated.pooler, backbone.depth)
    if stated.lstm is not None:
        require_pooler(pooler or saved)
    _require_own_way(stated, saved, pooler, head)
    wanted = stated.head if head is None else head
    width, convolutions = backbone.width, None
    if stated.convolutions is not None:
        convolutions = read_cnn(stated.convolutions, width)
        width = convolutions.width
    stored_head = _head(stated, folder, width) if wanted == "mlp" else None
    width = width if stored_head is None else stored_head.linear.out_features
    return EncoderParts(
        backbone=backbone,
        tokenizer=tokenizer,
        pooler=pooler or saved,
        head=stored_head,
        convolutions=convolutions,
        normalize=stated.normalize,
        max_tokens=limit,
        transform=_transform(stated, info, width),
        conventions=stated.conventions,
    )


def is_sentence_encoder(name: str | Path) -> bool:
    """Whether ``name`` is a sentence encoder, and not a plain masked language model."""
    return published_head(name) is not None or st_folder.is_in(resolve(name))


def published_head(name: str | Path) -> str | None:
    """The head that a published checkpoint is used with; None if ``name`` is none of them.

    ``name`` is its id, or the path of a copy: a folder that is called as the checkpoint is, or the
    hub's cache of it (``models--ORG--NAME/snapshots/...``).
    """
    if str(name) in PUBLISHED_HEADS:
        return PUBLISHED_HEADS[str(name)]
    parts = Path(name).expanduser().absolute().parts
    ids = [part.removeprefix("models--").replace("--", "/", 1) for part in parts]
    cached = [known for known in ids if known in PUBLISHED_HEADS]
    copies = [known for known in PUBLISHED_HEADS if known.rpartition("/")[2] == parts[-1]]
    return next((PUBLISHED_HEADS[known] for known in (*cached, *copies)), None)


def write(
    folder: str | Path,
    encoder: SentenceEncoder,
    info: Mapping[str, Any],
    kept_head: MlpHead | None = None,
) -> None:
    """Write a sentence-transformers folder, replacing ``folder`` as a whole.

    ``kept_head`` is a head of training that the encoder is used without.
    """
    with writing_encoder(folder) as partial:
        if not isinstance(encoder.backbone, WordLstm):
            model = encoder.backbone.model
            head = encoder.head if encoder.pooler == "cls" else None
            state = merged_state(model)
            state |= unused_pooler(model, state.keys(), head)
            with quiet():
                model.save_pretrained(partial, state_dict=state)
            encoder.tokenizer.save(partial)
        st_folder.write(partial, encoder)
        if kept_head is not None:
            write_dense(partial / KEPT_HEAD, kept_head.linear, TANH)
        about: dict[str, Any] = {
            "pooler": encoder.pooler,
            "head": encoder.head_name,
            "normalize": encoder.normalize,
            "max_tokens": encoder.max_tokens,
        }
        if (transform := encoder.transform) is not None:
            told = {"described": transform.described, **info.get("transform", {})}
            told |= {"name": transform.name, "settings": transform.settings()}
            info = {**info, "transform": told}
        write_info(partial, {**about, **info})
        write_card(partial)


def unused_pooler(
    model: PreTrainedModel, known: Set[str], head: MlpHead | None
) -> dict[str, Tensor]:
    """Weights of the layer over [CLS] that this architecture has and ``known`` ones lack.

    Others load a folder with that layer and would draw them at random, with a warning. They are
    the head's if that is such a layer, else the identity; nothing here reads them.
    """
    kind = type(model)
    if "add_pooling_layer" not in inspect.signature(kind).parameters:
        return {}
    with torch.random.fork_rng(devices=[]), torch.device("meta"), quiet():
        whole = kind(copy.deepcopy(model.config))
    lacking = {n: value.shape for n, value in whole.state_dict().items() if n not in known}
    if head is not None and head.linear.weight.shape in lacking.values():
        parts = {2: head.linear.weight.detach(), 1: head.linear.bias.detach()}
        return {name: parts[len(shape)].clone() for name, shape in lacking.items()}
    return {
        name: torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape)
        for name, shape in lacking.items()
    }


def write_plain(encoder: SentenceEncoder, folder: Path) -> None:
    """Write into ``folder`` a transformer with the head as ``pooler.dense``, as SimCSE's are.

    ConfigError if the layout does not say how this encoder makes its vectors.
    """
    extra = [n for n in ("convolutions", "transform") if getattr(encoder, n) is not None]
    model: Any = encoder.backbone.model
    if encoder.pooler != "cls" or extra or model.config.model_type not in _WITH_POOLER:
        what = extra[0] if extra else f"pooler {encoder.pooler!r} of {model.config.model_type}"
        raise ConfigError(
            f"SimCSE's layout holds [CLS] of {' or '.join(_WITH_POOLER)}, with or without a head, "
            f"and no {what}; export another format"
        )
    with quiet():
        model.save_pretrained(folder)
        encoder.tokenizer.save(folder)
    if encoder.head is not None:
        path = folder / "model.safetensors"
        state = load_file(path)
        dense = encoder.head.linear.state_dict().items()
        state |= {f"pooler.dense.{name}": tensor.detach().cpu() for name, tensor in dense}
        save_file(state, path, metadata={"format": "pt"})
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "architectures": [type(model).__name__]})


@contextmanager
def writing_encoder(folder: str | Path) -> Iterator[Path]:
    """:func:`writing_folder`, which here replaces what contrasent saved, and nothing else.

    ConfigError if ``folder`` holds something else.
    """
    recover_folder(folder)
    if Path(folder).is_dir() and not (Path(folder) / INFO_FILE).is_file():
        refuse_existing(
            folder,
            f"without a {INFO_FILE} it is nothing that contrasent saved; name another folder",
        )
    with writing_folder(folder) as partial:
        yield partial


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Write ``contrasent.json``, with the versions that are installed."""
    content = {"format": 1, **info, "versions": installed_versions()}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (folder / INFO_FILE).write_text(text, encoding="utf-8")


def _transformer(stated: st_folder.FolderSpec) -> tuple[Backbone, Tokenizer, int | None]:
    """The transformer or LSTM, its tokenizer, and where the folder cuts sentences."""
    if stated.lstm is not None:
        words, limit = read_words(stated.transformer)
        return read_lstm(stated.lstm, words.store), words, limit
    backbone = load_backbone(stated.transformer)
    tokenizer = Tokenizer.load(stated.transformer, lower_case=stated.lower_case)
    expansion = stated.conventions.query_expansion
    if expansion is not None:
        tokenizer.filler(expansion.token)
    embeddings: Any = backbone.model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if tokenizer.vocabulary > rows:
        raise CheckpointError(
            f"the tokenizer in {stated.transformer} has {tokenizer.vocabulary} token ids, its "
            f"weights only {rows}: they belong to different models"
        )
    return backbone, tokenizer, stated.max_tokens


def _plain(name: str, folder: Path, pooler: str | None, head: str | None) -> st_folder.FolderSpec:
    """What a folder without `modules.json` is taken for."""
    published = published_head(name)
    if published is None and (pooler is None or head is None):
        warn(
            f"{folder} does not say how it makes an embedding: taking pooler "
            f"{pooler or 'cls'!r} with head {head or 'none'!r}. Supervised SimCSE checkpoints "
            "need head 'mlp'; pass pooler and head to choose, and to silence this"
        )
    return st_folder.FolderSpec(transformer=folder, pooler="cls", head=published or "none")


def training_seed(name: str) -> int | None:
    """The seed of the training run that made an encoder; None if no run of ours changed it."""
    if not Path(name).expanduser().is_dir():
        return None
    info = _info(resolve(name))
    settings = info.get("recipe", {}).get("train", {})
    return settings.get("seed") if info.get("step") else None


def _info(folder: Path) -> dict[str, Any]:
    """What we wrote into a sentence-transformers folder about it; empty for another's."""
    path = folder / INFO_FILE
    if not path.is_file() or not st_folder.is_in(folder):
        return {}
    info = read_json(path)
    if not isinstance(info, dict) or not isinstance(info.get("pooler"), str):
        raise CheckpointError(f"{path} is damaged: it names no pooler")
    return info


def _saved_name(info: Mapping[str, Any], name: str, depth: int) -> str:
    """Of several poolers that are one in a shallow model, the one the encoder was saved with."""
    saved, stated = POOLERS.get(info.get("pooler", "")), POOLERS[name]
    if saved is None or saved.st_mode != stated.st_mode:
        return name
    return saved.name if saved.shares(depth) == stated.shares(depth) else name


def _require_own_way(
    stated: st_folder.FolderSpec, saved: str, pooler: str | None, head: str | None
) -> None:
    """A transform maps the embeddings it was fitted on, and no others."""
    if stated.convolutions is not None and pooler not in (None, "mean"):
        raise ConfigError(
            f"{stated.convolutions} convolves token states for their mean, so its folder cannot be "
            f"used with pooler {pooler!r}; leave the pooler out"
        )
    path = stated.linear[0] if stated.linear else stated.fitted
    if path is None:
        return
    for kind, asked, used in (("pooler", pooler, saved), ("head", head, stated.head)):
        if asked not in (None, used):
            raise ConfigError(
                f"{path.parent} has a map that was fitted on embeddings of {kind} {used!r}, so it "
                f"cannot be used with {kind} {asked!r}; fit another one on those"
            )


def _transform(
    stated: st_folder.FolderSpec, info: Mapping[str, Any], width: int
) -> Transform | None:
    """The map after the head, with what our file says about it."""
    about = info.get("transform")
    about = about if isinstance(about, dict) else {}
    transform: Transform
    if stated.fitted is not None:
        transform = read_transform(stated.fitted)
        if transform.input_width != width:
            raise CheckpointError(
                f"{stated.fitted} maps embeddings of {transform.input_width} dimensions, but "
                f"these have {width}"
            )
    elif stated.linear:
        transform = _linear(stated.linear, width, about)
    else:
        return None
    transform.described = str(about.get("described", transform.described))
    return transform


def _linear(paths: Sequence[Path], width: int, about: Mapping[str, Any]) -> Transform:
    """The linear maps at ``paths`` as one, of embeddings of ``width`` dimensions.

    A single one is of the kind that our file is ``about``.
    """
    maps: list[DenseMap] = []
    for path in paths:
        after: Any = DenseMap(width, rows := dense_rows(path))
        if len(paths) == 1 and about.get("name") in available():
            after = empty(about["name"], about.get("settings", after.settings()))
        read_dense(after, path, f"a linear map of {width} dimensions")
        maps.append(after)
        width = rows
    return reduce(DenseMap.then, maps)


def _head(stated: st_folder.FolderSpec, folder: Path, width: int) -> MlpHead:
    """The stored head; CheckpointError if there is none, or one of another width."""
    reason = f"a head over embeddings of {width} dimensions"
    kept = folder / KEPT_HEAD if (folder / KEPT_HEAD).is_dir() else None
    if (dense := stated.dense or kept) is not None:
        head = MlpHead(width, dense_rows(dense))
        read_dense(head.linear, dense, reason)
        return head
    # The layer over [CLS] among our own weights is `unused_pooler`.
    names = () if (folder / INFO_FILE).is_file() and st_folder.is_in(folder) else _STORED_HEADS
    wanted = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    tensors = read_tensors(stated.transformer, wanted)
    for name in names:
        bias = tensors.get(f"{name}.bias")
        if bias is not None and f"{name}.weight" in tensors:
            head = MlpHead(width, bias.numel())
            load_exact(head.linear, tensors, stated.transformer, reason, f"{name}.")
            return head
    raise CheckpointError(
        f"{folder} stores no Linear+Tanh head ({', '.join(_STORED_HEADS)}), and a random one would "
        "spoil every embedding; load it with head 'none', or train a head"
    )
