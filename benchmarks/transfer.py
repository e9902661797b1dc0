"""Transfer classifiers on the same embeddings: ``python -m benchmarks.transfer --json FILE``.

The peer is SentEval's procedure with torch's own layer, loss and optimisers, one classifier after
the other. Encoding is not counted; seconds are of the processor.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch

from benchmarks import options
from benchmarks.jobs import senteval
from benchmarks.results import Entry, Result
from contrasent.evaluation import PRESETS, EncoderUse, preset_named, transfer
from contrasent.model import SentenceEncoder

TASKS = ("trec", "mrpc", "cr", "mpqa", "mr", "subj", "sst2")

Parts = dict[str, transfer.LabelledFeatures]


def ours(parts: Parts, classes: int, preset: str, seed: int) -> tuple[float, float]:
    """Dev and test accuracy, all classifiers together."""
    reached = transfer.cross_validate(parts, classes, preset_named(preset, seed), "cpu")
    return reached.dev, reached.test


def sentevals(parts: Parts, classes: int, preset: str, seed: int) -> tuple[float, float]:
    """The same by SentEval's procedure, one classifier after the other."""
    pairs = [(part.features, part.labels) for part in parts.values()]
    procedure = (senteval.nested, senteval.by_folds, senteval.by_dev_part)[len(pairs) - 1]
    given: tuple[Any, ...] = pairs[0] if len(pairs) == 1 else tuple(pairs)
    dev, test, *_ = procedure(*given, classes, PRESETS[preset], seed)
    return float(dev), float(test)


CONTESTANTS: dict[str, Callable[[Parts, int, str, int], tuple[float, float]]] = {
    "contrasent": ours,
    "SentEval": sentevals,
}


def main(arguments: Sequence[str] | None = None) -> Result:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.transfer", description=__doc__)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--pooler", default="mean")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated, in this order")
    parser.add_argument("--seeds", default=str(preset_named().seed), help="of the classifiers")
    parser.add_argument("--preset", default="test", choices=PRESETS)
    parser.add_argument("--json", help="write everything that was measured to this file")
    given = parser.parse_args(arguments)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    entries = {name: Entry(name) for name in CONTESTANTS}
    for task in options.chosen(given.tasks, TASKS):
        data = transfer.load_transfer(task)
        use = EncoderUse(SentenceEncoder.load(given.encoder, pooler=given.pooler))
        parts = {name: transfer.labelled(data, part, use) for name, part in data.parts.items()}
        for seed, (name, classify) in product(seeds, CONTESTANTS.items()):
            print(f"{task}, seed {seed}: {name}", file=sys.stderr, flush=True)
            began = time.process_time()
            dev, test = classify(parts, data.classes, given.preset, seed)
            seconds = time.process_time() - began
            entries[name].rounds.append(
                {"task": task, "seed": seed, "dev": dev, "test": test, "seconds": seconds}
            )
    setting = {
        "encoder": given.encoder,
        "pooler": given.pooler,
        "preset": given.preset,
        "threads": torch.get_num_threads(),
        "clock": "cpu",
    }
    result = Result("transfer", setting, ["SentEval"], list(entries.values()))
    options.publish(result, given.json)
    return result


if __name__ == "__main__":
    sys.exit(options.guarded(main))
