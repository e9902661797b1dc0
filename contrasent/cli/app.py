"""The tree of commands, and how they end: a user's mistake is one clear message."""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from contrasent import __version__
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
_SHARED = ("train", "pretrain")
_YELLOW = "33"
_COLOURS = {"error": "1;31", "stopped": "1"}
_USERS = ("EACCES", "EPERM", "EROFS", "ENOENT", "ENOTDIR", "EISDIR", "ENAMETOOLONG", "EFBIG")


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command: messages to standard error, exit codes 0, 2 (mistake) and 130 (Ctrl-C)."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _speaking_on_stderr():
                _refuse_launchers(command.__name__, kwargs)
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
    if processes != "1" and command not in _SHARED and given.get("shard") is None:
        raise ConfigError(
            f"WORLD_SIZE is {processes}, but only {' and '.join(_SHARED)} share their work among "
            f"the processes of a launcher; start {command} once, without torchrun, accelerate "
            "launch or srun, or with 'env -u WORLD_SIZE' (encode shares by --workers or --shard)"
        )


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
    if isinstance(error, OSError) and errno.errorcode.get(error.errno or 0) in _USERS:
        return f"{place}{error.strerror}"
    return None


def _say(kind: str, message: str) -> None:
    # Not typer.echo, which finds its way around the progress bar that sys.stderr is behind.
    label = f"{kind}: " if kind else ""
    if label and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        label = f"\033[{_COLOURS.get(kind, _YELLOW)}m{label}\033[0m"
    sys.stderr.write(f"{label}{printable(message)}\n")
    sys.stderr.flush()


_TOPICS = {
    "Encoder options": "encoder pooler head engine device precision batch_tokens",
    "Protocol options": "protocol aggregation metric regressor confidence compare "
    "classifier preset classifier_seed leak_check",
    "Output options": "output json html figures overwrite profile settings",
}
_FEW = 8
"""Options that stand in one list."""


class _Command(TyperCommand):
    """A command whose help has many options by topic."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        rows |= {topic: [] for topic in _TOPICS}
        for param in self.get_params(ctx):
            is_option, many = param.param_type_name == "option", len(self.params) > _FEW
            topics = (
                topic for topic, names in _TOPICS.items() if many and param.name in names.split()
            )
            record = param.get_help_record(ctx)
            if record is not None:
                words = record[0] if is_option else record[0].partition(" <")[0]
                section = next(topics, "Options") if is_option else "Arguments"
                rows[section].append((words, record[1]))
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


_TOPICS_OF_COMMANDS = {
    "Training": ("quickstart", "adapt", "train", "tune", "pretrain", "recipes", "fit"),
    "Evaluation": ("evaluate", "analyze", "neighbours", "calibrate", "mteb", "reproduce"),
}
_SPELLINGS = {"neighbors": "neighbours", "analyse": "analyze"}
_COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "contrasent": {
        "reproduce": ("quickstart", "mteb", "reproduce"),
        "train": ("adapt", "tune", "pretrain", "train", "recipes"),
        "evaluate": ("evaluate", "calibrate", "analyze", "neighbours"),
        "search": ("encode", "similarity", "search"),
        "fit": ("export", "push"),
        "serve": ("serve",),
    },
    "fit": {"fit": ("whitening", "flow", "sif")},
    "index": {"search": ("build", "add", "remove", "optimize", "copy", "info")},
    "data": {"data": ("check", "fetch", "leaks", "mine")},
    "build": {"data": ("nli", "captions", "duplicates", "paraphrases")},
}
"""The commands of each group, by the module of ``cli`` that has them."""

_WITH_SETTINGS = ("adapt", "train", "tune", "pretrain")
"""Commands of which every other word may be a setting of the recipe: --section.key value."""


class _Commands(Mapping[str, Any]):
    """The commands of a group, each imported when it is asked for."""

    def __init__(self, group: str, subgroups: Mapping[str, Any]) -> None:
        self.modules = {n: m for m, names in _COMMANDS[group].items() for n in names}
        self.made = dict(subgroups)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.modules, *self.made]))

    def __len__(self) -> int:
        return len({*self.modules, *self.made})

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            module = import_module(f"contrasent.cli.{self.modules[name]}")
            flags = ("allow_extra_args", "ignore_unknown_options")
            settings = dict.fromkeys(flags, True) if name in _WITH_SETTINGS else {}
            command = guarded(getattr(module, name))
            info = CommandInfo(name, cls=_Command, callback=command, context_settings=settings)
            self.made[name] = get_command_from_info(
                info, pretty_exceptions_short=True, rich_markup_mode=None
            )
        return self.made[name]

    def summary(self, name: str) -> str:
        """The first sentence of a command's text, read without an import of what it needs."""
        text = str(self.made[name].help) if name in self.made else ""
        if name in self.modules:
            source = Path(__file__).with_name(f"{self.modules[name]}.py").read_text("utf-8")
            [text] = re.findall(rf'^def {name}\(.*?"""(.*?)(?:\n\n|""")', source, re.S | re.M)
        first, dot, _ = " ".join(text.split()).partition(". ")
        return first + dot.strip()


class _Group(TyperGroup):
    """The commands by topic; both spellings of a name are known."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands(str(self.name), self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, _SPELLINGS.get(cmd_name, cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        topics: dict[str, list[str]] = {"": names}
        if self.name == "contrasent":
            topics = {f"{topic} ": list(of) for topic, of in _TOPICS_OF_COMMANDS.items()}
            others = [name for name in names if not any(name in of for of in topics.values())]
            topics["Encoding, search and data "] = others
        for topic, chosen in topics.items():
            with formatter.section(f"{topic}Commands"):
                texts = (
                    shorten(self.commands.summary(it), limit, placeholder="...") for it in chosen
                )
                formatter.write_dl([*zip(chosen, texts, strict=True)])


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
    ("", "fit", "Fit whitening, flow or SIF to an encoder."),
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
