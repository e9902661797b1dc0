"""Search by vectors, by words and by both: nDCG@10 on five sets, with the weight that is chosen.

    python -m benchmarks.adaptation prepare DATA WORK     # DATA has senteval, paraphrase and wiki
    python -m benchmarks.hybrid WORK                      # Markdown

The weight is chosen by the texts alone, whose order is shuffled first. The interval is that of a
paired bootstrap over queries; a query that is a text of the index does not find itself.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import numpy as np

import contrasent
from contrasent.evaluation import Options, load_suite
from contrasent.search import Index

SETS = {
    "questions": "questions/test",
    "same article": "wikipedia/test",
    "titles": "wikipedia/titles",
    "captions": "captions/test",
    "the quickstart's": "",
}
MODES = ("dense", "words", "hybrid", "auto")
DEPTH, DRAWS = 10, 5000


def ndcg(found: list[str], wanted: dict[str, float]) -> float:
    """NDCG@10 of the ids that were found."""
    gains = [wanted.get(name, 0.0) / np.log2(place + 2) for place, name in enumerate(found)]
    best = sorted(wanted.values(), reverse=True)[:DEPTH]
    return float(sum(gains) / sum(grade / np.log2(n + 2) for n, grade in enumerate(best)))


def row(name: str, folder: str, encoder: contrasent.SentenceEncoder, work: str) -> str:
    """A line of the table."""
    [task] = load_suite([folder], Options()).tasks("retrieval")
    order = list(range(len(task.corpus)))
    random.Random(1).shuffle(order)
    texts, started = [task.corpus[row] for row in order], time.perf_counter()
    index = Index.build(encoder, texts, Path(work) / "index", ids=order, overwrite=True)
    built = time.perf_counter() - started
    words = contrasent.tune_index(index, encoder)
    tuned = time.perf_counter() - started - built
    scores, fields = {}, [f"{name} ({len(task.queries):,} in {len(texts):,})"]
    for mode in MODES:
        hits = index.search(encoder, task.queries, DEPTH + 1, mode=mode)
        scores[mode] = np.array(
            [
                ndcg(
                    [hit.id for hit in of if hit.id != str(itself)][:DEPTH],
                    {str(row): grade for row, grade in wanted.items()},
                )
                for of, wanted, itself in zip(hits, task.relevant, task.left_out, strict=True)
            ]
        )
        field = f"{100 * scores[mode].mean():.1f}"
        if mode != "dense":
            gain = scores[mode] - scores["dense"]
            draws = np.random.default_rng(1111).integers(len(gain), size=(DRAWS, len(gain)))
            low, high = 100 * np.quantile(gain[draws].mean(axis=1), [0.025, 0.975])
            field += f" ({low:+.1f} to {high:+.1f})"
        fields.append(field)
    own = f"{100 * words.gain:+.1f}" if words.queries else "-"
    fields += [f"{words.weight:g}", own, f"{built:.0f} + {tuned:.0f}"]
    return f"| {' | '.join(fields)} |"


def main(work: str) -> None:
    """Print the table."""
    encoder = contrasent.SentenceEncoder.load("all-MiniLM-L6-v2")
    heads = (*MODES, "weight", "gain by its own text", "s to build and choose")
    print(f"| set | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}", flush=True)
    for name, folder in SETS.items():
        own = str(files("contrasent") / "quickstart_data/wikipedia_search")
        with tempfile.TemporaryDirectory() as scratch:
            print(
                row(name, str(Path(work) / folder) if folder else own, encoder, scratch), flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1])
