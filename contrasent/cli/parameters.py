"""Arguments and options that several commands share, and what is done with them."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import typer

from contrasent.errors import ConfigError
from contrasent.options import Loading, Measuring, shared
from contrasent.settings import Spelling, checked, explanations

if TYPE_CHECKING:
    from contrasent.evaluation.embed import EncoderUse
    from contrasent.evaluation.vectors import MatrixEncoder
    from contrasent.model.loading import LoadedEncoder
    from contrasent.recipe import Recipe
    from contrasent.records import Record
    from contrasent.report.contents import Contents

T = TypeVar("T")

STDOUT = "-"
"""What names standard output in place of a file."""


def command(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options and arguments of the settings that its parameter ``options`` is.

    What was given is checked by the settings; a typer.Context may stand beside them.
    """
    hints = get_type_hints(run)
    cls = hints.pop("options")
    flags = {name: _flags(name, field)[0] for name, field in cls.__pydantic_fields__.items()}

    @wraps(run)
    def parse(**given: Any) -> None:
        beside = {name: given.pop(name) for name in hints if name in given}
        given = {name: value for name, value in given.items() if value not in (None, [], ())}
        options = checked(cls, given, lambda name: flags.get(name, name))
        _require_paths(vars(options))
        run(options=options, **beside)

    kinds = {name: kind for name, kind in hints.items() if name != "return"} | _parameters(cls)
    parse.__annotations__ = kinds
    parse.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=kind,
                default=_default(cls, name) if name in flags else inspect.Parameter.empty,
            )
            for name, kind in kinds.items()
        ]
    )
    return parse


def _require_paths(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a path that cannot be written at the end, or is nowhere."""
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError("the working folder is gone; change to one that is there") from error
    for path in filter(lambda it: isinstance(it, Path), given.values()):
        longest = max(map(os.fsencode, path.parts), key=len, default=b"")
        if len(longest) > _LONGEST:
            raise ConfigError(
                f"{path}: a name of {len(longest)} bytes; take one of {_LONGEST} or fewer, since "
                "a file is written under a longer one first"
            )
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{str(path)!r} is not UTF-8, and what is written there names itself in it; take "
                "another name"
            ) from error


_LONGEST = 230  # bytes of a name: systems take 255, of which a lock or a partial file adds some
_NAMES = {int: "N", float: "X", Path: "PATH"}


def _parameters(cls: Any) -> dict[str, Any]:
    """The parameters of a command, as typer's annotations, by the names of the settings."""
    texts = explanations(cls)
    found: dict[str, Any] = {}
    for name, field in cls.__pydantic_fields__.items():
        spelling, kind, several = _spelling(field), _kind(field.annotation), _is_list(field)
        how: dict[str, Any] = {
            "help": texts[name],
            "show_default": spelling.default or not _says_nothing(field.default),
            "autocompletion": spelling.complete,
        }
        if spelling.argument:
            if spelling.metavar:
                how["metavar"] = spelling.metavar
            info = typer.Argument(**how)
        else:
            how |= {"envvar": spelling.variable or None, "show_envvar": bool(spelling.variable)}
            if kind is not bool:
                how["metavar"] = spelling.metavar or _NAMES.get(kind, "TEXT")
            info = typer.Option(*_flags(name, field), **how)
        given: Any = bool if kind is bool else list[str] if several else str
        found[name] = Annotated[given if field.is_required() else given | None, info]
    return found


def _says_nothing(default: Any) -> bool:
    return default is None or default is False or default in ("", ())


def _spelling(field: Any) -> Spelling:
    return next((it for it in field.metadata if isinstance(it, Spelling)), Spelling())


def _flags(name: str, field: Any) -> list[str]:
    """How a setting is given; of a switch also how it is turned off, if it may be on."""
    spelling = _spelling(field)
    if spelling.argument:
        return [spelling.metavar or name.upper()]
    words = name.replace("_", "-")
    if spelling.flag or _kind(field.annotation) is not bool:
        parts = (spelling.flag or f"--{words}").split("/")
        return ["/".join(parts)] if parts[-1].startswith("--no-") else parts
    return [f"--{words}" if field.default is False else f"--{words}/--no-{words}"]


def _kind(annotation: Any) -> Any:
    """The type of one value: of ``list[int] | None`` it is int."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [it for it in get_args(annotation) if it is not NoneType]
        return _kind(Path if Path in kinds else kinds[0])
    if get_origin(annotation) is list:
        return _kind(get_args(annotation)[0])
    return annotation


def _is_list(field: Any) -> bool:
    kinds = (field.annotation, *get_args(field.annotation))
    return any(get_origin(kind) is list for kind in kinds)


def _default(cls: Any, name: str) -> Any:
    """A default as typer shows it: that of a value in the words that would give it."""
    field = cls.__pydantic_fields__[name]
    if field.is_required():
        return inspect.Parameter.empty
    if field.default is None or isinstance(field.default, bool):
        return field.default
    if isinstance(field.default, tuple | list):
        return ",".join(field.default)
    return str(field.default)


def require(options: Measuring) -> None:
    """Refuse a precision, engine or device that there is not here, before anything is loaded."""
    from contrasent.errors import pick
    from contrasent.evaluation.embed import PRECISIONS
    from contrasent.model.int8 import require_engine

    pick("precision", options.precision_name, ("auto", *PRECISIONS))
    require_engine(options.engine, options.device)


def load(options: Loading, model: str) -> LoadedEncoder:
    """The encoder, as its options say."""
    from contrasent.model.loading import load_encoder

    return load_encoder(model, **shared(options, Loading))


def use(options: Measuring, encoder: LoadedEncoder | MatrixEncoder) -> EncoderUse:
    """An encoder in the precision that was asked for, with a progress bar."""
    from contrasent.evaluation.embed import EncoderUse
    from contrasent.model.checkpoint import training_seed

    precision = encoder.resolve_precision(options.precision_name)
    return EncoderUse(encoder, precision, training_seed(encoder.name), show_progress=True)


@overload
def listed(text: str) -> list[str]: ...
@overload
def listed(text: None) -> None: ...
def listed(text: str | None) -> list[str] | None:
    """What stands between commas."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


_IN_RUNS = ("best", "last")
"""Folders whose names say nothing without those of their runs."""


def labels(models: Sequence[str]) -> dict[str, str]:
    """The models by a short name, or by the whole one where the short one is not theirs alone."""
    from contrasent.evaluation.task_names import short_name

    short = [
        "/".join(Path(model).parts[-2:]) if Path(model).name in _IN_RUNS else short_name(model)
        for model in dict.fromkeys(models)
    ]
    return {
        name if name and short.count(name) == 1 else model: model
        for name, model in zip(short, dict.fromkeys(models), strict=True)
    }


@dataclass(frozen=True)
class Outcomes(Generic[T]):
    """Results by model, and a message for each thing that failed."""

    results: dict[str, T]
    failures: list[str]


def for_each(models: Sequence[str], measure: Callable[[str], T]) -> Outcomes[T]:
    """Measure every model that can be loaded and measured; the failure of an only one is raised."""
    from contrasent.errors import ContrasentError

    outcomes: Outcomes[T] = Outcomes({}, [])
    for model in dict.fromkeys(models):
        try:
            outcomes.results[model] = measure(model)
        except ContrasentError as error:
            if len(models) == 1:
                raise
            outcomes.failures.append(f"{model}: {error}")
    return outcomes


def raise_failures(failures: Sequence[str]) -> None:
    """End with exit code 2 if something failed."""
    from contrasent.errors import ContrasentError

    if failures:
        raise ContrasentError("\n".join(failures))


def print_json(value: object, indent: int | None = None) -> None:
    """Print JSON in full precision."""
    from json import dumps

    typer.echo(dumps(value, ensure_ascii=False, indent=indent))


def refuse_existing_json(json: str | None, *, overwrite: bool) -> None:
    """Find before any work that JSON lines cannot be written, or would replace others."""
    if json is None or json == STDOUT:
        return
    if Path(json).is_dir():
        raise ConfigError(f"--json {json} is a folder; name a file in it, or - to print")
    if Path(json).exists() and not overwrite:
        raise ConfigError(f"{json} exists already; name another file or add --overwrite")


def write_lines(json: str | None, lines: str) -> bool:
    """Write JSON lines to a file, or print them; True if they stand in place of the table."""
    from contrasent.files import write_text

    if json == STDOUT:
        typer.echo(lines, nl=False)
        return True
    if json is not None:
        write_text(json, lines)
    return False


_WRITTEN = ("--json", "--html", "--figures", "--output")
"""Options that say where something is written, and decide no number."""


def measuring_command() -> str:
    """The command that was called, without where it writes."""
    kept: list[str] = []
    words = iter(sys.argv[1:])
    for word in words:
        if word in _WRITTEN:
            next(words, None)
        elif word != "--overwrite" and not word.startswith(tuple(f"{it}=" for it in _WRITTEN)):
            kept.append(word)
    return shlex.join(("contrasent", *kept))


def with_command(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records, with the command that measured them."""
    command = measuring_command()
    return tuple(replace(record, command=command) for record in records)


def write_html(path: Path | None, contents: Contents) -> None:
    """Write a report that names the command that was called, where one is asked for."""
    from contrasent.report.html.page import write_report

    if path is not None:
        command = shlex.join(("contrasent", *sys.argv[1:]))
        write_report(path, replace(contents, command=command))
        typer.echo(f"{path}", err=True)


_WIDTH = 96


def complete_recipe(incomplete: str) -> list[str]:
    """The packaged recipes that a shell may complete a word to."""
    from contrasent.recipe import recipes as packaged

    return [name for name in packaged() if name.startswith(incomplete)]


def print_settings(recipe: Recipe) -> None:
    """Print a recipe as YAML, with every setting explained."""
    typer.echo(describe(recipe), nl=False)


def describe(recipe: Recipe) -> str:
    """Every setting of ``recipe`` with its value, under a comment that explains it.

    The text is a recipe file that `contrasent train` takes.

    Raises:
        ConfigError: the objective or one of its settings is unknown.
    """
    from contrasent.objectives import MATRYOSHKA, available, config_of

    intro = explanations(type(recipe))
    text = []
    for section, values in asdict(recipe).items():
        settings, part, comments = values, getattr(recipe, section), {}
        if section == "objective":
            name = str(values.get("name", "simcse"))
            part = config_of(name, {k: v for k, v in values.items() if k != "name"})
            dimensions = {key: value for key, value in values.items() if key in MATRYOSHKA}
            settings = {"name": name, **asdict(part), **dimensions}
            comments = {"name": f"One of: {', '.join(available())}."}
        lines = _section(settings, {**comments, **explanations(type(part))})
        text.append(f"{_comment(intro[section])}{section}:\n{lines}")
    return "\n".join(text)


def _section(settings: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    import yaml

    lines = [
        _comment(comments.get(key, "")) + yaml.safe_dump({key: value}, allow_unicode=True)
        for key, value in settings.items()
    ]
    return textwrap.indent("".join(lines), "  ")


def _comment(text: str) -> str:
    wrapped = textwrap.wrap(" ".join(text.split()), _WIDTH)
    return "".join(f"# {line}\n" for line in wrapped)


def require_index(index: Path) -> None:
    """Find an index that is not there before anything is imported that takes seconds."""
    from contrasent.errors import CheckpointError

    if not index.is_dir():
        raise CheckpointError(
            f"there is no index at {index}: it is not a folder; make one with: contrasent index "
            f"build MODEL INPUT {index}"
        )


def numbers_of_seeds(text: str) -> tuple[int, ...]:
    """Seeds between commas, each once.

    Raises:
        ConfigError: one is no whole number from 0 on.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds {text} must be whole numbers from 0 on, such as 42,43,44")
    return tuple(dict.fromkeys(map(int, parts)))
