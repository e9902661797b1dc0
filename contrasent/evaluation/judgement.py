"""Judge: is an encoder good enough for a text without labels, and would BM25 help it?

The encoder as it is, BM25, their fusion and other encoders are scored on tasks that are made of the
text (`contrasent.evaluation.proxy.text_tasks`).

Shapes: Q queries, N texts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np

from contrasent.data.check import TextFacts, describe, plural, shortened
from contrasent.data.documents import find_documents
from contrasent.data.examples import Rows, keep_rows, open_examples
from contrasent.data.readers import first_words, n_words
from contrasent.data.rows import open_rows_of
from contrasent.errors import ConfigError, DataError, shown
from contrasent.evaluation import retrieval
from contrasent.evaluation.compare import compare_ratios, with_comparison
from contrasent.evaluation.embed import EncoderUse, Scores, distinct
from contrasent.evaluation.intervals import Bootstrap, Ratio, interval, ratio_draws
from contrasent.evaluation.proxy import FEWEST, TextSample, sample_texts, text_tasks
from contrasent.evaluation.retrieval import RetrievalTask, embed_sides
from contrasent.metrics import Vector, all_similarities, retrieval_score
from contrasent.model.protocol import Encoder
from contrasent.options import SearchOptions
from contrasent.records import Compared, Record
from contrasent.search.index import Index
from contrasent.search.words import Scores as ScoreMatrix
from contrasent.search.words import WordIndex, WordsInfo, fuse
from contrasent.settings import checked, refuse_unused

WEIGHTS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SOLVED, KEYWORDS_SOLVED, CHANCE, TELLING, WIDE = 0.97, 0.9, 0.03, 0.1, 0.05
"""Scores of both from which, of keywords by the encoder alone, and of both up to which a task
decides nothing; of either from which it chooses a weight; half an interval too wide to tell."""

METRIC, BM25, HALVES, KEYWORDS = "ndcg@10", "BM25", "halves", "keywords"
NEARER = "other tasks are nearer to what people ask"
_TEXTS, _WORDS_A_SECOND, _LONGEST = 20_000, 2_000, 512
_INDEXED_WORDS, _DEPTH, _SMALL_WEIGHTS = 40_000, 10, 3
_SHOWN, _HITS = 10, 3
_short = partial(shortened, longest=200)

_UNUSED = ("head", "transform", "max_tokens", "prompts", "dimensions", "engine", "seed")

Verdict = Literal["good", "hybrid", "words", "other", "room", "unclear"]
Values = list[dict[str, Vector]]
"""Of each task, scores ``(Q,)`` of its queries by metric."""


@dataclass(frozen=True, slots=True)
class ExampleHit:
    """A text that was found, shortened, and whether it was to be."""

    text: str
    score: float
    right: bool


@dataclass(frozen=True, slots=True)
class ExampleQuery:
    """A query, a text that it is to find, and what the encoder and BM25 find first."""

    task: str
    query: str
    wanted: str
    dense: tuple[ExampleHit, ...]
    words: tuple[ExampleHit, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """How an encoder does on a text without labels; `dataclasses.asdict` gives it for JSON."""

    encoder: str
    text: str
    facts: TextFacts
    sampled: int  # texts that are searched
    records: tuple[Record, ...]  # of the encoder, BM25, their fusion, other encoders, in this order
    # mean nDCG@10 of the deciding tasks less that of the encoder, by what is compared
    differences: Mapping[str, Compared]
    deciding: tuple[str, ...]  # the tasks that the verdict rests on
    undecided: Mapping[str, str]  # why other tasks are left out, or decide nothing
    weight: float | None  # of BM25 in the fusion; None if no task decides
    verdict: Verdict
    sentence: str
    queries: tuple[ExampleQuery, ...]


def judge(
    use: EncoderUse,
    text: str | Path | Rows,
    *,
    compare: Sequence[EncoderUse] = (),
    columns: Sequence[str] | None = None,
    documents: bool | None = None,
    clean: bool = False,
    seconds: float = 50,
) -> Judgement:
    """Score an encoder as it is on tasks made of a text, beside BM25, their fusion and others.

    ``documents`` and ``clean`` are those of `open_examples`; ``seconds``, for which two cores are
    busy with a small encoder, decide how many texts are drawn. DataError if there are too few,
    ConfigError if two encoders have one name.
    """
    uses = {it.encoder.name: it for it in (use, *compare)}
    if len(uses) <= len(compare):
        raise ConfigError(f"two encoders have one name, of {', '.join(uses)}; give each its own")
    source = str(text if isinstance(text, str | Path) else keep_rows(text))
    examples = open_examples(source, columns, documents=documents, clean=clean)
    limit = getattr(use.encoder, "max_tokens", None) or _LONGEST
    documents_found = find_documents(examples)
    tokenizer = getattr(use.encoder, "tokenizer", None)
    facts = describe(examples, tokenizer, documents=documents_found, max_tokens=limit)
    words = int(_WORDS_A_SECOND * seconds)
    sample = sample_texts(examples, documents_found.lengths, _TEXTS, words, min(limit, _LONGEST))
    tasks, undecided = text_tasks(sample)
    if not tasks:
        few = f"its {len(sample.texts)} different texts make no task of {FEWEST} queries"
        raise DataError(f"{source} is too little text: {few}; give more, or longer ones")
    scored = _score_all(use, tasks)
    undecided |= scored.why
    names = [task.name for task in tasks]
    deciding, fusing = ([names[n].name for n in it] for it in (scored.deciding, scored.fusing))
    values = dict(zip((use.encoder.name, BM25), scored.both, strict=True))
    fusion, weight = f"{use.encoder.name} + {BM25}", None
    if fusing:
        weight, values[fusion] = _crossed(scored.fused, scored.fusing)
    values |= {it.encoder.name: _values(tasks, _dense(it, tasks)) for it in compare}
    bootstrap = Bootstrap()
    base, *rest = (
        _scores(name, uses.get(name, use), tasks, it, bootstrap) for name, it in values.items()
    )
    records, differences = list(base.records), dict[str, Compared]()
    for name, scores in zip(list(values)[1:], rest, strict=True):
        of_system = list(scores.records)
        over = fusing if name == fusion else deciding
        for comparison in compare_ratios(names, base, scores, bootstrap=bootstrap, over=over):
            of_system = with_comparison(of_system, comparison)
            if comparison.metric == METRIC and over:
                alone = next(it for task, it in comparison.tasks.items() if task.name in over)
                differences[name] = comparison.average or alone
        records += of_system
    verdict, sentence = _verdict(use.encoder.name, differences, weight, deciding, fusing, undecided)
    return Judgement(
        encoder=use.encoder.name,
        text=source,
        facts=facts,
        sampled=len(sample.texts),
        records=tuple(records),
        differences=differences,
        deciding=tuple(deciding),
        undecided=undecided,
        weight=weight,
        verdict=verdict,
        sentence=sentence,
        queries=tuple(islice(_examples(tasks, scored.dense, scored.by_words), _SHOWN)),
    )


def tune_index(
    index: Index | str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    queries: str | Path | Iterable[tuple[str, str]] | None = None,
    weight: float | None = None,
) -> WordsInfo:
    """Choose the weight of BM25 in hybrid searches, as ``contrasent index tune`` does.

    The mode ``auto`` is hybrid then if the interval of what that adds to mean nDCG@10 is above 0.
    An index without tables of words gets them.

    Args:
        index: an index, or its folder.
        encoder: the one that built it, or its name; else the one that it names is loaded.
        queries: labelled ones to choose by, each with the id of a text that it is to find, a row
            for each such text, or a file of them; without them tasks are made of the texts.
        weight: the weight itself, not to be chosen.

    Returns:
        The weight, and the gain of the fusion over the encoder alone in nDCG@10.

    Raises:
        ConfigError: The weight is not from 0 to 1.
        DataError: A query is to find an id that the index has not.

    Example:
        >>> index = contrasent.Index.build(encoder, texts, "my-index")  # doctest: +SKIP
        >>> contrasent.tune_index(index, encoder).gain  # doctest: +SKIP
    """
    given = checked(SearchOptions, {"weight": weight})
    if queries is not None:
        refuse_unused(given, ["weight"], "the queries choose the weight")
    opened = index if isinstance(index, Index) else Index.open(index)
    wanted: dict[str, list[str]] | None = None
    if queries is not None:
        known = {name for block in opened.blocks() for name in block.ids}
        if isinstance(queries, str | Path):
            rows: Iterable[Any] = open_rows_of(str(queries), "wanted").rows()
        else:
            rows = enumerate(queries, 1)
        wanted = {}
        for where, row in rows:
            is_pair = isinstance(row, list | tuple | np.ndarray) and len(row) == 2
            query, name = row if is_pair else ("", "")
            if not query or str(name) not in known:
                raise DataError(f"{where}: {shown(row)} is no query with the id of a text there")
            wanted.setdefault(query, []).append(str(name))
        if len(wanted) < 2:
            raise DataError(f"{shown(queries)}: {len(wanted)} queries are too few to choose by")
    if opened.manifest.words is None:
        opened.set_words(WordsInfo())
    chosen = WordsInfo(weight or 0, "weight", hybrid=bool(weight))
    if weight is None:
        chosen = _fusion_of(opened, opened.encoder(encoder), wanted)
    opened.set_words(chosen)
    return chosen


def _fusion_of(
    index: Index, encoder: Encoder, wanted: Mapping[str, Sequence[str]] | None
) -> WordsInfo:
    if wanted is None:
        use = EncoderUse(encoder, index.manifest.encoder.precision)
        scores, fusing = _scores_of_texts(index, use)
    else:
        scores, fusing = dict[float, Values](), [0]
        for weight in (0.0, *WEIGHTS):
            results = index.search(encoder, [*wanted], _DEPTH, mode="hybrid", weight=weight)
            places = ({hit.id: n for n, hit in enumerate(hits, 1)} for hits in results)
            both = zip(places, wanted.values(), strict=True)
            ranks = (np.array([of.get(name, np.inf) for name in names]) for of, names in both)
            values = [retrieval_score(METRIC, it, np.ones_like(it)) for it in ranks]
            scores[weight] = [{METRIC: np.array(values)}]
    if not fusing:
        return WordsInfo()
    weight, fused = _crossed(scores, fusing)
    gains = [fused[n][METRIC] - scores[0.0][n][METRIC] for n in fusing]
    drawn = [
        ratio_draws([Ratio(it, np.ones_like(it))], Bootstrap(), str(n))
        for n, it in enumerate(gains)
    ]
    ends = interval(np.mean(drawn, axis=0)[0], Bootstrap())
    chosen_by: Literal["text", "queries"] = "text" if wanted is None else "queries"
    low, high = (ends.low, ends.high) if ends else (0.0, 0.0)
    gain = fmean(float(it.mean()) for it in gains)
    return WordsInfo(weight, chosen_by, low > 0, sum(map(len, gains)), gain, low, high)


def _scores_of_texts(index: Index, use: EncoderUse) -> tuple[dict[float, Values], list[int]]:
    """Scores by weight of BM25 for tasks made of an index's texts, and the tasks to choose by."""
    drawn, left, step = dict[str, None](), _INDEXED_WORDS, len(index) // _TEXTS + 1
    texts = [text for block in index.blocks() for text in block.texts[::step]]
    for text in np.random.default_rng(0).permutation(np.array(texts, object)):
        known = first_words(text, getattr(use.encoder, "max_tokens", None) or _LONGEST)
        left -= n_words(known)
        if left < 0:
            break
        drawn[known] = None
    tasks, _ = text_tasks(TextSample("index", "", tuple(drawn), (), ()))
    if not tasks:
        return {}, []
    scored = _score_all(use, tasks)
    return scored.fused, scored.fusing


class _Scored(NamedTuple):
    """Scores of tasks by an encoder, BM25 and their fusion, and the rows of tasks that tell."""

    dense: list[ScoreMatrix]
    by_words: list[ScoreMatrix]
    both: tuple[Values, Values]
    deciding: list[int]
    why: dict[str, str]  # other tasks decide nothing
    fusing: list[int]  # those that choose the weight
    fused: dict[float, Values]  # by the weight of BM25


def _score_all(use: EncoderUse, tasks: Sequence[RetrievalTask]) -> _Scored:
    """Score tasks; keywords count for the weight, not alone, large ones where BM25 is better."""
    dense = _dense(use, tasks)
    by_words = [WordIndex.of(task.corpus).scores(task.queries) for task in tasks]
    both = _values(tasks, dense), _values(tasks, by_words)
    deciding, why = _decide(tasks, *both)
    means = np.array([[values[METRIC].mean() for values in system] for system in both])
    exact = [n for n, task in enumerate(tasks) if _kind(task) == KEYWORDS]
    fusing = [n for n in deciding if n not in exact and means[:, n].max() >= TELLING]
    better = means[1, deciding].sum() > means[0, deciding].sum()
    weights = (0.0, *WEIGHTS[: None if better else _SMALL_WEIGHTS]) if fusing else ()
    pairs, fusing = [*zip(dense, by_words, strict=True)], fusing and [*fusing, *exact]
    fused = {it: _values(tasks, [fuse(*pair, it) for pair in pairs]) for it in weights}
    return _Scored(dense, by_words, both, deciding, why, fusing, fused)


def _kind(task: RetrievalTask) -> str:
    return task.name.name.partition(" of ")[0]


def _decide(
    tasks: Sequence[RetrievalTask], encoder: Values, by_words: Values
) -> tuple[list[int], dict[str, str]]:
    """The tasks that the verdict rests on, and why others do not; the weaker kinds only alone."""
    deciding, why = list[int](), dict[str, str]()
    for n, task in enumerate(tasks):
        dense, words = (float(of[n][METRIC].mean()) for of in (encoder, by_words))
        if (_kind(task) == KEYWORDS and dense >= KEYWORDS_SOLVED) or min(dense, words) >= SOLVED:
            why[task.name.name] = f"{100 * dense:.1f}, solved"
        elif max(dense, words) <= CHANCE:
            why[task.name.name] = f"{100 * max(dense, words):.1f}, as by chance"
        else:
            deciding.append(n)
    for weaker in ({KEYWORDS}, {HALVES, KEYWORDS}):
        for n in [n for n in deciding if _kind(tasks[n]) in weaker]:
            if {_kind(tasks[other]) for other in deciding} - weaker:
                deciding.remove(n)
                why[tasks[n].name.name] = NEARER
    return deciding, why


def _dense(use: EncoderUse, tasks: Sequence[RetrievalTask]) -> list[ScoreMatrix]:
    """Similarities ``(Q, N)`` of each task; what several tasks have in common is embedded once."""
    sides = [task.queries for task in tasks], [task.corpus for task in tasks]
    texts, places = zip(*(distinct(chain.from_iterable(side)) for side in sides), strict=True)
    queries, corpus = (rows.astype(np.float32) for rows in embed_sides(texts[0], texts[1], use))
    parts = (
        np.split(of_side, np.cumsum([*map(len, side)])[:-1])
        for of_side, side in zip(places, sides, strict=True)
    )
    both = zip(*parts, strict=True)
    return [all_similarities(use.similarity, queries[q], corpus[c]) for q, c in both]


def _values(tasks: Sequence[RetrievalTask], scores: Sequence[ScoreMatrix]) -> Values:
    return [retrieval.query_scores(*it) for it in zip(tasks, scores, strict=True)]


def _crossed(scores: Mapping[float, Values], fusing: Sequence[int]) -> tuple[float, Values]:
    """The weight of the largest mean over tasks; scores by one that no query chose for itself."""

    def best(first: int, step: int) -> float:
        def mean(weight: float) -> float:
            return fmean(scores[weight][n][METRIC][first::step].mean() for n in fusing)

        return max(filter(None, scores), key=mean)

    both = zip(scores[best(1, 2)], scores[best(0, 2)], strict=True)
    values = [{it: np.where(np.arange(len(a[it])) % 2, b[it], a[it]) for it in a} for a, b in both]
    return best(0, 1), values


def _scores(
    name: str, use: EncoderUse, tasks: Sequence[RetrievalTask], values: Values, bootstrap: Bootstrap
) -> Scores:
    parts = [retrieval.mean_scores(*it, use, bootstrap) for it in zip(tasks, values, strict=True)]
    fields: dict[str, Any] = {"encoder": name}
    if name == BM25:
        fields |= {"pooler": "words", "similarity": BM25, **dict.fromkeys(_UNUSED)}
    scores = Scores.together(parts)
    return replace(scores, records=tuple(replace(it, **fields) for it in scores.records))


def _verdict(
    name: str,
    differences: Mapping[str, Compared],
    weight: float | None,
    deciding: Sequence[str],
    fusing: Sequence[str],
    undecided: Mapping[str, str],
) -> tuple[Verdict, str]:
    """The first that holds of: another encoder, BM25, or the fusion is better; it beats BM25."""

    def better(by: Compared) -> str:
        ends = by.interval
        sure = f" [{100 * ends.low:+.1f}, {100 * ends.high:+.1f}]" if ends else ""
        return f"{100 * by.difference:+.1f}{sure} nDCG@10"

    if not deciding:
        solved = [it for it, why in undecided.items() if why.endswith("solved")]
        if any(not it.startswith(KEYWORDS) for it in solved):
            return "good", f"{name} is good enough: it solves the tasks made of this text."
        return "unclear", "Cannot tell: no task made of this text tells encoders apart."
    fusion = f"{name} + {BM25}"
    by_words, fused = differences[BM25], differences.get(fusion)
    gains = {it: of for it, of in differences.items() if of.interval and of.interval.low > 0}
    others = [it for it in gains if it not in (BM25, fusion)]
    on, on_fusing = (f"on {plural(len(it), 'task')} made of this text" for it in (deciding, fusing))
    on_fusing += ", one of them keywords" * (len({*fusing} - {*deciding}) > 0)
    by_fusion = f"{better(fused)} {on_fusing}" if fused else ""
    hybrid = f"hybrid search with weight {weight:g}" if fused else ""
    if others:
        best = max(others, key=lambda it: gains[it].difference)
        return "other", f"{best} is better than {name}: {better(gains[best])} {on}."
    if BM25 in gains:
        both = f"{hybrid} ({by_fusion}), or BM25 alone" if fused else "BM25"
        return "words", (f"BM25 is better here than {name}: {better(by_words)} {on}. Use {both}.")
    if fused and fusion in gains:
        return "hybrid", f"{name} with BM25 is better: use {hybrid}, {by_fusion}."
    ends = by_words.interval
    if ends and ends.high < 0:
        gained = "these tasks cannot tell if hybrid search helps"
        if fused and not all(it.startswith(HALVES) for it in fusing):
            gained = f"hybrid search brings nothing ({by_fusion})"
        return "good", (
            f"{name} is good enough: BM25 is worse ({better(by_words)} {on}), and {gained}."
        )
    if ends and (ends.high - ends.low) / 2 < WIDE:
        return "room", (
            f"There is room: {name} does no better than BM25, which knows no meaning "
            f"({better(by_words)} {on}); training or another encoder may help."
        )
    return "unclear", f"Cannot tell: BM25 is {better(by_words)} {on}; give more text."


def _examples(
    tasks: Sequence[RetrievalTask], dense: Sequence[ScoreMatrix], by_words: Sequence[ScoreMatrix]
) -> Iterator[ExampleQuery]:
    def first_hits(task: RetrievalTask, scores: Vector, q: int) -> tuple[ExampleHit, ...]:
        order = (row for row in np.argsort(-scores, kind="stable") if row != task.left_out[q])
        return tuple(
            ExampleHit(_short(task.corpus[row]), float(scores[row]), row in task.relevant[q])
            for row in islice(order, _HITS)
        )

    for q in range(max(len(task.queries) for task in tasks)):
        for task, *of_task in zip(tasks, dense, by_words, strict=True):
            if q < len(task.queries):
                wanted = _short(task.corpus[next(iter(task.relevant[q]))])
                hits = (first_hits(task, scores[q], q) for scores in of_task)
                yield ExampleQuery(task.name.name, _short(task.queries[q]), wanted, *hits)
