"""Transfer classifiers on the same embeddings: ``python -m benchmarks.transfer --json FILE``.

The peer is SentEval's procedure with torch's own layer, loss and optimisers, one classifier after
the other. Encoding is not counted. The file is written after every task, seed and contestant, and
the same command goes on where an earlier one was ended.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks import options
from benchmarks.jobs import senteval
from benchmarks.results import Result, read, write
from benchmarks.rounds import Entry
from contrasent.errors import ConfigError
from contrasent.evaluation import PRESETS, EncoderUse, preset_named, transfer
from contrasent.files import writing
from contrasent.model import SentenceEncoder

TASKS = ("trec", "mrpc", "cr", "mpqa", "mr", "subj", "sst2")
SEEDS = tuple(preset_named().seed + n for n in range(3))
CLOCKS = ("cpu", "wall")

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
    """Measure what the file does not have yet, and report."""
    parser = argparse.ArgumentParser(prog="benchmarks.transfer", description=__doc__)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--pooler", default="mean")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated, in this order")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="of the classifiers")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="comma-separated")
    parser.add_argument("--preset", default="test", choices=PRESETS)
    parser.add_argument("--clock", default="cpu", choices=CLOCKS, help="the time in the table")
    parser.add_argument("--embeddings", help="a folder that keeps the embeddings")
    parser.add_argument("--json", help="where results go, and where earlier ones are")
    given = parser.parse_args(arguments)
    names = options.chosen(given.contestants, tuple(CONTESTANTS))
    setting = {
        "encoder": given.encoder,
        "pooler": given.pooler,
        "preset": given.preset,
        "threads": torch.get_num_threads(),
        "clock": given.clock,
    }
    references = [name for name in names if name == "SentEval"]
    result = _earlier(given.json, setting) or Result("transfer", setting, references, [])
    with TemporaryDirectory() as place:
        kept = Path(given.embeddings or place)
        for seed in map(int, given.seeds.split(",")):
            for task in options.chosen(given.tasks, TASKS):
                for name in names:
                    _measure(result, name, (task, seed), kept, given.json)
    options.publish(result, given.json)
    return result


def _earlier(path: str | None, setting: dict[str, Any]) -> Result | None:
    if path is None or not Path(path).is_file():
        return None
    found = read(path)
    if found.setting != setting:
        raise ConfigError(f"{path} has results of {found.setting}, not of {setting}; name another")
    return found


def _measure(
    result: Result, name: str, which: tuple[str, int], kept: Path, path: str | None
) -> None:
    """Let one contestant do one task with one seed, unless that is done."""
    entry = next((entry for entry in result.entries if entry.name == name), None)
    if entry is None:
        entry = Entry(name)
        result.entries.append(entry)
    task, seed = which
    if any((found["task"], found["seed"]) == which for found in entry.rounds):
        return
    print(f"{task}, seed {seed}: {name}", file=sys.stderr, flush=True)
    data = transfer.load_transfer(task)
    parts = embedded(data, result.setting["encoder"], result.setting["pooler"], kept)
    wall, cpu = time.perf_counter(), time.process_time()
    dev, test = CONTESTANTS[name](parts, data.classes, result.setting["preset"], seed)
    took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    entry.rounds.append(
        {
            "task": task,
            "seed": seed,
            "dev": dev,
            "test": test,
            "sentences": sum(len(part.labels) for part in parts.values()),
            "seconds": took[result.setting["clock"]],
            **{f"{clock} seconds": seconds for clock, seconds in took.items()},
        }
    )
    if path:
        write(result, path)


def embedded(task: transfer.TransferData, encoder: str, pooler: str, kept: Path) -> Parts:
    """The features of every part, from the folder ``kept`` if they are there."""
    mark = hashlib.sha256(f"{encoder} {pooler} {task.sha256}".encode()).hexdigest()[:16]
    path = kept / f"{task.name}-{mark}.npz"
    if not path.is_file():
        use = EncoderUse(SentenceEncoder.load(encoder, pooler=pooler))
        made = {
            name: transfer.labelled(task, part, use).features for name, part in task.parts.items()
        }
        with writing(path) as beside, beside.open("wb") as stream:
            np.savez(stream, **made)
    with np.load(path) as found:
        return {
            name: transfer.LabelledFeatures(found[name], part.labels)
            for name, part in task.parts.items()
        }


if __name__ == "__main__":
    sys.exit(options.guarded(main))
