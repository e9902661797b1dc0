"""Hard negatives of pairs from a corpus, or candidates of their anchors with a teacher's scores.

Anchors are embedded as queries, all others as documents, and compared by the similarity that the
encoder states. A negative is as near to the anchor as the margin lets it be (TopK-PercPos of
Moreira et al. 2024, NV-Retriever, arXiv:2407.15831). Candidates are near by the encoder or by BM25.
What would be a false negative is passed over: the anchor, all its positives, and whatever equals
one of them in letters and digits.

Shapes: P pairs, N sentences of the corpus, T texts (those, and all positives), K candidates, D
embedding width, E examples.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from contrasent import model
from contrasent.data.build import Example, require_output, sentence_header, write_rows
from contrasent.data.examples import Examples, Rows, keep_rows, open_examples
from contrasent.errors import CheckpointError, ConfigError, DataError, require_extra
from contrasent.files import read_json, readable
from contrasent.model.protocol import Encoder, role_options, similarities, similarity_of
from contrasent.options import MiningOptions
from contrasent.progress import progress_bar
from contrasent.search.words import WordIndex, fuse
from contrasent.settings import checked, refuse_unused, takes

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder
    from torch import Tensor

Pairs = Sequence[tuple[str, str]]  # anchors and positives

_MARKS = "".join(it for it in map(chr, range(0x300, 0xABEE)) if category(it)[0] == "M")
_NO_LETTER = re.compile(rf"[^\w{_MARKS}]+|_+")  # \w is without vowel signs and tones
_SCORES = 1 << 24  # that are computed at once


@dataclass(frozen=True, slots=True)
class Mined:
    """Pairs with their hard negatives, or with further candidates and scores of all."""

    # anchor, positive and negatives of each pair that has all of them, in the order of the pairs
    examples: list[Example]
    pairs: int  # P, how many there were
    corpus: int  # different sentences that negatives were taken from
    without: int  # pairs that are left out, because too few of those are far enough
    positives: np.ndarray  # ``(E,)``, scores of anchor and positive of the examples
    hardest: np.ndarray  # ``(E, negatives)``, scores of anchor and negatives, largest first
    similarity: str  # by which they are compared, such as ``cosine``
    scored: bool = False  # these are candidates, in any order, with scores of a teacher

    @property
    def header(self) -> tuple[str, ...]:
        """Names of the sentences of an example."""
        if not self.scored:
            return sentence_header(len(self.examples[0]))
        return ("anchor", *(f"candidate_{k}" for k in range(1, len(self.examples[0]))), "scores")

    def write(self, output: Path) -> None:
        """Write the examples; the scores of candidates are a list, which is JSON in any file."""
        rows: Iterable[Any] = self.examples
        if self.scored:
            scores: list[Any] = np.c_[self.positives, self.hardest].astype(float).round(6).tolist()
            if output.suffix.lower() != ".jsonl":
                scores = [*map(json.dumps, scores)]
            rows = ((*example, it) for example, it in zip(self.examples, scores, strict=True))
        write_rows(output, self.header, rows)


def letters(text: str) -> str:
    """Letters and digits of a sentence without their case; of one without any, the sentence."""
    return _NO_LETTER.sub("", normalize("NFKC", text)).casefold() or text


def read_pairs(examples: Examples) -> list[tuple[str, str]]:
    """Anchor and positive of each example; hard negatives that it has already are left out."""
    pairs = [example[:2] for example in examples]
    if examples.views < 2 or not pairs:
        raise DataError(
            f"{examples.source} has one sentence in a row, or no row ({examples.columns}), but "
            "mining needs an anchor and its positive; give a file with two columns, or choose them"
        )
    return pairs  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Space:
    pairs: Pairs
    similarity: str
    anchors: list[str]
    texts: list[str]  # T, those of the corpus first
    corpus: int  # N
    queries: Tensor  # of the anchors
    documents: Tensor  # ``(T, D)``
    rows: NDArray[np.int64]  # ``(P, 2)``, of the anchor of a pair, and of its positive

    @classmethod
    def of(cls, encoder: Encoder, pairs: Pairs, corpus: Iterable[str] | None, **how: Any) -> _Space:
        import torch

        distinct: dict[str, str] = {}
        for text in (positive for _, positive in pairs) if corpus is None else corpus:
            distinct.setdefault(letters(text), text)
        similarity = similarity_of(encoder)
        device = model.training_device(getattr(encoder, "device", None))
        how["normalize"] = True if similarity == "cosine" else None
        anchors = [*dict.fromkeys(anchor for anchor, _ in pairs)]
        texts = [*dict.fromkeys(chain(distinct.values(), (positive for _, positive in pairs)))]
        queries, documents = (
            torch.from_numpy(encoder.encode(side, **how | role_options(encoder, role))).to(device)
            for side, role in ((anchors, "query"), (texts, "document"))
        )
        places, text_places = ({it: n for n, it in enumerate(its)} for its in (anchors, texts))
        rows = np.array([(places[a], text_places[p]) for a, p in pairs])
        return cls(pairs, similarity, anchors, texts, len(distinct), queries, documents, rows)

    def blocks(self, shown: bool) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Rows ``(b, 2)`` of some pairs, and scores ``(b, T)``, -inf of what is no candidate."""
        numbers = {letters(text): n for n, text in enumerate(self.texts[: self.corpus])}
        keys = [tuple(map(letters, it)) for it in self.pairs]
        together = defaultdict[str, set[str]](set)
        for anchor, positive in keys:
            together[anchor] |= {anchor, positive}
            together[positive].add(anchor)
        false_negatives = [[numbers[it] for it in together[a] if it in numbers] for a, _ in keys]
        block = max(_SCORES // len(self.texts), 1)
        with progress_bar("comparing", len(self.pairs), shown=shown) as advance:
            for start in range(0, len(self.pairs), block):
                rows = self.rows[start : start + block]
                scores = similarities(self.similarity, self.queries[rows[:, 0]], self.documents)
                scores[:, self.corpus :] = -inf
                for own, columns in zip(scores, false_negatives[start:], strict=False):
                    own[columns] = -inf
                yield rows, scores
                advance(len(rows))

    def pairwise(self, rows: NDArray[np.int64]) -> Tensor:
        """``(b,)``, the scores of rows ``(b, 2)`` of anchors and texts."""
        queries, documents = self.queries[rows[:, 0]], self.documents[rows[:, 1]]
        return similarities(self.similarity, queries, documents, pairwise=True)

    def mined(self, parts: Sequence[Any], count: int, problem: str, **more: Any) -> Mined:
        """Examples of blocks of pairs: their texts, scores of the positive and these, the least."""
        chosen, scores, least = (np.concatenate(it) for it in zip(*parts, strict=True))
        whole = np.flatnonzero(np.isfinite(least) & (chosen.shape[1] == count)).tolist()
        if not whole or np.isnan(scores[whole]).any():
            few = f"none of the {len(self.pairs)} pairs has {count} {problem}"
            raise DataError("the encoder or its teacher scores NaN; take another" if whole else few)
        examples = [(*self.pairs[n], *(self.texts[row] for row in chosen[n])) for n in whole]
        counts = len(self.pairs), self.corpus, len(self.pairs) - len(whole)
        positives, hardest = scores[whole, 0], scores[whole, 1:]
        return Mined(examples, *counts, positives, hardest, self.similarity, **more)


def find_negatives(
    encoder: Encoder,
    pairs: Pairs,
    corpus: Iterable[str] | None = None,
    negatives: int = 1,
    margin: float = 0.05,
    **how: Any,
) -> Mined:
    """Find hard negatives of each pair in ``corpus``, by default the positives; see above."""
    space, parts = _Space.of(encoder, pairs, corpus, **how), list[Any]()
    for rows, scores in space.blocks(how.get("show_progress", False)):
        nearness = space.pairwise(rows)
        too_near = scores > (nearness - margin * nearness.abs()).unsqueeze(1)
        best, chosen = scores.masked_fill_(too_near, -inf).topk(min(negatives, space.corpus))
        scored = np.c_[nearness.cpu(), best.cpu()]
        parts.append([chosen.cpu().numpy(), scored, scored[:, -1]])
    problem = (
        f"sentences of the corpus whose {space.similarity} is {margin:.0%} below its positive's; "
        "lower the margin or the number of negatives, or take a larger corpus or another encoder"
    )
    return space.mined(parts, negatives, problem)


def find_candidates(
    encoder: Encoder,
    pairs: Pairs,
    corpus: Iterable[str] | None = None,
    candidates: int = 8,
    teacher: Encoder | CrossEncoder | float = 0.1,
    **how: Any,
) -> Mined:
    """Find K candidates of each anchor, the positive first, with the scores of a teacher.

    The others are in turn the next one by the encoder and the next one by BM25. A teacher that is a
    number is the weight of BM25 in the fusion of these two.
    """
    import torch

    corpus = None if corpus is None else [*corpus]
    space = _Space.of(encoder, pairs, corpus, **how)
    guide = _Space.of(teacher, pairs, corpus, **how) if isinstance(teacher, Encoder) else space
    words, most, parts = WordIndex.of(space.texts), min(candidates - 1, space.corpus), []
    for rows, similar in space.blocks(how.get("show_progress", False)):
        by_words = words.scores([space.anchors[row] for row in rows[:, 0]])
        shared = torch.from_numpy(by_words).to(similar.device).masked_fill(similar == -inf, 0)
        (nearest, first), (most_shared, numbers) = similar.topk(most), shared.topk(most)
        second = torch.where(most_shared > 0, numbers, first)
        in_turn = torch.stack([first, second], 2).flatten(1).tolist()
        chosen = np.array([[*dict.fromkeys(row)][:most] for row in in_turn])
        lists = np.c_[rows[:, 1], chosen]
        listed = np.c_[np.repeat(rows[:, 0], most + 1), lists.ravel()]
        if isinstance(teacher, float):
            dense = similarities(space.similarity, space.queries[rows[:, 0]], space.documents)
            scores = np.take_along_axis(fuse(dense.cpu().numpy(), by_words, teacher), lists, 1)
        elif isinstance(teacher, Encoder):
            scores = guide.pairwise(listed).cpu().numpy()
        else:
            texts = [(space.anchors[a], space.texts[t]) for a, t in listed]
            scores = teacher.predict(texts, activation_fn=torch.nn.Identity())
        parts.append([chosen, scores.reshape(lists.shape), nearest[:, -1].cpu().numpy()])
    what = f"candidates beside its positive in {space.corpus} different sentences"
    problem = f"{what}; ask for fewer, or take a larger corpus"
    return space.mined(parts, candidates - 1, problem, scored=True)


def load_reranker(name: str, device: str | None = None) -> CrossEncoder:
    """A cross-encoder that gives a pair one score; CheckpointError if it is none."""
    require_extra("a cross-encoder", "rerank", "sentence_transformers")
    from sentence_transformers import CrossEncoder

    folder, how = model.resolve(name), {"model_kwargs": {"use_safetensors": True}, "device": device}
    kind, *_ = read_json(folder / "config.json").get("architectures") or ["no architecture"]
    if kind.endswith("ForSequenceClassification"):  # else it would get a layer that is not trained
        with readable(folder, "give a cross-encoder with its tokenizer and model.safetensors"):
            reranker: CrossEncoder = CrossEncoder(str(folder), local_files_only=True, **how)
        if reranker.num_labels == 1:
            return reranker
    raise CheckpointError(
        f"{name} ({kind}) is no reranker, which gives a pair one score; name a cross-encoder, such "
        "as cross-encoder/ms-marco-MiniLM-L6-v2, or give a --teacher"
    )


@takes(MiningOptions)
def mine(
    encoder: str | Path | Encoder,
    pairs: str | Path | Rows,
    *,
    corpus: str | Path | Rows | None = None,
    output: str | Path | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Mined:
    """Find hard negatives or scored candidates for pairs, as ``contrasent data mine`` does.

    Negatives are near the anchor, and farther than its positive by a margin (Moreira et al. 2024).

    Args:
        encoder: an encoder, or the name of one.
        pairs: anchors and positives, as `train` takes data.
        corpus: sentences to take negatives from, as `train` takes data; else the positives.
        output: the file to write: ``.csv``, ``.tsv`` or ``.jsonl``.
        show_progress: progress bars on standard error.
        **options: by name.

    Returns:
        The examples, and counts and scores.

    Example:
        >>> mined = contrasent.mine("runs/mine", "pairs.csv", output="mined.csv")  # doctest: +SKIP
        >>> contrasent.train("sup-simcse", encoder="runs/mine", data="mined.csv")  # doctest: +SKIP
    """
    chosen = checked(MiningOptions, options)
    teachers = [it for it in (chosen.reranker, chosen.teacher) if it is not None]
    if len(teachers) > (chosen.candidates is not None):
        remedy = "give one of --reranker and --teacher, and how many --candidates"
        raise ConfigError(f"{' and '.join(teachers)} would score candidates; {remedy}")
    if chosen.candidates is not None:
        refuse_unused(chosen, ("negatives", "margin"), "--candidates are as near as they come")
    files = [str(it) for it in (pairs, corpus) if isinstance(it, str | Path)]
    if output is not None:
        require_output(Path(output), chosen.overwrite, sources=files)
    texts = (it if isinstance(it, str | Path | None) else keep_rows(it) for it in (pairs, corpus))
    source, others = texts
    anchors_positives = read_pairs(open_examples(str(source), chosen.columns))
    text = None if others is None else chain.from_iterable(open_examples(str(others)))
    embeds = model.encoder_of(encoder, device=chosen.device)
    how: dict[str, Any] = {"precision": chosen.precision, "show_progress": show_progress}
    if chosen.candidates is None:
        counts = chosen.negatives, chosen.margin
        mined = find_negatives(embeds, anchors_positives, text, *counts, **how)
    else:
        teacher: Any = 0.1  # the weight of BM25 beside the encoder
        if chosen.reranker is not None:
            teacher = load_reranker(chosen.reranker, chosen.device)
        elif chosen.teacher is not None:
            teacher = model.load_encoder(chosen.teacher, device=chosen.device)
        mined = find_candidates(embeds, anchors_positives, text, chosen.candidates, teacher, **how)
    if output is not None:
        mined.write(Path(output))
    return mined
