"""Options that the commands share, and what they do with a result."""

import argparse
import sys
from collections.abc import Callable, Sequence

from benchmarks.results import Result, write
from benchmarks.table import setting_line, table
from contrasent.errors import ContrasentError, pick

ENGINES = ("torch", "int8")
PRECISION_BITS = {"fp32": 32, "bf16": 16}
_MISTAKE = 2


def parser(name: str, description: str | None, *, peers: Sequence[str]) -> argparse.ArgumentParser:
    """The options of every command that measures speed against ``peers``."""
    made = argparse.ArgumentParser(prog=f"benchmarks.{name}", description=description)
    made.add_argument(
        "--encoder",
        default="all-MiniLM-L6-v2",
        help="a folder, a Hugging Face id, or bert-base-random",
    )
    made.add_argument(
        "--peer",
        default=",".join(peers),
        help=f"comma-separated: {', '.join(peers)}; or none. Default: all of them",
    )
    made.add_argument(
        "--peer-python",
        help="runs the peers whose packages are missing in this Python, such as other versions of "
        "the same ones",
    )
    made.add_argument("--rounds", type=int, default=5, help="counted rounds of each contestant")
    made.add_argument("--json", help="write everything that was measured to this file")
    return made


def add_texts(made: argparse.ArgumentParser) -> None:
    """The option that names the sentences."""
    made.add_argument("--data", help="sentences, one per line; default: the quickstart's")


def add_engines(made: argparse.ArgumentParser) -> None:
    """The option that names our engines; those whose packages are missing are left out."""
    made.add_argument(
        "--engine",
        default=",".join(ENGINES),
        help=f"ours, comma-separated: {', '.join(ENGINES)}. Default: all that are installed",
    )


def chosen(given: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list; ``none`` is none of them, another a ConfigError."""
    names = [] if given == "none" else given.split(",")
    return [pick("contestant", name.strip(), known) for name in names]


def publish(result: Result, path: str | None) -> None:
    """Print the table; write everything to ``path`` if there is one."""
    print(f"\n{result.title}: {setting_line(result)}\n\n{table(result)}")
    if path:
        write(result, path)


def guarded(command: Callable[[Sequence[str] | None], object]) -> int:
    """Run a command for ``sys.exit``; a mistake of the user's is one message."""
    try:
        command(None)
    except ContrasentError as error:
        print(f"error: {error}", file=sys.stderr)
        return _MISTAKE
    return 0
