"""The ``modules.json`` of a sentence-transformers folder, and the modules it points to.

Written in the form that every version of sentence-transformers, and TEI, reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.errors import CheckpointError, ConfigError
from contrasent.files import read_json, write_json
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.conventions import Conventions, read_conventions, write_conventions
from contrasent.model.pooling import POOLERS, Pooler
from contrasent.model.pooling import pooler as pooler_named
from contrasent.model.st_modules import (
    IDENTITY,
    TANH,
    mode_of,
    read_layers,
    read_rows,
    read_settings,
    write_cnn,
    write_dense,
    write_layers,
)
from contrasent.model.st_words import WordVectors, write_lstm, write_words
from contrasent.model.transforms.base import Transform
from contrasent.model.transforms.folder import FittedTransform, write_transform

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder

_MODULES, STATIC = "modules.json", "StaticEmbedding"
_ORDER = re.compile(
    r"(Transformer( WeightedLayerPooling| CNN)?|WordVectors LSTM) Pooling"
    r"(( Dense)*|( Dense)? FittedTransform)( Normalize)?"
)
_ALWAYS_OFF = "pooling_mode_mean_sqrt_len_tokens"
_OWN_TYPES = {
    kind.__name__: f"{kind.__module__}.{kind.__name__}" for kind in (FittedTransform, WordVectors)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSpec:
    """What a folder says about how it makes an embedding: the folders of its modules, its settings.

    ``transformer`` is also the folder of word vectors under an ``lstm``; ``dense`` that of the
    head, unless it is among the transformer's weights; ``linear`` one after the other, or
    ``fitted``, map its output.
    """

    transformer: Path
    pooler: str
    lower_case: bool = False
    lstm: Path | None = None
    convolutions: Path | None = None
    head: str = "none"
    dense: Path | None = None
    linear: tuple[Path, ...] = ()
    fitted: Path | None = None
    normalize: bool = False
    max_tokens: int | None = None
    conventions: Conventions = field(default_factory=Conventions)


def is_in(folder: Path) -> bool:
    """Whether ``folder`` is a sentence-transformers folder."""
    return (folder / _MODULES).is_file()


def is_static(folder: Path) -> bool:
    """Whether ``folder`` is one with a StaticEmbedding, or one that model2vec saved."""
    if is_in(folder):
        return [kind for kind, _ in read_rows(folder)][:1] == [STATIC]
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    return isinstance(config, dict) and config.get("model_type") == "model2vec"


def read(folder: Path) -> FolderSpec:
    """Read a sentence-transformers folder; CheckpointError if it is not one that we compute."""
    modules = read_rows(folder)
    names = [name for name, _ in modules]
    if not _ORDER.fullmatch(" ".join(names)):
        raise CheckpointError(
            f"{folder} is made of {', '.join(names)}; only Transformer, Pooling, and after them "
            "Dense (with Tanh), linear Dense or a fitted transform, and Normalize are computed"
        )
    paths = dict(modules)
    maps = [path for name, path in modules if name == "Dense"]
    heads = [read_settings("Dense", path).is_head for path in maps]
    dense, linear = (maps[0] if any(heads) else None), tuple(maps[any(heads) :])
    if any(heads[1:]) or (linear and "FittedTransform" in paths):
        raise CheckpointError(
            f"{folder} has the maps {', '.join(path.name for path in maps)}; only the first may "
            "have Tanh, and either linear ones or a fitted transform may follow it"
        )
    if "Normalize" in paths:
        read_settings("Normalize", paths["Normalize"])
    stated: Any = read_settings(names[0], modules[0][1])
    is_transformer = names[0] == "Transformer"
    return FolderSpec(
        transformer=modules[0][1],
        pooler=_pooler(paths),
        lower_case=is_transformer and bool(stated.do_lower_case),
        lstm=paths.get("LSTM"),
        convolutions=paths.get("CNN"),
        head="none" if dense is None else "mlp",
        dense=dense,
        linear=linear,
        fitted=paths.get("FittedTransform"),
        normalize="Normalize" in paths,
        max_tokens=stated.limit if is_transformer else stated.max_seq_length,
        conventions=read_conventions(folder, **(stated.lengths if is_transformer else {})),
    )


def _pooler(paths: dict[str, Path]) -> str:
    """The name of the pooler that averages over tokens and layers as the modules do."""
    modes = read_settings("Pooling", paths["Pooling"]).modes
    layers = paths.get("WeightedLayerPooling")
    alike = [
        pooler
        for pooler in POOLERS.values()
        if pooler.st_mode and [mode_of(pooler.st_mode)] == modes
        if not (layers and pooler.first_only)
    ]
    if not alike or ("CNN" in paths and modes != ["mean"]):
        *others, last = [mode_of(flag) for flag in _pooling_flags()]
        raise CheckpointError(
            f"{paths['Pooling']} pools by {' + '.join(modes)}; only {', '.join(others)} and {last} "
            "are computed, over several layers not cls, and over convolutions only mean"
        )
    if layers is None:
        return next(pooler.name for pooler in alike if pooler.layers == (-1,))
    shares, depth = read_layers(layers)
    for known in alike:
        if shares == known.shares(depth):
            return known.name
    raise CheckpointError(f"{layers} weighs layers in a way that is none of our poolers")


def write(folder: Path, encoder: SentenceEncoder) -> None:
    """Write the modules around the transformer in ``folder``; ConfigError for some poolers."""
    chosen = pooler_named(encoder.pooler)
    flags = _flags(chosen)
    width, depth = encoder.backbone.width, encoder.backbone.depth
    names: list[str] = []

    def new_folder(name: str) -> Path:
        names.append(name)
        return folder / f"{len(names) - 1}_{name}"

    if isinstance(encoder.backbone, WordLstm):
        write_words(new_folder("WordVectors"), encoder.tokenizer, encoder.max_tokens)
        write_lstm(new_folder("LSTM"), encoder.backbone)
    else:
        stated = {
            "max_seq_length": encoder.max_tokens,
            "do_lower_case": encoder.tokenizer.lower_case,
            **encoder.conventions.stated_lengths,
        }
        write_json(folder / "sentence_bert_config.json", stated)
        names.append("Transformer")
    if chosen.layers != (-1,):
        write_layers(new_folder("WeightedLayerPooling"), chosen.shares(depth), width, depth)
        # sentence-transformers hands on the states of every layer only if the config asks for it.
        config = read_json(folder / "config.json")
        write_json(folder / "config.json", {**config, "output_hidden_states": True})
    if encoder.convolutions is not None:
        write_cnn(new_folder("CNN"), encoder.convolutions)
        width = encoder.convolutions.width
    pooling = {"word_embedding_dimension": width, **flags}
    write_json(new_folder("Pooling") / "config.json", pooling)
    if encoder.head is not None:
        write_dense(new_folder("Dense"), encoder.head.linear, TANH)
    if (transform := encoder.transform) is not None:
        name = "Dense" if transform.is_dense else "FittedTransform"
        _write_map(new_folder(name), transform)
    if encoder.normalize:
        new_folder("Normalize").mkdir()
    write_rows(
        folder, ["" if n == "Transformer" else f"{i}_{n}" for i, n in enumerate(names)], names
    )
    write_conventions(folder, encoder.conventions)


def _write_map(path: Path, transform: Transform) -> None:
    if transform.is_dense:
        write_dense(path, transform, IDENTITY)
    else:
        write_transform(path, transform)


def write_rows(folder: Path, paths: list[str], names: list[str]) -> None:
    """Write ``modules.json``."""
    rows = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": _OWN_TYPES.get(name) or f"sentence_transformers.models.{name}",
        }
        for number, (path, name) in enumerate(zip(paths, names, strict=True))
    ]
    write_json(folder / _MODULES, rows)


def _flags(pooler: Pooler) -> dict[str, bool]:
    """The settings of the Pooling module that does as ``pooler``."""
    if pooler.st_mode is None or (pooler.first_only and pooler.layers != (-1,)):
        raise ConfigError(
            f"sentence-transformers cannot express the pooler {pooler.name!r}, so that it would "
            "give other vectors; save the encoder with another pooler"
        )
    return {flag: flag == pooler.st_mode for flag in (*_pooling_flags(), _ALWAYS_OFF)}


def _pooling_flags() -> list[str]:
    return [*dict.fromkeys(pooler.st_mode for pooler in POOLERS.values() if pooler.st_mode)]
