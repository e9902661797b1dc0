"""Recipes: typed settings of a training run, from YAML and from the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, dataclass_transform

import yaml
from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from contrasent.errors import ConfigError, pick
from contrasent.yaml_text import line_of, read_mapping

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a frozen class of checked settings; the docstring under a field explains it."""
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
    return cast(type[T], dataclass(frozen=True, kw_only=True, config=config)(cls))


@settings
class EncoderSettings:
    """What is trained, and how a sentence becomes an embedding."""

    name: str = ""
    """A folder, a training run, or a Hugging Face id to start from."""

    pooler: str | None = None
    """cls, mean, mean_top2, mean_first_last or mean_embed_last; null takes the folder's own."""

    head: Literal["mlp", "none"] | None = None
    """A Linear+Tanh after the pooler that inference keeps (supervised SimCSE): mlp takes the
    stored one of a sentence encoder, else starts a new one; null takes what the folder has."""

    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Rate of every dropout of the transformer; null keeps the checkpoint's (0.1 for BERT)."""


@settings
class DataSettings:
    """The training text."""

    file: str = ""
    """.txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging Face dataset id."""

    columns: list[Annotated[str, Field(coerce_numbers_to_str=True)]] | None = None
    """Names or numbers (from 0) of the columns: anchor, positive, hard negatives."""

    max_tokens: Annotated[int, Field(ge=3)] = 32
    """Longer sentences are cut for training, special tokens included."""

    shuffle: bool = True
    """Draw a new order every epoch, from the seed."""

    drop_last: bool = False
    """Leave out the last, smaller batch of an epoch."""


@settings
class TrainSettings:
    """How it is optimised: AdamW, linear decay."""

    batch_size: Annotated[int, Field(ge=2)] = 64
    """Examples per step; the others of a batch are each anchor's negatives."""

    epochs: PositiveInt = 1
    """Passes over the data."""

    max_steps: PositiveInt | None = None
    """Stop, and end the decay, after this many steps instead of after the epochs."""

    learning_rate: PositiveFloat = 3e-5
    """Of the first step after the warm-up; it falls linearly to 0."""

    warmup_steps: NonNegativeInt = 0
    """Steps over which the rate rises from 0."""

    weight_decay: NonNegativeFloat = 0.0
    """AdamW's, on every parameter."""

    clip: PositiveFloat = 1.0
    """Largest norm of the gradient of all parameters together."""

    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Of the matrix products; auto is bf16 where the hardware has it. Loss and weights are fp32."""

    gradcache_chunk: PositiveInt | None = None
    """Gradient caching, for batches beyond memory: sentences of average length that are encoded at
    once, every view counted. The loss still sees the whole batch, the gradient is the same, dropout
    included; a step takes 4/3 of the time. 128 is a good number; null encodes the batch at once."""

    gradient_checkpointing: bool = False
    """Keep only what goes into each layer, and compute the layer again for its gradient: less
    memory for long sentences and large encoders, 4/3 of the time, the same gradient."""

    checkpoint_every: PositiveInt | None = None
    """Steps between states that --resume continues from; null takes evaluation.every."""

    trackers: list[str] = Field(default_factory=list)
    """Of accelerate, by name: tensorboard, wandb, mlflow, ..."""

    seed: NonNegativeInt = 42
    """Decides the new weights, the order of the data and every dropout mask."""


@settings
class EvaluationSettings:
    """How progress is measured."""

    task: str = "auto"
    """Selects `best`: stsb-dev, or a FILE.tsv of sentence, sentence, score; none; auto is
    stsb-dev if its data is there."""

    every: PositiveInt = 125
    """Steps between evaluations; the last step is evaluated too."""

    patience: PositiveInt | None = None
    """Stop after this many evaluations in a row without a new best."""

    final: str = "auto"
    """Tasks scored before and after training: sts, names, files, none; auto is sts if its data
    is there."""

    precision: Literal["bf16", "fp32"] = "fp32"
    """Of the matrix products while evaluating."""

    data_dir: str | None = None
    """Folder in SentEval's layout; null: CONTRASENT_DATA, then where `data fetch` writes."""


@settings
class Recipe:
    """Everything that decides a training run."""

    encoder: EncoderSettings = Field(default_factory=EncoderSettings)
    """What is trained, and how a sentence becomes an embedding."""

    data: DataSettings = Field(default_factory=DataSettings)
    """The training text."""

    objective: dict[str, Any] = Field(default_factory=lambda: {"name": "simcse"})
    """What is minimised: the name of an objective, and its settings."""

    train: TrainSettings = Field(default_factory=TrainSettings)
    """How it is optimised: AdamW, linear decay."""

    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    """How progress is measured. The dev task is labelled: selecting by it is supervision."""


def recipes() -> dict[str, Path]:
    """The packaged recipes by name."""
    folder = Path(str(files("contrasent") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_recipe(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe and apply overrides.

    Args:
        name: a packaged recipe, or a YAML file.
        overrides: values by dotted name, such as ``{"train.learning_rate": "1e-5"}``; strings are
            read as YAML.

    Raises:
        ConfigError: no such recipe or setting, or a value that a setting cannot take.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = recipes()[pick("recipe", str(name), recipes())]
    elif not path.is_file():
        raise ConfigError(f"no recipe file {path}; the packaged ones are {', '.join(recipes())}")
    content, lines = read_mapping(path)
    content = {section: values for section, values in content.items() if values is not None}
    try:
        TypeAdapter(Recipe).validate_python(content)
    except ValidationError as error:
        location = tuple(str(part) for part in error.errors()[0]["loc"])
        explained = _explained(Recipe, error, "recipe")
        raise ConfigError(f"{path}:{line_of(location, lines)}: {explained}") from error
    for dotted, value in (overrides or {}).items():
        _set(content, dotted, value)
    return checked(Recipe, content, "recipe")


def to_yaml(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as YAML."""
    content: str = yaml.safe_dump(dataclasses.asdict(recipe), sort_keys=False, allow_unicode=True)
    return content


def checked(cls: type[T], content: Mapping[str, Any], where: str) -> T:
    """Make ``cls`` of ``content``.

    Raises:
        ConfigError: a setting is unknown, or its value cannot be taken; the message has the
            dotted name, the value, and what is expected.
    """
    try:
        return TypeAdapter(cls).validate_python(dict(content))
    except ValidationError as error:
        raise _explained(cls, error, where) from error


def fields_of(cls: Any) -> dict[str, Any]:
    """The settings of a class made by `settings`, by name; none of one that is not."""
    if not dataclasses.is_dataclass(cls):
        return {}
    return {field.name: field for field in dataclasses.fields(cls)}


def explanations(cls: Any) -> dict[str, str]:
    """The docstring of each setting, by its name."""
    return {name: field.description or "" for name, field in cls.__pydantic_fields__.items()}


def _set(content: dict[str, Any], dotted: str, value: Any) -> None:
    section, _, key = dotted.partition(".")
    pick("recipe section", section, fields_of(Recipe))
    if not key:
        raise ConfigError(
            f"{section!r} is a section; name one of its settings: --{section}.NAME VALUE"
        )
    known = fields_of(_owner(Recipe, [section]))
    takes = str(known[key].type).split(" | ") if key in known else []
    content[section] = {**content.get(section, {}), key: _parsed(value, "str" in takes)}


def _parsed(value: Any, takes_text: bool) -> Any:
    """``value`` read as YAML if it is a string; a folder called 2024 stays text."""
    if not isinstance(value, str):
        return value
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return value if takes_text and isinstance(read, bool | int | float | date) else read


def _owner(cls: Any, location: Sequence[str]) -> Any:
    """The class of the settings under ``location``; a dict where they are not typed."""
    for part in location:
        kind = fields_of(cls)[part].type
        cls = globals().get(kind, dict) if isinstance(kind, str) else kind
    return cls


def _explained(cls: Any, error: ValidationError, where: str) -> ConfigError:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    if first["type"] == "unexpected_keyword_argument":
        owner = _owner(cls, location[:-1])
        section = ".".join(location[:-1]) or where
        try:
            pick(f"setting of {section!r}:", location[-1], fields_of(owner))
        except ConfigError as unknown:
            return unknown
    prefix = [] if where == "recipe" else [where]
    dotted = ".".join([*prefix, *location])
    said = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "dataclass_type":
        said = "a section holds settings, each as NAME: VALUE"
    return ConfigError(f"{dotted} cannot be {first['input']!r}: {said}")
