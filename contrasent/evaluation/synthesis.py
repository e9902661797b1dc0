"""Queries for the passages of a text: found in it, or written by a language model.

Found are headings, questions, first sentences and rare words, of which the passage keeps nothing
that would give it away; a model is asked for several kinds of query. Kept are those by which BM25,
or an encoder, finds the passage again (Dai et al. 2023, Promptagator, arXiv:2209.11755), which
nearly equal no other query, and which stand neither in their passage nor in a text to exclude.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain, islice, pairwise, takewhile
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from contrasent.data.build import require_output, write_rows
from contrasent.data.check import aligned, example_lines, plural
from contrasent.data.documents import QUESTION, find_documents, split_sentences
from contrasent.data.examples import Examples, Rows, keep_rows, open_examples
from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluation.embed import DescribedEncoder, EncoderUse
from contrasent.evaluation.proxy import Ask, TextSample, digest, is_title, queries_of, units_of
from contrasent.evaluation.retrieval import embed_sides, similarities
from contrasent.files import exclusive, readable
from contrasent.model.endpoint import Requests, post
from contrasent.options import SynthesisOptions
from contrasent.progress import progress_bar
from contrasent.search.mining import letters
from contrasent.search.words import WordIndex, without_words, words
from contrasent.settings import checked, refuse_unused, takes

HEADER = ("query", "passage", "kind")
Pair = tuple[str, str, str]
"""A query, the passage that it is to find, and the kind of query."""

_HEADING = re.compile(r"#{1,6} \S|(={1,6}) .+ \1$")
_MARKUP = re.compile(r"^(?:[#*+>|-]+ +)+")
_KEYWORDS, _FEWEST, _MOST, _ALIKE, _SHOWN = 4, 8, 40, 0.8, 3
_PROMPTS = {
    "question": "Write a question that this text answers, as one asks who has not read it.",
    "keywords": "Write two to five keywords by which one searches for this text.",
    "title": "Write a short title for this text.",
    "statement": "Write a short sentence that says in other words something that this text says.",
}
_TOKENS, _SECONDS = 128, 120
# Thoughts, also those that a prompt began or the limit cut; half letters; fences of code.
_THOUGHT = re.compile(r"\A.*</think>|<think>.*|[\ud800-\udfff]|```\w*", re.DOTALL)
_KINDS = r"(?:question|query|keywords?|title|statement)\W*:"
_MARKS = re.compile(rf"\s*(?:.*:\W*\n)?[\W_]*(?:\d{{1,2}}[.)] |{_KINDS})?[\W_]*", re.I)


@dataclass(frozen=True, kw_only=True, slots=True)
class Synthesis:
    """Pairs of query and passage, and how many queries were left out, and why."""

    source: str
    documents: str  # how the text is read
    passages: int
    made: Mapping[str, int]  # queries of each kind, before any is left out
    left_out: Mapping[str, int]  # pairs, by the reason
    pairs: tuple[Pair, ...]

    def lines(self) -> Iterator[str]:
        """The counts, and the first pairs."""
        yield aligned("file", self.source)
        yield aligned("read", f"{self.passages:,} passages; {self.documents}")
        yield aligned("made", ", ".join(f"{n:,} {kind}" for kind, n in self.made.items()))
        yield from (aligned("left out", f"{count:,} {why}") for why, count in self.left_out.items())
        yield aligned("kept", f"{len(self.pairs):,} pairs of query and passage")
        yield from example_lines(HEADER[:2], [pair[:2] for pair in self.pairs[:_SHOWN]])


@takes(SynthesisOptions)
def synthesize(
    text: str | Path | Rows,
    *,
    output: str | Path | None = None,
    encoder: DescribedEncoder | str | Path | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Synthesis:
    """Make pairs of query and passage from text, as ``contrasent data synthesize`` does.

    Queries are headings, questions, first sentences and rare words of the text, or a language model
    writes them. Kept are those that find their passage again (Dai et al. 2023, Promptagator).

    Args:
        text: text without labels, as `train` takes it.
        output: the file to write: ``.jsonl``, ``.csv`` or ``.tsv``. With an ``endpoint`` the
            answers are kept beside it, in ``OUTPUT.answers``.
        encoder: an encoder, or the name of one, that is to find the passages; else BM25.
        show_progress: progress bars on standard error.
        **options: by name.

    Returns:
        The pairs, and how many were left out, by reason.

    Example:
        >>> pairs = contrasent.synthesize("text.txt", output="pairs.jsonl")  # doctest: +SKIP
    """
    chosen = checked(SynthesisOptions, options)
    if chosen.endpoint is None:
        asks = ("model", "concurrency", "max_requests", "resume")
        refuse_unused(chosen, asks, "there is no --endpoint")
    elif not (chosen.model and output):
        raise ConfigError("--endpoint goes with --model and an output to keep answers beside")
    known = _PROMPTS if chosen.endpoint else EXTRACTORS
    kinds = [pick("kind of query", kind, known) for kind in chosen.kinds or known]
    source = str(text if isinstance(text, str | Path) else keep_rows(text))
    examples = open_examples(source, chosen.columns, documents=chosen.documents, clean=chosen.clean)
    if output is not None:
        require_output(Path(output), chosen.overwrite or chosen.resume, sources=[source])
    use = None
    if encoder is not None:
        use = EncoderUse.of(encoder, show_progress=show_progress, device=chosen.device)
    excluded = {letters(it) for it in chain(*chain(*map(open_examples, chosen.exclude or ())))}
    sample, documents = passages_of(examples, chosen.words)
    if chosen.endpoint:
        queries = _written(sample, kinds, chosen, Path(f"{output}.answers"), show_progress)
    else:
        queries = {kind: [*EXTRACTORS[kind](sample)] for kind in kinds}
    pairs, left_out = kept_pairs(sample, queries, excluded, use, chosen.top_k)
    if not pairs:
        reasons = "; ".join(f"{count:,} {why}" for why, count in left_out.items())
        raise DataError(f"{source}: no pair is left of {len(sample.texts):,} passages: {reasons}")
    if output is not None:
        write_rows(Path(output), HEADER, pairs)
    return Synthesis(
        source=source,
        documents=documents,
        passages=len(sample.texts),
        made={kind: len(asks) for kind, asks in queries.items()},
        left_out=left_out,
        pairs=tuple(pairs),
    )


def passages_of(examples: Examples, longest: int) -> tuple[TextSample, str]:
    """The passages of a text with at most ``longest`` words, by sections, and how they are told.

    A section is what is below a heading of Markdown or of a wiki, or else a document or a row. Its
    first line may be its title; the others are joined, and cut where a sentence ends.
    """
    if examples.views > 1:
        raise DataError(f"{examples.source} holds {examples.columns}; give text of one column")
    layout, sections = find_documents(examples), list[list[str]]()
    for document in units_of(examples, layout.lengths):
        for n, (text, *_) in enumerate(document):
            headed = bool(sections and _HEADING.match(sections[-1][0]))
            if _HEADING.match(text) or not (headed or (n and layout.is_split)):
                sections.append([])
            sections[-1].append(text)
    places, documents = dict[str, int](), list[tuple[int, ...]]()
    for section in sections:
        first = len(section) > 1 and is_title(section[0])
        texts = [*section[:first], *_joined(section[first:], longest)]
        documents.append(tuple(places.setdefault(it, len(places)) for it in texts))
    source, in_documents = (examples.source, examples.sha256), layout.lengths is not None
    return TextSample(*source, tuple(places), tuple(documents), (), in_documents), layout.why


def _joined(texts: Iterable[str], longest: int) -> list[str]:
    """Texts, or of a long one its sentences, each with the next ones while there is room."""
    joined = list[str]()
    for text in texts:
        for part in split_sentences(text) if len(words(text)) > longest else (text,):
            if joined and len(words(both := f"{joined[-1]} {part}")) <= longest:
                joined[-1] = both
            else:
                joined.append(part)
    return joined


def _questions(sample: TextSample) -> Iterator[Ask]:
    """A question, and what follows it up to the next one; or else the next passage, or line."""
    sections = sample.documents if sample.in_documents else [chain.from_iterable(sample.documents)]
    following = dict(chain.from_iterable(map(pairwise, sections)))
    for row, text in enumerate(sample.texts):
        parts = split_sentences(text)
        for n, part in enumerate(parts, start=1):
            answer = takewhile(lambda it: not it.endswith(QUESTION), parts[n:])
            if part.endswith(QUESTION) and n < len(parts):
                yield Ask(part, (row,), {row: " ".join(answer)})
            elif part.endswith(QUESTION) and row in following:
                yield Ask(part, (following[row],), {}, row)


def _keywords(sample: TextSample) -> Iterator[Ask]:
    """The rarest words; those that no other passage has give it away, and are taken out."""
    of_text = [set(words(text)) for text in sample.texts]
    often = Counter(chain.from_iterable(of_text))
    for row, known in enumerate(of_text):
        rarest = sorted(known, key=lambda word: (often[word], digest(word)))
        unique = [word for word in rarest if often[word] == 1][: _KEYWORDS // 2]
        query = [*unique, *[word for word in rarest if often[word] > 1][: _KEYWORDS - len(unique)]]
        if len(query) == _KEYWORDS:
            masked = without_words(sample.texts[row], {*unique})
            yield Ask(" ".join(sorted(query, key=digest)), (row,), {row: masked})


EXTRACTORS: dict[str, Callable[[TextSample], Iterator[Ask]]] = {
    "title": partial(queries_of, kind="titles"),
    "question": _questions,
    "sentence": partial(queries_of, kind="rest"),
    "keywords": _keywords,
}
"""The kinds of query that are found in a text."""


def _written(
    sample: TextSample, kinds: Sequence[str], options: SynthesisOptions, path: Path, progress: bool
) -> dict[str, list[Ask]]:
    url = f"{str(options.endpoint).rstrip('/').removesuffix('/chat/completions')}/chat/completions"
    whole = path.read_bytes() if path.exists() else b""
    if whole and not (options.resume or options.overwrite):
        raise ConfigError(f"{path} is there: --resume goes on, --overwrite begins anew")
    whole = whole[: whole.rfind(b"\n") + 1] if options.resume else b""  # no line that a kill cut
    with readable(path, "--overwrite begins anew"):
        lines: Any = map(json.loads, whole.splitlines())
        answers: dict[str, str] = {name: answer for name, answer in lines if _query(answer)}
    rows = sorted(range(len(sample.texts)), key=lambda row: digest(sample.texts[row]))
    rows = [row for row in rows if len(words(sample.texts[row])) >= _FEWEST]
    turns = ((row, n + turn) for turn in range(len(kinds)) for n, row in enumerate(rows))
    asked = dict[str, tuple[str, int, str]]()
    for row, n in islice(turns, options.max_requests):
        kind = kinds[n % len(kinds)]
        prompt = f"{_PROMPTS[kind]} In its language, and nothing else.\n\n{sample.texts[row]}"
        asked[sha256(f"{options.model} {prompt}".encode()).hexdigest()] = kind, row, prompt
    missing = {name: prompt for name, (*_, prompt) in asked.items() if name not in answers}
    bar = progress_bar("asking", len(missing), shown=progress, log="asked: {done:,}")
    pool, lock = Requests(options.concurrency), Lock()
    with exclusive(path), bar as advance, path.open("ab") as file, pool:
        file.truncate(len(whole))

        def ask(name: str, prompt: str) -> None:
            message = {"role": "user", "content": prompt}
            body = {"model": options.model, "messages": [message], "max_tokens": _TOKENS}
            empty = b'{"choices": [{"message": {"content": ""}}]}'
            response = post(url, body, _SECONDS, pool.over, empty)
            try:
                answer = "" + (json.loads(response)["choices"][0]["message"]["content"] or "")
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise CheckpointError(f"{url} answers no completion: {response[:200]!r}") from error
            with lock:
                file.write(f"{json.dumps([name, answer])}\n".encode())
                file.flush()
                answers[name] = answer
                if len(answers) == _FEWEST and not any(map(_query, answers.values())):
                    pool.shutdown(wait=False, cancel_futures=True)  # at once: others wait in line
                    what = f"{url} answers no query, but {answer!r:.60}; if a model thinks first"
                    raise CheckpointError(f"{what}, turn that off: both get {_TOKENS} tokens")

        try:
            for _ in pool.map(ask, missing, missing.values()):
                advance(1)
        except CheckpointError as error:
            kept = f"{plural(len(answers), 'answer')} of {len(asked):,} are in {path}"
            raise CheckpointError(f"{error}. {kept}, and --resume goes on") from error
    queries: dict[str, list[Ask]] = {kind: [] for kind in kinds}
    for name, (kind, row, _) in asked.items():
        queries[kind].append(Ask(_query(answers[name]), (row,)))
    return queries


def _query(answer: str) -> str:
    """The query that a model answers; empty where it has none."""
    return _MARKS.sub("", _THOUGHT.sub("", answer), 1).partition("\n")[0].rstrip(" \"'*}\u201d")


def kept_pairs(
    sample: TextSample,
    queries: Mapping[str, Sequence[Ask]],
    excluded: Collection[str] = (),
    use: EncoderUse | None = None,
    top_k: int = 10,
) -> tuple[list[Pair], dict[str, int]]:
    """The pairs that pass the filters, and how many do not, by the reason.

    ``excluded`` are the :func:`~contrasent.search.mining.letters` of texts that are no query.
    """
    left_out, candidates = Counter[str](), list[tuple[Pair, Ask]]()
    asked = [(kind, ask) for kind, asks in queries.items() for ask in asks]
    for (kind, ask), repeat in zip(asked, _repeats([ask.query for _, ask in asked]), strict=True):
        query = _MARKUP.sub("", ask.query)
        form, size = letters(query), len(words(query))
        for row in ask.wanted:
            passage = ask.masked.get(row, sample.texts[row])
            reasons = {
                f"without a query of 1 to {_MOST} words or a passage of {_FEWEST}": not size
                or size > _MOST
                or len(words(passage)) < _FEWEST,
                "with nearly the query of another": repeat,
                "with a query that is to be excluded": form in excluded,
                "with a query that stands in the passage": form in letters(passage),
            }
            if why := [reason for reason, holds in reasons.items() if holds]:
                left_out[why[0]] += 1
            else:
                candidates.append(((query, passage, kind), ask))
    # True where fewer than `top_k` other passages are nearer to the query than its own.
    corpus = dict.fromkeys([*sample.texts, *(passage for (_, passage, _), _ in candidates)])
    places, asks = {text: n for n, text in enumerate(corpus)}, [it for (it, *_), _ in candidates]
    scores: Iterable[Any] = map(WordIndex.of([*places]).scores_of, asks)
    if use and asks:
        scores = similarities(embed_sides(asks, [*places], use), use.similarity)
    keeps = list[bool]()
    for ((_, passage, _), ask), of_query in zip(candidates, scores, strict=True):
        score = of_query[places[passage]]
        above = np.flatnonzero(of_query[: len(sample.texts)] > score)
        nearer = {*above.tolist()} - {*ask.wanted, ask.itself}
        keeps.append(bool(use or score > 0) and len(nearer) < top_k)
    finder = use.encoder.name if use else "BM25"
    left_out[f"with a passage that {finder} does not find among {top_k}"] = keeps.count(False)
    return [it[0] for it, keep in zip(candidates, keeps, strict=True) if keep], dict(left_out)


def _repeats(queries: Sequence[str]) -> list[bool]:
    """True for what nearly repeats an earlier query (Xiao et al. 2008, prefix filtering)."""
    of_query = [frozenset(words(query)) for query in queries]
    often = Counter(chain.from_iterable(of_query))
    earlier, repeats = defaultdict[str, list[frozenset[str]]](list), list[bool]()
    for query in of_query:
        rarest = sorted(query, key=lambda word: (often[word], word))
        rarest = rarest[: len(query) - ceil(_ALIKE * len(query)) + 1]
        others = chain.from_iterable(earlier[word] for word in rarest)
        repeats.append(any(len(query & it) >= _ALIKE * len(query | it) for it in others))
        for word in rarest if not repeats[-1] else ():
            earlier[word].append(query)
    return repeats
