"""Which method helps on which text: five domains and their raw forms, labels for the test only.

    python -m benchmarks.adaptation prepare DATA WORK     # DATA has senteval, paraphrase and wiki
    python -m benchmarks.adaptation run WORK --starts minilm,mlm --methods dropout,tsdae
    python -m benchmarks.adaptation run WORK --starts minilm --methods hybrid,adapt --minutes 15
    python -m benchmarks.adaptation run WORK --starts minilm --methods words,tuned,auto  # an index
    python -m benchmarks.adaptation dirt DATA WORK        # twenty kinds of raw text

WORK/table.md has scores x 100 and their change with its 95 % interval, bold if significant; a row
that is there already is not made again.
"""

import csv
import gzip
import html
import json
import random
import shutil
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain, cycle, islice, product
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from scipy.stats import bootstrap

import contrasent
from contrasent.data import build
from contrasent.evaluation import Bootstrap, EncoderUse, Options, judge, load_suite
from contrasent.files import write_text
from contrasent.metrics import retrieval_score
from contrasent.model import SentenceEncoder
from contrasent.search import Index, WordIndex, fuse

NEAREST, DEPTH, MINUTES = 11, 10, 15
DOMAINS = {
    "questions": {"duplicates": "questions/test"},
    "forum": {"rated 4 or 5": "forum/test", "rated pairs": "forum/pairs.tsv"},
    "reviews": {"MR": "reviews/MR.csv", "CR": "reviews/CR.csv"},
    "wikipedia": {"same document": "wikipedia/test", "title": "wikipedia/titles"},
    "captions": {"same image": "captions/test"},
    "quickstart": {"same document": "quickstart/test"},
}
"""Beside the text to train on, ``train.txt``: searches, rated pairs (.tsv), labels (.csv)."""
STEPS = {"train.max_steps": 150, "train.batch_size": 64}
TRAINED: dict[str, tuple[str, Mapping[str, int]]] = {
    "dropout": ("unsup-simcse", {}),
    "tsdae": ("tsdae", {"train.batch_size": 16, "train.max_steps": 450}),
    "mlm first": ("unsup-simcse", {}),
}
"""Methods that train: a recipe, and changes of its settings."""
MODES = {"words": "words", "tuned": "hybrid", "auto": "auto"}
"""Methods that search an index of the start, whose texts choose the weight of BM25."""
METHODS = ("start", *MODES, "whitening", "hybrid", *TRAINED, "adapt")


class Answer(NamedTuple):
    """An encoder and a way to search; the weight of BM25, or None if an index chooses it."""

    encoder: SentenceEncoder
    mode: str = "dense"
    weight: float | None = None


def make(work: Path, start: str, domain: str, method: str, seed: int, minutes: float) -> Answer:
    """The encoder of a start, domain, method and seed, and how it searches."""
    base, pooler, data = "sentence-transformers/all-MiniLM-L6-v2", None, work / domain / "train.txt"
    if start == "mlm":  # as it comes it embeds by the mean of its token states
        base, pooler = str(work / "data/weights/minilm-mlm"), "mean"
    encoder = SentenceEncoder.load(base, pooler=pooler, head="none" if pooler else None)
    folder, weight = work / "runs" / f"{start}-{domain}-{method}-{seed}", None
    how: dict[str, Any] = {"data": data, "output": folder, "overwrite": True}
    if method == "whitening":
        encoder = contrasent.fit(encoder, data=str(data))
    elif method == "hybrid":
        judged = judge(EncoderUse(encoder, "fp32"), data)
        print(judged.sentence)
        weight = judged.weight if judged.verdict in ("hybrid", "words") else None
    elif method == "adapt":
        result = contrasent.adapt(base, minutes=minutes, seed=seed, **how)
        print(*result.sentences)
        encoder, weight = SentenceEncoder.load(result.encoder), result.hybrid_weight
    elif method in TRAINED:
        recipe, changes = TRAINED[method]
        settings: dict[str, Any] = {**STEPS, **changes, "train.seed": seed}
        if method == "mlm first":
            first = folder.with_name(f"{folder.name}-first")
            contrasent.pretrain(base, **how | settings | {"output": first})
            base = str(first / "last")
        settings |= dict.fromkeys(("evaluation.final", "evaluation.task"), "none")
        settings |= {"encoder.pooler": pooler}
        run = contrasent.train(recipe, encoder=base, **how, **settings)
        encoder = SentenceEncoder.load(run.last)
    return Answer(encoder, "hybrid" if weight else MODES.get(method, "dense"), weight)


def search_scores(answer: Answer, folder: Path) -> np.ndarray:
    """nDCG@10 of each query, ``(Q,)``; one that is a text of the corpus does not find itself."""
    (task,) = load_suite([str(folder)]).tasks("retrieval")
    order, values = shuffled(range(len(task.corpus))), []
    with TemporaryDirectory() as place:
        texts = [task.corpus[row] for row in order]
        index = Index.build(answer.encoder, texts, Path(place) / "index", order, precision="fp32")
        if answer.mode in ("hybrid", "auto") and answer.weight is None:
            print(folder, contrasent.tune_index(index, answer.encoder))
        by = {"mode": answer.mode, "weight": answer.weight}
        hits = index.search(answer.encoder, task.queries, top_k=DEPTH + 1, **by)
    for ranked, wanted, self_row in zip(hits, task.relevant, task.left_out, strict=True):
        found = [int(hit.id) for hit in ranked if int(hit.id) != self_row]
        ranks = [1 + found.index(row) if row in found else np.inf for row in wanted]
        values.append(retrieval_score(f"ndcg@{DEPTH}", ranks, [*wanted.values()]))
    return np.array(values)


def labels_are_right(answer: Answer, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Each sentence's label is predicted or not, ``(N,)`` bool, by the others.

    By most of the eleven nearest ones, by the encoder and BM25 with a weight, and by a logistic
    regression of the embeddings, in five folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    with path.open(encoding="utf-8", newline="") as file:
        texts, labels = zip(*list(csv.reader(file))[1:], strict=True)
    rows = np.asarray(answer.encoder.encode(texts, normalize=True, precision="fp32"), np.float32)
    positive, cosines = np.array(labels) == "pos", rows @ rows.T
    if answer.weight:
        cosines = fuse(cosines, WordIndex.of(texts).scores(texts), answer.weight)
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argpartition(-cosines, NEAREST, axis=1)[:, :NEAREST]
    predicted = cross_val_predict(LogisticRegression(C=10, max_iter=1000), rows, positive, cv=5)
    voted = 2 * positive[nearest].sum(axis=1) > NEAREST
    return voted == positive, predicted == positive


def score(answer: Answer, domain: str, work: Path) -> dict[str, Any]:
    """Scores of every measure of a domain: of each item, or a suite and its records."""
    scores: dict[str, Any] = {}
    for name, task in {**DOMAINS[domain], "STS-B": "stsb"}.items():
        path, kind = work / task, Path(task).suffix
        if kind == ".csv":
            nearest, classifier = labels_are_right(answer, path)
            scores |= {f"{name} nearest": nearest, f"{name} classifier": classifier}
        elif kind == ".tsv" or name == "STS-B":
            suite = load_suite([str(path) if kind else task], Options(work / "data/senteval"))
            scores[name] = suite, suite.records(EncoderUse(answer.encoder))
        else:
            scores[name] = search_scores(answer, path)
    return scores


def changed(first: Any, second: Any) -> str:
    """A score x 100, its change, and the 95 % interval of that by a paired bootstrap."""
    if isinstance(first, np.ndarray):
        value, changes = 100 * second.mean(), 100.0 * second - 100.0 * first
        drawn = bootstrap((changes,), np.mean, n_resamples=5000, method="percentile", rng=1111)
        change, (low, high) = changes.mean(), drawn.confidence_interval
    else:
        suite, scores = second
        ((comparison, *_),) = suite.compare(first[1], scores, Bootstrap()).values()
        ((task, compared),) = comparison.tasks.items()
        value, change = 100 * comparison.values[task], 100 * compared.difference
        ends = compared.interval
        low, high = (100 * ends.low, 100 * ends.high) if ends else (np.nan, np.nan)
    text = f"{value:.2f} ({change:+.2f}: {low:+.1f} to {high:+.1f})"
    return f"**{text}**" if low > 0 else text


Pair = tuple[int | str, int | str]
app = typer.Typer(pretty_exceptions_enable=False, help="Adapt encoders to text, and score them.")


def half(text: str) -> int:
    """0 or 1, the same for the same text: the part that it is in."""
    return sha256(text.encode()).digest()[0] % 2


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text.strip()))


def shuffled(items: Iterable[Any]) -> list[Any]:
    """Items in an order that is always the same."""
    ordered = list(items)
    random.Random(1).shuffle(ordered)
    return ordered


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts) + "\n"


def write_retrieval(
    folder: Path, corpus: Sequence[str], pairs: Iterable[Pair], rest: Iterable[str] = ()
) -> None:
    """Write a retrieval task: pairs of a query and what it finds, rows of the corpus or texts.

    Beside its folder, ``train.txt`` has the texts of the ``rest`` that are not in the corpus.
    """
    place: dict[int | str, int] = {text: row for row, text in enumerate(corpus)}
    named = [(place.get(a, a), place.get(b, b)) for a, b in pairs if a != b]
    queries = {str(query): query if isinstance(query, str) else corpus[query] for query, _ in named}
    documents = {str(row): text for row, text in enumerate(corpus)}
    for name, texts in (("corpus", documents), ("queries", queries)):
        build.write_rows(folder / f"{name}.jsonl", ("_id", "text"), texts.items())
    relevant = ((str(query), str(row), "1") for query, row in named)
    build.write_rows(folder / "qrels.tsv", ("query-id", "corpus-id", "score"), relevant)
    if left := [text for text in _distinct(rest) if text not in place]:
        write_text(folder.with_name("train.txt"), _lines(shuffled(left)))


def _quora(data: Path) -> list[dict[str, str]]:
    with (data / "paraphrase/qqp_sample.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def _wikipedia_articles(data: Path) -> list[list[str]]:
    whole = gzip.decompress((data / "wiki/wiki_docs.txt.gz").read_bytes()).decode()
    return [article.split("\n") for article in whole.strip().split("\n\n")]


def questions(data: Path, folder: Path) -> None:
    """Quora's pairs by halves: questions to train on, duplicates that find each other."""
    rows, sides = _quora(data), itemgetter("question1", "question2")
    test, rest = ([row for row in rows if half(row["question1"]) == part] for part in (0, 1))
    corpus, text = (_distinct(chain.from_iterable(map(sides, part))) for part in (test, rest))
    same = (sides(row) for row in test if row["is_duplicate"] == "1")
    write_retrieval(folder / "test", corpus, same, text)


def forum(data: Path, folder: Path) -> None:
    """Stack Exchange sentences of STS15 and STS16: unrated ones to train on, rated pairs."""
    rated, text = list[tuple[str, str, str]](), list[str]()
    for part in ("15-answers-forums", "16-answer-answer", "16-question-question"):
        year, name = part.split("-", 1)
        source = data / f"senteval/STS/STS{year}-en-test"
        files = (source / f"STS.{it}.{name}.txt" for it in ("input", "gs"))
        pairs, ratings = (file.read_text("utf-8").splitlines() for file in files)
        for pair, rating in zip(pairs, chain(ratings, cycle([""])), strict=False):
            first, second, *_ = pair.split("\t")
            if rating.strip():
                rated.append((first, second, rating.strip()))
            else:
                text += [first, second]
    write_text(folder / "pairs.tsv", _lines(map("\t".join, rated)))
    corpus = _distinct(side for pair in rated for side in pair[:2])
    same = (pair[:2] for pair in rated if float(pair[2]) >= 4)
    write_retrieval(folder / "test", corpus, same, text)


def reviews(data: Path, folder: Path) -> None:
    """Films (MR) and products (CR) by halves: text to train on, text with its label."""
    text: list[str] = []
    for name, stem in (("MR", "rt-polarity"), ("CR", "custrev")):
        rows = []
        for label in ("pos", "neg"):
            lines = (data / f"senteval/{name}/{stem}.{label}").read_text("latin-1").splitlines()
            each = [line.strip() for line in _distinct(lines)]
            text += [line for line in each if half(line)]
            rows += [(line, label) for line in each if not half(line)]
        build.write_rows(folder / f"{name}.csv", ("text", "label"), shuffled(rows))
    write_text(folder / "train.txt", _lines(shuffled(_distinct(text))))


def wikipedia(data: Path, folder: Path) -> None:
    """Articles: some to train on; sentences find those of their article, titles two paragraphs."""
    articles = shuffled(map(_distinct, _wikipedia_articles(data)))
    corpus, pairs = list[str](), list[Pair]()
    for k, article in enumerate(part[:20] for part in articles[:400] if len(part) >= 3):
        rows = range(len(corpus), len(corpus) + len(article))
        corpus += article
        pairs += product(random.Random(k).sample(rows, 2), rows)
    write_retrieval(folder / "test", corpus, pairs)
    lines = (sentence for article in articles[400:] for sentence in [*article, ""])
    write_text(folder / "train.txt", _lines(islice(lines, 60_000)))
    corpus, pairs, title, left = [], [], "", 0
    files = (data / f"wiki/wikitext-2/{part}.txt" for part in ("valid", "test"))
    for line in chain.from_iterable(file.read_text("utf-8").splitlines() for file in files):
        text = line.strip().replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
        if text.startswith("= ") and not text.startswith("= ="):
            title, left = text.strip("= "), 2
        elif text and not text.startswith("=") and left:
            left -= 1
            pairs.append((title, len(corpus)))
            corpus.append(text)
    write_retrieval(folder / "titles", corpus, pairs)


def captions(data: Path, folder: Path) -> None:
    """Flickr8k: captions to train on; of 1,500 other images one caption finds the others."""
    images = defaultdict[str, list[str]](list)
    rows = (data / "paraphrase/flickr8k_captions.tsv").read_text("utf-8")
    for line in rows.splitlines():
        key, text = line.split("\t")
        images[key.split("#")[0]].append(text)
    names = shuffled(sorted(images))
    corpus, pairs = list[str](), list[Pair]()
    for name in names[:1500]:
        first, texts = len(corpus), _distinct(images[name])
        corpus += texts
        pairs += [(first, row) for row in range(first + 1, len(corpus))]
    rest = chain.from_iterable(images[name] for name in names[1500:])
    write_retrieval(folder / "test", corpus, pairs, rest)


@app.command()
def prepare(data: Path, work: Path) -> None:
    """Make the text and the tests of every domain."""
    for domain in (questions, forum, reviews, wikipedia, captions):
        domain(data, work / domain.__name__)
    quickstart = Path(contrasent.__file__).with_name("quickstart_data")
    shutil.copytree(quickstart / "wikipedia_search", work / "quickstart/test", dirs_exist_ok=True)
    shutil.copy(quickstart / "wikipedia.txt", work / "quickstart/train.txt")
    (work / "data").unlink(missing_ok=True)
    (work / "data").symlink_to(data.resolve())


@app.command()
def run(
    work: Path,
    starts: str = "minilm,mlm",
    domains: str = ",".join(DOMAINS),
    methods: str = ",".join(METHODS),
    seeds: str = "42",
    minutes: float = MINUTES,
) -> None:
    """Make and score every encoder whose row is not there."""
    table = work / "table.md"
    table.touch()
    for start, domain in product(starts.split(","), domains.split(",")):
        before: dict[str, Any] = {}
        for method, seed in product(methods.split(","), map(int, seeds.split(","))):
            heading = f"| {domain} from {start} | {method} | {seed} |"
            unfit = method == "mlm first" and start != "mlm"
            unfit |= method in MODES and domain == "reviews"
            if unfit or heading in table.read_text(encoding="utf-8"):
                continue
            before = before or score(make(work, start, domain, "start", seed, 0), domain, work)
            began = time.perf_counter()
            answer = make(work, start, domain, method, seed, minutes)
            after = score(answer, domain, work)
            cells = [f"{name} {changed(before[name], after[name])}" for name in after]
            cells.append(f"{time.perf_counter() - began:.0f} s, weight {answer.weight} |")
            with table.open("a", encoding="utf-8") as file:
                print(heading, " | ".join(cells), file=file)
            print(heading, *cells, flush=True)


FOREIGN = (
    "Der Zug nach {} fährt heute wegen Bauarbeiten zwei Stunden später ab als sonst üblich.",
    "Le musée de {} est fermé le mardi, mais les visiteurs peuvent encore voir le jardin.",
    "El mercado de {} abre a las ocho de la mañana y vende fruta, pescado y pan todos los días.",
    "Поезд {} прибывает на второй путь, и пассажиры ждут его на платформе.",  # noqa: RUF001
)
DOCUMENTS = ("documents", "markdown", "wrapped paragraphs")


def _quoted_table(rows: Iterable[Sequence[str]], delimiter: str = ",") -> str:
    quoted = ([f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in row] for row in rows)
    return "\n".join(map(delimiter.join, quoted))


def kinds(data: Path) -> dict[str, str]:
    """Raw text by the name of its kind, which begins with the kind of file."""
    asked = _distinct(row["question1"] for row in _quora(data))[:4000]
    articles, each = _wikipedia_articles(data)[:20_000], [*enumerate(asked)]
    some, sentences = articles[:600], [*chain.from_iterable(articles)]
    rows = ([str(n), "2024-05-01", it, "open"] for n, it in each)
    columns = [["id", "date", "text", "state"], *rows]
    cities = zip(cycle(FOREIGN), sentences[:2000], strict=False)
    foreign = [of.format(f"{it.split()[0]} {n}") for n, (of, it) in enumerate(cities)]
    return {
        "stray blank lines": "".join(it + "\n" * (1 + (n % 50 == 7)) for n, it in each),
        "double spaced": "\n\n".join(asked),
        "documents": "\n\n".join(map("\n".join, some)),
        "one text per line": _lines(map(" ".join, some)),
        "csv": _quoted_table([["question"], *([it] for it in asked)]),
        "csv of many columns": _quoted_table(columns),
        "csv by semicolons": _quoted_table(columns, ";"),
        "tsv": "question\tlabel\n" + _lines(f"{it}\t1" for it in asked),
        "jsonl": _lines(json.dumps({"id": 1, "text": it}) for it in asked),
        "html": _lines(f"<p class='q'>{html.escape(it)}&nbsp;<b>new</b><br/></p>" for it in asked),
        "markdown": "\n\n".join("\n".join([f"## {it[0][:40]}", *it]) for it in some),
        "wrapped paragraphs": "\n\n".join(textwrap.fill(" ".join(it), 72) for it in some),
        "repeats": _lines(asked[:1000] * 4),
        "languages": _lines(foreign + sentences[:1000]),
        "chat": _lines(f"[{n // 60 % 24:02}:{n % 60:02}] user{n % 7}: {it}" for n, it in each),
        "addresses": _lines(f"- https://ex.org/{n} {it}" for n, it in each),
        "wrong letters": _lines(it.replace("e", "Ã©") for it in asked),
        "CR LF, BOM, control": "\ufeff" + "\x07 \t \r\n".join(asked),
        "300 lines": _lines(sentences[:300]),
        "300,000 lines": _lines(islice(cycle(sentences), 300_000)),
    }


@app.command()
def dirt(
    data: Path,
    work: Path,
    minutes: float = 2,
    only: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Adapt to raw text as people have it: seconds, documents or lines, and the answer of each."""
    work.mkdir(parents=True, exist_ok=True)
    for number, (name, content) in enumerate(kinds(data).items()):
        if only and name not in only:
            continue
        ending = name.split()[0] if name.startswith(("csv", "tsv", "jsonl")) else "txt"
        file, began = work / f"raw-{number}.{ending}", time.monotonic()
        file.write_text(content, encoding="utf-8", newline="")
        where: dict[str, Any] = {"output": work / f"adapt-{number}", "overwrite": True}
        result = contrasent.adapt("all-MiniLM-L6-v2", data=file, minutes=minutes, **where)
        kind = "documents" if " documents of " in result.sentences[0] else "lines"
        right = "right" if (kind == "documents") == (name in DOCUMENTS) else "WRONG"
        cells = [name, f"{time.monotonic() - began:.0f} s", f"{kind}, {right}", result.outcome]
        print(f"| {' | '.join(cells)} | {' '.join(result.sentences[1:3])} |", flush=True)


if __name__ == "__main__":
    app()
