"""Modules of a sentence-transformers folder: the rows of ``modules.json`` and their settings.

A setting that is not in a class here, or has another value, is refused by name. As in
sentence-transformers 6.2, the usual value is that of a setting which is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import AfterValidator, AliasChoices, Field, PositiveInt, StrictInt
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contrasent.data.word_vectors import WordStore, WordTokenizer
from contrasent.errors import CheckpointError, ContrasentError
from contrasent.files import inside, read_config, read_json, write_json
from contrasent.model.conventions import QueryExpansion
from contrasent.model.transforms.base import Transform, transform_named
from contrasent.model.weights import SAFE, read_exact
from contrasent.settings import settings

STATIC = "StaticEmbedding"
_ROWS = "modules.json"
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
_Options = dict[str, Any] | None
_ModelOptions = Annotated[
    _Options,
    _only(
        *_LOADING, "attn_implementation", "torch_dtype", "dtype", "device_map", "use_safetensors"
    ),
]
_TokenizerOptions = Annotated[
    _Options, _only(*_LOADING, "model_max_length", "use_fast", "clean_up_tokenization_spaces")
]
_ConfigOptions = Annotated[
    _Options, _only(*_LOADING, "attn_implementation", "output_hidden_states")
]


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
    processing_kwargs: Annotated[_Options, _only("image", "audio", "video")] = None
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
    in_embedding_dimension: int | None = Field(
        None, validation_alias=AliasChoices("in_embedding_dimension", "in_word_embedding_dimension")
    )


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
    "FittedTransform": (("config.json",), dict),
}
"""Of each module the files that may hold its settings, the first of which counts, and these."""


def is_in(folder: Path) -> bool:
    """Whether ``folder`` is a sentence-transformers folder."""
    return (folder / _ROWS).is_file()


def is_static(folder: Path) -> bool:
    """Whether ``folder`` is one with a StaticEmbedding, or one that model2vec saved."""
    if is_in(folder):
        return [kind for kind, _ in read_rows(folder)][:1] == [STATIC]
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    return isinstance(config, dict) and config.get("model_type") == "model2vec"


def read_rows(folder: Path) -> list[tuple[str, Path]]:
    """The name and folder of each module; CheckpointError for a path outside ``folder``.

    Dropout, which does nothing here, is left out.
    """
    rows: list[ModuleRow] = read_config(list[ModuleRow], folder / _ROWS)
    return [(row.kind, inside(folder, row.path)) for row in rows if row.kind != "Dropout"]


def read_settings(name: str, path: Path) -> Any:
    """The settings of the module ``name`` in the folder ``path``, as of its class above."""
    files, kind = MODULES[name]
    present = [path / file for file in files if (path / file).is_file()]
    return read_config(kind, [*present, path / files[0]][0])


def write_rows(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    """Write ``modules.json``: the name and path of each module."""
    types = {
        kind.__name__: f"{__name__}.{kind.__name__}" for kind in (FittedTransform, WordVectors)
    }
    rows = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": types.get(name) or f"sentence_transformers.models.{name}",
        }
        for number, (name, path) in enumerate(modules)
    ]
    write_json(folder / _ROWS, rows)


def write_module(
    name: str,
    path: Path,
    config: Mapping[str, Any],
    state: Mapping[str, Tensor] | None = None,
    prefix: str = "",
) -> None:
    """Write the settings of the module ``name`` into the folder ``path``, and its weights."""
    write_json(path / MODULES[name][0][0], config)
    if state is not None:
        save_file({prefix + it: tensor.detach().cpu() for it, tensor in state.items()}, path / SAFE)


def write_transform(folder: Path, transform: Transform) -> None:
    """Write a transform's settings and weights into ``folder``."""
    config = {"transform": transform.name, **transform.settings()}
    write_module("FittedTransform", folder, config, transform.state_dict())


def read_transform(folder: Path) -> Transform:
    """Read what :func:`write_transform` wrote; CheckpointError if it is damaged or unknown."""
    try:
        config = read_settings("FittedTransform", folder)
        transform = transform_named(config.pop("transform"), config)
        read_exact(transform, folder, f"a {transform.name} of these settings")
    except (LookupError, TypeError, ContrasentError) as error:
        raise CheckpointError(f"cannot read the transform in {folder}: {error}") from error
    return transform.requires_grad_(False).eval()


def write_words(path: Path, tokenizer: WordTokenizer, max_tokens: int | None) -> None:
    """Write the vectors, which words stand around every sentence, and where long ones are cut."""
    config = {"marks": list(tokenizer.marks), "max_seq_length": max_tokens}
    write_module("WordVectors", path, config)
    tokenizer.save(path)


def read_words(path: Path) -> tuple[WordTokenizer, int | None]:
    """The vectors and marks, and where long sentences are cut."""
    config: WordsConfig = read_settings("WordVectors", path)
    return WordTokenizer(WordStore(path), config.marks), config.max_seq_length


class FittedTransform(nn.Module):
    """How sentence-transformers loads a transform, where this package is installed and trusted."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map ``features["sentence_embedding"]``."""
        features["sentence_embedding"] = self.transform(features["sentence_embedding"])
        return features

    def get_sentence_embedding_dimension(self) -> int:
        """K, dimensions of an embedding."""
        return self.transform.width

    def save(self, output_path: str, *_: object, **__: object) -> None:
        """Write it into a folder."""
        write_transform(Path(output_path), self.transform)

    @classmethod
    def load(cls, input_path: str) -> Self:
        """Read it from a folder."""
        return cls(read_transform(Path(input_path)))


class WordVectors(nn.Module):
    """How sentence-transformers loads the words, where this package is installed and trusted."""

    def __init__(self, tokenizer: WordTokenizer, max_tokens: int | None) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.max_seq_length = max_tokens

    def preprocess(self, texts: Sequence[str], *_: object, **__: object) -> dict[str, Tensor]:
        """Rows of the words of each text, padded on the right."""
        ids, _cut = self.tokenizer.ids(list(texts), self.max_seq_length)
        rows = [torch.from_numpy(row).long() for row in ids]
        lengths = torch.tensor([len(row) for row in rows])
        padded = pad_sequence(rows, batch_first=True)
        mask = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
        return {"input_ids": padded, "attention_mask": mask.long(), "sentence_lengths": lengths}

    tokenize = preprocess

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put the vectors beside their rows."""
        rows = features["input_ids"]
        vectors = torch.from_numpy(self.tokenizer.store.select(rows.cpu().numpy()))
        features["token_embeddings"] = vectors.to(rows.device)
        return features

    def get_word_embedding_dimension(self) -> int:
        """D, dimensions of a vector."""
        return self.tokenizer.store.width

    def save(self, output_path: str, *_: object, **__: object) -> None:
        """Write it into a folder."""
        Path(output_path).mkdir(parents=True, exist_ok=True)
        write_words(Path(output_path), self.tokenizer, self.max_seq_length)

    @classmethod
    def load(cls, input_path: str) -> Self:
        """Read it from a folder."""
        return cls(*read_words(Path(input_path)))
