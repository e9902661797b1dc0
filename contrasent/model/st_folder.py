"""The ``modules.json`` of a sentence-transformers folder, and the configurations it points to.

Written in the form that every version of sentence-transformers, and TEI, reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from contrasent.errors import CheckpointError, ConfigError
from contrasent.files import inside
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.pooling import POOLERS, Pooler
from contrasent.model.pooling import pooler as pooler_named
from contrasent.model.st_layers import (
    IDENTITY,
    TANH,
    Conventions,
    head_and_map,
    module_name,
    read_conventions,
    read_json,
    write_cnn,
    write_conventions,
    write_dense,
    write_json,
)
from contrasent.model.st_words import WordVectors, write_lstm, write_words
from contrasent.model.transforms.base import Transform
from contrasent.model.transforms.folder import FittedTransform, write_transform
from contrasent.model.weights import read_tensors

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder

_MODULES = "modules.json"
_LIBRARY = "sentence_transformers.models"
_LAYERS, _CNN, _POOLING, _DENSE, _NORMALIZE = (
    "WeightedLayerPooling",
    "CNN",
    "Pooling",
    "Dense",
    "Normalize",
)
_FLAG, _ALWAYS_OFF = "pooling_mode_", "pooling_mode_mean_sqrt_len_tokens"
_FITTED = FittedTransform.__name__
_WORDS, _LSTM = WordVectors.__name__, "LSTM"
_OWN_TYPES = {
    kind.__name__: f"{kind.__module__}.{kind.__name__}" for kind in (FittedTransform, WordVectors)
}
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_TRANSFORMER_CONFIGS = [f"sentence_{kind}_config.json" for kind in _KINDS]

_USUAL_STATES = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
_OF_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
_ARGUMENTS = (
    *("processing_kwargs", "processor_kwargs", "tokenizer_args"),
    *("config_kwargs", "config_args"),
)
_HARMLESS = {"attn_implementation", "output_hidden_states", "trust_remote_code", "use_fast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSpec:
    """What a folder says about how it makes an embedding: the folders of its modules, its settings.

    ``transformer`` is also the folder of word vectors under an ``lstm``; ``dense`` that of the
    head, unless it is among the transformer's weights; ``linear`` one after the other, or
    ``fitted``, map its output.
    """

    transformer: Path
    pooler: str
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


def read(folder: Path) -> FolderSpec:
    """Read a sentence-transformers folder; CheckpointError if it is not one that we compute."""
    try:
        return _read(folder)
    except (AttributeError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"{folder / _MODULES}, or a config.json that it points to, is not in the form that "
            f"sentence-transformers writes ({type(error).__name__}: {error})"
        ) from error


def _read(folder: Path) -> FolderSpec:
    stated = read_json(folder / _MODULES)
    modules = [(module_name(module["type"]), inside(folder, module["path"])) for module in stated]
    names = [name for name, _ in modules]
    paths = dict(modules)
    maps = [path for name, path in modules if name == _DENSE]
    start = (_WORDS, _LSTM) if _WORDS in names else ("Transformer", _LAYERS, _CNN)
    kinds = (*start, _POOLING, *[_DENSE] * len(maps), _FITTED, _NORMALIZE)
    known = {start[0], _POOLING} <= paths.keys()
    known = known and (_WORDS not in names or _LSTM in names)
    if names != [name for name in kinds if name in names] or not known:
        raise CheckpointError(
            f"{folder} is made of {', '.join(names)}; only Transformer, Pooling, and after them "
            "Dense (with Tanh), linear Dense or a fitted transform, and Normalize are computed"
        )
    dense, linear = head_and_map(maps)
    if linear and _FITTED in names:
        raise CheckpointError(f"{folder} has both a linear Dense and a fitted transform")
    for path in (paths[name] for name in (_POOLING, _NORMALIZE) if name in paths):
        _require_usual(path)
    transformer = paths[start[0]]
    configs = [name for name in _TRANSFORMER_CONFIGS if (transformer / name).is_file()]
    settings = read_json(transformer / configs[0]) if configs else {}
    if settings.get("do_lower_case"):
        raise CheckpointError(
            f"{folder} lower-cases text outside its tokenizer (do_lower_case); set it to false in "
            f"{configs[0]} if its tokenizer lower-cases anyway"
        )
    if configs:
        _require_usual_states(transformer / configs[0], settings)
    limit = settings.get("max_seq_length")
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise CheckpointError(f"{transformer / configs[0]}: max_seq_length cannot be {limit!r}")
    return FolderSpec(
        transformer=transformer,
        pooler=_pooler(paths),
        lstm=paths.get(_LSTM),
        convolutions=paths.get(_CNN),
        head="none" if dense is None else "mlp",
        dense=dense,
        linear=linear,
        fitted=paths.get(_FITTED),
        normalize=_NORMALIZE in paths,
        max_tokens=limit,
        conventions=read_conventions(folder),
    )


def _require_usual(path: Path) -> None:
    """Refuse a module that reads, writes or leaves out something else than usual."""
    if not (path / "config.json").is_file():
        return
    name = "sentence_embedding"
    usual = {"include_prompt": True, "module_input_name": name, "module_output_name": name}
    config = read_json(path / "config.json")
    for key, value in usual.items():
        if config.get(key) not in (None, value):
            raise CheckpointError(
                f"{path} has {key} {config[key]!r}, which is not computed here; only {value!r} is"
            )


def _require_usual_states(path: Path, settings: dict[str, Any]) -> None:
    """Refuse settings of the Transformer module with which a text has other tokens or states."""
    unusual = [key for key, value in _USUAL_STATES.items() if settings.get(key, value) != value]
    unusual += [key for key in _ARGUMENTS if {*(settings.get(key) or {})} - _HARMLESS]
    if settings.get("modality_config", {}).get("text", _OF_TEXT) != _OF_TEXT:
        unusual.append("modality_config")
    if unusual:
        raise CheckpointError(
            f"{path} has {unusual[0]} {settings[unusual[0]]!r}, which is not computed here; take "
            "it out if the vectors of text do not depend on it"
        )


def write(folder: Path, encoder: SentenceEncoder) -> None:
    """Write the modules around the transformer in ``folder``; ConfigError for some poolers."""
    chosen = pooler_named(encoder.pooler)
    pooling = _pooling_config(chosen)
    width, depth = encoder.backbone.width, encoder.backbone.depth
    names: list[str] = []

    def new_folder(name: str) -> Path:
        names.append(name)
        return folder / f"{len(names) - 1}_{name}"

    if isinstance(encoder.backbone, WordLstm):
        write_words(new_folder(_WORDS), encoder.tokenizer, encoder.max_tokens)
        write_lstm(new_folder(_LSTM), encoder.backbone)
    else:
        limit = {"max_seq_length": encoder.max_tokens, "do_lower_case": False}
        write_json(folder / "sentence_bert_config.json", limit)
        names.append("Transformer")

    if chosen.layers != (-1,):
        _write_layers(new_folder(_LAYERS), chosen.shares(depth), width, depth)
        # sentence-transformers hands on the states of every layer only if the config asks for it.
        config = read_json(folder / "config.json")
        write_json(folder / "config.json", {**config, "output_hidden_states": True})
    if encoder.convolutions is not None:
        write_cnn(new_folder(_CNN), encoder.convolutions)
        width = encoder.convolutions.width
    write_json(new_folder(_POOLING) / "config.json", {"word_embedding_dimension": width, **pooling})
    if encoder.head is not None:
        write_dense(new_folder(_DENSE), encoder.head.linear, TANH)
    if encoder.transform is not None:
        _write_map(new_folder(_DENSE if encoder.transform.is_dense else _FITTED), encoder.transform)
    if encoder.normalize:
        new_folder(_NORMALIZE).mkdir()
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if name == "Transformer" else f"{i}_{name}",
            "type": _OWN_TYPES.get(name) or f"{_LIBRARY}.{name}",
        }
        for i, name in enumerate(names)
    ]
    write_json(folder / _MODULES, modules)
    write_conventions(folder, encoder.conventions)


def _write_map(path: Path, transform: Transform) -> None:
    if transform.is_dense:
        write_dense(path, transform, IDENTITY)
    else:
        write_transform(path, transform)


def _pooling_config(pooler: Pooler) -> dict[str, bool]:
    if pooler.st_mode is None or (pooler.first_only and pooler.layers != (-1,)):
        raise ConfigError(
            f"sentence-transformers cannot express the pooler {pooler.name!r}, so that it would "
            "give other vectors; save the encoder with another pooler"
        )
    return {flag: flag == pooler.st_mode for flag in (*_pooling_flags(), _ALWAYS_OFF)}


def _pooling_flags() -> dict[str, str]:
    """The settings of the Pooling module that poolers use, with the newer names of their modes."""
    flags = [pooler.st_mode for pooler in POOLERS.values() if pooler.st_mode]
    return {flag: _mode(flag) for flag in dict.fromkeys(flags)}


def _mode(flag: str) -> str:
    return flag.removeprefix(_FLAG).removesuffix("_tokens").removesuffix("_token")


def _pooler(paths: dict[str, Path]) -> str:
    config = read_json(paths[_POOLING] / "config.json")
    modes = [_mode(key) for key, on in config.items() if key.startswith(_FLAG) and on]
    if stated := config.get("pooling_mode"):
        modes = [stated] if isinstance(stated, str) else list(stated)
    alike = [
        pooler
        for pooler in POOLERS.values()
        if pooler.st_mode and [_mode(pooler.st_mode)] == modes
        if not (_LAYERS in paths and pooler.first_only)
    ]
    if not alike or (_CNN in paths and modes != ["mean"]):
        *others, last = _pooling_flags().values()
        raise CheckpointError(
            f"{paths[_POOLING]} pools by {' + '.join(modes) or 'nothing'}; only "
            f"{', '.join(others)} and {last} are computed, over several layers not cls, and over "
            "convolutions only mean"
        )
    if {_LAYERS, _CNN} <= paths.keys():
        raise CheckpointError(
            f"{paths[_CNN]} convolves the mean of several layers; only convolutions over the last "
            "layer are computed"
        )
    if _LAYERS in paths:
        return _layer_pooler(paths[_LAYERS], alike)
    return next(pooler.name for pooler in alike if pooler.layers == (-1,))


def _layer_pooler(path: Path, alike: Sequence[Pooler]) -> str:
    """The one of ``alike``, which differ in their layers, that weighs layers as ``path`` does."""
    config = read_json(path / "config.json")
    depth, start = config["num_hidden_layers"], config["layer_start"]
    weights = read_tensors(path, ["layer_weights"]).get("layer_weights")
    if weights is not None:
        shares = (weights / weights.sum()).tolist()
        used = {start + n: round(share, 6) for n, share in enumerate(shares) if share}
        for known in alike:
            if used == known.shares(depth):
                return known.name
    raise CheckpointError(f"{path} weighs layers in a way that is none of our poolers")


def _write_layers(path: Path, shares: dict[int, float], width: int, depth: int) -> None:
    start = min(shares)
    weights = torch.zeros(depth + 1 - start)
    for number, share in shares.items():
        weights[number - start] = share
    config = {"word_embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth}
    write_json(path / "config.json", config)
    save_file({"layer_weights": weights}, path / "model.safetensors")
