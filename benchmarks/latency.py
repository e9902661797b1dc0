"""Time of one sentence, in process: ``python -m benchmarks.latency``.

Each call embeds one sentence, another one every time, and ends when its numbers are there. A round
is 200 calls; median and 99th percentile are over the calls of all counted rounds. Ours run inside
``SentenceEncoder.serving``, and once more without.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import contestants, options, race
from benchmarks.material import Material
from benchmarks.race import WARM_UP, Race
from benchmarks.remote import Process, Spec, Start
from benchmarks.results import Result

CALLS = 200
"""Of a round."""


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    parser = options.parser("latency", __doc__, peers=contestants.PEERS)
    options.add_texts(parser)
    options.add_engines(parser)
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of a round")
    given = parser.parse_args(arguments)
    needed = given.calls * (WARM_UP + given.rounds)
    return race.main(given, needed, _race, start)


def _race(given: argparse.Namespace, material: Material) -> Race:
    settings = material.settings(calls=given.calls)
    engines = options.chosen(given.engine, options.ENGINES)
    backends = options.chosen(given.peer, contestants.PEERS)
    ours = contestants.ours("One", settings, engines)
    changing = {**settings, "serving": False}
    if "torch" in engines:
        ours.append(Spec("contrasent auto, not serving", "benchmarks.jobs.ours:One", changing))
    peers = contestants.sentence_transformers("One", settings, backends, given.peer_python)
    return Race(
        title="latency of one sentence",
        setting={"encoder": given.encoder, "calls": given.calls * given.rounds},
        specs=[*ours, *peers],
        references=[spec.name for spec in peers],
        rounds=given.rounds,
    )


if __name__ == "__main__":
    sys.exit(options.guarded(main))
