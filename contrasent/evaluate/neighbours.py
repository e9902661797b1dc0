"""The sentences of a corpus that are nearest to a query, as SimCSE's Table 8 shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A sentence of the corpus.

    Attributes:
        text: the sentence.
        cosine: with the query, in [-1, 1].
        row: where it first stands among the sentences of the corpus, from 0.
    """

    text: str
    cosine: float
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A sentence and what is nearest to it.

    Attributes:
        text: the sentence.
        left_out: sentences of the corpus that are the query itself: the same letters and digits,
            whatever their case and what stands between them.
        nearest: best first; equal cosines in the order of the corpus. Fewer than were asked for
            only if the corpus has no more.
    """

    text: str
    left_out: tuple[str, ...]
    nearest: tuple[Neighbour, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """What one encoder finds in a corpus, with all that is needed to find it again.

    Attributes:
        encoder: the name or folder it was loaded from.
        pooler: how token states became the embedding.
        head: ``mlp`` or ``none``, the map after the pooler; None if the encoder does not say.
        max_tokens: longer sentences were cut there; None if the encoder does not say.
        engine: what computed the transformer where that was not torch, such as ``onnx``.
        precision: ``fp32``, ``bf16``, or ``int8`` with that engine.
        seed: the seed of the training run that made the encoder; None if it is not known.
        versions: versions of the packages that computed the embeddings.
        corpus: the file, data set or task.
        columns: how its columns were understood.
        sentences: how many it has, repeated ones counted each time.
        distinct: how many of them differ; a repeated sentence is found once.
        without_vector: how many of these have a vector of zeros, which is near nothing.
        corpus_sha256: hash of its content and columns.
        asked: where the queries come from.
        top_k: how many neighbours were asked for.
        queries: in the order they were asked.
    """

    encoder: str
    pooler: str
    head: str | None = None
    max_tokens: int | None = None
    engine: str | None = None
    precision: str
    seed: int | None = None
    versions: dict[str, str]
    corpus: str
    columns: str
    sentences: int
    distinct: int
    without_vector: int = 0
    corpus_sha256: str
    asked: str
    top_k: int
    queries: tuple[Query, ...]
