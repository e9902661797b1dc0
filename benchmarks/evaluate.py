"""Speed of evaluation on STS tasks: ``python -m benchmarks.evaluate``.

The peer does what SentEval does with SimCSE's batcher of plain transformers: both sides of a part's
pairs in padded batches of 128, every sentence as often as it stands there. Parts of the SemEval
tasks are sorted by their words; STS-B and SICK-R are not, and their train and dev parts are encoded
with the test part. "SentEval test parts" leaves those out and sorts everything, which SentEval does
not. Rates count both sentences of every pair that is scored, also those that we encode once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import contestants, options
from benchmarks.material import Material, gathered
from benchmarks.race import Race, run
from benchmarks.remote import Process, Spec, Start
from benchmarks.results import Result
from contrasent.evaluation import load_suite
from contrasent.model import SentenceEncoder

PEERS = ("SentEval", "SentEval test parts")

_UNSORTED = ("stsb", "sickr")


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> Result:
    """Measure and report."""
    parser = options.parser("evaluate", __doc__, peers=PEERS)
    options.add_engines(parser)
    parser.add_argument("--tasks", default="sts", help="names, or a file of scored pairs")
    parser.add_argument("--precision", default=",".join(options.PRECISION_BITS))
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
    precisions = options.chosen(given.precision, tuple(options.PRECISION_BITS))
    ours = [
        spec
        for spec in contestants.ours("Evaluate", {"folder": folder, "tasks": given.tasks}, engines)
        if spec.bits is None or spec.bits in [options.PRECISION_BITS[name] for name in precisions]
    ]
    encoder = SentenceEncoder.load(folder)
    settings = {
        "folder": folder,
        "pooler": encoder.pooler,
        "tokens": encoder.max_tokens,
    }
    peers = [
        Spec(
            name=f"{peer} {precision}",
            job="benchmarks.jobs.padded:Evaluate",
            settings={**settings, "pairs": pairs, "precision": precision},
            other_python=given.peer_python,
            bits=bits,
        )
        for peer in options.chosen(given.peer, PEERS)
        for pairs in [_pairs(given.tasks, material, whole=peer == PEERS[0])]
        for precision, bits in reversed(options.PRECISION_BITS.items())
        if precision in precisions
    ]
    return Race(
        title="evaluation",
        setting={"encoder": given.encoder, "tasks": given.tasks},
        specs=[*ours, *peers],
        references=[spec.name for spec in peers],
        rounds=given.rounds,
    )


def _pairs(names: str, material: Material, *, whole: bool) -> str:
    """Write the pairs of the tasks, part by part, for the peer to read.

    Args:
        names: the tasks.
        material: has the folder.
        whole: with the parts that are encoded and not scored, and unsorted where SentEval does
            not sort.
    """
    tasks = {
        task.name.label: [
            *(_part(part, scored=False, ordered=False) for part in _unscored(task) if whole),
            *(
                _part(part, scored=True, ordered=not (whole and task.name.name in _UNSORTED))
                for part in task.subsets
            ),
        ]
        for task in load_suite(names.split(",")).tasks("sts")
    }
    path = material.place / f"pairs-{'whole' if whole else 'test'}.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return str(path)


def _unscored(task: Any) -> Iterator[Any]:
    """What SentEval encodes besides the test part."""
    if task.name.name in _UNSORTED and task.name.split == "test":
        for part in load_suite([f"{task.name.name}-{split}" for split in ("train", "dev")]).tasks(
            "sts"
        ):
            yield from part.subsets


def _part(part: Any, *, scored: bool, ordered: bool) -> dict[str, Any]:
    pairs = list(zip(part.first, part.second, part.gold.tolist(), strict=True))
    return {"pairs": pairs, "scored": scored, "ordered": ordered}


if __name__ == "__main__":
    sys.exit(options.guarded(main))
