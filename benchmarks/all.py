"""Every benchmark with the settings of ``docs/performance.md``: ``python -m benchmarks.all``.

Results go to ``docs/results``, and the tables of the page are made anew. An hour on two cores; let
nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_RANDOM_BASE = "--encoder bert-base-random --pooler cls"

COMMANDS = {
    "train": "train --pooler mean --steps 8",
    "train-cls": "train --pooler cls --steps 8",
    "train-base": f"train {_RANDOM_BASE} --steps 1",
    "objectives": "objectives --encoder minilm-random --steps 4",
    "encode": "encode",
    "encode-base": f"encode {_RANDOM_BASE} --sentences 256 --engine torch --peer torch",
    "evaluate": "evaluate --engine torch --rounds 3",
    "transfer": "transfer --contestants 'contrasent,contrasent sklearn,SentEval in C'",
    "transfer-speed": "transfer --contestants contrasent,SentEval --tasks trec,mrpc --seeds 1111",
    "latency": "latency",
    "memory-encode": "memory encode --sizes 10000,100000 --rounds 3",
    "memory-train": "memory train --sizes 64,4096 --set train.gradcache_chunk=128",
}
"""The arguments of each benchmark, by the name of its result."""

_TAKES_PEER_PYTHON = ("train", "encode", "evaluate", "latency")
_TAKES_DATA = ("train", "objectives", "encode", "latency", "memory")


def command(name: str, results: Path, *, data: str | None, peer_python: str | None) -> list[str]:
    """The command line of one benchmark."""
    words = shlex.split(COMMANDS[name])
    line = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    if data and words[0] in _TAKES_DATA:
        line += ["--data", data]
    if peer_python and words[0] in _TAKES_PEER_PYTHON:
        line += ["--peer-python", peer_python]
    return [*line, "--json", str(results / f"{name}.json")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; the exit code is that of the first that failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.all", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--data", type=Path, help="sentences, one per line")
    parser.add_argument("--peer-python", help="see the benchmarks' own --help")
    parser.add_argument("--page", type=Path, default=_ROOT / "docs" / "performance.md")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in COMMANDS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(COMMANDS)}")
    data = str(given.data.resolve()) if given.data else None
    for name in given.names or COMMANDS:
        line = command(
            name, given.page.parent / "results", data=data, peer_python=given.peer_python
        )
        print(shlex.join(line), file=sys.stderr, flush=True)
        if code := subprocess.run(line, cwd=_ROOT, check=False).returncode:
            return code
    table = [sys.executable, "-m", "benchmarks.table", "--update", str(given.page.resolve())]
    return subprocess.run(table, cwd=_ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
