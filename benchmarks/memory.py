"""Peak memory of encoding: ``python -m benchmarks.memory``.

Files of several sizes are embedded and the matrix is written: neither memory nor time per sentence
may grow with the file. Every size has a process of its own, so that its peak is its own; with
``--rounds`` above 1 each is measured that often, in turn.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import options
from benchmarks.material import Material, gathered
from benchmarks.remote import Process, Spec, Start, started
from benchmarks.results import Entry, Result


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument(
        "--sizes",
        default="10000,100000",
        help="sentences of the files; the first is what the others are compared with",
    )
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    options.add_texts(parser)
    parser.add_argument("--engine", default="torch", help="one of our engines")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", help="write everything that was measured to this file")
    given = parser.parse_args(arguments)
    sizes = [int(size) for size in given.sizes.split(",")]
    with gathered(given.encoder, given.data, max(sizes)) as material:
        specs = [_encode(material, given.engine, size) for size in sizes]
        entries = [Entry(spec.name) for spec in specs]
        for _ in range(given.rounds):
            for spec, entry in zip(specs, entries, strict=True):
                _measure(spec, entry, start)
    result = Result(
        title="memory of encode",
        setting={"encoder": given.encoder, "rounds": given.rounds, "engine": given.engine},
        references=[entries[0].name],
        entries=entries,
    )
    options.publish(result, given.json)
    return result


def _encode(material: Material, engine: str, size: int) -> Spec:
    source = material.place / f"{size}.txt"
    source.write_text("\n".join(material.texts[:size]) + "\n", encoding="utf-8")
    settings = {"folder": str(material.encoder), "source": str(source), "engine": engine}
    return Spec(f"{size:,} sentences", "benchmarks.jobs.ours:EncodeFile", settings)


def _measure(spec: Spec, entry: Entry, start: Start) -> None:
    """One round in a fresh process."""
    with started([spec], start) as ([contestant], _):
        entry.rounds.append(contestant.ask("round", number=0))
        memory = contestant.ask("peak_memory")
    entry.memory = max(entry.memory or 0, memory["bytes"] or 0)
    entry.device_memory, entry.versions = memory["device_bytes"], contestant.versions


if __name__ == "__main__":
    sys.exit(options.guarded(main))
