"""The encoder's form on disk: a sentence-transformers folder plus ``contrasent.json``.

Written in the form that every version of sentence-transformers, and TEI, reads. Also read: plain
Hugging Face folders, the published SimCSE and DiffCSE checkpoints, and the folders that their
training scripts wrote.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import CheckpointError, ConfigError, pick, warn
from contrasent.files import read_json, recover_folder, refuse_existing, write_json, writing_folder
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.word_lstm import WordLstm, require_pooler
from contrasent.model.card import write_card
from contrasent.model.conventions import Conventions, read_conventions, write_conventions
from contrasent.model.heads import Convolutions, MlpHead
from contrasent.model.hub import INFO_FILE, resolve, section
from contrasent.model.pooling import POOLERS, Pooler
from contrasent.model.protocol import EncoderParts
from contrasent.model.st_modules import (
    TransformerConfig,
    is_in,
    is_static,
    mode_of,
    read_rows,
    read_settings,
    read_transform,
    read_words,
    write_module,
    write_rows,
    write_transform,
    write_words,
)
from contrasent.model.transforms.base import DenseMap, Transform, transform_named
from contrasent.model.weights import (
    load_backbone,
    load_exact,
    merged_state,
    quiet,
    read_exact,
    read_tensors,
)
from contrasent.records import installed_versions

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from contrasent.model.encoder import SentenceEncoder

HEADS = ("mlp", "none")
KEPT_HEAD = "head"
"""Folder, inside an encoder's, of a head that was trained with it and is not part of it."""

_SIZES = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")
PUBLISHED_HEADS = {
    **{f"princeton-nlp/sup-simcse-{name}": "mlp" for name in _SIZES},
    **{f"princeton-nlp/unsup-simcse-{name}": "none" for name in _SIZES},
    **{f"voidism/diffcse-{n}-{kind}": "none" for n in _SIZES[::2] for kind in ("sts", "trans")},
}
"""Published checkpoints say nowhere in their files whether the stored head is for inference."""

_TANH, _IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
_HEAD = "Dense with Tanh"
_ORDER = re.compile(
    r"(Transformer( WeightedLayerPooling| CNN)?|WordVectors LSTM) Pooling"
    rf"( {_HEAD})?(( Dense)*| FittedTransform)( Normalize)?"
)
_DENSE = ("linear.weight", "linear.bias")
_ALWAYS_OFF = "pooling_mode_mean_sqrt_len_tokens"
_STORED_HEADS = ("mlp.dense", "pooler.dense", "bert.pooler.dense", "roberta.pooler.dense")


def read(name: str | Path, *, pooler: str | None = None, head: str | None = None) -> EncoderParts:
    """Read the parts of an encoder; arguments and errors as `SentenceEncoder.load`."""
    for kind, asked, known in (("pooler", pooler, POOLERS), ("head", head, HEADS)):
        if asked is not None:
            pick(kind, asked, known)
    folder = resolve(name)
    if is_static(folder):
        raise CheckpointError(
            f"{folder} holds a static table, and no transformer; load it with "
            f"contrasent.load_encoder({str(name)!r}), which takes every kind"
        )
    modules = read_modules(folder)
    paths, is_plain = dict(modules), len(modules) == 1
    linear = [path for kind, path in modules if kind == "Dense"]
    fitted = paths.get("FittedTransform")
    info = _info(folder)
    stated = TransformerConfig() if is_plain else read_settings(*modules[0])
    lengths = {} if "LSTM" in paths else stated.lengths
    conventions = Conventions() if is_plain else read_conventions(folder, **lengths)
    backbone, tokenizer, limit = _read_backbone(paths, stated)
    if conventions.query_expansion is not None:
        tokenizer.filler(conventions.query_expansion.token)
    if is_plain:
        published = published_head(name)
        used_pooler, used_head = "cls", published or "none"
        if published is None and (pooler is None or head is None):
            warn(
                f"{folder} does not say how it makes an embedding: taking pooler "
                f"{pooler or 'cls'!r} with head {head or 'none'!r}. Supervised SimCSE checkpoints "
                "need head 'mlp'; pass pooler and head to choose, and to silence this"
            )
    else:
        used_pooler = _read_pooler(paths, info, backbone.depth)
        used_head = "mlp" if _HEAD in paths else "none"
    if "LSTM" in paths:
        require_pooler(pooler or used_pooler)
    for kind, asked, used in (("pooler", pooler, used_pooler), ("head", head, used_head)):
        if asked not in (None, used) and (linear or fitted):
            raise ConfigError(
                f"{folder} has a map that was fitted on embeddings of {kind} {used!r}, so it "
                f"cannot be used with {kind} {asked!r}; fit another one on those"
            )
    convolutions = _read_cnn(paths["CNN"], backbone.width, pooler) if "CNN" in paths else None
    width, stored = backbone.width if convolutions is None else convolutions.width, None
    if (head or used_head) == "mlp":
        stored = _read_head(folder, paths.get(_HEAD), modules[0][1], width)
        width = stored.linear.out_features
    return EncoderParts(
        backbone=backbone,
        tokenizer=tokenizer,
        pooler=pooler or used_pooler,
        head=stored,
        convolutions=convolutions,
        normalize="Normalize" in paths,
        max_tokens=limit,
        transform=_read_map(linear, fitted, width, info),
        conventions=conventions,
    )


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The modules of a folder, by name; CheckpointError for an order that is not computed.

    A folder that is not sentence-transformers' is a Transformer alone.
    """
    if not is_in(folder):
        return [("Transformer", folder)]
    modules = read_rows(folder)
    for number, (name, path) in enumerate(modules):
        if name == "Dense" and read_settings(name, path).activation_function.endswith("Tanh"):
            modules[number] = _HEAD, path
    names = [name for name, _ in modules]
    if not _ORDER.fullmatch(" ".join(names)):
        raise CheckpointError(
            f"{folder} is made of {', '.join(names)}; only Transformer, Pooling, and after them "
            "one Dense with Tanh, linear ones or a fitted transform, and Normalize are computed"
        )
    if names[-1] == "Normalize":
        read_settings(*modules[-1])
    return modules


def is_sentence_encoder(name: str | Path) -> bool:
    """Whether ``name`` is a sentence encoder, and not a plain masked language model."""
    return published_head(name) is not None or is_in(resolve(name))


def published_head(name: str | Path) -> str | None:
    """The head that a published checkpoint is used with; None if ``name`` is none of them.

    ``name`` is its id, or the path of a copy: a folder that is called as the checkpoint is, or the
    hub's cache of it (``models--ORG--NAME/snapshots/...``).
    """
    parts = Path(name).expanduser().absolute().parts
    ids = [part.removeprefix("models--").replace("--", "/", 1) for part in parts]
    copies = [known for known in PUBLISHED_HEADS if known.rpartition("/")[2] == parts[-1]]
    known = (it for it in (str(name), *ids, *copies) if it in PUBLISHED_HEADS)
    return next((PUBLISHED_HEADS[it] for it in known), None)


def training_seed(name: str) -> int | None:
    """The seed of the training run that made an encoder; None if no run of ours changed it."""
    info = _info(resolve(name)) if Path(name).expanduser().is_dir() else {}
    return section(info, "recipe", "train").get("seed") if info.get("step") else None


def _info(folder: Path) -> dict[str, Any]:
    """What we wrote into a sentence-transformers folder about it; empty for another's."""
    path = folder / INFO_FILE
    if not path.is_file() or not is_in(folder):
        return {}
    info = read_json(path)
    if not isinstance(info, dict) or not isinstance(info.get("pooler"), str):
        raise CheckpointError(f"{path} is damaged: it names no pooler")
    return info


def _read_backbone(
    paths: Mapping[str, Path], stated: Any
) -> tuple[Backbone, Tokenizer, int | None]:
    """The transformer or LSTM, its tokenizer, and where the folder cuts sentences."""
    if "LSTM" in paths:
        path = paths["LSTM"]
        words, limit = read_words(paths["WordVectors"])
        config, width = read_settings("LSTM", path), words.store.width
        lstm = WordLstm(words.store, config.hidden_dim)
        shape = f"an LSTM of {config.hidden_dim} dimensions for each direction over {width}"
        read_exact(lstm.lstm, path, shape, "encoder.")
        return lstm, words, limit
    folder = paths["Transformer"]
    backbone = load_backbone(folder)
    tokenizer = Tokenizer.load(folder, lower_case=bool(stated.do_lower_case))
    embeddings: Any = backbone.model.get_input_embeddings()
    if tokenizer.vocabulary > (rows := embeddings.weight.shape[0]):
        raise CheckpointError(
            f"the tokenizer in {folder} has {tokenizer.vocabulary} token ids, its "
            f"weights only {rows}: they belong to different models"
        )
    return backbone, tokenizer, stated.limit


def _read_pooler(paths: Mapping[str, Path], info: Mapping[str, Any], depth: int) -> str:
    """The name of the pooler that averages over tokens and layers as the modules do.

    Of several that are one in a shallow model, it is that which the encoder was saved with.
    """
    modes = read_settings("Pooling", paths["Pooling"]).modes
    layers = paths.get("WeightedLayerPooling")
    alike = [
        it
        for it in POOLERS.values()
        if it.st_mode and [mode_of(it.st_mode)] == modes and not (layers and it.first_only)
    ]
    if not alike or ("CNN" in paths and modes != ["mean"]):
        *others, last = dict.fromkeys(mode_of(it.st_mode) for it in POOLERS.values() if it.st_mode)
        raise CheckpointError(
            f"{paths['Pooling']} pools by {' + '.join(modes)}; only {', '.join(others)} and {last} "
            "are computed, over several layers not cls, and over convolutions only mean"
        )
    shares = {depth: 1.0}
    if layers is not None:
        config = read_settings("WeightedLayerPooling", layers)
        weights = read_tensors(layers, ["layer_weights"]).get("layer_weights", torch.zeros(0))
        numbered = enumerate((weights / weights.sum()).tolist(), start=config.layer_start)
        shares = {number: round(share, 6) for number, share in numbered if share}
        depth = config.num_hidden_layers
    same = [it.name for it in alike if it.shares(depth) == shares]
    if not same:
        raise CheckpointError(f"{layers} weighs layers in a way that is none of our poolers")
    saved: str | None = info.get("pooler")
    return saved if saved in same else same[0]


def _read_cnn(path: Path, width: int, pooler: str | None) -> Convolutions:
    """The convolutions of a CNN module, for token states of ``width`` dimensions."""
    if pooler not in (None, "mean"):
        raise ConfigError(
            f"{path} convolves token states for their mean, so its folder cannot be "
            f"used with pooler {pooler!r}; leave the pooler out"
        )
    config = read_settings("CNN", path)
    sizes = config.kernel_sizes
    if len(config.stride_sizes or sizes) != len(sizes) or any(size % 2 == 0 for size in sizes):
        raise CheckpointError(
            f"{path} has kernel_sizes {sizes} and stride_sizes {config.stride_sizes}; only odd "
            "sizes, and a stride of 1 for each, are computed"
        )
    convolutions = Convolutions(width, sizes, config.out_channels)
    read_exact(convolutions, path, f"its configuration with token states of {width} dimensions")
    return convolutions


def _read_head(folder: Path, dense: Path | None, transformer: Path, width: int) -> MlpHead:
    """The stored head; CheckpointError if there is none, or one of another width."""
    reason = f"a head over embeddings of {width} dimensions"
    kept = folder / KEPT_HEAD if (folder / KEPT_HEAD).is_dir() else None
    if (path := dense or kept) is not None:
        tensors, rows = _dense_tensors(path)
        head = MlpHead(width, rows)
        load_exact(head.linear, tensors, path, reason, "linear.")
        return head
    # The layer over [CLS] among our own weights is `unused_pooler`.
    names = () if (folder / INFO_FILE).is_file() and is_in(folder) else _STORED_HEADS
    wanted = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    tensors = read_tensors(transformer, wanted)
    for name in names:
        if f"{name}.weight" in tensors and f"{name}.bias" in tensors:
            head = MlpHead(width, tensors[f"{name}.bias"].numel())
            load_exact(head.linear, tensors, transformer, reason, f"{name}.")
            return head
    raise CheckpointError(
        f"{folder} stores no Linear+Tanh head ({', '.join(_STORED_HEADS)}), and a random one would "
        "spoil every embedding; load it with head 'none', or train a head"
    )


def _dense_tensors(path: Path) -> tuple[dict[str, Tensor], int]:
    """The weight and bias of a Dense module, 0 of one without, and the width that it gives."""
    config, tensors = read_settings("Dense", path), read_tensors(path, _DENSE)
    weight = tensors.get(_DENSE[0], torch.zeros(0))
    if not config.bias:
        tensors.setdefault(_DENSE[1], torch.zeros(len(weight)))
    return tensors, config.out_features or len(weight)


def _read_map(
    linear: Sequence[Path], fitted: Path | None, width: int, info: Mapping[str, Any]
) -> Transform | None:
    """The map after the head of ``width`` dimensions: several ``linear`` ones as one, or a fitted.

    A single one is of the class that our file names.
    """
    about, transform = section(info, "transform"), None
    if fitted is not None:
        transform = read_transform(fitted)
    elif linear:
        maps: list[DenseMap] = []
        for path in linear:
            tensors, rows = _dense_tensors(path)
            after: Any = DenseMap(width, rows)
            if len(linear) == 1 and about.get("name") in Transform.kinds:
                after = transform_named(about["name"], about.get("settings", after.settings()))
            load_exact(after, tensors, path, f"a linear map of {width} dimensions", "linear.")
            maps.append(after)
            width = after.width
        transform = reduce(DenseMap.then, maps)
    if transform is not None:
        transform.described = str(about.get("described", transform.described))
    return transform


def write(
    folder: str | Path,
    encoder: SentenceEncoder,
    info: Mapping[str, Any],
    kept_head: MlpHead | None = None,
) -> None:
    """Write a sentence-transformers folder, replacing ``folder`` as a whole.

    ``kept_head`` is a head of training that the encoder is used without. ConfigError for a pooler
    that sentence-transformers does not have.
    """
    with writing_encoder(folder) as partial:
        if not isinstance(encoder.backbone, WordLstm):
            model = encoder.backbone.model
            head = encoder.head if encoder.pooler == "cls" else None
            state = merged_state(model)
            with quiet():
                unused = unused_pooler(model, state.keys(), head)
                model.save_pretrained(partial, state_dict=state | unused)
            encoder.tokenizer.save(partial)
        _write_modules(partial, encoder)
        if kept_head is not None:
            _write_dense(partial / KEPT_HEAD, kept_head.linear, _TANH)
        about: dict[str, Any] = {"pooler": encoder.pooler, "head": encoder.head_name}
        about |= {"normalize": encoder.normalize, "max_tokens": encoder.max_tokens}
        if (transform := encoder.transform) is not None:
            told = {"described": transform.described, **info.get("transform", {})}
            told |= {"name": transform.name, "settings": transform.settings()}
            info = {**info, "transform": told}
        write_info(partial, {**about, **info})
        write_card(partial)


def _write_modules(folder: Path, encoder: SentenceEncoder) -> None:
    """Write what comes around the transformer in ``folder``."""
    pooler: Pooler = POOLERS[encoder.pooler]
    if pooler.st_mode is None or (pooler.first_only and pooler.layers != (-1,)):
        raise ConfigError(
            f"sentence-transformers cannot express the pooler {pooler.name!r}, so that it would "
            "give other vectors; save the encoder with another pooler"
        )
    backbone, tokenizer, width = encoder.backbone, encoder.tokenizer, encoder.backbone.width
    rows: list[tuple[str, str]] = []

    def add(name: str) -> Path:
        rows.append((name, f"{len(rows)}_{name}"))
        return folder / rows[-1][1]

    if isinstance(backbone, WordLstm):
        words: Any = tokenizer
        write_words(add("WordVectors"), words, encoder.max_tokens)
        lstm = {
            "word_embedding_dimension": backbone.store.width,
            "hidden_dim": width // 2,
            "num_layers": 1,
            "dropout": 0,
            "bidirectional": True,
        }
        write_module("LSTM", add("LSTM"), lstm, backbone.lstm.state_dict(), "encoder.")
    else:
        rows.append(("Transformer", ""))
        limits = {"max_seq_length": encoder.max_tokens, "do_lower_case": tokenizer.lower_case}
        lengths = encoder.conventions.stated_lengths
        write_json(folder / "sentence_bert_config.json", {**limits, **lengths})
    if pooler.layers != (-1,):
        shares = pooler.shares(backbone.depth)
        start = min(shares)
        weights = [shares.get(number, 0.0) for number in range(start, backbone.depth + 1)]
        layers = {"layer_start": start, "num_hidden_layers": backbone.depth}
        state = {"layer_weights": torch.tensor(weights)}
        place = add("WeightedLayerPooling")
        config = {"word_embedding_dimension": width, **layers}
        write_module("WeightedLayerPooling", place, config, state)
        # sentence-transformers hands on the states of every layer only if the config asks for it.
        config = read_json(folder / "config.json")
        write_json(folder / "config.json", {**config, "output_hidden_states": True})
    if (cnn := encoder.convolutions) is not None:
        sizes = {"in_word_embedding_dimension": width, "out_channels": cnn.channels}
        kernels = {"kernel_sizes": [*cnn.widths], "stride_sizes": [1] * len(cnn.widths)}
        write_module("CNN", add("CNN"), {**sizes, **kernels}, cnn.state_dict())
        width = cnn.width
    modes = dict.fromkeys(it.st_mode for it in POOLERS.values() if it.st_mode)
    flags = {flag: flag == pooler.st_mode for flag in (*modes, _ALWAYS_OFF)}
    write_module("Pooling", add("Pooling"), {"word_embedding_dimension": width, **flags})
    if encoder.head is not None:
        _write_dense(add("Dense"), encoder.head.linear, _TANH)
    transform = encoder.transform
    if transform is not None and transform.is_dense:
        _write_dense(add("Dense"), transform, _IDENTITY)
    elif transform is not None:
        write_transform(add("FittedTransform"), transform)
    if encoder.normalize:
        add("Normalize").mkdir()
    write_rows(folder, rows)
    write_conventions(folder, encoder.conventions)


def _write_dense(path: Path, linear: nn.Module, activation: str) -> None:
    """Write what has ``weight`` and ``bias`` as a Dense module."""
    state = linear.state_dict()
    rows, columns = state["weight"].shape
    config = {"in_features": columns, "out_features": rows, "bias": True}
    config |= {"activation_function": activation}
    write_module("Dense", path, config, state, "linear.")


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
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        whole = kind(copy.deepcopy(model.config))
    lacking = {n: value.shape for n, value in whole.state_dict().items() if n not in known}
    if head is not None and head.linear.weight.shape in lacking.values():
        parts = {2: head.linear.weight.detach(), 1: head.linear.bias.detach()}
        return {name: parts[len(shape)].clone() for name, shape in lacking.items()}
    blank: dict[int, Any] = {1: torch.zeros, 2: torch.eye}
    return {name: blank[len(shape)](*shape) for name, shape in lacking.items()}


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
