"""contrasent, as a user calls it."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.jobs import Values, read_texts, share, wait_for_device
from contrasent import objectives
from contrasent.data import Loader, open_examples, plain, tokenize
from contrasent.model import SentenceEncoder
from contrasent.settings import TrainSettings
from contrasent.training import loop


@dataclass
class Train:
    """The training loop, from the token store to the update.

    The text is tokenized once, before the first round, as a run does. ``objective`` has the name
    and the settings of the objective; an example is a sentence with the next ones, ``columns`` in
    all.
    """

    folder: str
    texts: str
    batch_size: int
    steps: int
    tokens: int
    pooler: str
    precision: str
    objective: Mapping[str, Any] = field(default_factory=lambda: {"name": "simcse", "head": "none"})
    columns: int = 1

    def __post_init__(self) -> None:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=not torch.cuda.is_available())
        encoder = SentenceEncoder.load(self.folder, pooler=self.pooler, head="none")
        given = dict(self.objective)
        objective = objectives.build(
            given.pop("name"),
            given,
            width=encoder.width,
            data_views=self.columns,
            encoder=encoder,
        )
        texts = read_texts(self.texts)
        rows = zip(*(texts[n:] + texts[:n] for n in range(self.columns)), strict=True)
        with TemporaryDirectory() as cache, patch.dict(os.environ, CONTRASENT_CACHE=cache):
            path = Path(cache) / "text.jsonl"
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
            examples = open_examples(str(path))
            store = tokenize(examples, encoder.tokenizer, self.tokens)
            source = plain(store, objective.views)
            self._loader = Loader(source, batch_size=self.batch_size, seed=0, shuffle=False)
        settings = TrainSettings(batch_size=self.batch_size)
        optimizer = torch.optim.AdamW(
            loop.trainable_parameters(encoder, objective), lr=settings.learning_rate, fused=True
        )
        self._training = loop.Training(
            encoder=encoder,
            objective=objective.to(accelerator.device),
            optimizer=optimizer,
            settings=settings,
            precision=self.precision,
            steps=1_000_000,
        )

    def round(self, number: int) -> Values:
        """Make the steps of a round, each of a batch that no other step has."""
        first = number * self.steps
        examples = []

        def batches() -> Iterator[Any]:
            for batch in self._loader.stream(first, first + self.steps):
                examples.append(batch.examples)
                yield batch

        start = loop.Progress()
        for _ in loop.run(self._training, batches(), start, lambda made: made == self.steps):
            pass
        wait_for_device()
        return {"sentences": sum(examples)}


class Encode:
    """``SentenceEncoder.encode``, from strings to a matrix."""

    def __init__(
        self,
        folder: str,
        texts: str,
        precision: str = "auto",
        pooler: str | None = None,
        **loading: Any,
    ) -> None:
        chosen = {} if pooler is None else {"pooler": pooler, "head": "none"}
        self._encoder = SentenceEncoder.load(folder, **chosen, **loading)
        self._texts, self._precision = read_texts(texts), precision

    def round(self, _number: int) -> Values:
        """Embed all sentences."""
        return {"sentences": len(self.rows())}

    def rows(self) -> np.ndarray:
        """``(N, D)``, an embedding for each sentence."""
        return self._encoder.encode(self._texts, precision=self._precision)


class One(Encode):
    """``SentenceEncoder.encode`` of one sentence at a time, as a server calls it.

    With ``serving``, under the promise that the weights stay as they are.
    """

    def __init__(self, calls: int, serving: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self._calls, self._serving = calls, serving

    def round(self, number: int) -> Values:
        """Time single calls, each of another sentence."""
        seconds = []
        with self._encoder.serving() if self._serving else nullcontext():
            for text in share(self._texts, number, self._calls):
                start = time.perf_counter()
                self._encoder.encode([text], precision=self._precision)
                seconds.append(time.perf_counter() - start)
        return {"sentences": len(seconds), "calls": seconds}


class EncodeFile:
    """``contrasent encode``: a file of sentences to a matrix on disk."""

    def __init__(self, folder: str, source: str, precision: str = "auto", **loading: Any) -> None:
        self._encoder = SentenceEncoder.load(folder, **loading)
        self._source, self._precision = source, precision

    def round(self, _number: int) -> Values:
        """Read, embed and write the whole file."""
        from contrasent.encode import open_sentences, write_embeddings
        from contrasent.options import Sharding

        with TemporaryDirectory() as place, open_sentences(self._source) as sentences:
            sentences.count()
            output = Path(place) / "rows.npy"
            written = write_embeddings(
                self._encoder, sentences, output, Sharding(precision=self._precision)
            )
        return {"sentences": written.rows}
