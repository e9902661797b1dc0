"""Make contrasent/quickstart_data from a folder of source data sets.

    python scripts/make_quickstart_data.py SOURCE TARGET

SOURCE holds ``wiki/wiki_docs.txt.gz`` (one English Wikipedia sentence per line, a blank line
between articles) and ``senteval/STS`` (SentEval's layout, with the licence files of STS 2015 and
2016 beside the data). The same source gives the same files, byte for byte.
"""

import argparse
import gzip
import json
import random
import re
import shutil
from pathlib import Path

ARTICLES = 350
HELD_OUT = 120
PER_ARTICLE = 10
QUERIES = 3
SEED = 20260
WORDS = range(6, 61)

# Sentences that point back to an earlier one say little alone, and so make poor search results.
DEPENDENT = {
    "he", "she", "it", "they", "his", "her", "its", "their", "him", "them", "this", "that",
    "these", "those", "there", "however", "and", "but", "also", "then", "thus", "such", "others",
    "both", "another", "here", "later", "one", "some",
}  # fmt: skip
# What is left where a template or a quantity was taken out of the text, and leftover markup.
DAMAGED = re.compile(r"\s[.,;)]|\(\s|\(\)|  |,,|[\[\]{}<>|=_\\]|^\S+\.\s|\b[Tt]he (is|was) ")
# Claims about people that a demonstration has no business repeating.
CLAIMS = re.compile("alleg|accus|brib|convict|murder|rape|sexual|suicid|porn|terror", re.I)

PARTS = [
    ("STS15-en-test", "answers-forums", 375),
    ("STS16-en-test", "answer-answer", 254),
    ("STS16-en-test", "question-question", 209),
]
LICENCES = {
    "STS15-en-test/STS.input.answers-forums.LICENSE": "LICENSE.STS15.answers-forums.txt",
    "STS15-en-test/STS.answers-forums.zip": "STS15.answers-forums.attribution.zip",
    "STS16-en-test/LICENSE.txt": "LICENSE.STS16.txt",
}


def stands_alone(sentence: str) -> bool:
    """Whether a sentence is whole, plain and understandable without its neighbours."""
    words = sentence.split()
    return (
        len(words) in WORDS
        and sentence[0].isupper()
        and sentence.endswith(".")
        and words[0].lower().strip(",") not in DEPENDENT
        and sentence.count('"') % 2 == 0
        and sentence.count("(") == sentence.count(")")
        and not DAMAGED.search(sentence)
        and not CLAIMS.search(sentence)
    )


def wikipedia(source: Path) -> tuple[list[list[str]], list[list[str]]]:
    """``PER_ARTICLE`` sentences of each of ``ARTICLES`` articles, and of ``HELD_OUT`` others.

    Drawn with a fixed seed, in the order of the source; no sentence is there twice.
    """
    with gzip.open(source / "wiki" / "wiki_docs.txt.gz", "rt", encoding="utf-8") as file:
        articles = [text.split("\n") for text in file.read().split("\n\n")]
    known = [dict.fromkeys(filter(stands_alone, article)) for article in articles]
    rich = [list(article) for article in known if len(article) >= PER_ARTICLE]
    draw = random.Random(SEED)
    seen: set[str] = set()

    def some(places: list[int]) -> list[list[str]]:
        taken = []
        for place in sorted(places):
            chosen = sorted(draw.sample(range(len(rich[place])), PER_ARTICLE))
            taken.append([rich[place][i] for i in chosen if rich[place][i] not in seen])
            seen.update(taken[-1])
        return taken

    train = draw.sample(range(len(rich)), ARTICLES)
    texts = some(train)
    rest = sorted(set(range(len(rich))) - set(train))
    return texts, some(draw.sample(rest, HELD_OUT))


def write_search(folder: Path, articles: list[list[str]]) -> None:
    """Write a retrieval task: the first sentences of an article find the others."""
    corpus = {
        f"{a}-{s}": text for a, article in enumerate(articles) for s, text in enumerate(article)
    }
    queries = [key for key in corpus if int(key.partition("-")[2]) < QUERIES]
    folder.mkdir(parents=True, exist_ok=True)
    for name, keys in (("corpus", corpus), ("queries", queries)):
        rows = [json.dumps({"_id": key, "text": corpus[key]}, ensure_ascii=False) for key in keys]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", "utf-8", newline="\n")
    pairs = [
        f"{query}\t{other}\t1"
        for query in queries
        for other in corpus
        if other != query and other.partition("-")[0] == query.partition("-")[0]
    ]
    text = "\n".join(["query-id\tcorpus-id\tscore", *pairs]) + "\n"
    (folder / "qrels.tsv").write_text(text, "utf-8", newline="\n")


def scored_pairs(source: Path) -> list[str]:
    """Sentence, sentence, score of the scored pairs of ``PARTS``, in the order of their files."""
    rows = []
    for folder, part, expected in PARTS:
        task = source / "senteval" / "STS" / folder
        pairs = (task / f"STS.input.{part}.txt").read_text("utf-8").splitlines()
        scores = (task / f"STS.gs.{part}.txt").read_text("utf-8").splitlines()
        scored = [f"{p}\t{s}" for p, s in zip(pairs, scores, strict=True) if s.strip()]
        if len(scored) != expected:
            raise SystemExit(f"{part}: {len(scored)} scored pairs, expected {expected}")
        rows += scored
    return rows


def main() -> None:
    """Write the text, the pairs and the licence files that must lie beside them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    given.target.mkdir(parents=True, exist_ok=True)
    articles, held_out = wikipedia(given.source)
    text = "\n\n".join("\n".join(article) for article in articles) + "\n"
    (given.target / "wikipedia.txt").write_text(text, "utf-8", newline="\n")
    write_search(given.target / "wikipedia_search", held_out)
    table = "\n".join(["sentence1\tsentence2\tscore", *scored_pairs(given.source)]) + "\n"
    (given.target / "stack_exchange_pairs.tsv").write_text(table, "utf-8", newline="\n")
    for name, shipped in LICENCES.items():
        shutil.copyfile(given.source / "senteval" / "STS" / name, given.target / shipped)


if __name__ == "__main__":
    main()
