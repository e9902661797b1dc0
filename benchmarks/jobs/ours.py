"""contrasent, as a user calls it."""

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.jobs import Encoding, Values, wait_for_device
from contrasent import objectives
from contrasent.data import Loader, keep_rows, open_examples, plain, tokenize
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
    texts: list[str]
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
        chosen = dict(self.objective)
        shape = {"width": encoder.width, "data_views": self.columns, "encoder": encoder}
        objective = objectives.build(chosen.pop("name"), chosen, **shape)
        columns = (self.texts[n:] + self.texts[:n] for n in range(self.columns))
        with TemporaryDirectory() as cache, patch.dict(os.environ, CONTRASENT_CACHE=cache):
            examples = open_examples(str(keep_rows(zip(*columns, strict=True))))
            source = plain(tokenize(examples, encoder.tokenizer, self.tokens), objective.views)
            loader = Loader(source, batch_size=self.batch_size, seed=0, shuffle=False)
        settings = TrainSettings(batch_size=self.batch_size)
        parameters = loop.trainable_parameters(encoder, objective)
        optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, fused=True)
        objective.to(accelerator.device)
        how: dict[str, Any] = {"settings": settings, "precision": self.precision}
        how |= {"encoder": encoder, "objectives": {"": objective}, "optimizer": optimizer}
        training = loop.Training(**how, steps=1_000_000)
        self._progress, batches = loop.Progress(), loader.stream(0, training.steps)
        # One run for all rounds: what it makes in its first steps is not made again.
        every = self.steps  # the run does not hold the job, so its thread ends with that
        self._run = loop.run(training, batches, self._progress, lambda step: step % every == 0)

    def round(self, number: int) -> Values:
        """Make the steps of a round, each of a batch that no other step has."""
        end = self._progress.step + self.steps
        while self._progress.step < end:
            next(self._run)
        wait_for_device()
        return {"sentences": self.steps * self.batch_size}


@dataclass(kw_only=True)
class Encode(Encoding):
    """``SentenceEncoder.encode``; with ``serving`` under the promise that the weights stay."""

    precision: str = "auto"
    engine: str = "torch"
    serving: bool = False

    def __post_init__(self) -> None:
        how = {"pooler": self.pooler, "head": None if self.pooler is None else "none"}
        self._encoder = SentenceEncoder.load(self.folder, engine=self.engine, **how)

    def round(self, number: int) -> Values:
        """Embed all sentences, or time single calls."""
        with self._encoder.serving() if self.serving else nullcontext():
            return super().round(number)

    def tokenise(self) -> None:
        """Make the tokens of all sentences."""
        self._encoder.tokenizer.ids(self.texts, self._encoder.max_tokens)

    def embed(self, texts: list[str]) -> np.ndarray:
        """``(N, D)``, an embedding for each text."""
        return self._encoder.encode(texts, precision=self.precision)


class File:
    """``contrasent encode`` and ``contrasent index build``: from a file of sentences to one."""

    def __init__(self, folder: str, source: str, written: str) -> None:
        self._encoder, self._source = SentenceEncoder.load(folder), source
        self._written = written

    def round(self, _number: int) -> Values:
        """Read, embed and write the whole file, as a matrix or an index."""
        from contrasent.encode import open_sentences, write_embeddings
        from contrasent.options import Sharding
        from contrasent.search import Index

        with TemporaryDirectory() as place, open_sentences(self._source) as sentences:
            count, output = sentences.count(), Path(place) / "rows.npy"
            if self._written == "index":
                Index.build(self._encoder, sentences, output.with_name("index"))
            else:
                write_embeddings(self._encoder, sentences, output, Sharding(precision="auto"))
        return {"sentences": count}


class Transfer:
    """Classifiers on the same embeddings, together or as SentEval's ``loops``, in CPU seconds."""

    def __init__(self, folder: str, pooler: str, preset: str, loops: bool) -> None:
        self._encoder = SentenceEncoder.load(folder, pooler=pooler)
        self._preset, self._loops = preset, loops

    def round(self, number: int, task: str) -> Values:
        """Classify by seed 1111, 1112 and so on."""
        from benchmarks.jobs import senteval
        from contrasent.evaluation import EncoderUse, preset_named, transfer

        use, data = EncoderUse(self._encoder), transfer.load_transfer(task)
        preset = preset_named(self._preset, preset_named().seed + number)
        parts = {n: transfer.labelled(data, part, use) for n, part in data.parts.items()}
        start = time.process_time()
        if self._loops:
            pairs = [(part.features, part.labels) for part in parts.values()]
            dev, test, _ = senteval.procedure(pairs, data.classes, preset, preset.seed)
        else:
            classify = transfer.logistic_regression.cross_validate
            reached = classify(parts, data.classes, preset, "cpu")
            dev, test = reached.dev, reached.test
        seconds = time.process_time() - start
        size = sum(len(part.labels) for part in parts.values())
        return {"sentences": size, "seconds": seconds, "dev": float(dev), "test": float(test)}
