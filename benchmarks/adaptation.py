"""Which method helps on which text: five domains and their raw forms, labels for the test only.

    python -m benchmarks.adaptation prepare DATA WORK     # DATA has senteval, paraphrase and wiki
    python -m benchmarks.adaptation run WORK --starts minilm,mlm --methods dropout,tsdae
    python -m benchmarks.adaptation run WORK --starts minilm --methods hybrid,adapt --minutes 15
    python -m benchmarks.adaptation table WORK            # Markdown, with intervals
    python -m benchmarks.adaptation search WORK           # by vectors, by words, and by both
    python -m benchmarks.adaptation dirt DATA WORK        # twenty kinds of raw text

A run that is there already is not made again.
"""

import csv
import gzip
import html
import json
import os
import pickle
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from itertools import chain, cycle, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

import contrasent
from contrasent.evaluation import Bootstrap, EncoderUse, Options, judge, load_suite
from contrasent.metrics import relevant_ranks, retrieval_score
from contrasent.model import SentenceEncoder
from contrasent.search import Index, WordIndex, fuse

Cell = tuple[str, str, str, int]
"""A start, a domain, a method and a seed."""

STARTS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2", "mlm": "weights/minilm-mlm"}
NEAREST, DEPTH = 11, 10
MODES = ("dense", "words", "hybrid", "auto")
GENERAL = "stsb"


@dataclass(frozen=True)
class Domain:
    """Text to train on, and what an encoder is scored on: searches, rated pairs, labels."""

    text: str
    searches: Mapping[str, str] = field(default_factory=dict)
    rated: Mapping[str, str] = field(default_factory=dict)
    labelled: tuple[str, ...] = ()
    documents: str = ""


QUICKSTART = Path(str(files("contrasent") / "quickstart_data"))
DOMAINS = {
    "questions": Domain("questions/train.txt", {"duplicates": "questions/test"}),
    "forum": Domain(
        "forum/train.txt", {"rated 4 or 5": "forum/test"}, {"rated pairs": "forum/pairs.tsv"}
    ),
    "reviews": Domain("reviews/train.txt", labelled=("MR", "CR")),
    "wikipedia": Domain(
        "wikipedia/train.txt",
        {"same document": "wikipedia/test", "title": "wikipedia/titles"},
        documents="wikipedia/docs.txt",
    ),
    "captions": Domain("captions/train.txt", {"same image": "captions/test"}),
    "quickstart": Domain(
        str(QUICKSTART / "wikipedia.txt"),
        {"same document": str(QUICKSTART / "wikipedia_search")},
        documents=str(QUICKSTART / "wikipedia.txt"),
    ),
}


@dataclass(frozen=True)
class Method:
    """A recipe and its settings; ``first`` those of a pretraining before it."""

    recipe: str = "unsup-simcse"
    settings: Mapping[str, Any] = field(default_factory=dict)
    first: Mapping[str, Any] | None = None


STEPS = {"train.max_steps": 150, "train.batch_size": 64}
METHODS = {
    "dropout": Method(),
    "tsdae": Method("tsdae", {"train.batch_size": 16, "train.max_steps": 450}),
    "mlm first": Method(first={"train.max_steps": 150}),
    "whitening": Method("whitening"),
    "hybrid": Method("hybrid"),
    "adapt": Method("adapt"),
}
MINUTES = 15


def load(start: str, root: Path) -> SentenceEncoder:
    """The start as it comes; a masked language model by the mean of its token states."""
    if start == "mlm":
        return SentenceEncoder.load(root / STARTS[start], pooler="mean", head="none")
    return SentenceEncoder.load(STARTS[start])


def make(work: Path, cell: Cell, minutes: float) -> tuple[SentenceEncoder, float]:
    """The encoder of a start, domain, method and seed, and the weight of BM25 in search."""
    start, domain, name, seed = cell
    data_root = root(work)
    if name == "start":
        return load(start, data_root), 0
    method, text = METHODS[name], DOMAINS[domain]
    data, documents = work / text.text, work / (text.documents or text.text)
    if name == "whitening":
        return contrasent.fit(load(start, data_root), data=str(data)), 0
    if name == "hybrid":
        encoder = load(start, data_root)
        judged = judge(EncoderUse(encoder, "fp32"), documents)
        print(domain, judged.sentence)
        return encoder, (judged.weight or 0) if judged.verdict in ("hybrid", "words") else 0
    folder = work / "runs" / "-".join((start, domain, slug(name), str(seed)))
    base = str(data_root / STARTS[start]) if start == "mlm" else STARTS[start]
    common = {"evaluation.final": "none", "evaluation.task": "none", "train.seed": seed}
    if name == "adapt":
        options: dict[str, Any] = {"output": folder, "overwrite": True, "seed": seed}
        result = contrasent.adapt(base, data=documents, minutes=minutes, **options)
        print(domain, *result.sentences)
        return SentenceEncoder.load(result.encoder), result.hybrid_weight or 0
    if start == "mlm":
        common["encoder.pooler"] = "mean"
    if method.first is not None:
        first = folder.with_name(f"{folder.name}-first")
        settings = {**STEPS, **method.first, "train.seed": seed}
        contrasent.pretrain(base, data=data, output=first, overwrite=True, **settings)
        base = str(first / "last")
    settings = {**STEPS, **common, **method.settings}
    run = contrasent.train(
        method.recipe, encoder=base, data=data, output=folder, overwrite=True, **settings
    )
    return SentenceEncoder.load(run.last), 0


def ndcg(scores: Iterable[np.ndarray], task: Any) -> np.ndarray:
    """nDCG@10 of each query, ``(Q,)``; a query that is a text of the corpus does not find itself.

    Args:
        scores: of the texts of the corpus, ``(N,)`` for each query.
        task: the retrieval task.
    """
    values = []
    for row, wanted, self_row in zip(scores, task.relevant, task.left_out, strict=True):
        ranks = relevant_ranks(row, [*wanted], [*wanted.values()], self_row)
        values.append(retrieval_score(f"ndcg@{DEPTH}", *ranks))
    return np.array(values)


def search_scores(encoder: SentenceEncoder, folder: Path, weight: float) -> np.ndarray:
    """nDCG@10 of each query, ``(Q,)``, in search by the encoder and BM25 with a weight."""
    (task,) = load_suite([str(folder)]).tasks("retrieval")
    queries, corpus = (
        np.asarray(encoder.encode(texts, normalize=True, precision="fp32"), np.float32)
        for texts in (task.queries, task.corpus)
    )
    scores = queries @ corpus.T
    if weight:
        scores = fuse(scores, WordIndex.of(task.corpus).scores(task.queries), weight)
    return ndcg(scores, task)


def labels_are_right(encoder: SentenceEncoder, path: Path, weight: float) -> dict[str, np.ndarray]:
    """Whether each sentence's label is predicted, ``(N,)`` bool, by the others.

    By most of the eleven nearest ones, by the encoder and BM25 with a weight, and by a logistic
    regression of the embeddings, in five folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    with path.open(encoding="utf-8", newline="") as file:
        texts, labels = zip(*list(csv.reader(file))[1:], strict=True)
    rows = np.asarray(encoder.encode(texts, normalize=True, precision="fp32"), dtype=np.float32)
    positive = np.array(labels) == "pos"
    cosines = rows @ rows.T
    if weight:
        cosines = fuse(cosines, WordIndex.of(texts).scores(texts), weight)
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argpartition(-cosines, NEAREST, axis=1)[:, :NEAREST]
    predicted = cross_val_predict(LogisticRegression(C=10, max_iter=1000), rows, positive, cv=5)
    return {
        "nearest": (2 * positive[nearest].sum(axis=1) > NEAREST) == positive,
        "classifier": predicted == positive,
    }


def options_of(work: Path) -> Options:
    """Where the data of STS-B is."""
    return Options(root(work) / "senteval")


def score(encoder: SentenceEncoder, domain: Domain, work: Path, weight: float) -> dict[str, Any]:
    """Scores of every measure of a domain, with what they are drawn again from."""
    options = options_of(work)
    scores: dict[str, Any] = {}
    named = {**{name: str(work / task) for name, task in domain.rated.items()}, "STS-B": GENERAL}
    for name in domain.labelled:
        right = labels_are_right(encoder, work / "reviews" / f"{name}.csv", weight)
        scores |= {f"{name} {how}": each for how, each in right.items()}
    for name, task in domain.searches.items():
        scores[name] = search_scores(encoder, work / task, weight)
    for name, task in named.items():
        scores[name] = load_suite([task], options).records(EncoderUse(encoder))
    return scores


def value(scores: Any) -> float:
    """The number in a table."""
    if isinstance(scores, np.ndarray):
        return float(scores.mean())
    return next(r.value for r in scores.records if r.aggregation != "subset")


def interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the mean of ``second - first``, both ``(N,)``, by a paired bootstrap."""
    draws = np.random.default_rng(1111).multinomial(
        len(first), np.full(len(first), 1 / len(first)), size=5000
    )
    drawn = draws @ (second.astype(float) - first) / len(first)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def difference(
    name: str, scores: tuple[Any, Any], domain: Domain, work: Path
) -> tuple[float, float]:
    """The 95 % interval of the second's score less the first's, by a paired bootstrap."""
    first, second = scores
    if isinstance(first, np.ndarray):
        return interval(first, second)
    task = domain.rated.get(name)
    text = str(work / task) if task else GENERAL
    suite = load_suite([text], options_of(work))
    ((comparison, *_),) = suite.compare(first, second, Bootstrap()).values()
    (compared,) = comparison.tasks.values()
    ends = compared.interval
    return (ends.low, ends.high) if ends else (float("nan"), float("nan"))


app = typer.Typer(pretty_exceptions_enable=False)


@app.callback()
def benchmark() -> None:
    """Adapt encoders to five domains, and score them."""


def slug(name: str) -> str:
    """A method's name in that of a file."""
    return name.replace(" ", "_")


def root(work: Path) -> Path:
    """The data."""
    return Path((work / "root").read_text())


def half(text: str) -> int:
    """0 or 1, the same for the same text: the part that it is in."""
    return sha256(text.encode()).digest()[0] % 2


def distinct(texts: Iterable[str]) -> list[str]:
    """Each text once, in its order."""
    return list(dict.fromkeys(text for text in texts if text.strip()))


def shuffled(texts: Iterable[str]) -> list[str]:
    """Each text once, in an order that is always the same."""
    each = distinct(texts)
    random.Random(1).shuffle(each)
    return each


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_retrieval(
    folder: Path,
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    relevant: Iterable[tuple[str, str]],
) -> None:
    """Write a retrieval task; texts by their ids."""
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = (json.dumps({"_id": key, "text": text}) for key, text in texts.items())
        write(folder / f"{name}.jsonl", lines)
    pairs = (f"{query}\t{document}\t1" for query, document in relevant)
    write(folder / "qrels.tsv", ["query-id\tcorpus-id\tscore", *pairs])


def quora(data: Path) -> list[dict[str, str]]:
    """Pairs of questions, with a label."""
    with (data / "paraphrase/qqp_sample.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def wikipedia_articles(data: Path) -> list[list[str]]:
    """Their sentences."""
    whole = gzip.decompress((data / "wiki/wiki_docs.txt.gz").read_bytes()).decode()
    return [article.split("\n") for article in whole.strip().split("\n\n")]


def questions(data: Path, work: Path) -> None:
    """Quora's pairs by halves: questions to train on, duplicates that find each other."""
    rows = quora(data)
    sides = ("question1", "question2")
    test = [row for row in rows if half(row["question1"]) == 0]
    number = {q: f"q{k}" for k, q in enumerate(distinct(r[s] for r in test for s in sides))}
    rest = (r[s] for r in rows if half(r["question1"]) for s in sides)
    write(work / "questions/train.txt", shuffled(q for q in rest if q not in number))
    same = [
        (row["question1"], row["question2"])
        for row in test
        if row["is_duplicate"] == "1" and row["question1"] != row["question2"]
    ]
    corpus = {key: question for question, key in number.items()}
    queries = {number[first]: first for first, _ in same}
    pairs = [(number[first], number[second]) for first, second in same]
    write_retrieval(work / "questions/test", corpus, queries, pairs)


def forum(data: Path, work: Path) -> None:
    """Stack Exchange sentences of STS15 and STS16: unrated ones to train on, rated pairs."""
    rated, text, same = [], [], []
    for year, part in (
        ("15", "answers-forums"),
        ("16", "answer-answer"),
        ("16", "question-question"),
    ):
        folder = data / f"senteval/STS/STS{year}-en-test"
        pairs = (folder / f"STS.input.{part}.txt").read_text(encoding="utf-8").splitlines()
        ratings = (folder / f"STS.gs.{part}.txt").read_text(encoding="utf-8").splitlines()
        ratings += [""] * (len(pairs) - len(ratings))
        for pair, rating in zip(pairs, ratings, strict=True):
            sides = pair.split("\t")[:2]
            rated += ["\t".join([*sides, rating.strip()])] if rating.strip() else []
            text += [] if rating.strip() else sides
    seen = dict.fromkeys(side for pair in rated for side in pair.split("\t")[:2])
    write(work / "forum/pairs.tsv", rated)
    number = {text: str(n) for n, text in enumerate(seen)}
    for first, second, rating in (pair.split("\t") for pair in rated):
        same += [(number[first], number[second])] if float(rating) >= 4 and first != second else []
    corpus = {key: text for text, key in number.items()}
    queries = {first: corpus[first] for first, _ in same}
    write_retrieval(work / "forum/test", corpus, queries, same)
    write(work / "forum/train.txt", shuffled(t for t in text if t not in seen))


def reviews(data: Path, work: Path) -> None:
    """Films (MR) and products (CR) by halves: text to train on, text with its label."""
    text: list[str] = []
    for name, stem in (("MR", "rt-polarity"), ("CR", "custrev")):
        rows = []
        for label in ("pos", "neg"):
            lines = (data / f"senteval/{name}/{stem}.{label}").read_bytes().decode("latin-1")
            each = [line.strip() for line in distinct(lines.splitlines())]
            text += [line for line in each if half(line)]
            rows += [(line, label) for line in each if not half(line)]
        random.Random(1).shuffle(rows)
        path = work / f"reviews/{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    write(work / "reviews/train.txt", shuffled(text))


def wikipedia(data: Path, work: Path) -> None:
    """Articles: some to train on; sentences find those of their article, titles two paragraphs."""
    articles = [*map(distinct, wikipedia_articles(data))]
    random.Random(1).shuffle(articles)
    held_out, articles = articles[:400], articles[400:]
    corpus, queries, relevant = {}, {}, []
    for k, article in enumerate(article[:20] for article in held_out if len(article) >= 3):
        keys = [f"{k}-{j}" for j in range(len(article))]
        corpus |= dict(zip(keys, article, strict=True))
        for key in random.Random(k).sample(keys, 2):
            queries[key] = corpus[key]
            relevant += [(key, other) for other in keys if other != key]
    write_retrieval(work / "wikipedia/test", corpus, queries, relevant)
    lines = [sentence for article in articles for sentence in [*article, ""]][:60_000]
    write(work / "wikipedia/docs.txt", lines)
    write(work / "wikipedia/train.txt", [line for line in lines if line])
    corpus, queries, relevant, left = {}, {}, [], 0
    for part in ("valid", "test"):
        for line in (data / f"wiki/wikitext-2/{part}.txt").read_text(encoding="utf-8").splitlines():
            text = line.strip().replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
            if text.startswith("= ") and not text.startswith("= ="):
                queries[f"title {len(queries)}"] = text.strip("= ")
                left = 2
            elif text and not text.startswith("=") and left:
                left -= 1
                relevant.append((f"title {len(queries) - 1}", str(len(corpus))))
                corpus[str(len(corpus))] = text
    write_retrieval(work / "wikipedia/titles", corpus, queries, relevant)


def captions(data: Path, work: Path) -> None:
    """Flickr8k: captions to train on; of 1,500 other images one caption finds the others."""
    images: dict[str, list[str]] = {}
    with (data / "paraphrase/flickr8k_captions.tsv").open(encoding="utf-8") as file:
        for line in file:
            key, text = line.rstrip("\n").split("\t")
            images.setdefault(key.split("#")[0], []).append(text)
    names = sorted(images)
    random.Random(1).shuffle(names)
    corpus, queries, relevant = {}, {}, []
    for k, name in enumerate(names[:1500]):
        first, *others = distinct(images[name])
        queries[f"{k}-0"] = corpus[f"{k}-0"] = first
        for j, text in enumerate(others, start=1):
            corpus[f"{k}-{j}"] = text
            relevant.append((f"{k}-0", f"{k}-{j}"))
    seen = set(corpus.values())
    text = (caption for name in names[1500:] for caption in images[name])
    write(work / "captions/train.txt", shuffled(c for c in text if c not in seen))
    write_retrieval(work / "captions/test", corpus, queries, relevant)


@app.command()
def prepare(data: Path, work: Path) -> None:
    """Make the text and the tests of every domain."""
    for domain in (questions, forum, reviews, wikipedia, captions):
        domain(data, work)
    (work / "root").write_text(str(data.resolve()))


@app.command()
def run(
    work: Path,
    starts: str = "minilm,mlm",
    domains: str = ",".join(DOMAINS),
    methods: str = ",".join(("start", *METHODS)),
    seeds: str = "42",
    minutes: float = MINUTES,
) -> None:
    """Make and score every cell that is not there."""
    (work / "cells").mkdir(exist_ok=True)
    wanted = product(methods.split(","), starts.split(","), domains.split(","), seeds.split(","))
    for method, start, domain, seed in wanted:
        alike = method in ("start", "whitening", "hybrid")
        one(work, (start, domain, method, 0 if alike else int(seed)), minutes)


def one(work: Path, cell: Cell, minutes: float) -> None:
    """Make and score one encoder, unless that is done, or being done by another process."""
    start, domain, method, _ = cell
    kept = work / "cells" / f"{slug('-'.join(map(str, cell)))}.pkl"
    if method != "start" and METHODS[method].first and start != "mlm":
        return
    try:
        claim = os.open(kept.with_suffix(".claim"), os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.close(claim)
    began = time.perf_counter()
    encoder, weight = make(work, cell, minutes)
    scores = score(encoder.eval(), DOMAINS[domain], work, weight)
    seconds = time.perf_counter() - began
    kept.write_bytes(pickle.dumps({"scores": scores, "seconds": seconds, "weight": weight}))
    shown = {name: round(100 * value(each), 2) for name, each in scores.items()}
    print(*cell, f"{seconds:.0f} s, weight {weight:g}", shown, flush=True)


@app.command()
def table(work: Path) -> None:
    """Print a table per start: scores x 100, and the change with its 95 % interval."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for path in sorted((work / "cells").glob("*.pkl")):
        start, domain, method, _ = path.stem.split("-")
        kept = pickle.loads(path.read_bytes())
        cells.setdefault((start, domain, method.replace("_", " ")), []).append(kept["scores"])
    for start, (domain, of_domain) in product(STARTS, DOMAINS.items()):
        before = cells.get((start, domain, "start"))
        if before is None:
            continue
        print(f"\n**{domain}** from `{start}`\n\n| | {' | '.join(before[0])} |")
        print("|---" * (1 + len(before[0])) + "|")
        for method in ("start", *METHODS):
            after = cells.get((start, domain, method), [])
            if after:
                row = [entry(name, before[0], after, of_domain, work) for name in before[0]]
                print(f"| {method} | {' | '.join(row)} |")


def entry(
    name: str, before: dict[str, Any], after: list[dict[str, Any]], domain: Domain, work: Path
) -> str:
    """A score, the mean over seeds, and the change of the first with its interval."""
    mean = float(np.mean([value(scores[name]) for scores in after]))
    if after[0] is before or mean == value(before[name]):
        return f"{100 * mean:.2f}"
    low, high = difference(name, (before[name], after[0][name]), domain, work)
    change = 100 * (mean - value(before[name]))
    text = f"{100 * mean:.2f} ({change:+.2f}: {100 * low:+.1f} to {100 * high:+.1f})"
    return f"**{text}**" if low > 0 else text


@app.command()
def search(work: Path) -> None:
    """Print nDCG@10 of searches by vectors, by words and by both, with 95 % intervals.

    The weight is chosen by the texts alone, whose order is shuffled first.
    """
    encoder = load("minilm", root(work))
    heads = ("set", *MODES, "weight", "gain by its own text", "s to build and choose")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for domain in DOMAINS.values():
        for name, folder in domain.searches.items():
            [task] = load_suite([str(work / folder)]).tasks("retrieval")
            with TemporaryDirectory() as place:
                cells = mode_cells(task, encoder, Path(place) / "index")
            size = f"{len(task.queries):,} in {len(task.corpus):,}"
            print(f"| {' | '.join([f'{name} ({size})', *cells])} |", flush=True)


def mode_cells(task: Any, encoder: SentenceEncoder, folder: Path) -> list[str]:
    """The cells of a retrieval task."""
    order, began = list(range(len(task.corpus))), time.perf_counter()
    random.Random(1).shuffle(order)
    index = Index.build(encoder, [task.corpus[row] for row in order], folder, ids=order)
    built = time.perf_counter() - began
    words = contrasent.tune_index(index, encoder)
    tuned = time.perf_counter() - began - built
    scores, cells = dict[str, np.ndarray](), []
    for mode in MODES:
        rows = []
        for hits in index.search(encoder, task.queries, DEPTH + 1, mode=mode):
            rows.append(np.full(len(order), -np.inf))
            rows[-1][[int(hit.id) for hit in hits]] = [-rank for rank in range(len(hits))]
        scores[mode] = ndcg(rows, task)
        cells.append(f"{100 * scores[mode].mean():.1f}")
        if mode != "dense":
            low, high = interval(scores["dense"], scores[mode])
            cells[-1] += f" ({100 * low:+.1f} to {100 * high:+.1f})"
    gain = f"{100 * words.gain:+.1f}" if words.queries else "-"
    return [*cells, f"{words.weight:g}", gain, f"{built:.0f} + {tuned:.0f}"]


FOREIGN = (
    "Der Zug nach {} fährt heute wegen Bauarbeiten zwei Stunden später ab als sonst üblich.",
    "Le musée de {} est fermé le mardi, mais les visiteurs peuvent encore voir le jardin.",
    "El mercado de {} abre a las ocho de la mañana y vende fruta, pescado y pan todos los días.",
    "Поезд {} прибывает на второй путь, и пассажиры ждут его на платформе.",  # noqa: RUF001
)


def lines(texts: Iterable[str]) -> str:
    """A text per line."""
    return "\n".join(texts) + "\n"


def quoted_table(rows: list[list[str]], delimiter: str = ",") -> str:
    """A file of quoted cells."""
    quoted = ([f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in row] for row in rows)
    return lines(map(delimiter.join, quoted))


def kinds(data: Path) -> dict[str, tuple[str, str, bool]]:
    """By the name of each kind: ending of the file's name, content, whether it has documents."""
    asked = distinct(row["question1"] for row in quora(data))[:4000]
    articles = wikipedia_articles(data)[:20_000]
    some, sentences = articles[:600], [*chain.from_iterable(articles)]
    each = [*enumerate(asked)]
    stray = [it + "\n" * (1 + (n % 50 == 7)) for n, it in each]
    columns = [["id", "date", "text", "state"]]
    columns += [[str(n), "2024-05-01", it, "open"] for n, it in each]
    tagged = [f"<p class='q'>{html.escape(it)}&nbsp;<b>new</b><br/></p>" for it in asked]
    chapters = ["\n".join([f"## {article[0][:40]}", *article]) for article in some]
    wrapped = [textwrap.fill(" ".join(article), 72) for article in some]
    cities = zip(cycle(FOREIGN), sentences[:2000], strict=False)
    foreign = [of.format(f"{it.split()[0]} {n}") for n, (of, it) in enumerate(cities)]
    chat = [f"[{n // 60 % 24:02}:{n % 60:02}] user{n % 7}: {it}" for n, it in each]
    return {
        "stray blank lines": (".txt", "".join(stray), False),
        "double spaced": (".txt", "\n\n".join(asked), False),
        "documents": (".txt", "\n\n".join(map("\n".join, some)), True),
        "one text per line": (".txt", lines(map(" ".join, some)), False),
        "csv": (".csv", quoted_table([["question"], *([it] for it in asked)]), False),
        "csv of many columns": (".csv", quoted_table(columns), False),
        "csv by semicolons": (".csv", quoted_table(columns, ";"), False),
        "tsv": (".tsv", "question\tlabel\n" + lines(f"{it}\t1" for it in asked), False),
        "jsonl": (".jsonl", lines(json.dumps({"id": 1, "text": it}) for it in asked), False),
        "html": (".txt", lines(tagged), False),
        "markdown": (".txt", "\n\n".join(chapters), True),
        "wrapped paragraphs": (".txt", "\n\n".join(wrapped), True),
        "repeats": (".txt", lines(asked[:1000] * 4), False),
        "languages": (".txt", lines(foreign + sentences[:1000]), False),
        "chat": (".txt", lines(chat), False),
        "addresses": (".txt", lines(f"- https://ex.org/{n} {it}" for n, it in each), False),
        "wrong letters": (".txt", lines(it.replace("e", "Ã©") for it in asked), False),
        "CR LF, BOM, control": (".txt", "\ufeff" + "\x07 \t \r\n".join(asked), False),
        "300 lines": (".txt", lines(sentences[:300]), False),
        "300,000 lines": (".txt", lines(islice(cycle(sentences), 300_000)), False),
    }


@app.command()
def dirt(
    data: Path,
    work: Path,
    minutes: float = 2,
    only: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Adapt to raw text as people have it; print a row per kind of dirt.

    It has the exit code, seconds, documents or lines, and the answer.
    """
    work.mkdir(parents=True, exist_ok=True)
    for number, (name, (ending, content, documents)) in enumerate(kinds(data).items()):
        if only and name not in only:
            continue
        file, folder = work / f"raw-{number}{ending}", work / f"adapt-{number}"
        file.write_text(content, encoding="utf-8", newline="")
        command = [sys.executable, "-m", "contrasent", "adapt", "all-MiniLM-L6-v2"]
        command += ["--data", str(file), "--minutes", str(minutes), "--output", str(folder)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--overwrite"], capture_output=True, text=True, check=False
        )
        cells = [name, str(done.returncode), f"{time.monotonic() - began:.0f} s"]
        if done.returncode:
            cells.append(done.stderr.strip()[-300:])
        else:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            first, *others = result["sentences"]
            kind = "documents" if " documents of " in first else "lines"
            right = "right" if (kind == "documents") == documents else "WRONG"
            weight = str(result["hybrid_weight"] or "")
            cells += [f"{kind}, {right}", " ".join([result["outcome"], weight, *others[:2]])]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    app()
