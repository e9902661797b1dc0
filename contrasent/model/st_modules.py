"""Modules of a sentence-transformers folder: the settings of each, read and written.

A setting that is not in a class here, or has another value, is refused by name. As in
sentence-transformers 6.2, the usual value is that of a setting which is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, AliasChoices, Field, PositiveInt, StrictInt
from safetensors.torch import save_file
from torch import nn

from contrasent.errors import CheckpointError
from contrasent.files import inside, read_config, write_json
from contrasent.model.conventions import QueryExpansion
from contrasent.model.heads import Convolutions
from contrasent.model.weights import SAFE, load_exact, read_exact, read_tensors
from contrasent.settings import settings

TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
_TRANSFORMERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")

Length = Annotated[StrictInt, Field(gt=0)] | None
Embedding = Literal["sentence_embedding"]
Width = Annotated[
    int | None,
    Field(validation_alias=AliasChoices("embedding_dimension", "word_embedding_dimension")),
]


def _only(*names: str) -> AfterValidator:
    """Take a mapping with these keys alone, and null for none."""

    def require(given: dict[str, Any] | None) -> dict[str, Any]:
        for name, value in (given or {}).items():
            if name not in names and value not in (None, {}):
                raise ValueError(f"{name} may change what a text gives")
        return given or {}

    return AfterValidator(require)


def _of_text(given: dict[str, Any]) -> dict[str, Any]:
    """Take ways to read images and sound too, but none to read text as a message."""
    usual = {"method": "forward", "method_output_name": "last_hidden_state"}
    if given.get("text", usual) != usual or "message" in given:
        raise ValueError("text is read by forward into last_hidden_state alone")
    return given


_LOADING = ("trust_remote_code", "token", "revision", "local_files_only", "cache_dir")
_ModelOptions = Annotated[
    dict[str, Any] | None,
    _only(
        *_LOADING, "attn_implementation", "torch_dtype", "dtype", "device_map", "use_safetensors"
    ),
]
_TokenizerOptions = Annotated[
    dict[str, Any] | None,
    _only(*_LOADING, "model_max_length", "use_fast", "clean_up_tokenization_spaces"),
]
_ConfigOptions = Annotated[
    dict[str, Any] | None, _only(*_LOADING, "attn_implementation", "output_hidden_states")
]
_Processing = Annotated[dict[str, Any] | None, _only("image", "audio", "video")]


@settings
class ModuleRow:
    """A row of ``modules.json``."""

    type: str
    path: str
    idx: Any = None
    name: Any = None
    kwargs: Any = None  # names of options that `encode` hands on

    @property
    def kind(self) -> str:
        """The name of its class; of one that neither they nor we made the whole type."""
        known = self.type.startswith(("sentence_transformers.", "contrasent."))
        return self.type.rpartition(".")[2] if known else self.type


@settings
class TransformerConfig:
    """Settings of the Transformer module."""

    max_seq_length: Length = None
    do_lower_case: bool | None = None
    query_length: Length = None
    document_length: Length = None
    query_expansion: QueryExpansion | None = None
    transformer_task: Literal["feature-extraction"] = "feature-extraction"
    module_output_name: Literal["token_embeddings"] = "token_embeddings"
    modality_config: Annotated[dict[str, Any], AfterValidator(_of_text)] = Field(
        default_factory=dict
    )
    unpad_inputs: bool | None = None
    tokenizer_name_or_path: None = None
    processing_kwargs: _Processing = None
    model_kwargs: _ModelOptions = None
    model_args: _ModelOptions = None
    processor_kwargs: _TokenizerOptions = None
    tokenizer_args: _TokenizerOptions = None
    config_kwargs: _ConfigOptions = None
    config_args: _ConfigOptions = None

    @property
    def limit(self) -> int | None:
        """The most tokens of a text, if it is stated."""
        options = self.tokenizer_args or self.processor_kwargs or {}
        return options.get("model_max_length") or self.max_seq_length

    @property
    def lengths(self) -> dict[str, Any]:
        """What a query and a document have of their own."""
        names = ("query_length", "document_length", "query_expansion")
        return {name: getattr(self, name) for name in names}


@settings
class LayersConfig:
    """Settings of a WeightedLayerPooling module."""

    embedding_dimension: Width = None
    num_hidden_layers: int = 12
    layer_start: int = 4


@settings
class CnnConfig:
    """Settings of a CNN module, of strides of 1."""

    out_channels: PositiveInt = 256
    kernel_sizes: Annotated[list[PositiveInt], Field(min_length=1)] = Field(
        default_factory=lambda: [1, 3, 5]
    )
    stride_sizes: list[Literal[1]] | None = None
    in_embedding_dimension: Annotated[
        int | None,
        Field(
            validation_alias=AliasChoices("in_embedding_dimension", "in_word_embedding_dimension")
        ),
    ] = None


@settings
class PoolingConfig:
    """Settings of a Pooling module; older ones have a flag for each mode."""

    embedding_dimension: Width = None
    pooling_mode: str | list[str] | None = None
    pooling_mode_cls_token: bool | None = None
    pooling_mode_max_tokens: bool | None = None
    pooling_mode_mean_tokens: bool | None = None
    pooling_mode_mean_sqrt_len_tokens: bool | None = None
    pooling_mode_weightedmean_tokens: bool | None = None
    pooling_mode_lasttoken: bool | None = None
    include_prompt: Literal[True] | None = None

    @property
    def modes(self) -> list[str]:
        """What is pooled, one behind the other."""
        if self.pooling_mode:
            given = self.pooling_mode
            return [mode_of(it) for it in ([given] if isinstance(given, str) else given)]
        flags = [name for name in vars(self) if name.startswith(_FLAG) and getattr(self, name)]
        return [mode_of(flag) for flag in flags] or ["mean"]


_FLAG = "pooling_mode_"


def mode_of(flag: str) -> str:
    """The newer name of a flag of the Pooling module."""
    return flag.removeprefix(_FLAG).removesuffix("_tokens").removesuffix("_token")


@settings
class DenseConfig:
    """Settings of a Dense module: a linear map, with Tanh after it or nothing."""

    in_features: int | None = None
    out_features: int | None = None
    bias: bool = True
    activation_function: Literal[
        "torch.nn.modules.activation.Tanh",
        "torch.nn.Tanh",
        "torch.nn.modules.linear.Identity",
        "torch.nn.Identity",
    ] = "torch.nn.Tanh"
    module_input_name: Embedding = "sentence_embedding"
    module_output_name: Embedding | None = None
    use_residual: Literal[False] = False

    @property
    def is_head(self) -> bool:
        """Whether Tanh follows."""
        return self.activation_function.endswith("Tanh")


@settings
class NormalizeConfig:
    """Settings of a Normalize module."""

    module_input_name: Embedding = "sentence_embedding"
    module_output_name: Embedding | None = None


@settings
class LstmConfig:
    """Settings of an LSTM module of one layer in both directions."""

    embedding_dimension: Width = None
    hidden_dim: PositiveInt
    num_layers: Literal[1] = 1
    dropout: float = 0
    bidirectional: Literal[True] = True


@settings
class WordsConfig:
    """Settings of our module of word vectors: the words around a sentence, and its length."""

    marks: list[str]
    max_seq_length: int | None


MODULES: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "Transformer": (tuple(f"sentence_{it}_config.json" for it in _TRANSFORMERS), TransformerConfig),
    "WeightedLayerPooling": (("config.json",), LayersConfig),
    "CNN": (("cnn_config.json",), CnnConfig),
    "WordVectors": (("config.json",), WordsConfig),
    "LSTM": (("lstm_config.json",), LstmConfig),
    "Pooling": (("config.json",), PoolingConfig),
    "Dense": (("config.json",), DenseConfig),
    "Normalize": (("config.json",), NormalizeConfig),
}
"""Of each module the files that may hold its settings, the first of which counts, and these."""


def read_rows(folder: Path) -> list[tuple[str, Path]]:
    """The name and folder of each module; CheckpointError for a path outside ``folder``.

    Dropout, which does nothing here, is left out.
    """
    rows: list[ModuleRow] = read_config(list[ModuleRow], folder / "modules.json")
    return [(row.kind, inside(folder, row.path)) for row in rows if row.kind != "Dropout"]


def read_settings(name: str, path: Path) -> Any:
    """The settings of the module ``name`` in the folder ``path``, as of its class above."""
    files, kind = MODULES[name]
    present = [path / file for file in files if (path / file).is_file()]
    return read_config(kind, [*present, path / files[0]][0])


def write_dense(path: Path, linear: nn.Module, activation: str) -> None:
    """Write what has ``weight`` and ``bias`` as a Dense module."""
    state = {name: tensor.detach().cpu() for name, tensor in linear.state_dict().items()}
    rows, columns = state["weight"].shape
    config = {
        "in_features": columns,
        "out_features": rows,
        "bias": True,
        "activation_function": activation,
    }
    write_json(path / "config.json", config)
    save_file({f"linear.{name}": tensor for name, tensor in state.items()}, path / SAFE)


def read_dense(linear: nn.Module, path: Path, reason: str) -> None:
    """Read a Dense module into ``weight`` and ``bias``; of one without a bias that is 0."""
    tensors = read_tensors(path, ["linear.weight", "linear.bias"])
    if not read_settings("Dense", path).bias and "linear.weight" in tensors:
        tensors.setdefault("linear.bias", torch.zeros(len(tensors["linear.weight"])))
    load_exact(linear, tensors, path, reason, "linear.")


def dense_rows(path: Path) -> int:
    """Dimensions that a Dense module gives."""
    stated = read_settings("Dense", path).out_features
    return stated or len(read_tensors(path, ["linear.weight"]).get("linear.weight", ()))


def write_cnn(path: Path, convolutions: Convolutions) -> None:
    """Write ``convolutions`` as a CNN module."""
    config = {
        "in_word_embedding_dimension": convolutions.convs[0].in_channels,
        "out_channels": convolutions.channels,
        "kernel_sizes": list(convolutions.widths),
        "stride_sizes": [1] * len(convolutions.widths),
    }
    write_json(path / "cnn_config.json", config)
    state = {name: tensor.detach().cpu() for name, tensor in convolutions.state_dict().items()}
    save_file(state, path / SAFE)


def read_cnn(path: Path, width: int) -> Convolutions:
    """The convolutions of a CNN module, for token states of ``width`` dimensions."""
    config: CnnConfig = read_settings("CNN", path)
    sizes = config.kernel_sizes
    if len(config.stride_sizes or sizes) != len(sizes) or any(size % 2 == 0 for size in sizes):
        raise CheckpointError(
            f"{path} has kernel_sizes {sizes} and stride_sizes {config.stride_sizes}; only odd "
            "sizes, and a stride of 1 for each, are computed"
        )
    convolutions = Convolutions(width, sizes, config.out_channels)
    read_exact(convolutions, path, f"its configuration with token states of {width} dimensions")
    return convolutions


def write_layers(path: Path, shares: dict[int, float], width: int, depth: int) -> None:
    """Write how much each state of ``depth`` layers counts as a WeightedLayerPooling module."""
    start = min(shares)
    weights = torch.zeros(depth + 1 - start)
    for number, share in shares.items():
        weights[number - start] = share
    config = {"word_embedding_dimension": width, "layer_start": start, "num_hidden_layers": depth}
    write_json(path / "config.json", config)
    save_file({"layer_weights": weights}, path / SAFE)


def read_layers(path: Path) -> tuple[dict[int, float], int]:
    """How much each state counts, by its number from 0, and the number of layers."""
    config: LayersConfig = read_settings("WeightedLayerPooling", path)
    weights = read_tensors(path, ["layer_weights"]).get("layer_weights", torch.zeros(0))
    shares = enumerate((weights / weights.sum()).tolist(), start=config.layer_start)
    return {number: round(share, 6) for number, share in shares if share}, config.num_hidden_layers
