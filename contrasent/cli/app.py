"""The tree of commands, and how they end: a user's mistake is one clear message."""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from contrasent import __version__
from contrasent.cli.adapt import adapt, mine, pretrain, tune
from contrasent.cli.analyze import analyze, neighbours
from contrasent.cli.data import captions, check, duplicates, fetch, leaks, nli, paraphrases
from contrasent.cli.encode import encode
from contrasent.cli.evaluate import calibrate, evaluate
from contrasent.cli.fit import export, flow, push, sif, whitening
from contrasent.cli.reproduce import mteb, quickstart, reproduce
from contrasent.cli.search import add, build, copy, info, optimize, remove, search, similarity
from contrasent.cli.serve import serve
from contrasent.cli.train import recipes, train
from contrasent.errors import (
    ConfigError,
    ContrasentError,
    first_line,
    is_disk_full,
    is_out_of_memory,
)
from contrasent.progress import printable

P = ParamSpec("P")
R = TypeVar("R")

_MISTAKE, _INTERRUPTED = 2, 130
_LONGEST = 230  # bytes of a name: systems take 255, of which a lock or a partial file adds some
_SHARED = ("train", "pretrain")
_YELLOW = "33"
_COLOURS = {"error": "1;31", "stopped": "1"}
_USERS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EFBIG,
)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command: messages to standard error, exit codes 0, 2 (mistake) and 130 (Ctrl-C)."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _speaking_on_stderr():
                _refuse_launchers(command.__name__, kwargs)
                _require_paths(kwargs)
                _require_models(kwargs)
                result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # The reader of a pipe, such as head, has left: say nothing, also at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except Exception as error:
            message = _explained(error, kwargs)
            if message is None:
                raise
            _say("error", message)
            raise typer.Exit(_MISTAKE) from error
        except KeyboardInterrupt as error:
            _say("stopped", str(error) or "interrupted; what was written is whole")
            raise typer.Exit(_INTERRUPTED) from error
        return result

    return run


def _refuse_launchers(command: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError if torchrun or the like starts several processes of a command for one."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes == "1" or command in _SHARED or given.get("shard") is not None:
        return
    raise ConfigError(
        f"WORLD_SIZE is {processes}, but only {' and '.join(_SHARED)} share their work among the "
        f"processes of a launcher; start {command} once, without torchrun, accelerate launch or "
        "srun, or with 'env -u WORLD_SIZE' (encode shares by --workers or --shard)"
    )


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


def _require_models(given: Mapping[str, Any]) -> None:
    """Find encoders that are not there before anything is imported that takes seconds.

    Raises:
        CheckpointError: a name is that of a folder which is gone.
    """
    from contrasent.model.hub import require_possible

    for name in ("model", "encoder", "models"):
        value = given.get(name)
        models: Sequence[str] = [value] if isinstance(value, str) else value or ()
        # Of several the others are measured, and vectors are files.
        if len(models) == 1 and not models[0].removesuffix(".gz").endswith(_VECTORS):
            require_possible(models[0])


class _Stderr(logging.Handler):
    """Sends log lines where messages go."""

    def emit(self, record: logging.LogRecord) -> None:
        quiet = record.levelno < logging.WARNING
        _say("" if quiet else record.levelname.lower(), self.format(record))


@contextmanager
def _speaking_on_stderr() -> Iterator[None]:
    """Send log lines and warnings to standard error, one line each."""
    logger = logging.getLogger("contrasent")
    level, propagate, handler = logger.level, logger.propagate, _Stderr()
    logger.addHandler(handler)
    # Of several processes, which torchrun numbers, the first one speaks.
    logger.setLevel(logging.ERROR if os.environ.get("RANK", "0") != "0" else logging.INFO)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show
            if not sys.warnoptions:
                warnings.simplefilter("default", UserWarning)
                for category in (DeprecationWarning, FutureWarning):
                    warnings.simplefilter("ignore", category)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    kind = "warning" if issubclass(category, UserWarning) else category.__name__
    _say(kind, str(message))


_LIGHTER = {
    "batch_tokens": "a smaller --batch-tokens",
    "shard_size": "a smaller --shard-size",
    "cache_mb": "a smaller --cache-mb",
    "workers": "fewer --workers",
    "kind": "--kind ivfpq",
    "truncate_dim": "a smaller --truncate-dim",
    "tasks": "fewer --tasks at once",
    "precision": "--precision bf16",
    "device": "another --device",
}
"""What needs less memory, by the option that says so."""


def _explained(error: BaseException, given: Mapping[str, Any]) -> str | None:
    """What a user is told of an error; None if it is a fault of the program.

    ``given`` are the command's options.
    """
    if isinstance(error, ContrasentError):
        return str(error)
    if is_out_of_memory(error):
        ways = [way for option, way in _LIGHTER.items() if option in given]
        return f"out of memory ({first_line(error)}); try {', '.join(ways) or 'less text at once'}"
    place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
    if is_disk_full(error):
        reason = getattr(error, "strerror", None) or first_line(error)
        return f"{place}{reason}; make room, and run the command again"
    if isinstance(error, OSError) and error.errno in _USERS:
        return f"{place}{error.strerror}"
    return None


def _say(kind: str, message: str) -> None:
    # Not typer.echo, which finds its way around the progress bar that sys.stderr is behind.
    label = f"{kind}: " if kind else ""
    if label and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        label = f"\033[{_COLOURS.get(kind, _YELLOW)}m{label}\033[0m"
    sys.stderr.write(f"{label}{printable(message)}\n")
    sys.stderr.flush()


_VECTORS = (".npy", ".txt", ".vec")
_METAVARS = (
    (r" <str>| TEXT", " TEXT"),
    (r" <int[^>]*>| INTEGER( RANGE)?", " N"),
    (r" <float[^>]*>| FLOAT( RANGE)?", " X"),
    (r" <path>", " PATH"),
    (r" <list[^ ]*>", ""),
)
_TOPICS = {
    "Encoder options": (
        *("encoder", "pooler", "head", "engine", "device", "precision"),
        "batch_tokens",
    ),
    "Protocol options": (
        *("protocol", "aggregation", "metric", "regressor", "confidence", "compare"),
        *("classifier", "preset", "classifier_seed", "leak_check"),
    ),
    "Output options": (
        *("output", "json", "html", "figures", "overwrite", "profile"),
        "settings",
    ),
}
_FEW = 8
"""Options that stand in one list."""


class _Command(TyperCommand):
    """A command whose help has plain names of values, and many options by topic."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        rows |= {topic: [] for topic in _TOPICS}
        many = len(self.params) > _FEW
        for param in self.get_params(ctx):
            is_option = param.param_type_name == "option"
            topics = (topic for topic, names in _TOPICS.items() if many and param.name in names)
            record = param.get_help_record(ctx)
            if record is not None:
                section = next(topics, "Options") if is_option else "Arguments"
                rows[section].append((_plain(record[0], is_option), record[1]))
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


def _plain(words: str, is_option: bool) -> str:
    """An option or argument as help names it, the type of its value in a plain word."""
    for pattern, plain in _METAVARS:
        words = re.sub(pattern, plain if is_option else "", words)
    return words


_GROUPS = {
    "Training": ("quickstart", "adapt", "train", "tune", "pretrain", "recipes", "fit"),
    "Evaluation": ("evaluate", "analyze", "neighbours", "calibrate", "mteb", "reproduce"),
}
_SPELLINGS = {"neighbors": "neighbours", "analyse": "analyze"}


class _Group(TyperGroup):
    """The commands by topic; both spellings of a name are known."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, _SPELLINGS.get(cmd_name, cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        limit = formatter.width - 6 - max(map(len, shown))
        topics = {topic: [it for it in names if it in shown] for topic, names in _GROUPS.items()}
        others = [name for name in shown if not any(name in names for names in topics.values())]
        for topic, names in {**topics, "Encoding, search and data": others}.items():
            records = [(it, shown[it].get_short_help_str(limit)) for it in names]
            with formatter.section(f"{topic} Commands"):
                formatter.write_dl(records)


_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
# Plain help: the framed one wraps some texts at odd places, and takes [ ] in them for markup.
app = typer.Typer(
    name="contrasent",
    cls=_Group,
    help="Train, evaluate and use contrastive sentence embeddings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_HELP,
)
data_app, build_app, index_app, fit_app = (
    typer.Typer(rich_markup_mode=None, no_args_is_help=True) for _ in range(4)
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


def _add(to: typer.Typer, *commands: Callable[..., None], **settings: Any) -> None:
    """Make functions commands; the list of commands shows the first paragraph of their text."""
    for command in commands:
        first = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
        to.command(cls=_Command, short_help=first, context_settings=settings)(guarded(command))


# Every other word of these may be a setting of the recipe: --section.key value.
_add(app, quickstart)
_add(app, adapt, train, tune, pretrain, allow_extra_args=True, ignore_unknown_options=True)
_add(app, recipes, evaluate, analyze, neighbours, mteb, reproduce)
_add(app, encode, similarity, calibrate, search, export, push, serve)
_add(fit_app, whitening, flow, sif)
_add(index_app, build, add, remove, optimize, copy, info)
_add(data_app, check, fetch, leaks, mine)
_add(build_app, nli, captions, duplicates, paraphrases)
app.add_typer(fit_app, name="fit", help="Fit whitening, flow or SIF to an encoder.")
app.add_typer(index_app, name="index", help="Build and change a search index.")
app.add_typer(data_app, name="data", help="Check and build training text; get evaluation data.")
data_app.add_typer(build_app, name="build", help="Make training files from labelled sentences.")


def main() -> None:
    """Run the command line."""
    app()
