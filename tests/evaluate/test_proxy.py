"""Tasks made of text without labels, and the text that a run holds out for one."""

import json
from zlib import crc32

import numpy as np
import pytest
from helpers.tiny_sentences import sentence, write

from contrasent.data.examples import open_examples
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.proxy import halves, hold_out
from contrasent.evaluation.retrieval import score

LONG = [f"{n} {sentence(n, 9)} and the number is {n}" for n in range(60)]


class RandomWords:
    """Embeds a text as the sum of a random vector for each of its words."""

    name, pooler = "random words", "sum"

    def encode(self, sentences, **_):
        def vector(text):
            drawn = (np.random.default_rng(crc32(word.encode())) for word in text.split())
            return sum(random.normal(size=16) for random in drawn)

        return np.array([vector(sentence) for sentence in sentences], np.float32)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("one two three four five six seven", None),
        ("a b c d e f g h", ("a b c d", "e f g h")),
        ("a b c d e. f g h i", ("a b c d e.", "f g h i")),
        ("a. b c d e f g h i j", ("a. b c d e", "f g h i j")),
        ("Is it so? It is not. You see it now here.", ("Is it so? It is not.",)),
        ("今天天气很好。我们去公园散步吧。", None),
        ("今天的天气非常好。我们一起去公园散步吧。", ("今天的天气非常好。",)),
        ("วันนี้อากาศดีมาก เราไปเดินเล่นกัน", ("วันนี้อากาศดีมาก",)),
    ],
)
def test_a_text_is_cut_at_a_sentence_near_its_middle(given, expected):
    found = halves(given)
    assert found[: len(expected)] == expected if expected else found is None
    assert found is None or given in (" ".join(found), "".join(found))


def naive_mrr(pairs, encoder):
    """In plain loops: each first is to find its second among the seconds of all."""
    documents = sorted({second for _, second in pairs})
    queries = sorted({first for first, second in pairs if first != second})
    row = {t: v / np.linalg.norm(v) for t in (*documents, *queries) for v in encoder.encode([t])}
    total = 0.0
    for query in queries:
        wanted = {second for first, second in pairs if first == query} - {query}
        cosine = {d: float(row[query] @ row[d]) for d in documents if d != query}
        order = sorted(cosine, key=lambda d: -cosine[d])
        rank = next(place for place, d in enumerate(order, start=1) if d in wanted)
        total += 1 / rank if rank <= 10 else 0
    return total / len(queries)


def mrr(path, documents=None):
    task = hold_out(open_examples(str(path), documents=documents)).task
    (value,) = (r.value for r in score([task], EncoderUse(RandomWords()), Options()).records[:1])
    return value, set(task.queries)


def test_held_out_halves_are_scored_as_in_plain_loops(tmp_path):
    lines = [f"in row {n} {LONG[n % 60]}" for n in range(600)]
    value, queries = mrr(write(tmp_path / "text.txt", [*lines, "too short"]))
    pairs = [halves(line) for line in lines if halves(line)[0] in queries]
    assert value == pytest.approx(naive_mrr(pairs, RandomWords()), abs=1e-9)


def test_next_sentences_are_scored_as_in_plain_loops(tmp_path):
    lines = [f"in row {n} {LONG[n % 60]}" for n in range(720)]
    documents = [lines[n : n + 4] for n in range(0, 720, 4)]
    path = write(tmp_path / "text.txt", [line for d in documents for line in (*d, "")])
    value, queries = mrr(path, True)
    pairs = [(d[n], d[n + 1]) for d in documents for n in range(3) if d[n] in queries]
    assert value == pytest.approx(naive_mrr(pairs, RandomWords()), abs=1e-9)


def test_held_out_lines_are_a_tenth_whatever_their_order(tmp_path):
    lines = [f"in row {n} {LONG[n % 60]}" for n in range(600)] + ["short"] * 5
    held = hold_out(open_examples(str(write(tmp_path / "text.txt", lines))))
    rest = held.rest.read_text().splitlines()
    assert held.texts == len(held.task.queries) == 60
    assert len(rest) == 545 and rest.count("short") == 5
    out = [line for line in lines if line not in rest]
    assert {halves(line)[0] for line in out} == set(held.task.queries)
    assert rest == [line for line in lines if line in rest]
    again = hold_out(open_examples(str(write(tmp_path / "other.txt", lines[::-1]))))
    assert sorted(again.task.queries) == sorted(held.task.queries)


def test_a_line_that_comes_twice_is_on_one_side(tmp_path):
    lines = [f"in row {n} {LONG[n % 60]}" for n in range(600)]
    held = hold_out(open_examples(str(write(tmp_path / "text.txt", lines * 2))))
    rest = held.rest.read_text().splitlines()
    assert all(rest.count(line) in (0, 2) for line in lines)
    assert held.texts == 120 == 2 * len(held.task.queries) == 1200 - len(rest)


def test_whole_documents_are_held_out(tmp_path):
    documents = [[f"{sentence(n, 4)} {n} {k}" for k in range(5)] for n in range(150)]
    lines = [line for document in documents for line in (*document, "")]
    held = hold_out(open_examples(str(write(tmp_path / "text.txt", lines))))
    kept = [block.splitlines() for block in held.rest.read_text().strip().split("\n\n")]
    assert kept == [document for document in documents if document in kept]
    assert held.texts == 75 == 5 * (len(documents) - len(kept))
    assert held.task.name.heading == "held-out next sentences (proxy)"
    assert len(held.task.queries) == 60


def test_anchors_find_their_positives_where_the_text_is_pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"anchor": f"{sentence(n)} {n}", "positive": f"{sentence(n, 4)} {n}"} for n in range(600)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = hold_out(open_examples(str(path)))
    assert held.task.name.heading == "held-out pairs (proxy)" and held.texts == 60
    kept = [tuple(example) for example in open_examples(str(held.rest))]
    assert kept == [(a, b) for a, b in map(dict.values, rows) if a not in held.task.queries]
