"""Training speed: ``python -m benchmarks.train``.

Both sides train on the same sentences with batches of the same size, 32 tokens, dropout on,
AdamW, clipping at 1. The peer runs its own tokenisation, padding and
MultipleNegativesRankingLoss in a bare loop, without its trainer, which would only cost it time.
One sentence is one example: it goes through the encoder twice on both sides.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from benchmarks.measure import Contestant, interleaved, report, sentences
from contrasent import objectives
from contrasent.config import TrainSettings
from contrasent.data.loader import Loader
from contrasent.data.store import tokenize
from contrasent.data.text import open_examples
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import resolve
from contrasent.train.loop import Training, run, trained
from contrasent.train.state import Progress

TOKENS, RATE = 32, 3e-5


def ours(
    name: str, texts: list[str], batch_size: int, steps: int, precision: str
) -> Callable[[], None]:
    """Our loop, from the token store to the update."""
    from accelerate import Accelerator

    encoder = SentenceEncoder.load(name, pooler="mean")
    objective = objectives.build("simcse", {"head": "none"}, width=encoder.width, data_views=1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        store = tokenize(open_examples(str(path)), encoder.tokenizer, TOKENS, cache_dir=folder)
        loader = Loader(store, batch_size=batch_size, seed=0, views=2)
        batches = [loader.batch(step) for step in range(loader.steps_per_epoch)]
    optimizer = torch.optim.AdamW(trained(encoder, objective), lr=RATE, fused=True)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    training = Training(
        encoder, objective, optimizer, accelerator, TrainSettings(), precision, len(batches)
    )
    position = cycle(range(0, len(batches), steps))

    def some_steps() -> None:
        start = next(position)
        run(training, iter(batches[start : start + steps]), Progress(), lambda _: True)

    return some_steps


def peer(
    name: str, texts: list[str], batch_size: int, steps: int, precision: str
) -> Callable[[], None]:
    """sentence-transformers' model, tokenisation and loss."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(resolve(name)))
    model.max_seq_length = TOKENS
    loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    device = model.device

    position = cycle(range(0, len(texts), batch_size * steps))

    def some_steps() -> None:
        model.train()
        first = next(position)
        for start in range(first, first + batch_size * steps, batch_size):
            batch = texts[start : start + batch_size]
            views = [model.tokenize(batch) for _ in range(2)]
            features = [
                {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in view.items()}
                for view in views
            ]
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                value = loss(features, None)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return some_steps


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--data", help="sentences, one per line; default: the quickstart's")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", default="sentence-transformers")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)

    per_round = arguments.batch_size * arguments.steps
    # Every round has batches of its own, as in training: no two have the same number of tokens.
    texts = sentences(arguments.data, per_round * (arguments.rounds + 1))
    make = partial(Contestant, sentences=per_round)
    given = (arguments.encoder, texts, arguments.batch_size, arguments.steps)
    contestants = [make(f"contrasent {p}", ours(*given, p)) for p in ("bf16", "fp32")]
    if arguments.peer != "none":
        contestants += [make(f"{arguments.peer} {p}", peer(*given, p)) for p in ("bf16", "fp32")]
    speeds = interleaved(
        contestants, contestants[-2 if len(contestants) > 2 else 0].name, arguments.rounds
    )
    setting = {
        "encoder": arguments.encoder,
        "batch": arguments.batch_size,
        "tokens": TOKENS,
        "threads": torch.get_num_threads(),
    }
    report("training", speeds, setting, arguments.json)


if __name__ == "__main__":
    main()
