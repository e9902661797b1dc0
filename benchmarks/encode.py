"""Encoding speed and exactness: ``python -m benchmarks.encode``.

Each side's ``encode`` as a user calls it, from strings to a matrix, and beside it the lowest cosine
of any sentence's embedding with ours in fp32.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import contestants, options, race
from benchmarks.flops import forward_flops
from benchmarks.material import Material
from benchmarks.race import Race, shapes_of
from benchmarks.remote import Process, Start
from benchmarks.results import Result

_ROWS = 4096


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    parser = options.parser("encode", __doc__, peers=contestants.PEERS)
    options.add_texts(parser)
    options.add_engines(parser)
    parser.add_argument("--pooler", choices=("cls", "mean"), help="else the encoder's own")
    parser.add_argument("--sentences", type=int, default=4096, help="sentences of a round")
    given = parser.parse_args(arguments)
    return race.main(given, given.sentences, _race, start)


def _race(given: argparse.Namespace, material: Material) -> Race:
    settings = material.settings(pooler=given.pooler)
    backends = options.chosen(given.peer, contestants.PEERS)
    engines = options.chosen(given.engine, options.ENGINES)
    ours = contestants.ours("Encode", settings, engines)
    peers = contestants.sentence_transformers("Encode", settings, backends, given.peer_python)
    lengths = material.lengths()
    flops = forward_flops(material.model, lengths, first_only=given.pooler == "cls")
    return Race(
        title="encoding",
        setting={
            "encoder": given.encoder,
            "sentences": given.sentences,
            "tokens on average": round(sum(lengths) / len(lengths), 1),
        },
        specs=[*ours, *peers],
        references=[spec.name for spec in peers],
        rounds=given.rounds,
        flops=lambda _: flops,
        shapes=shapes_of(material.model, min(_ROWS, sum(lengths)), backward=False),
        profiled=[spec.name for spec in (*ours, *peers) if spec.bits],
        compared=contestants.EXACT,
    )


if __name__ == "__main__":
    sys.exit(options.guarded(main))
