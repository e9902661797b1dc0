"""The tree of commands, and how they end: a user's mistake is one clear message."""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from typing_extensions import override

from contrasent import __version__
from contrasent.cli.adapt import adapt
from contrasent.cli.analyze import analyze, neighbours
from contrasent.cli.data import captions, check, duplicates, fetch, leaks, nli, paraphrases
from contrasent.cli.encode import encode
from contrasent.cli.evaluate import evaluate
from contrasent.cli.fit import flow, infersent, sif, whitening
from contrasent.cli.mine import mine
from contrasent.cli.reproduce import calibrate, mteb, quickstart, reproduce
from contrasent.cli.search import add, build, info, optimize, remove, search, similarity
from contrasent.cli.serve import serve
from contrasent.cli.train import pretrain, recipes, train
from contrasent.errors import ContrasentError

P = ParamSpec("P")
R = TypeVar("R")

_MISTAKE, _INTERRUPTED = 2, 130
_USERS = (
    errno.ENOSPC,
    errno.EDQUOT,
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
                result = command(*args, **kwargs)
            sys.stdout.flush()
        except ContrasentError as error:
            _say("error", str(error))
            raise typer.Exit(_MISTAKE) from error
        except BrokenPipeError as error:
            # The reader of a pipe, such as head, has left: say nothing, also at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except OSError as error:
            if error.errno not in _USERS:
                raise
            _say("error", _explained(error))
            raise typer.Exit(_MISTAKE) from error
        except KeyboardInterrupt as error:
            how = f"; {error}" if str(error) else ""
            _say("stopped", f"interrupted; what was written is whole{how}")
            raise typer.Exit(_INTERRUPTED) from error
        return result

    return run


class _Stderr(logging.Handler):
    """Sends log lines where messages go."""

    @override
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


def _explained(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    remedy = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "; make room, and run the command again"
    return f"{place}{error.strerror}{remedy}"


def _say(kind: str, message: str) -> None:
    # Not typer.echo, which finds its way around the progress bar that sys.stderr is behind.
    sys.stderr.write(f"{kind}: {message}\n" if kind else f"{message}\n")
    sys.stderr.flush()


_HELP = {"help_option_names": ["-h", "--help"]}
# Plain help: the framed one wraps some texts at odd places, and takes [ ] in them for markup.
app = typer.Typer(
    name="contrasent",
    help="Train, evaluate and use contrastive sentence embeddings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_HELP,
)
data_app, build_app, index_app, fit_app, import_app = (
    typer.Typer(rich_markup_mode=None, no_args_is_help=True) for _ in range(5)
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
        to.command(short_help=first, context_settings=settings)(guarded(command))


# Every other word of `train` and `pretrain` may be a setting of the recipe: --section.key value.
_add(app, quickstart)
_add(app, adapt, train, pretrain, allow_extra_args=True, ignore_unknown_options=True)
_add(app, recipes, evaluate, analyze, neighbours, mteb, reproduce)
_add(app, encode, similarity, calibrate, search, serve)
_add(fit_app, whitening, flow, sif)
_add(import_app, infersent)
_add(index_app, build, add, remove, optimize, info)
_add(data_app, check, fetch, leaks, mine)
_add(build_app, nli, captions, duplicates, paraphrases)
app.add_typer(fit_app, name="fit", help="Fit a map to an encoder's embeddings, to go with it.")
app.add_typer(import_app, name="import", help="Make encoders of published weights of other forms.")
app.add_typer(index_app, name="index", help="Build and change a search index.")
app.add_typer(data_app, name="data", help="Check and build training text; get evaluation data.")
data_app.add_typer(build_app, name="build", help="Make training files from labelled sentences.")


def main() -> None:
    """Run the command line."""
    app()
