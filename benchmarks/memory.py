"""Peak memory of long work: ``python -m benchmarks.memory``.

``encode`` embeds files of several sizes and writes the matrix: neither memory nor time per sentence
may grow with the file. ``train`` trains at several batch sizes: with gradient caching neither may
grow with the batch. Every size has a process of its own, so that its peak is its own; with
``--rounds`` above 1 each is measured that often, in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import options
from benchmarks.material import Material, gathered
from benchmarks.remote import Contestant, Process, Spec, Start
from benchmarks.results import Result
from benchmarks.rounds import Entry


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    given = _parser().parse_args(arguments)
    sizes = [int(size) for size in given.sizes.split(",")]
    make = _encode if given.work == "encode" else _train
    with gathered(given.encoder, given.data, _sentences(given, sizes)) as material:
        specs = [make(given, material, size) for size in sizes]
        entries = [Entry(spec.name) for spec in specs]
        for _ in range(given.rounds):
            for spec, entry in zip(specs, entries, strict=True):
                _measure(spec, entry, start)
    result = Result(
        title=f"memory of {given.work}",
        setting={"encoder": given.encoder, "rounds": given.rounds, **_described(given)},
        references=[entries[0].name],
        entries=entries,
    )
    options.publish(result, given.json)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("work", choices=("encode", "train"))
    parser.add_argument(
        "--sizes",
        default="10000,100000",
        help="encode: sentences of the files; train: batch sizes. The first is what the others "
        "are compared with",
    )
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    options.add_texts(parser)
    parser.add_argument("--engine", default="torch", help="encode: one of our engines")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="train: a setting of the recipe, such as train.gradcache_chunk=256, for every batch "
        "size but the first",
    )
    parser.add_argument(
        "--examples", type=int, default=8192, help="train: examples of a run, whole batches"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", help="write everything that was measured to this file")
    return parser


def _sentences(given: argparse.Namespace, sizes: Sequence[int]) -> int:
    return max(*sizes, 1 if given.work == "encode" else given.examples)


def _encode(given: argparse.Namespace, material: Material, size: int) -> Spec:
    source = _text(material, size)
    settings = {"folder": str(material.encoder), "source": source, "engine": given.engine}
    return Spec(f"{size:,} sentences", "benchmarks.jobs.ours:EncodeFile", settings)


def _train(given: argparse.Namespace, material: Material, size: int) -> Spec:
    steps = max(2, given.examples // size)
    overrides: dict[str, Any] = {"train.batch_size": size, "train.max_steps": steps}
    if size != int(given.sizes.split(",")[0]):
        overrides |= _settings(given)
    source = _text(material, max(size, given.examples))
    settings = {"folder": str(material.encoder), "source": source, "overrides": overrides}
    return Spec(f"batch {size:,}", "benchmarks.jobs.ours:TrainRun", settings)


def _text(material: Material, size: int) -> str:
    """A file of the first ``size`` sentences."""
    path = material.place / f"{size}.txt"
    path.write_text("\n".join(material.texts[:size]) + "\n", encoding="utf-8")
    return str(path)


def _settings(given: argparse.Namespace) -> dict[str, str]:
    return dict(pair.split("=", maxsplit=1) for pair in given.set)


def _described(given: argparse.Namespace) -> Mapping[str, Any]:
    if given.work == "encode":
        return {"engine": given.engine}
    return {"examples": given.examples, **_settings(given)}


def _measure(spec: Spec, entry: Entry, start: Start) -> None:
    """One round in a fresh process."""
    link = start(spec.python)
    try:
        contestant = Contestant(spec, link)
        entry.rounds.append(contestant.round(0))
        memory = contestant.peak_memory()
    finally:
        link.close()
    entry.memory = max(entry.memory or 0, memory["bytes"] or 0)
    entry.device_memory, entry.versions = memory["device_bytes"], contestant.versions


if __name__ == "__main__":
    sys.exit(options.guarded(main))
