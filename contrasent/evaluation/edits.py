"""Sensitivity of embeddings to edits: what DiffCSE is to have more of (Chuang et al. 2022).

Every sentence is edited once, in a way, at a place and of a size that are drawn. An embedding is
sensitive if it moves, and equivariant if its movement tells what the edit was: a classifier finds
that from the difference of the embeddings of the edited sentence and of the sentence.

Shapes: N sentences, D dimensions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from contrasent.data.examples import open_examples
from contrasent.errors import DataError
from contrasent.evaluation.embed import EncoderUse, Score
from contrasent.evaluation.intervals import normal_interval
from contrasent.evaluation.logistic_regression import LabelledFeatures, cross_validate
from contrasent.evaluation.protocols import preset_named
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import pair_cosines, unit_rows
from contrasent.records import Record

WAYS, PLACES, SIZES = ("replace", "delete", "insert"), ("first", "middle", "last"), (1, 2, 4)
"""What is done with words that stand together, in which third of a sentence, and to how many."""

_FEWEST_WORDS, _SENTENCES, _CONFIDENCE = 12, 3000, 0.95


@dataclass(frozen=True, slots=True)
class Edits:
    """Sentences, and each of them edited once."""

    name: str  # of their file
    sha256: str  # of the sentences
    sentences: tuple[str, ...]
    edited: tuple[str, ...]
    drawn: np.ndarray  # (N, 3), places in `WAYS`, `PLACES` and `SIZES`

    @classmethod
    def read(cls, file: str) -> "Edits":
        """Edit the first column of a text."""
        examples = open_examples(file)
        return cls.draw(file, examples.sha256, (first for first, *_ in examples))

    @classmethod
    def draw(cls, name: str, sha256: str, texts: Iterable[str], seed: int = 0) -> "Edits":
        """Edit the first 3,000 distinct sentences of twelve words or more.

        Words that are put in are drawn from the words of all of them. DataError if there are
        fewer than 100.
        """
        long = (it for it in dict.fromkeys(texts) if len(it.split()) >= _FEWEST_WORDS)
        sentences = tuple(sentence for sentence, _ in zip(long, range(_SENTENCES), strict=False))
        if len(sentences) < 100:
            raise DataError(
                f"{name}: {len(sentences)} distinct sentences have {_FEWEST_WORDS} words or more; "
                "edits need 100"
            )
        random = np.random.default_rng(seed)
        drawn = random.integers((len(WAYS), len(PLACES), len(SIZES)), size=(len(sentences), 3))
        words = [word for sentence in sentences for word in sentence.split()]
        edited = []
        for sentence, (way, place, size) in zip(sentences, drawn.tolist(), strict=True):
            kept, count = sentence.split(), SIZES[size]
            third = len(kept) // 3
            start = place * third + int(random.integers(third - count + 1))
            new = [words[k] for k in random.integers(len(words), size=count)]
            end = start + (0 if WAYS[way] == "insert" else count)
            kept[start:end] = [] if WAYS[way] == "delete" else new
            edited.append(" ".join(kept))
        return cls(name, sha256, sentences, tuple(edited), drawn)


def measure_edits(use: EncoderUse, edits: Edits) -> tuple[Record, ...]:
    """Measure how far edits move an embedding, and how well each can be told, with intervals.

    ``edit_distance`` is 1 minus the cosine, by way and size; ``edit_accuracy`` of classifiers of
    five folds for ``way``, ``place`` and ``size``, where chance is a third.
    """
    before, after = (unit_rows(use.embed(it)) for it in (edits.sentences, edits.edited))
    moved, count = 1 - pair_cosines(before, after), len(before)
    scores = list[Score]()
    for w, way in enumerate(WAYS):
        for s, size in enumerate(SIZES):
            moves = moved[(edits.drawn[:, 0] == w) & (edits.drawn[:, 2] == s)]
            mean, error = float(moves.mean()), float(moves.std(ddof=1)) / sqrt(len(moves))
            within = normal_interval(mean, error, _CONFIDENCE)
            known = len(moves), "subset", f"{way} {size}", within
            scores.append(Score("edit_distance", mean, *known))
    features = after - before
    features /= np.sqrt(np.square(features).mean()) or 1.0  # as large of every encoder
    for k, (label, values) in enumerate({"way": WAYS, "place": PLACES, "size": SIZES}.items()):
        part = {"all": LabelledFeatures(features.astype(np.float32), edits.drawn[:, k])}
        accuracy = cross_validate(part, len(values), preset_named("fasttest"), "cpu").test
        error = sqrt(accuracy * (1 - accuracy) / count)
        within = normal_interval(accuracy, error, _CONFIDENCE)
        scores.append(Score("edit_accuracy", accuracy, count, "subset", label, within))
    name = TaskName(edits.name)
    return tuple(score.record(name, edits.sha256, use) for score in scores)
