"""Encoding speed and exactness: ``python -m benchmarks.encode``.

Each side's ``encode`` as a user calls it, from strings to a numpy matrix, and beside it the lowest
cosine of any sentence's vector with the peer's in fp32.
"""

from __future__ import annotations

import argparse
import logging
from functools import partial

import numpy as np
import torch

from benchmarks.measure import Contestant, interleaved, report, sentences
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import resolve


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--data", help="sentences, one per line; default: the quickstart's")
    parser.add_argument("--sentences", type=int, default=1024, help="sentences of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", default="sentence-transformers")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)

    texts = sentences(arguments.data, arguments.sentences)
    encoder = SentenceEncoder.load(arguments.encoder)
    ways = {
        "contrasent auto": partial(encoder.encode, texts),
        "contrasent fp32": partial(encoder.encode, texts, precision="fp32"),
    }
    if arguments.peer != "none":
        from sentence_transformers import SentenceTransformer

        folder = str(resolve(arguments.encoder))
        ways[f"{arguments.peer} bf16"] = partial(
            SentenceTransformer(folder).bfloat16().encode, texts, convert_to_tensor=True
        )
        ways[f"{arguments.peer} default"] = partial(SentenceTransformer(folder).encode, texts)
    reference = list(ways)[-1]
    speeds = interleaved(
        [Contestant(name, way, len(texts)) for name, way in ways.items()],
        reference,
        arguments.rounds,
    )
    setting = {
        "encoder": arguments.encoder,
        "sentences": len(texts),
        "threads": torch.get_num_threads(),
    }
    for name, way in ways.items():
        setting[f"lowest cosine of {name}"] = f"{_lowest_cosine(way(), ways[reference]()):.6f}"
    report("encoding", speeds, setting, arguments.json)


def _lowest_cosine(found: np.ndarray | torch.Tensor, exact: np.ndarray) -> float:
    rows = found.float().numpy() if isinstance(found, torch.Tensor) else found
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(exact, axis=1)
    return float(((rows * exact).sum(axis=1) / lengths).min())


if __name__ == "__main__":
    main()
