"""Commands from their settings, and what several commands do with what they were given."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from contrasent.errors import ConfigError, ContrasentError
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

_LONGEST = 230  # bytes of a name: systems take 255, of which a lock or a partial file adds some
_KINDS = {bool: "", Path: "PATH", int: "N", float: "X"}
_WRITTEN = ("--json", "--html", "--figures", "--output")  # where, and no number depends on it
_IN_RUNS = ("best", "last")  # folders whose names say nothing without those of their runs
_WIDTH = 96


def command(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options and arguments of the settings that its parameter ``options`` is.

    What was given is checked by the settings; a typer.Context may stand beside them.
    """
    hints = get_type_hints(run)
    cls, _ = hints.pop("options"), hints.pop("return")
    texts, fields = explanations(cls), cls.__pydantic_fields__
    flags = {name: _flags(name, field) for name, field in fields.items()}

    @wraps(run)
    def parse(**given: Any) -> None:
        beside = {name: given.pop(name) for name in hints}
        given = {name: value for name, value in given.items() if value not in (None, [], ())}
        options = checked(cls, given, lambda name: flags[name][0] if name in flags else name)
        for path in (it for it in vars(options).values() if isinstance(it, Path)):
            longest = max(map(len, map(os.fsencode, path.parts)), default=0)
            if longest > _LONGEST:
                raise ConfigError(
                    f"{path}: a name of {longest} bytes; take one of {_LONGEST} or fewer, since "
                    "a file is written under a longer one first"
                )
            if str(path).encode(errors="ignore").decode() != str(path):
                raise ConfigError(f"{str(path)!r} is not UTF-8; take another name")
        run(options=options, **beside)

    keyword = inspect.Parameter.KEYWORD_ONLY
    others = [inspect.Parameter(name, keyword, annotation=kind) for name, kind in hints.items()]
    taken = [_parameter(name, fields[name], flags[name], texts[name]) for name in fields]
    parse.__signature__ = inspect.Signature([*others, *taken])  # type: ignore[attr-defined]
    parse.__annotations__ = {it.name: it.annotation for it in (*others, *taken)}
    return parse


def _spelling(field: Any) -> Spelling:
    return next((it for it in field.metadata if isinstance(it, Spelling)), Spelling())


def _kind(field: Any) -> type:
    """The type of one value, which typer reads as text: of ``list[int] | None`` it is int."""
    words = re.findall(r"\w+", str(field.annotation))
    return next((kind for kind in _KINDS if kind.__name__ in words), str)


def _flags(name: str, field: Any) -> list[str]:
    """How a setting is given; of a switch also how it is turned off, if it may be on."""
    spelling, flag = _spelling(field), f"--{name.replace('_', '-')}"
    if spelling.argument:
        return [spelling.metavar or name.upper()]
    if spelling.flag:
        return [spelling.flag] if "/--no-" in spelling.flag else spelling.flag.split("/")
    both = _kind(field) is bool and field.default is not False
    return [f"{flag}/--no-{name.replace('_', '-')}" if both else flag]


def _parameter(name: str, field: Any, flags: list[str], text: str) -> inspect.Parameter:
    """A parameter as typer reads it; its default stands in the words that would give it."""
    spelling, kind, default = _spelling(field), _kind(field), field.default
    said = not (default is None or default is False or default in ("", ()))
    how: dict[str, Any] = {"help": text, "show_default": spelling.default or said}
    how |= {"autocompletion": spelling.complete}
    metavar = spelling.metavar or ("" if spelling.argument else _KINDS.get(kind, "TEXT"))
    how |= {"metavar": metavar} if metavar else {}
    if not spelling.argument:
        how |= {"envvar": spelling.variable or None, "show_envvar": bool(spelling.variable)}
    info = typer.Argument(**how) if spelling.argument else typer.Option(*flags, **how)
    several = "list[" in str(field.annotation)
    taken: Any = bool if kind is bool else list[str] if several else str
    if field.is_required():
        default = inspect.Parameter.empty
    else:
        taken = taken | None
        if not (default is None or isinstance(default, bool)):
            default = ",".join(default) if isinstance(default, tuple) else str(default)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, annotation=Annotated[taken, info], default=default)


def require(options: Measuring) -> None:
    """Refuse an engine or device that there is not here, before anything is loaded."""
    from contrasent.model.int8 import require_engine

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


def labels(models: Sequence[str]) -> dict[str, str]:
    """The models by a short name, or by the whole one where the short one is not theirs alone."""
    from contrasent.evaluation.task_names import short_name

    models = list(dict.fromkeys(models))
    short = [
        "/".join(Path(model).parts[-2:]) if Path(model).name in _IN_RUNS else short_name(model)
        for model in models
    ]
    return {
        name if name and short.count(name) == 1 else model: model
        for name, model in zip(short, models, strict=True)
    }


def for_each(models: Sequence[str], measure: Callable[[str], T]) -> tuple[dict[str, T], list[str]]:
    """Measure every model that can be, and say what failed; an only one's failure is raised."""
    results, failures = dict[str, T](), list[str]()
    for model in dict.fromkeys(models):
        try:
            results[model] = measure(model)
        except ContrasentError as error:
            if len(models) == 1:
                raise
            failures.append(f"{model}: {error}")
    return results, failures


def raise_failures(failures: Sequence[str]) -> None:
    """End with exit code 2 if something failed."""
    if failures:
        raise ContrasentError("\n".join(failures))


@contextmanager
def resumable(how: str, mark: Path | None = None) -> Iterator[None]:
    """Tell who interrupts the block how to go on, once the file ``mark`` is there."""
    try:
        yield
    except KeyboardInterrupt as error:
        if mark is not None and not mark.is_file():
            raise
        said = str(error) or "interrupted; what was written is whole"
        raise KeyboardInterrupt(f"{said}; {how}") from error


AGAIN = "go on with the same command and --resume"


def print_json(value: object, indent: int | None = None) -> None:
    """Print JSON in full precision."""
    from json import dumps

    typer.echo(dumps(value, ensure_ascii=False, indent=indent))


def write_lines(json: str | None, lines: str) -> bool:
    """Write JSON lines to a file, or print them; True if they stand in place of the table."""
    from contrasent.files import write_text

    if json == STDOUT:
        typer.echo(lines, nl=False)
    elif json is not None:
        write_text(json, lines)
    return json == STDOUT


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


def complete_recipe(incomplete: str) -> list[str]:
    """The packaged recipes that a shell may complete a word to."""
    from contrasent.recipe import recipes as packaged

    return [name for name in packaged() if name.startswith(incomplete)]


def describe(recipe: Recipe) -> str:
    """Every setting of ``recipe`` with its value, under a comment that explains it.

    The text is a recipe file that `contrasent train` takes. ConfigError if the objective or one of
    its settings is unknown.
    """
    import yaml

    from contrasent.objectives import MATRYOSHKA, available, config_of

    def comment(text: str) -> str:
        return textwrap.indent("".join(f"{line}\n" for line in textwrap.wrap(text, _WIDTH)), "# ")

    intro, text = explanations(type(recipe)), []
    for section, values in asdict(recipe).items():
        settings: Mapping[str, Any] = values
        part, comments = getattr(recipe, section), {}
        if section == "objective":
            name = str(values.get("name", "simcse"))
            part = config_of(name, {k: v for k, v in values.items() if k != "name"})
            dimensions = {key: value for key, value in values.items() if key in MATRYOSHKA}
            settings = {"name": name, **asdict(part), **dimensions}
            comments = {"name": f"One of: {', '.join(available())}."}
        comments |= explanations(type(part))
        lines = [
            comment(comments.get(key, "")) + yaml.safe_dump({key: value}, allow_unicode=True)
            for key, value in settings.items()
        ]
        body = textwrap.indent("".join(lines), "  ")
        text.append(f"{comment(intro[section])}{section}:\n{body}")
    return "\n".join(text)
