"""A text without labels: the tasks made of it, the weight of BM25, and planted texts."""

from collections import Counter
from itertools import chain, pairwise

import numpy as np

from contrasent.data.documents import find_documents, sentences_of
from contrasent.data.examples import open_examples
from contrasent.evaluation.proxy import halves, sample_texts, text_tasks
from contrasent.search.words import words

RANDOM = np.random.default_rng(7)
COMMON = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def said(count, draw=RANDOM):
    return " ".join(draw.choice(COMMON, count))


def part_numbers():
    """Texts whose halves have the same number, and else nothing in common."""
    return [
        f"{said(7)} zx{n}q{n * 7919 % 997} . {said(7)} zx{n}q{n * 7919 % 997}" for n in range(120)
    ]


def paraphrases():
    """Texts whose halves say the same in other words."""
    lines = []
    for _ in range(120):
        meant = RANDOM.choice(len(COMMON) // 2, 9, replace=False)
        first, second = ([COMMON[2 * it + side] for it in meant] for side in (0, 1))
        lines.append(f"{' '.join(first)}. {' '.join(RANDOM.permutation(second))}")
    return lines


def vectors(path, synonyms):
    """A file of vectors of the common words, equal ones of synonyms."""
    drawn = np.random.default_rng(0).normal(size=(len(COMMON), 24))
    rows = [(word, drawn[n - n % 2 if synonyms else n]) for n, word in enumerate(COMMON)]
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows))
    return path


def written(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tasks_of(path, columns=None):
    examples = open_examples(str(path), columns)
    sample = sample_texts(examples, find_documents(examples).lengths, 1000, 100_000, 256)
    tasks, lacking = text_tasks(sample)
    return {task.name.name.split()[0]: task for task in tasks}, lacking


DOCUMENTS = [
    [
        f"Heading {said(2)}",
        *(f"{said(9)} . {said(6)}. {said(4)} {n} {k}. {said(5)}." for k in range(3)),
        f"Is {said(5)} {n}?",
        f"It is {said(12)} {n}.",
    ]
    for n in range(60)
]


def test_queries_are_taken_out_of_what_they_are_to_find(tmp_path):
    path = written(tmp_path / "text.txt", ["\n".join([*lines, ""]) for lines in DOCUMENTS])
    tasks, lacking = tasks_of(path)
    assert set(tasks) == {"halves", "rest", "next", "answers", "titles", "keywords"}
    assert set(lacking) == {"pairs"}
    texts = {line for lines in DOCUMENTS for line in lines}
    often = Counter(chain.from_iterable(set(words(text)) for text in texts))
    following = {pair for lines in DOCUMENTS for pair in pairwise(lines)}
    for kind, task in tasks.items():
        assert 50 <= len(task.queries) == len(set(task.queries)) <= 400
        assert len(task.corpus) == len(texts)
        for query, wanted, itself in zip(task.queries, task.relevant, task.left_out, strict=True):
            found = [task.corpus[row] for row in wanted]
            assert all(query not in text for text in found) or kind == "keywords"
            if kind in ("halves", "rest"):
                (text,) = found
                cut = halves if kind == "halves" else lambda it: (sentences_of(it)[0], None)
                whole = next(it for it in texts if it.startswith(query) and it.endswith(text))
                assert cut(whole)[0] == query
                assert whole.split() == [*query.split(), *text.split()]
            elif kind in ("next", "answers"):
                assert (query, *found) in following
                assert task.corpus[itself] == query
                assert kind == "next" or (query.endswith("?") and not found[0].endswith("?"))
            elif kind == "titles":
                assert found == next(lines[1:] for lines in DOCUMENTS if lines[0] == query)
            else:
                assert len(words(query)) == 4
                rarest = sorted(often[it] for it in set(words(found[0])))
                assert sorted(often[it] for it in words(query)) == rarest[:4]
