"""Training speed: ``python -m benchmarks.train``.

All contestants train on the same sentences, in the same batches of the same size, cut at the same
length, with dropout, AdamW and clipping at 1. One sentence is one example: it goes through the
encoder twice. The peers run their own tokenisation and padding.
"""

import argparse
import sys
from collections.abc import Sequence

from benchmarks import options, race
from benchmarks.flops import step_flops
from benchmarks.material import Material
from benchmarks.race import WARM_UP, Race, shapes_of
from benchmarks.remote import Process, Spec, Start
from benchmarks.results import Result

PEERS = {"sentence-transformers": "st", "transformers padded": "padded"}
POOLERS = ("cls", "mean")
_PROFILED_ROUNDS = 1


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    parser = options.parser("train", __doc__, peers=list(PEERS))
    options.add_texts(parser)
    parser.add_argument("--pooler", choices=POOLERS, default="mean", help="of all contestants")
    parser.add_argument("--precisions", default="bf16,fp32", help="of each contestant")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="longer sentences are cut")
    parser.add_argument("--steps", type=int, default=3, help="steps of a round")
    given = parser.parse_args(arguments)
    rounds = WARM_UP + given.rounds + _PROFILED_ROUNDS
    # Every step has a batch of its own, as in training: no two have the same number of tokens.
    needed = given.batch_size * given.steps * rounds
    return race.main(given, needed, _race, start)


def _race(given: argparse.Namespace, material: Material) -> Race:
    precisions = given.precisions.split(",")
    peers = options.chosen(given.peer, list(PEERS))
    jobs = {"contrasent": "ours"} | {name: PEERS[name] for name in peers}
    sizes = {"batch_size": given.batch_size, "steps": given.steps, "tokens": given.tokens}
    settings = material.settings(pooler=given.pooler, **sizes)
    specs = [
        Spec(
            name=f"{name} {precision}",
            job=f"benchmarks.jobs.{module}:Train",
            settings={**settings, "precision": precision},
            other_python=given.peer_python,
            bits=options.PRECISION_BITS[precision],
        )
        for name, module in jobs.items()
        for precision in precisions
    ]
    lengths = material.lengths(given.tokens)
    per_round = given.batch_size * given.steps

    def flops(number: int) -> float:
        of_round = lengths[number * per_round : (number + 1) * per_round]
        return 2 * step_flops(material.model, of_round, first_only=given.pooler == "cls")

    tokens_of_a_step = 2 * given.batch_size * sum(lengths) // len(lengths)
    return Race(
        title="training",
        setting={
            "encoder": given.encoder,
            "batch": given.batch_size,
            "pooler": given.pooler,
            "tokens at most": given.tokens,
            "tokens on average": round(sum(lengths) / len(lengths), 1),
            "steps of a round": given.steps,
        },
        specs=specs,
        # The peer's default first.
        references=[f"{name} {precision}" for name in peers[:1] for precision in precisions[::-1]],
        rounds=given.rounds,
        flops=flops,
        shapes=shapes_of(material.model, tokens_of_a_step, backward=True),
        profiled=[spec.name for spec in specs],
    )


if __name__ == "__main__":
    sys.exit(options.guarded(main))
