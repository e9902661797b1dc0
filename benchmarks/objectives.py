"""What a step of each objective costs: ``python -m benchmarks.objectives``.

All contestants are ours, and train the same encoder on the same sentences in the same batches;
settings are those of the packaged recipes. The encoder must be a masked language model, which also
is the generator of DiffCSE unless another one is named.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import options, race
from benchmarks.material import RANDOM_MINILM, Material
from benchmarks.race import WARM_UP, Race
from benchmarks.remote import Process, Spec, Start
from benchmarks.results import Result
from contrasent.model import resolve
from contrasent.recipe import load_recipe

REFERENCE = "simcse"
CONTESTANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    REFERENCE: ("unsup-simcse", {}),
    "simcse, supervised": ("sup-simcse", {}),
    "simcse, mlm_weight 0.1": ("unsup-simcse", {"mlm_weight": 0.1}),
    "diffcse": ("diffcse", {}),
    "diffcse, as the authors' code": (
        "diffcse",
        {
            "edit": "argmax",
            "edit_positions": "all",
            "generator_dropout": True,
            "rtd_padding": "as_reference",
        },
    ),
}
"""By name: a recipe, and settings of its objective that are changed."""

_PROFILED_ROUNDS = 1
_TRIPLET = 3  # an anchor, a positive and a hard negative, each a sentence of its own


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    parser = options.parser("objectives", __doc__, peers=[])
    parser.set_defaults(encoder=RANDOM_MINILM)
    options.add_texts(parser)
    parser.add_argument("--generator", help="of DiffCSE; default: the encoder itself")
    parser.add_argument("--precision", choices=list(options.PRECISION_BITS), default="bf16")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="longer sentences are cut")
    parser.add_argument("--steps", type=int, default=3, help="steps of a round")
    given = parser.parse_args(arguments)
    rounds = WARM_UP + given.rounds + _PROFILED_ROUNDS
    needed = given.batch_size * given.steps * rounds
    return race.main(given, needed, _race, start)


def _race(given: argparse.Namespace, material: Material) -> Race:
    sizes = {"batch_size": given.batch_size, "steps": given.steps, "tokens": given.tokens}
    settings = material.settings(pooler="cls", precision=given.precision, **sizes)
    specs = [
        Spec(
            name=name,
            job="benchmarks.jobs.ours:Train",
            settings={
                **settings,
                "objective": objective(name, given.generator),
                "columns": _TRIPLET if CONTESTANTS[name][0] == "sup-simcse" else 1,
            },
            bits=options.PRECISION_BITS[given.precision],
        )
        for name in CONTESTANTS
    ]
    lengths = material.lengths(given.tokens)
    return Race(
        title="objectives",
        setting={
            "encoder": given.encoder,
            "generator": given.generator or "the same",
            "precision": given.precision,
            "batch": given.batch_size,
            "tokens at most": given.tokens,
            "tokens on average": round(sum(lengths) / len(lengths), 1),
            "steps of a round": given.steps,
        },
        specs=specs,
        references=[REFERENCE],
        rounds=given.rounds,
        profiled=list(CONTESTANTS),
        parts=True,
    )


def objective(name: str, generator: str | None) -> dict[str, Any]:
    """Name and settings of the objective of a contestant."""
    recipe, changes = CONTESTANTS[name]
    settings = {**load_recipe(recipe).objective, **changes}
    if generator is not None and settings["name"] == "diffcse":
        settings["generator"] = str(resolve(generator))
    return settings


if __name__ == "__main__":
    sys.exit(options.guarded(main))
