"""sentence-transformers' ``modules.json`` and the small configurations it points to.

Written in the form that every version of sentence-transformers, and TEI, reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from contrasent.errors import CheckpointError
from contrasent.model.heads import MlpHead
from contrasent.model.pooling import POOLERS
from contrasent.model.pooling import pooler as pooler_named
from contrasent.model.weights import read_tensors

_MODULES = "modules.json"
_LIBRARY = "sentence_transformers.models"
_LAYERS, _POOLING, _DENSE, _NORMALIZE = (
    "WeightedLayerPooling",
    "Pooling",
    "Dense",
    "Normalize",
)
_TANH = "torch.nn.modules.activation.Tanh"
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_TRANSFORMER_CONFIGS = [f"sentence_{kind}_config.json" for kind in _KINDS]
_OWN_CONFIG = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a folder says about how it makes an embedding.

    Attributes:
        transformer: the folder of the transformer and its tokenizer.
        pooler: the pooler's name.
        head: ``mlp`` or ``none``.
        dense: the folder of the head; None if the head is among the transformer's weights.
        normalize: embeddings are scaled to length 1.
        max_tokens: longer sentences are cut; None if the folder has no limit.
    """

    transformer: Path
    pooler: str
    head: str = "none"
    dense: Path | None = None
    normalize: bool = False
    max_tokens: int | None = None


def is_in(folder: Path) -> bool:
    """Whether ``folder`` is a sentence-transformers folder."""
    return (folder / _MODULES).is_file()


def read(folder: Path) -> Stated:
    """Read a sentence-transformers folder.

    Raises:
        CheckpointError: it is damaged, or has a module, or a setting of one, that we do not
            compute.
    """
    try:
        return _read(folder)
    except (AttributeError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"{folder / _MODULES}, or a config.json that it points to, is not in the form that "
            f"sentence-transformers writes ({type(error).__name__}: {error})"
        ) from error


def _read(folder: Path) -> Stated:
    modules = [(m["type"].rsplit(".", 1)[-1], folder / m["path"]) for m in _json(folder / _MODULES)]
    names = [name for name, _ in modules]
    paths = dict(modules)
    order = [n for n in ("Transformer", _LAYERS, _POOLING, _DENSE, _NORMALIZE) if n in names]
    if names != order or "Transformer" not in names or _POOLING not in names:
        raise CheckpointError(
            f"{folder} is made of {', '.join(names)}; only Transformer, Pooling, and after them "
            "Dense (with Tanh) and Normalize are computed"
        )
    transformer = paths["Transformer"]
    found = [name for name in _TRANSFORMER_CONFIGS if (transformer / name).is_file()]
    settings = _json(transformer / found[0]) if found else {}
    if settings.get("do_lower_case"):
        raise CheckpointError(
            f"{folder} lower-cases text outside its tokenizer (do_lower_case); set it to false in "
            f"{found[0]} if its tokenizer lower-cases anyway"
        )
    limit = settings.get("max_seq_length")
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise CheckpointError(f"{transformer / found[0]}: max_seq_length cannot be {limit!r}")
    _require_no_prompt(folder)
    dense = paths.get(_DENSE)
    if dense is not None:
        _require_tanh(dense)
    return Stated(
        transformer=transformer,
        pooler=_pooler(paths),
        head="none" if dense is None else "mlp",
        dense=dense,
        normalize=_NORMALIZE in paths,
        max_tokens=limit,
    )


def write(
    folder: Path,
    *,
    pooler: str,
    head: MlpHead | None,
    normalize: bool,
    max_tokens: int | None,
    width: int,
    depth: int,
) -> None:
    """Write the modules around the transformer that is already saved in ``folder``."""
    chosen = pooler_named(pooler)
    limit = {"max_seq_length": max_tokens, "do_lower_case": False}
    _write_json(folder / "sentence_bert_config.json", limit)
    parts = ["Transformer"]
    if chosen.layers != (-1,):
        parts.append(_LAYERS)
        _write_layers(folder / f"1_{_LAYERS}", chosen.shares(depth), width, depth)
        # sentence-transformers hands on the states of every layer only if the config asks for it.
        config = _json(folder / "config.json")
        _write_json(folder / "config.json", {**config, "output_hidden_states": True})
    parts.append(_POOLING)
    modes = {"pooling_mode_cls_token": chosen.first_only}
    modes["pooling_mode_mean_tokens"] = not chosen.first_only
    for mode in ("max_tokens", "mean_sqrt_len_tokens"):
        modes[f"pooling_mode_{mode}"] = False
    pooling = {"word_embedding_dimension": width, **modes}
    _write_json(folder / f"{len(parts) - 1}_{_POOLING}" / "config.json", pooling)
    if head is not None:
        parts.append(_DENSE)
        _write_dense(folder / f"{len(parts) - 1}_{_DENSE}", head)
    if normalize:
        parts.append(_NORMALIZE)
        (folder / f"{len(parts) - 1}_{_NORMALIZE}").mkdir()
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{p}" if i else "", "type": f"{_LIBRARY}.{p}"}
        for i, p in enumerate(parts)
    ]
    _write_json(folder / _MODULES, modules)


def _pooler(paths: dict[str, Path]) -> str:
    config = _json(paths[_POOLING] / "config.json")
    prefix, suffix = "pooling_mode_", "_tokens"
    modes = [
        key.removeprefix(prefix).removesuffix(suffix).removesuffix("_token")
        for key, on in config.items()
        if key.startswith(prefix) and on
    ]
    if stated := config.get("pooling_mode"):
        modes = [stated] if isinstance(stated, str) else list(stated)
    if modes not in (["cls"], ["mean"]) or (modes == ["cls"] and _LAYERS in paths):
        raise CheckpointError(
            f"{paths[_POOLING]} pools by {' + '.join(modes) or 'nothing'}; only cls and mean are "
            "computed"
        )
    return _layer_pooler(paths[_LAYERS]) if _LAYERS in paths else modes[0]


def _layer_pooler(path: Path) -> str:
    config = _json(path / "config.json")
    depth, start = config["num_hidden_layers"], config["layer_start"]
    weights = read_tensors(path, ["layer_weights"]).get("layer_weights")
    if weights is not None:
        shares = (weights / weights.sum()).tolist()
        used = {start + n: round(share, 6) for n, share in enumerate(shares) if share}
        for name, known in POOLERS.items():
            if not known.first_only and used == known.shares(depth):
                return name
    raise CheckpointError(f"{path} weighs layers in a way that is none of our poolers")


def _write_layers(path: Path, shares: dict[int, float], width: int, depth: int) -> None:
    start = min(shares)
    weights = torch.zeros(depth + 1 - start)
    for number, share in shares.items():
        weights[number - start] = share
    config = {
        "word_embedding_dimension": width,
        "layer_start": start,
        "num_hidden_layers": depth,
    }
    _write_json(path / "config.json", config)
    save_file({"layer_weights": weights}, path / "model.safetensors")


def _require_no_prompt(folder: Path) -> None:
    if not (folder / _OWN_CONFIG).is_file():
        return
    config = _json(folder / _OWN_CONFIG)
    name = config.get("default_prompt_name")
    prompt = (config.get("prompts") or {}).get(name)
    if prompt:
        raise CheckpointError(
            f"{folder} puts the prompt {prompt!r} before every sentence (default_prompt_name "
            f"{name!r} in {_OWN_CONFIG}), which is not done here; set it to null, and put the "
            "prompt into the sentences"
        )


def _require_tanh(path: Path) -> None:
    config = _json(path / "config.json")
    name = "sentence_embedding"
    asked = {
        "activation_function": (config.get("activation_function"), _TANH),
        "bias": (config.get("bias", True), True),
        "use_residual": (config.get("use_residual", False), False),
        "module_input_name": (config.get("module_input_name", name), name),
        "module_output_name": (config.get("module_output_name") or name, name),
    }
    for key, (value, computed) in asked.items():
        if value != computed:
            raise CheckpointError(
                f"{path} has {key} {value!r}; only a Linear map with bias followed by Tanh "
                f"({key} {computed!r}) is computed"
            )


def _write_dense(path: Path, head: MlpHead) -> None:
    config = {
        "in_features": head.linear.in_features,
        "out_features": head.linear.out_features,
        "bias": True,
        "activation_function": _TANH,
    }
    _write_json(path / "config.json", config)
    state = {f"linear.{k}": v.detach().cpu() for k, v in head.linear.state_dict().items()}
    save_file(state, path / "model.safetensors")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
