"""Speed of transfer classifiers: ``PYTHONPATH=tests/evaluate python -m benchmarks.transfer trec``.

The peer is the tests' oracle: SentEval's procedure with torch's own layer, loss and optimisers, one
classifier after the other, on the same embeddings. Encoding is not counted.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import transfer_oracle

from contrasent.evaluate.kinds.base import Use
from contrasent.evaluate.transfer import _labelled
from contrasent.evaluate.transfer_presets import PRESETS, Protocol
from contrasent.evaluate.transfer_procedure import reach
from contrasent.evaluate.transfer_read import load_transfer
from contrasent.model.encoder import SentenceEncoder


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", help="such as trec")
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--preset", default="test", choices=PRESETS)
    given = parser.parse_args()
    encoder = SentenceEncoder.load(given.encoder)
    task = load_transfer(given.task)
    parts = {n: _labelled(task, p, Use(encoder)) for n, p in task.parts.items()}
    start = time.perf_counter()
    ours = reach(parts, task.classes, Protocol(preset=given.preset), encoder.device)
    ended = time.perf_counter()
    print(f"ours: dev {ours.dev:.4f} test {ours.test:.4f} in {ended - start:.1f} s", flush=True)
    pairs = [(part.features, part.labels) for part in parts.values()]
    preset, seed = PRESETS[given.preset], Protocol().seed
    procedures = {
        1: lambda: transfer_oracle.nested(*pairs[0], task.classes, preset, seed)[:2],
        2: lambda: transfer_oracle.by_folds(*pairs, task.classes, preset, seed)[:2],
        3: lambda: transfer_oracle.by_dev_part(*pairs, task.classes, preset, seed),
    }
    dev, test = np.array(procedures[len(pairs)]())
    took = time.perf_counter() - ended
    print(f"one after the other: dev {dev:.4f} test {test:.4f} in {took:.1f} s")


if __name__ == "__main__":
    main()
