"""The tree of commands, their options, their results, and how they end.

A command is a class of settings that is called: its fields are the options, its docstring the help.
A mistake is one clear message.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from json import dumps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from contrasent import __version__, evaluation, model, report
from contrasent.errors import ContrasentError, first_line, is_disk_full, is_out_of_memory
from contrasent.files import listed, require_place, write_text
from contrasent.options import Loading, Measuring, Replacing
from contrasent.progress import printable
from contrasent.records import Record
from contrasent.settings import Spelling, checked, explanations, settings, shared, spelling_of

T = TypeVar("T")

STDOUT = "-"  # in place of a file
_MISTAKE, _INTERRUPTED = 2, 130
_WRITTEN = ("output", "json", "html", "groups")

_COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "contrasent": {
        "train": ("quickstart", "adapt", "train", "tune", "pretrain", "recipes"),
        "evaluate": ("evaluate", "analyze", "neighbours", "calibrate", "mteb", "reproduce"),
        "search": ("encode", "similarity", "search", "duplicates", "cluster"),
        "fit": ("export", "push", "serve", "mcp"),
    },
    "fit": {"fit": ("whitening", "flow", "static")},
    "index": {"search": ("build", "add", "sync", "remove", "optimize", "reembed", "tune", "info")},
    "data": {"data": ("check", "fetch", "leaks", "mine", "synthesize")},
    "build": {"data": ("nli", "captions", "duplicates", "paraphrases")},
}
"""The commands of each group, by the module of ``cli`` that has their classes."""


@settings
class AsJson:
    """The form of what is printed."""

    json: bool = False
    """Print JSON in full precision, not a table."""


@settings
class AsHtml(Replacing):
    """A page beside what is printed."""

    html: Annotated[Path | None, Spelling(metavar="FILE")] = None
    """Write a page to FILE that loads nothing: tables, figures, settings, how to repeat them."""


def say(message: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, without what a terminal obeys."""
    typer.echo(printable(message), err=err, nl=nl)


tell = partial(say, err=True)


def load(options: Loading, name: str) -> model.LoadedEncoder:
    """The encoder, as its options say."""
    return model.load_encoder(name, **shared(options, Loading))


def use(options: Measuring, name: str) -> evaluation.EncoderUse:
    """The encoder in the precision that was asked for, with a progress bar."""
    return evaluation.EncoderUse.by(options, name, model.training_seed(name), True)


def labels(models: Sequence[str]) -> dict[str, str]:
    """The models by a short name, or by the whole one where the short one is not theirs alone."""
    names = {whole: report.short_encoder(whole) for whole in models}
    counts = Counter(names.values())
    return {name if counts[name] == 1 else whole: whole for whole, name in names.items()}


def for_each(models: Sequence[str], measure: Callable[[str], T]) -> tuple[dict[str, T], list[str]]:
    """Measure every model that can be, and say what failed; an only one's failure is raised."""
    results, failures = dict[str, T](), list[str]()
    for name in dict.fromkeys(models):
        try:
            results[name] = measure(name)
        except ContrasentError as error:
            if len(models) == 1:
                raise
            failures.append(f"{name}: {error}")
    return results, failures


def raise_failures(failures: Sequence[str]) -> None:
    """End with exit code 2 if something failed."""
    if failures:
        raise ContrasentError("\n".join(failures))


def print_tables(*tables: report.Table) -> None:
    """Print tables on standard output, a blank line between them."""
    from rich.console import Console

    console = Console()
    for place, table in enumerate(tables):
        if place:
            console.print()
        report.print_table(console, table)


def print_json(value: object, indent: int | None = None) -> None:
    """Print JSON in full precision."""
    text = dumps(value, ensure_ascii=False, indent=indent)
    typer.echo(text if text == printable(text) else dumps(value, indent=indent))


def print_facts(facts: dict[str, Any], lines: Iterable[str], *, json: bool) -> None:
    """Print what was found out, as JSON or in lines."""
    if json:
        print_json(facts, indent=2)
    else:
        say("\n".join(lines))


def write_lines(json: str | None, lines: str) -> bool:
    """Write JSON lines to a file, or print them; True if they stand in place of the table."""
    if json == STDOUT:
        typer.echo(lines, nl=False)
    elif json is not None:
        write_text(json, lines)
    return json == STDOUT


def called() -> str:
    """The command that was called."""
    return shlex.join(("contrasent", *sys.argv[1:]))


def with_command(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records, with the command that measured them."""
    return tuple(replace(record, command=called()) for record in records)


def write_html(path: Path | None, contents: report.Contents) -> None:
    """Write a report that names the command that was called, where one is asked for."""
    if path is not None:
        report.write_report(path, replace(contents, command=called()))
        tell(str(path))


def _guarded(run: Callable[..., None]) -> Callable[..., None]:
    def guarded(context: typer.Context, **given: Any) -> None:
        try:
            with _speaking_on_stderr():
                run(context, **given)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of a pipe, such as head, has left: say nothing, also at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            message = _explained(error)
            if message is None:
                raise
            _say("error", message)
            raise typer.Exit(_MISTAKE) from error
        except KeyboardInterrupt as error:
            how = "; go on with the same command and --resume" if "resume" in given else ""
            _say("stopped", (str(error) or "interrupted; what was written is whole") + how)
            raise typer.Exit(_INTERRUPTED) from error

    return guarded


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        quiet = record.levelno < logging.WARNING
        _say("" if quiet else record.levelname.lower(), self.format(record))


@contextmanager
def _speaking_on_stderr() -> Iterator[None]:
    logger = logging.getLogger("contrasent")
    level, propagate, handler = logger.level, logger.propagate, _Stderr()
    logger.addHandler(handler)
    # Of several processes, which torchrun numbers, the first one speaks.
    logger.setLevel(logging.ERROR if os.environ.get("RANK", "0") != "0" else logging.INFO)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _say("warning", str(message))
            if not sys.warnoptions:
                warnings.simplefilter("default", UserWarning)
                for category in (DeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", category)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _explained(error: Exception) -> str | None:
    if isinstance(error, ContrasentError):
        return str(error)
    if is_out_of_memory(error):
        return f"out of memory ({first_line(error)}); try smaller batches or another --device"
    place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    if is_disk_full(error):
        reason = getattr(error, "strerror", None) or first_line(error)
        return f"{place}{reason}; make room, and run the command again"
    return f"{place}{error.strerror}" if place and isinstance(error, OSError) else None


def _say(kind: str, message: str) -> None:
    # Not typer.echo, which finds its way around the progress bar that sys.stderr is behind.
    sys.stderr.write(f"{kind}: {printable(message)}\n" if kind else f"{printable(message)}\n")
    sys.stderr.flush()


_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_KINDS = {bool: "", Path: "PATH", int: "N", float: "X"}


def _keep_sources(given: dict[str, Any]) -> None:
    """Refuse to write a file that another option names, or two results to one."""
    values = (value for name, value in given.items() if name not in _WRITTEN)
    lists = (listed(it if isinstance(it, list) else str(it)) for it in values)
    sources = [*map(str, chain.from_iterable(lists))]
    named = [given[name] for name in _WRITTEN if isinstance(given.get(name), str | Path)]
    written = [Path(path).resolve() for path in named]
    for path in written:
        twice = "is named for two outputs" * (written.count(path) > 1)
        if twice or (given.get("overwrite") and path.is_file()):
            require_place(path, twice, sources)


def _command(name: str, cls: Any) -> Any:
    fields, texts = cls.__pydantic_fields__, explanations(cls)
    flags = {name: _flags(name, field) for name, field in fields.items()}

    def run(context: typer.Context, **given: Any) -> None:
        given = {name: value for name, value in given.items() if value not in (None, [], ())}
        options = checked(cls, given, lambda name: flags[name][0] if name in flags else name)
        _keep_sources(given)
        options(*((context.args,) if takes_settings else ()))

    # Every other word may be a setting of the recipe: --section.key value.
    command, takes_settings = _guarded(run), len(inspect.signature(cls.__call__).parameters) > 1
    own = vars(cls).get("__annotations__", {})
    first = sorted(fields, key=lambda it: it not in own and not spelling_of(fields[it]).argument)
    taken = [_parameter(name, fields[name], flags[name], texts[name]) for name in first]
    taken.insert(0, inspect.Parameter("context", _KEYWORD, annotation=typer.Context))
    command.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    command.__annotations__ = {it.name: it.annotation for it in taken}
    more = dict.fromkeys(("allow_extra_args", "ignore_unknown_options"), takes_settings)
    how: dict[str, Any] = {"help": inspect.getdoc(cls), "context_settings": more}
    info = CommandInfo(name, cls=_Command, callback=command, **how)
    return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)


class _Command(TyperCommand):
    """A command that takes an option once, unless it is one of several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option, times in Counter(self.make_parser(ctx).parse_args([*args])[2]).items():
            if times > 1 and not getattr(option, "multiple", False):
                ctx.fail(f"{option.opts[0]} is given {times} times; give it once")
        return super().parse_args(ctx, args)


def _kind(field: Any) -> type:
    words = re.findall(r"\w+", str(field.annotation))
    return next((kind for kind in _KINDS if kind.__name__ in words), str)


def _flags(name: str, field: Any) -> list[str]:
    """The flags of a setting; of a switch also the one that turns it off, if it may be on."""
    spelling, flag = spelling_of(field), f"--{name.replace('_', '-')}"
    if spelling.argument:
        return [spelling.metavar or name.upper()]
    if spelling.flag:
        return [spelling.flag] if _kind(field) is bool else spelling.flag.split("/")
    both = _kind(field) is bool and field.default is not False
    return [f"{flag}/--no-{name.replace('_', '-')}" if both else flag]


def _parameter(name: str, field: Any, flags: list[str], text: str) -> inspect.Parameter:
    """A parameter as typer reads it; its default stands in the words that would give it."""
    spelling, kind, default = spelling_of(field), _kind(field), field.default
    shown = not (default is None or default is False or default in ("", ()))
    how: dict[str, Any] = {"help": text, "show_default": shown}
    metavar = name.upper() if spelling.argument else _KINDS.get(kind, "TEXT")
    how |= {"metavar": spelling.metavar or metavar or None}
    if not spelling.argument:
        how |= {"envvar": spelling.variable or None, "show_envvar": bool(spelling.variable)}
    info = typer.Argument(**how) if spelling.argument else typer.Option(*flags, **how)
    taken: Any = bool if kind is bool else list[str] if "list[" in str(field.annotation) else str
    if field.is_required():
        default = inspect.Parameter.empty
    else:
        taken = taken | None
        if not (default is None or isinstance(default, bool)):
            default = ",".join(default) if isinstance(default, tuple) else str(default)
    return inspect.Parameter(name, _KEYWORD, annotation=Annotated[taken, info], default=default)


class _Group(TyperGroup):
    """A group of commands, each imported when it is called, or its help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.modules = {n: m for m, names in _COMMANDS[str(self.name)].items() for n in names}
        self.commands: Any = {**dict.fromkeys(self.modules), **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.modules and self.commands[cmd_name] is None:
            module = import_module(f"contrasent.cli.{self.modules[cmd_name]}")
            named = (f"{cmd_name.capitalize()}{of}Command" for of in ("", "Index", "Text"))
            cls = next(getattr(module, it) for it in named if hasattr(module, it))
            self.commands[cmd_name] = _command(cmd_name, cls)
        return super().get_command(ctx, cmd_name)


# Plain help: the framed one wraps some texts at odd places, and takes [ ] in them for markup.
app = typer.Typer(
    name="contrasent",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"contrasent {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_tell_version
        ),
    ] = False,
) -> None:
    """Train, evaluate and use contrastive sentence embeddings."""


_groups: dict[str, typer.Typer] = {"": app}
for _above, _name, _text in (
    ("", "fit", "Fit whitening, a flow or a static table."),
    ("", "index", "Build and change a search index."),
    ("", "data", "Check and build training text; get evaluation data."),
    ("data", "build", "Make training files from labelled sentences."),
):
    _groups[_name] = typer.Typer(
        name=_name, help=_text, cls=_Group, rich_markup_mode=None, no_args_is_help=True
    )
    _groups[_above].add_typer(_groups[_name])


def main() -> None:
    """Run the command line."""
    app()
