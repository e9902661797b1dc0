"""Recipes: typed settings of a training run, from YAML and from the command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import Field, PositiveFloat, TypeAdapter, ValidationError, field_validator

from contrasent.errors import ConfigError, logger, pick, shown
from contrasent.files import listed
from contrasent.settings import (
    EncoderSettings,
    EvaluationSettings,
    TrainSettings,
    ViewSettings,
    checked,
    expected,
    settings,
)

T = TypeVar("T")

_OBJECTIVE = "simcse"
_DEEPEST = 3

Lines = dict[tuple[str, ...], int]
"""The line, from 1, of each key, by the keys above it and itself."""


def read_mapping(path: Path) -> tuple[dict[str, Any], Lines]:
    """The content of a YAML file, and the line of each key.

    ConfigError if the file cannot be read, is not YAML, is not a mapping, or has a key twice.
    """
    lines: Lines = {}
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        tree = loader.get_single_node()
        _note(path, tree, (), lines)  # first, as what is constructed may be merged
        content = tree and loader.construct_document(tree)
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        problem = f"cannot read {path}: {error}"
        if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
            words = " ".join(filter(None, (error.context, error.problem)))
            problem = f"{path}:{mark.line + 1}: not YAML: {words}"
        raise ConfigError(problem) from error
    if content is None:
        return {}, {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold sections such as 'encoder:', not {shown(content)}")
    return content, lines


def _note(path: Path, node: yaml.Node | None, above: tuple[str, ...], lines: Lines) -> None:
    if not isinstance(node, yaml.MappingNode) or len(above) == _DEEPEST:
        return
    for key, value in node.value:
        location, line = (*above, str(key.value)), key.start_mark.line + 1
        if location in lines:
            raise ConfigError(
                f"{path}:{line}: {'.'.join(location)} is set twice, first at line {lines[location]}"
            )
        lines[location] = line
        _note(path, value, location, lines)


Column = Annotated[str, Field(coerce_numbers_to_str=True)]
Labels = Literal["none", "nli", "scores", "lists"]


@settings
class SourceSettings:
    """One of several sources of training text."""

    file: str
    """As data.file."""

    name: str | None = None
    """What logs and records call it; else the last part of its path."""

    weight: PositiveFloat | None = None
    """Its share of the batches, or, if every source has a weight, its part of their sum."""

    columns: list[Column] | None = None
    """As data.columns, and else those."""

    labels: Labels | None = None
    """As data.labels, and else that."""

    prompt: str | list[str] = ""
    """Text before every sentence in training; or a list, its last for all other columns too."""

    objective: dict[str, Any] = Field(default_factory=dict)
    """What it has in place of settings of the recipe's objective; all of them with another name."""


# A weight behind a colon, which neither `C:\\a.csv` nor `org/name:config` ends with.
_WEIGHTED = re.compile(r"(?P<file>.+):(?P<weight>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


def _read_source(value: object) -> SourceSettings:
    if isinstance(value, str) and value[:1] == "{" and not Path(value).exists():
        value = _parse(value, "")
    elif isinstance(value, str | Path):
        match = None if Path(value).exists() else _WEIGHTED.fullmatch(str(value))
        value = match.groupdict() if match else {"file": str(value)}
    if isinstance(value, SourceSettings):
        return value
    if not isinstance(value, Mapping) or value.get("file") == "":
        raise ConfigError(f"{shown(value)} is no source; give FILE, FILE:WEIGHT or a mapping")
    if isinstance(name := value.get("objective"), str):
        value = {**value, "objective": {"name": name}}
    return checked(SourceSettings, value, lambda name: f"{name} of {value.get('file')}")


@settings
class DataSettings:
    """The training text."""

    file: str | Sequence[SourceSettings] = ""
    """.txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging Face dataset id; or a list, of
    which each batch is from one: FILE, FILE:WEIGHT, or a mapping of file, name, weight, columns,
    labels, prompt and objective."""

    columns: list[Column] | None = None
    """Names or numbers (from 0) of the columns: anchor, positive, hard negatives; with labels:
    premise, hypothesis, label; with scores: both sentences and the score; with lists: anchor,
    candidates, scores."""

    labels: Labels = "none"
    """With nli an example is a pair and its label, for objectives that classify: entailment,
    neutral or contradiction, or 0, 1 or 2; rows without a label (- in MultiNLI) are left out. With
    scores it is a pair and a number, larger for sentences that are more alike, or 0 and 1. With
    lists it is an anchor, its candidates, the first one right, and a list of their scores."""

    max_tokens: Annotated[int, Field(ge=3)] = 32
    """Longer sentences are cut for training, special tokens included."""

    shuffle: bool = True
    """Draw a new order every epoch, from the seed."""

    drop_last: bool = False
    """Leave out the last, smaller batch of an epoch."""

    @field_validator("file", mode="before")
    @classmethod
    def _read_sources(cls, file: object) -> object:
        if not isinstance(file, str | list | tuple):
            raise ConfigError("give a file, or a list of files")
        if len(file) == 1 and isinstance(file[0], str) and file[0][:1] != "{":
            if (only := _read_source(file[0])).weight is not None:
                logger.warning("%s is the only source, so its weight does nothing", only.file)
            return only.file
        return file if isinstance(file, str) else [_read_source(it) for it in file]

    @property
    def sources(self) -> dict[str, SourceSettings]:
        """The sources by their names, equal ones with a number."""
        sources = [SourceSettings(file=self.file)] if isinstance(self.file, str) else self.file
        names = [source.name or Path(source.file).name for source in sources]
        return {
            name if names.count(name) == 1 else f"{name} {number}": source
            for number, (name, source) in enumerate(zip(names, sources, strict=True), start=1)
            if source.file
        }


@settings
class Recipe:
    """Everything that decides a training run."""

    encoder: EncoderSettings = Field(default_factory=EncoderSettings)
    """What is trained, and how a sentence becomes an embedding."""

    data: DataSettings = Field(default_factory=DataSettings)
    """The training text."""

    view: ViewSettings = Field(default_factory=ViewSettings)
    """What makes the positive of a sentence, where the data has one sentence per example."""

    objective: dict[str, Any] = Field(default_factory=lambda: {"name": _OBJECTIVE})
    """What is minimised: the name of an objective, and its settings."""

    train: TrainSettings = Field(default_factory=TrainSettings)
    """How it is optimised."""

    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    """How progress is measured. The dev task is labelled: selecting by it is supervision."""

    def of(self, source: SourceSettings) -> Recipe:
        """The recipe with the columns, labels and objective of one of its sources."""
        usual, data = {"name": _OBJECTIVE, **self.objective}, self.data
        own = {"name": usual["name"], **source.objective}
        objective = {**usual, **own} if own["name"] == usual["name"] else own
        columns, labels = source.columns or data.columns, source.labels or data.labels
        data = dataclasses.replace(data, columns=columns, labels=labels)
        return dataclasses.replace(self, objective=objective, data=data)


def recipes() -> dict[str, Path]:
    """The packaged recipes by name."""
    folder = Path(__file__).with_name("recipes")
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_recipe(name: str | Path | Recipe, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe and apply overrides.

    Args:
        name: a packaged recipe, a YAML file, or a recipe that was read.
        overrides: values by dotted name, such as ``{"train.learning_rate": "1e-5"}``; strings are
            read as YAML. Another ``objective.name`` drops the settings of the recipe's objective.

    Raises:
        ConfigError: there is no such recipe or setting, or a setting cannot take the value.

    Example:
        >>> load_recipe("unsup-simcse", {"train.batch_size": 32}).train.batch_size
        32
    """
    if isinstance(name, Recipe):
        return _changed(dataclasses.asdict(name), overrides or {})
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = recipes()[pick("recipe", str(name), recipes())]
    content, lines = read_mapping(path)
    content = {section: values for section, values in content.items() if values is not None}
    try:
        TypeAdapter(Recipe).validate_python(content)
    except ValidationError as error:
        location = tuple(str(part) for part in error.errors()[0]["loc"])
        known = (location[:end] for end in range(len(location), 0, -1))
        line = next((lines[above] for above in known if above in lines), 1)
        raise ConfigError(f"{path}:{line}: {_config_error(Recipe, error, 'recipe')}") from error
    return _changed(content, overrides or {})


def _changed(content: dict[str, Any], changes: Mapping[str, Any]) -> Recipe:
    name = content.get("objective", {}).get("name", _OBJECTIVE)
    if changes.get("objective.name", name) != name:
        content["objective"] = {}  # its settings are those of another objective
    for dotted, value in changes.items():
        section, _, key = dotted.partition(".")
        pick("recipe section", section, fields_of(Recipe))
        known = fields_of(_owner(Recipe, [section]))
        kind = str(known[key].type) if key in known else ""
        content[section] = {**content.get(section, {}), key: _parse(value, kind)}
    return validate(Recipe, content, "recipe")


def _parse(value: Any, kind: str) -> Any:
    """Read a text as YAML, or as a list where one is due; a name, path or prompt is as it stands.

    Where a setting takes text, YAML are quoted texts, ``null``, and a list of sources.
    """
    if not isinstance(value, str):
        return value
    if "list[" in kind and value != "null" and value[:1] != "[":
        return listed(value)
    kinds, quoted, in_brackets = kind.split(" | "), value[:1] in ("'", '"'), value[:1] in ("[", "{")
    is_null = value == "null" and "None" in kinds
    are_sources = in_brackets and "Sequence" in kind and not Path(value).exists()
    if "str" in kinds and not (quoted or is_null or are_sources):
        return value
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    is_name = not kind and isinstance(read, str | list | dict) and not (quoted or in_brackets)
    return value if is_name else read


def overrides_in(
    words: Sequence[str], options: Iterable[str], objective: Callable[[], Iterable[str]] = tuple
) -> dict[str, str]:
    """``--section.key value`` and ``--section.key=value`` as a mapping; ``-`` in a key is ``_``.

    ConfigError if another word is among them; ``options`` are what it may have been meant for,
    beside the settings of the sections and those that ``objective`` returns.
    """
    settings: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        key = name.replace("-", "_")
        if not word.startswith("--") or "." not in name:
            known = {it: f"objective.{it}" for it in objective()}
            for section in fields_of(Recipe):
                known |= {it: f"{section}.{it}" for it in fields_of(_owner(Recipe, [section]))}
            known |= {option: option.replace("_", "-") for option in options}
            near = get_close_matches(key, known, 3, 0.85) or get_close_matches(key, known, 3, 0.5)
            remedy = "settings are given as --section.key VALUE"
            if near:
                remedy = f"did you mean {' or '.join(f'--{known[it]}' for it in near)}?"
            raise ConfigError(f"unknown option {word!r}; {remedy}")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"--{name} needs a value: --{name} VALUE")
            value = rest.pop(0)
        settings[key] = value
    return settings


def dotted(recipe: Recipe) -> dict[str, Any]:
    """Every setting by its dotted name."""
    sections = dataclasses.asdict(recipe).items()
    return {f"{name}.{key}": value for name, part in sections for key, value in part.items()}


_SETTINGS = {"encoder": "encoder.name", "data": "data.file", "columns": "data.columns"} | {
    name: f"train.{name}"
    for name in ("batch_size", "epochs", "max_steps", "learning_rate", "precision", "seed")
}
"""The settings of a recipe that have an option of their own, by its name."""


def recipe_with(
    recipe: str | Path | Recipe, values: Mapping[str, Any], cls: type[T]
) -> tuple[Recipe, T]:
    """A recipe with values, as options of ``cls`` or by dotted name, and the options.

    ConfigError if a setting is given both ways.
    """
    settings = {name: value for name, value in values.items() if "." in name}
    options = checked(cls, {name: value for name, value in values.items() if "." not in name})
    for name, key in _SETTINGS.items():
        value = getattr(options, name, None)
        if value is not None and key in settings:
            raise ConfigError(
                f"{name} {value} and {key} {settings[key]} are the same setting; give one of them"
            )
        if value is not None:
            settings[key] = value
    return load_recipe(recipe, settings), options


def default_output(recipe: str | Path | Recipe) -> Path:
    """The folder of a run where none is given."""
    name = recipe.objective["name"] if isinstance(recipe, Recipe) else Path(recipe).stem
    return Path("runs") / str(name)


def to_yaml(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as YAML."""
    return yaml.safe_dump(dataclasses.asdict(recipe), sort_keys=False, allow_unicode=True)


def validate(cls: type[T], content: Mapping[str, Any], where: str) -> T:
    """Make ``cls`` of ``content``; ConfigError names setting, value, and what is expected."""
    try:
        return TypeAdapter(cls).validate_python(dict(content))
    except ValidationError as error:
        raise _config_error(cls, error, where) from error


def fields_of(cls: Any) -> dict[str, Any]:
    """The settings of a class made by `settings`, by name; none of one that is not."""
    if not dataclasses.is_dataclass(cls):
        return {}
    return {field.name: field for field in dataclasses.fields(cls)}


def _owner(cls: Any, location: Sequence[str]) -> Any:
    for part in location:
        cls = cls.__pydantic_fields__[part].annotation
    return cls


def _config_error(cls: Any, error: ValidationError, where: str) -> ConfigError:
    first = error.errors()[0]
    location = [str(part) for part in first["loc"]]
    if first["type"] == "unexpected_keyword_argument":
        section = ".".join(location[:-1]) or where
        try:
            pick(f"setting of {section!r}:", location[-1], fields_of(_owner(cls, location[:-1])))
        except ConfigError as unknown:
            return unknown
    dotted = ".".join(location if where == "recipe" else [where, *location])
    words = expected(first["msg"])
    if first["type"] == "dataclass_type":
        words = "a section holds settings, each as NAME: VALUE"
    return ConfigError(f"{dotted} cannot be {shown(first['input'])}: {words}")
