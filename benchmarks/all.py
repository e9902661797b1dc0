"""Every benchmark with the settings of ``docs/performance.md``: ``python -m benchmarks.all``.

Results go to ``docs/results``, and the tables of the page are made anew. An hour on two cores; let
nothing else run meanwhile.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_RANDOM_BASE = "--encoder bert-base-random --pooler cls"

COMMANDS = {
    "train-cls": "train --pooler cls --steps 8",
    "train-base": f"train {_RANDOM_BASE} --steps 1 --batch-size 16 --rounds 3",  # all are in memory
    "objectives": "objectives --encoder minilm-random --steps 4",
    "encode": "encode",
    "encode-no-amx": (
        "encode --sentences 1024 --rounds 3 --engine torch,int8 "
        "--peer torch,openvino,onnx-qint8,openvino-qint8"
    ),
    "encode-base": f"encode {_RANDOM_BASE} --sentences 256 --engine torch --peer torch",
    "transfer-speed": "transfer --tasks trec,mrpc --seeds 1111",
    "latency": "latency",
    "memory-encode": "memory --sizes 10000,100000 --rounds 3",
}
"""The arguments of each benchmark, by the name of its result."""

GPU = {
    "gpu-train": f"train {_RANDOM_BASE} --batch-size 512 --steps 20 --rounds 3 --tokens 32",
    "gpu-objectives": (
        "objectives --encoder bert-base-random --batch-size 512 --steps 10 --rounds 2"
    ),
    "gpu-encode": (
        f"encode {_RANDOM_BASE} --sentences 200000 --engine torch --peer torch --rounds 2"
    ),
}
"""The same for one GPU, where :data:`COMMANDS` would be over at once; ``benchmarks/gpu.sh``."""

TINY = {
    "--encoder": "minilm-random",
    "--batch-size": "2",
    "--steps": "2",
    "--rounds": "1",
    "--sentences": "20",
}
"""Sizes with which a machine of any kind tries the commands in a moment."""

_TAKES_PEER_PYTHON = ("train", "encode", "latency")
_TAKES_DATA = ("train", "objectives", "encode", "latency", "memory")


def command(
    name: str,
    results: Path,
    *,
    data: str | None,
    peer_python: str | None,
    tiny: bool = False,
) -> list[str]:
    """The command line of one benchmark; ``tiny`` to see whether it works."""
    words = shlex.split({**COMMANDS, **GPU}[name])
    if tiny:
        words = [TINY.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    line = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    if data and words[0] in _TAKES_DATA:
        line += ["--data", data]
    if peer_python and words[0] in _TAKES_PEER_PYTHON:
        line += ["--peer-python", peer_python]
    return [*line, "--json", str(results / f"{name}.json")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; the exit code is that of the first that failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.all", description=__doc__)
    names = {**COMMANDS, **GPU}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--data", type=Path, help="sentences, one per line")
    parser.add_argument("--peer-python", help="see the benchmarks' own --help")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see if it works")
    parser.add_argument("--page", type=Path, default=_ROOT / "docs" / "performance.md")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in names]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(names)}")
    data = str(given.data.resolve()) if given.data else None
    for name in given.names or COMMANDS:
        results, peer = given.page.parent / "results", given.peer_python
        line = command(name, results, data=data, peer_python=peer, tiny=given.tiny)
        print(shlex.join(line), file=sys.stderr, flush=True)
        if code := subprocess.run(line, cwd=_ROOT, check=False).returncode:
            return code
    table = [sys.executable, "-m", "benchmarks.table", "--update", str(given.page.resolve())]
    return subprocess.run(table, cwd=_ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
