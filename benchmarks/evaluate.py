"""Speed of evaluation on STS tasks: ``python -m benchmarks.evaluate``.

The peer does what SentEval's batcher does with plain transformers: each part of a task sorted by
its words, both sides of its pairs in padded batches of 128, every sentence as often as it stands
there. Rates count both sentences of every pair, also those that we encode once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks import contestants, options
from benchmarks.material import Material, gathered
from benchmarks.race import Race, run
from benchmarks.remote import Process, Spec, Start
from benchmarks.results import Result
from contrasent.errors import DataError
from contrasent.evaluate.run import load_available
from contrasent.model.encoder import SentenceEncoder

PEERS = ("SentEval",)


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    parser = options.parser("evaluate", __doc__, peers=PEERS)
    options.add_engines(parser)
    parser.add_argument("--tasks", default="sts16,stsb", help="names, or a file of scored pairs")
    given = parser.parse_args(arguments)
    with gathered(given.encoder, None, 1) as material:
        result = run(_race(given, material), material.place, start)
    for entry in result.entries:
        entry.facts["mean STS"] = 100 * statistics.mean(entry.rounds[-1]["scores"].values())
    options.publish(result, given.json)
    return result


def _race(given: argparse.Namespace, material: Material) -> Race:
    engines = options.chosen(given.engine, options.ENGINES)
    folder = str(material.encoder)
    ours = contestants.ours("Evaluate", {"folder": folder, "tasks": given.tasks}, engines)
    encoder = SentenceEncoder.load(folder)
    settings = {
        "folder": folder,
        "pairs": _pairs(given.tasks, material),
        "pooler": encoder.pooler,
        "tokens": encoder.max_tokens,
    }
    peers = [
        Spec(
            name=f"SentEval {precision}",
            job="benchmarks.jobs.padded:Evaluate",
            settings={**settings, "precision": precision},
            other_python=given.peer_python,
            bits=bits,
        )
        for precision, bits in reversed(options.PRECISION_BITS.items())
        if options.chosen(given.peer, PEERS)
    ]
    return Race(
        title="evaluation",
        setting={"encoder": given.encoder, "tasks": given.tasks},
        specs=[*ours, *peers],
        references=[spec.name for spec in peers],
        rounds=given.rounds,
    )


def _pairs(names: str, material: Material) -> str:
    """Write the pairs of the tasks, part by part, for the peer to read."""
    found = load_available(names.split(","))
    if not found.tasks:
        raise DataError("; ".join(problem.message for problem in found.problems))
    tasks = {
        task.name.label: [
            list(zip(part.first, part.second, part.gold.tolist(), strict=True))
            for part in task.subsets
        ]
        for task in found.tasks
    }
    path = material.place / "pairs.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    sys.exit(options.guarded(main))
