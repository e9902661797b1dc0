"""Candidates of a search, the text that it adapts to, and the state from which it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from contrasent.data import find_documents, open_examples, sentences_of
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.evaluation import CROPS, FEWEST, NEXT, crop_pairs, next_pairs
from contrasent.files import write_text
from contrasent.model import MaskedLm, is_sentence_encoder
from contrasent.recipe import load_recipe
from contrasent.settings import EncoderSettings
from contrasent.training import start_encoder

GENERAL_TEXT: Path = Path(str(files("contrasent") / "quickstart_data" / "wikipedia.txt"))
"""Sentences that keep an encoder from forgetting what it knows of other text."""

TRAIN, DEV, TEST, MIXED = "train.txt", "dev.txt", "test.txt", "mixed.txt"
"""Files of the parts of the text; the last one is the first with general text."""
STATE = "search.json"

_HELD_OUT, _HELD_OUT_SHARE = 500, 0.1
"""Lines that are enough to choose by, and as many to report on; of the documents at most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of adapting an encoder: settings of a packaged recipe that differ from it."""

    name: str  # as ``--candidates`` takes it
    description: str  # what it trains on
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = "unsup-simcse"
    needs: str = ""  # a key of `NEEDS`, or nothing
    cost: float = 1.0  # of a step, in steps of ``dropout``
    general_text: bool = False  # whether shipped Wikipedia sentences are added to the text
    frozen_share: float = 0.0  # of the layers, the lowest ones, that stay as they are
    mlm_first: bool = False  # half of the steps train the masked language model on the text before


_SENTENCE_CROPS = {"view.name": "crop_sentences", "view.sides": "both"}
_CROPS = {"view.name": "crop", "view.share": 0.5, "view.sides": "both"}
_NEXT = {"view.name": "next_sentence"}
_WHITENED = {"train.whitening_sentences": 5000}
_TEXTS, _HEAD = "more_texts_than_dimensions", "masked_lm"
_MLM_FIRST = "half of the steps find masked words, then dropout"
CANDIDATES = {
    it.name: it
    for it in (
        Candidate("next-sentence", "a sentence and the next one", _NEXT, needs="documents"),
        Candidate(
            "sentences", "two crops of the sentences of a text", _SENTENCE_CROPS, needs="texts"
        ),
        Candidate("dropout", "a sentence twice, apart by dropout"),
        Candidate("slow", "dropout, at a third of the rate", {"train.learning_rate": 1e-5}),
        Candidate("crops", "two crops of the words of a text", _CROPS),
        Candidate("general", "dropout, with sentences from Wikipedia", general_text=True),
        Candidate("last-layers", "dropout, the upper half of the layers alone", frozen_share=0.5),
        Candidate("whitening", "dropout, with whitened embeddings too", _WHITENED, needs=_TEXTS),
        Candidate("mlm-first", _MLM_FIRST, needs=_HEAD, mlm_first=True),
        Candidate("tsdae", "rebuild a damaged sentence from its embedding", {}, "tsdae", cost=2.5),
        Candidate("diffcse", "dropout, and find edited words", {}, "diffcse", _HEAD, 3.0),
    )
}
"""In the order of what is left out last where time is short; to add one, add a row."""

NEEDS = {
    "texts": "texts of which half have several sentences",
    "documents": "a .txt whose documents have an empty line between them",
    _HEAD: "a masked language model to start from",
    _TEXTS: "more texts than an embedding has dimensions",
}
"""What a candidate may need, in words."""

FIXED = {
    "encoder.name": "give the argument ENCODER instead",
    "data.file": "give --data instead",
    "objective.name": "give --candidates instead",
    **dict.fromkeys(("train.max_steps", "train.epochs"), "give --minutes instead"),
    "train.seed": "give --seed instead",
    **dict.fromkeys(("train.start_shares", "evaluation.every"), "leave it out"),
    "evaluation.task": "give --dev instead",
    "evaluation.final": "give --test instead",
}
"""Settings that no user of a search chooses, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Text:
    """The text to adapt to."""

    source: str  # where it was read
    documents: list[list[str]]  # texts; each a list of its sentences, or of the one line that it is
    in_documents: bool  # the sentences of a document stand one after the other

    @classmethod
    def read(
        cls,
        source: str,
        columns: Sequence[str] | None = None,
        *,
        documents: bool | None = None,
        clean: bool = False,
    ) -> Text:
        """Read a file or data set of a sentence or text per example; line breaks become spaces."""
        examples = open_examples(source, columns, documents=documents, clean=clean)
        if examples.views > 1:
            raise DataError(
                f"{source} has {examples.columns}; adapt takes text without labels, one sentence "
                "or text per example; for pairs there is 'contrasent train sup-simcse'"
            )
        lines = [" ".join(text.split()) for (text,) in examples]
        lengths = find_documents(examples).lengths
        if lengths is None:
            return cls(source, [[line] for line in lines], in_documents=False)
        ends = np.cumsum(lengths)
        texts = [lines[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        return cls(source, texts, in_documents=True)

    @property
    def gives(self) -> set[str]:
        """The keys of :data:`NEEDS` that it meets."""
        if self.in_documents:
            return {"texts", "documents"}
        several = sum(len(sentences_of(line)) > 1 for (line,) in self.documents)
        return {"texts"} if 2 * several >= len(self.documents) else set()

    @property
    def max_tokens(self) -> int:
        """About the tokens of all but the longest tenth of its lines, from 32 to 128."""
        words = [len(line.split()) for document in self.documents for line in document]
        return int(np.clip(1.4 * np.quantile(words, 0.9) + 2, 32, 128))

    @property
    def lines(self) -> int:
        """How many sentences or texts there are."""
        return sum(map(len, self.documents))

    def split(self, seed: int, *, has_dev: bool) -> tuple[Text, Text, Text]:
        """Text to train on, to choose by, and to report on; no document is in two of them.

        Where another dev task chooses there is none to choose by, and none to report on if a tenth
        is too little for that. DataError if there is too little.
        """
        distinct = list(dict.fromkeys(map(tuple, self.documents)))
        order = np.random.default_rng(seed).permutation(len(distinct))
        documents = [list(distinct[k]) for k in order]
        lines = np.cumsum([len(document) for document in documents])
        enough = max(2, 1 + int(np.searchsorted(lines, _HELD_OUT)))
        count = min(enough, int(_HELD_OUT_SHARE * len(documents)))
        ends = (0, count) if has_dev else (count, 2 * count)
        parts = documents[ends[1] :], documents[: ends[0]], documents[ends[0] : ends[1]]
        queries = []  # of the proxies that are made of the last two
        for part in parts[1:]:
            units = [tuple((line,) for line in document) for document in part]
            found: set[str] = set()
            if len(units) > self.in_documents:
                pairs = next_pairs(units) if self.in_documents else crop_pairs(units)
                found = {first for first, second in pairs if first != second}
            queries.append(len(found))
        if not has_dev and min(queries) < FEWEST:
            raise DataError(
                f"{self.source} has {len(documents)} different "
                f"{'documents' if self.in_documents else 'texts'}, too few to choose and to report "
                f"by: a tenth, for each, makes {min(queries)} queries, and {FEWEST} are needed; "
                "give more text, or rated pairs with --dev"
            )
        if has_dev and queries[1] < FEWEST:
            parts = documents, [], []
        train, dev, test = (Text(self.source, part, self.in_documents) for part in parts)
        return train, dev, test

    def write(self, path: Path, general: Iterable[str] = ()) -> Path:
        """Write a sentence per line, with an empty line between documents."""
        texts = ["\n".join(document) for document in self.documents] + list(general)
        write_text(path, ("\n\n" if self.in_documents else "\n").join(texts) + "\n")
        return path


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a candidate."""

    candidate: str
    rung: int  # 0 for the first, shortest one
    steps: int  # updates it was to make
    score: float  # the best dev score on the way, in [-1, 1]
    best_step: int  # where that was; 0 for the start
    seconds: float

    @property
    def run(self) -> str:
        """The name of its folder."""
        return f"{self.rung}-{self.candidate}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A candidate that could not be trained."""

    candidate: str
    rung: int  # of the trial
    reason: str


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a search was asked for; one that goes on is asked for the same."""

    encoder: str
    data: str
    minutes: float
    dev: str | None
    candidates: list[str]
    settings: dict[str, Any]
    seed: int


@dataclass(slots=True)
class SearchState:
    """All that is needed to go on with a search."""

    request: SearchRequest  # what was asked for
    candidates: list[str]  # names of what is tried
    proxy: str  # how held-out text is scored, ``crops:`` or ``next:``
    max_tokens: int  # of a line of the text, in training
    depth: int  # layers of the encoder
    lines: dict[str, int]  # how many there are of each file that is trained on
    start_score: float = 0.0  # the dev score of the start as it comes
    dev_metric: str = ""  # what that is
    seconds_per_step: float = 0.0  # of the candidate ``dropout``
    overhead: float = 0.0  # seconds that a trial takes beside its steps
    trials: list[Trial] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The trial with the highest dev score."""
        return max(self.trials, key=lambda trial: trial.score)

    def write(self, folder: Path) -> None:
        """Write it as JSON."""
        content = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_text(folder / STATE, content + "\n")

    @classmethod
    def read(cls, folder: Path, request: SearchRequest) -> SearchState:
        """Read it again; ConfigError if the search was asked for something else."""
        state = TypeAdapter(cls).validate_json((folder / STATE).read_bytes())
        before, now = asdict(state.request), asdict(request)
        if before != now:
            changed = (f"{k} {before[k]}, not {now[k]}" for k in now if before[k] != now[k])
            raise ConfigError(
                f"the search in {folder} has {'; '.join(changed)}; ask for the same, or "
                "replace it with --overwrite"
            )
        return state


def split_text(request: SearchRequest, folder: Path) -> SearchState:
    """Read the text, write its parts into a folder, and choose the candidates that fit."""
    recipe = load_recipe("unsup-simcse", request.settings)
    text = Text.read(request.data, recipe.data.columns)
    has_dev = request.dev is not None
    parts = text.split(request.seed, has_dev=has_dev)
    start = start_encoder(EncoderSettings(name=request.encoder))
    given = {"", *text.gives}
    if not is_sentence_encoder(request.encoder):
        with suppress(CheckpointError):  # it may have no head, or not the whole of it
            MaskedLm.load(request.encoder)
            given.add(_HEAD)
    if parts[0].lines > start.width:
        given.add(_TEXTS)
    for name in request.candidates:
        if (needs := CANDIDATES[name].needs) not in given:
            raise ConfigError(f"the candidate {name} needs {NEEDS[needs]}; leave it out")
    general = [it for it in GENERAL_TEXT.read_text(encoding="utf-8").splitlines() if it]
    general = general[: parts[0].lines]
    for part, name in zip(parts, (TRAIN, DEV, TEST), strict=True):
        if part.documents:
            part.write(folder / name)
    parts[0].write(folder / MIXED, general)
    return SearchState(
        request=request,
        candidates=request.candidates or [n for n, it in CANDIDATES.items() if it.needs in given],
        proxy=NEXT if text.in_documents else CROPS,
        max_tokens=parts[0].max_tokens,
        depth=start.backbone.depth,
        lines={TRAIN: parts[0].lines, MIXED: parts[0].lines + len(general)},
    )
