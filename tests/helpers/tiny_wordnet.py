"""A WordNet of a few words, in the files that NLTK reads (wndb(5WN), senseidx(5WN))."""

from collections import defaultdict
from contextlib import contextmanager

SYNSETS = {
    "n": [["cat", "true_cat"], ["cat", "guy", "hombre"], ["dog", "domestic_dog"], ["indium", "In"]],
    "v": [["run", "scat"], ["run", "operate"]],
    "a": [["big", "large"]],
    "r": [["fast", "quickly"]],
}
FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
NUMBERS = {"n": 1, "v": 2, "a": 3, "r": 4}
EXCEPTIONS = {"verb": "ran run\n"}
LICENCE = "  1 WordNet 3.0 Copyright 2006 by Princeton University.\n"


def write_wordnet(folder):
    """Write ``corpora/wordnet`` below a folder that ``nltk.data.path`` may name."""
    root = folder / "corpora" / "wordnet"
    root.mkdir(parents=True)
    senses = []
    for kind, name in FILES.items():
        data, index = LICENCE, defaultdict(list)
        for lemmas in SYNSETS[kind]:
            offset = len(data)
            words = " ".join(f"{lemma} 0" for lemma in lemmas)
            frames = "00 " if kind == "v" else ""
            data += f"{offset:08d} 00 {kind} {len(lemmas):02x} {words} 000 {frames}| a meaning\n"
            for lemma in lemmas:
                index[lemma.lower()].append(offset)
                senses.append(f"{lemma.lower()}%{NUMBERS[kind]}:00:00:: {offset:08d} 1 0\n")
        (root / f"data.{name}").write_text(data)
        lines = [
            f"{lemma} {kind} {len(places)} 0 {len(places)} 0 "
            + " ".join(f"{place:08d}" for place in places)
            for lemma, places in sorted(index.items())
        ]
        (root / f"index.{name}").write_text(LICENCE + "\n".join(lines) + "\n")
        (root / f"{name}.exc").write_text(EXCEPTIONS.get(name, ""))
    (root / "index.sense").write_text("".join(sorted(senses)))
    (root / "lexnames").write_text("00\tadj.all\t3\n")
    (root / "cntlist.rev").write_text("")
    return root


@contextmanager
def only_wordnet(folder):
    """NLTK reads this WordNet, from a new ``folder``, and knows of no other."""
    import nltk
    from nltk.corpus import LazyCorpusLoader, WordNetCorpusReader

    write_wordnet(folder)
    theirs = nltk.data.path, nltk.corpus.wordnet
    multilingual = LazyCorpusLoader("omw-1.4", WordNetCorpusReader)
    loader = LazyCorpusLoader("wordnet", WordNetCorpusReader, multilingual)
    nltk.data.path, nltk.corpus.wordnet = [str(folder)], loader
    try:
        yield
    finally:
        nltk.data.path, nltk.corpus.wordnet = theirs
        for file in vars(loader).get("_data_file_map", {}).values():
            file.close()
