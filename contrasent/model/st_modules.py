"""Modules of a sentence-transformers folder: the rows of ``modules.json`` and their settings.

A setting that is not in a class here, or has another value, is refused by name. As in
sentence-transformers 6.2, the usual value is that of a setting which is left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, PositiveInt, TypeAdapter, ValidationError
from safetensors.torch import save_file
from torch import Tensor, nn

from contrasent.errors import CheckpointError
from contrasent.files import inside, read_json, readable, write_json
from contrasent.model.protocol import ROLES, Conventions, Count, QueryExpansion
from contrasent.model.transforms import Transform, transform_named
from contrasent.model.weights import SAFE, load_exact
from contrasent.records import installed_versions
from contrasent.settings import OddInt, settings

STATIC, ROUTERS = "StaticEmbedding", ("Router", "Asym")
_ROWS, _USE = "modules.json", "config_sentence_transformers.json"
_FLAG = "pooling_mode_"
_TRANSFORMERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


def _named(*names: str) -> Any:
    return Field(validation_alias=AliasChoices(*names))


Length = Count | None
Embedding = Literal["sentence_embedding"]
Width = Annotated[int | None, _named("embedding_dimension", "word_embedding_dimension")]
InputWidth = Annotated[int | None, _named("in_embedding_dimension", "in_word_embedding_dimension")]


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


_Widths = Annotated[list[OddInt], Field(min_length=1)]
_Modalities = Annotated[dict[str, Any], AfterValidator(_of_text)]
_HARMLESS = (
    *("trust_remote_code", "token", "revision", "local_files_only", "cache_dir", "use_fast"),
    *("attn_implementation", "torch_dtype", "dtype", "device_map", "use_safetensors"),
    *("model_max_length", "clean_up_tokenization_spaces", "output_hidden_states"),
)
"""Options of ``from_pretrained`` that change nothing here, or are read."""
_Options = dict[str, Any] | None
_Harmless = Annotated[_Options, _only(*_HARMLESS)]


@settings
class _ModuleRow:
    type: str
    path: str
    idx: Any = None
    name: Any = None
    kwargs: Any = None  # names of options that `encode` hands on


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
    modality_config: _Modalities = Field(default_factory=dict)
    unpad_inputs: bool | None = None
    tokenizer_name_or_path: None = None
    processing_kwargs: Annotated[_Options, _only("image", "audio", "video")] = None
    model_kwargs: Annotated[_Harmless, _named("model_kwargs", "model_args")] = None
    tokenizer_args: Annotated[_Harmless, _named("tokenizer_args", "processor_kwargs")] = None
    config_kwargs: Annotated[_Harmless, _named("config_kwargs", "config_args")] = None

    @property
    def limit(self) -> int | None:
        """The most tokens of a text, if it is stated."""
        return (self.tokenizer_args or {}).get("model_max_length") or self.max_seq_length


@settings
class _UseConfig:
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    truncate_dim: Length = None
    similarity_fn_name: Literal["cosine", "dot", "euclidean", "manhattan"] | None = None
    model_type: Literal["SentenceTransformer"] | None = None
    versions: Annotated[Any, Field(validation_alias="__version__")] = None


def read_config(kind: Any, path: Path) -> Any:
    """The settings ``kind`` of another's JSON file; an unknown one may change vectors."""
    try:
        return TypeAdapter(kind).validate_python(read_json(path) if path.is_file() else {})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise CheckpointError(
            f"{path} has {name} {first['input']!r:.200}, which is not computed here: "
            f"{first['msg']}; take it out if the vectors of text do not depend on it"
        ) from error


def read_conventions(folder: Path, **lengths: Any) -> Conventions:
    """What ``folder`` states, with the ``lengths`` of a task; CheckpointError if it cannot be."""
    path = folder / _USE
    stated = read_config(_UseConfig, path)
    with readable(path, "mend it"):
        return Conventions(
            prompts={name: prompt or "" for name, prompt in (stated.prompts or {}).items()},
            default_prompt_name=stated.default_prompt_name,
            truncate_dim=stated.truncate_dim,
            similarity=stated.similarity_fn_name or "cosine",
            **lengths,
        )


def write_conventions(folder: Path, conventions: Conventions) -> None:
    """Write them as sentence-transformers reads them; without prompts of roles it takes others."""
    installed = installed_versions()
    content: dict[str, Any] = {
        "__version__": {"transformers": installed["transformers"], "pytorch": installed["torch"]},
        "prompts": {**conventions.prompts, **{role: conventions.prompt_of(role) for role in ROLES}},
        "default_prompt_name": conventions.default_prompt_name,
        "similarity_fn_name": conventions.similarity,
    }
    if conventions.truncate_dim is not None:
        content["truncate_dim"] = conventions.truncate_dim
    write_json(folder / _USE, content)


@settings
class _Layers:
    embedding_dimension: Width = None
    num_hidden_layers: int = 12
    layer_start: int = 4


@settings
class _Cnn:
    out_channels: PositiveInt = 256
    kernel_sizes: _Widths = Field(default_factory=lambda: [1, 3, 5])
    stride_sizes: list[Literal[1]] | None = None
    in_embedding_dimension: InputWidth = None


@settings
class _Pooling:
    """Older folders have a flag for each mode."""

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
        flags = [name for name in vars(self) if name.startswith(_FLAG) and getattr(self, name)]
        given = self.pooling_mode or flags or ["mean"]
        return [mode_of(it) for it in ([given] if isinstance(given, str) else given)]


def mode_of(flag: str) -> str:
    """The newer name of a flag of the Pooling module."""
    return flag.removeprefix(_FLAG).removesuffix("_tokens").removesuffix("_token")


@settings
class _Normalize:
    module_input_name: Embedding = "sentence_embedding"
    module_output_name: Embedding | None = None


@settings
class _Dense(_Normalize):
    in_features: int | None = None
    out_features: int | None = None
    bias: bool = True
    activation_function: Literal[
        "torch.nn.modules.activation.Tanh",
        "torch.nn.Tanh",
        "torch.nn.modules.linear.Identity",
        "torch.nn.Identity",
    ] = "torch.nn.Tanh"
    use_residual: Literal[False] = False


@settings
class _Lstm:
    embedding_dimension: Width = None
    hidden_dim: PositiveInt
    num_layers: Literal[1] = 1
    dropout: float = 0
    bidirectional: Literal[True] = True


@settings
class _WordVectors:
    """Of our own module: the words around a sentence, and where long ones are cut."""

    marks: list[str]
    max_seq_length: int | None


@settings
class _Router:
    types: dict[str, str]  # of each module, by its folder
    structure: Annotated[dict[Literal["query", "document"], list[str]], Field(min_length=2)]
    parameters: Annotated[_Options, _only("default_route", "allow_empty_key")]


_SETTINGS: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "Transformer": (tuple(f"sentence_{it}_config.json" for it in _TRANSFORMERS), TransformerConfig),
    "WeightedLayerPooling": (("config.json",), _Layers),
    "CNN": (("cnn_config.json",), _Cnn),
    "WordVectors": (("config.json",), _WordVectors),
    "LSTM": (("lstm_config.json",), _Lstm),
    "Pooling": (("config.json",), _Pooling),
    "Dense": (("config.json",), _Dense),
    "Normalize": (("config.json",), _Normalize),
    "FittedTransform": (("config.json",), dict),
    **dict.fromkeys(ROUTERS, (("router_config.json", "config.json"), _Router)),
}
"""Of each module the files that may hold its settings, the first of which counts, and these."""


def is_in(folder: Path) -> bool:
    """True if ``folder`` is a sentence-transformers folder."""
    return (folder / _ROWS).is_file()


def is_static(folder: Path, route: str | None = None) -> bool:
    """True if ``folder``, or its route, has a StaticEmbedding, or if model2vec saved it."""
    if is_in(folder):
        return [kind for kind, _ in read_rows(folder, route)][:1] == [STATIC]
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    return isinstance(config, dict) and config.get("model_type") == "model2vec"


def read_rows(folder: Path, route: str | None = None) -> list[tuple[str, Path]]:
    """The name and folder of each module but Dropout; of somebody's own, its whole type.

    With a ``route``, its modules stand in place of a Router.
    """
    rows: list[_ModuleRow] = read_config(list[_ModuleRow], folder / _ROWS)
    modules = [(_name_of(row.type), inside(folder, row.path)) for row in rows]
    for number, (name, path) in enumerate(modules):
        if name in ROUTERS and route is not None:
            router = read_settings(name, path)
            parts = [(router.types.get(it, it), inside(path, it)) for it in router.structure[route]]
            modules[number : number + 1] = [(_name_of(kind), part) for kind, part in parts]
            break
    return [(name, path) for name, path in modules if name != "Dropout"]


def _name_of(kind: str) -> str:
    known = kind.startswith(("sentence_transformers.", "contrasent."))
    return kind.rpartition(".")[2] if known else kind


def default_route(folder: Path) -> str | None:
    """The route of texts that are neither query nor document; None if there is no Router."""
    for name, path in read_rows(folder) if is_in(folder) else ():
        if name in ROUTERS:
            router = read_settings(name, path)
            return str(router.parameters.get("default_route") or next(iter(router.structure)))
    return None


def write_router(folder: Path, default: str) -> None:
    """Write a Router of the encoders that are in the sub-folders ``query`` and ``document``."""
    types, structure = dict[str, str](), dict[str, list[str]]()
    for route in ROLES:
        rows: list[_ModuleRow] = read_config(list[_ModuleRow], folder / route / _ROWS)
        parts = {Path(route, row.path).as_posix(): row.type for row in rows}
        types, structure[route] = types | parts, list(parts)
    content = {"types": types, "structure": structure, "parameters": {"default_route": default}}
    write_module(ROUTERS[0], folder, content)
    write_rows(folder, [(ROUTERS[0], "")])


def read_settings(name: str, path: Path) -> Any:
    """The settings of the module ``name`` in the folder ``path``, as of its class above."""
    files, kind = _SETTINGS[name]
    present = [path / file for file in files if (path / file).is_file()]
    return read_config(kind, [*present, path / files[0]][0])


def write_rows(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    """Write ``modules.json``: the name and path of each module."""
    usual, own = "sentence_transformers.models", ("FittedTransform", "WordVectors")
    types = (f"{__name__ if name in own else usual}.{name}" for name, _ in modules)
    rows = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, (_, path)) in enumerate(zip(types, modules, strict=True))
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
    write_json(path / _SETTINGS[name][0][0], config)
    if state is not None:
        save_file({prefix + it: tensor.detach().cpu() for it, tensor in state.items()}, path / SAFE)


def read_transform(folder: Path) -> Transform:
    """Read a fitted transform; CheckpointError if it is damaged or unknown."""
    with readable(folder, "fit it again"):
        config = read_settings("FittedTransform", folder)
        transform = transform_named(config.pop("transform"), config)
        load_exact(transform, folder, f"a {transform.name} of these settings")
    return transform.requires_grad_(False).eval()


class FittedTransform(nn.Module):
    """How sentence-transformers loads a transform, where this package is installed and trusted."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        features["sentence_embedding"] = self.transform(features["sentence_embedding"])
        return features

    def get_sentence_embedding_dimension(self) -> int:
        """K, dimensions of an embedding."""
        return self.transform.width

    def save(self, output_path: str, *_: object, **__: object) -> None:
        """Write settings and weights into a folder."""
        config = {"transform": self.transform.name, **self.transform.settings()}
        write_module("FittedTransform", Path(output_path), config, self.transform.state_dict())

    @classmethod
    def load(cls, input_path: str) -> Self:
        """Read it from a folder."""
        return cls(read_transform(Path(input_path)))
