"""A text without labels: tasks made of it, what a run holds out, the weight of BM25."""

import json
from collections import Counter
from dataclasses import asdict
from itertools import chain, pairwise
from statistics import fmean

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tiny_sentences import sentence, write

import contrasent
from contrasent.data.documents import find_documents, split_sentences
from contrasent.data.examples import open_examples
from contrasent.errors import DataError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.judgement import WEIGHTS, judge
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.proxy import halves, hold_out, sample_texts, text_tasks
from contrasent.evaluation.retrieval import score
from contrasent.metrics import relevant_ranks, retrieval_score
from contrasent.search.words import WordIndex, fuse, words

WIDTH = 128
COMMON = [f"{a}{b}{c}{d}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst" for d in "aeo"]


def said(count, draw):
    return " ".join(draw.choice(COMMON, count))


def part_numbers():
    """Texts whose halves have the same two numbers, and else nothing in common."""
    numbers, draw = (f"zx{n} kq{n * 7919 % 997}" for n in range(120)), np.random.default_rng(7)
    return [f"{said(6, draw)} {it}. {said(6, draw)} {it}" for it in numbers]


def paraphrases():
    """Texts whose halves say the same in other words."""
    lines, draw = [], np.random.default_rng(7)
    for _ in range(120):
        meant = draw.choice(len(COMMON) // 2, 9, replace=False)
        first, second = ([COMMON[2 * it + side] for it in meant] for side in (0, 1))
        lines.append(f"{' '.join(first)}. {' '.join(draw.permutation(second))}")
    return lines


def vectors(path, synonyms):
    """A file of vectors of the common words, equal ones of synonyms."""
    drawn = np.random.default_rng(0).normal(size=(len(COMMON), WIDTH))
    rows = [(word, drawn[n - n % 2 if synonyms else n]) for n, word in enumerate(COMMON)]
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows))
    return path


def tasks_of(path, documents=None):
    examples = open_examples(str(path), documents=documents)
    sample = sample_texts(examples, find_documents(examples).lengths, 1000, 100_000, 256)
    tasks, lacking = text_tasks(sample)
    return {task.name.name.split()[0]: task for task in tasks}, lacking


def test_queries_are_taken_out_of_what_they_are_to_find(tmp_path):
    documents, draw = [], np.random.default_rng(7)
    for n in range(60):
        lines = [f"Heading {said(2, draw)}"]
        for k in range(3):
            text = f"{said(9, draw)} . {said(6, draw)}. {said(4, draw)} {n} {k}. {said(5, draw)}."
            lines.append(text)
        documents.append([*lines, f"Is {said(5, draw)} {n}?", f"It is {said(12, draw)} {n}."])
    path = write(tmp_path / "text.txt", ["\n".join([*lines, ""]) for lines in documents])
    tasks, lacking = tasks_of(path, documents=True)
    assert set(tasks) == {"halves", "rest", "next", "answers", "titles", "keywords"}
    assert set(lacking) == {"pairs"}
    texts = {line for lines in documents for line in lines}
    often = Counter(chain.from_iterable(set(words(text)) for text in texts))
    following = {pair for lines in documents for pair in pairwise(lines)}
    for kind, task in tasks.items():
        assert 50 <= len(task.queries) == len(set(task.queries)) <= 400
        assert len(task.corpus) == len(texts)
        for query, wanted, itself in zip(task.queries, task.relevant, task.left_out, strict=True):
            found = [task.corpus[row] for row in wanted]
            assert all(query not in text for text in found) or kind == "keywords"
            if kind in ("halves", "rest"):
                (text,) = found
                cut = halves if kind == "halves" else lambda it: (split_sentences(it)[0], None)
                whole = next(it for it in texts if it.startswith(query) and it.endswith(text))
                assert cut(whole)[0] == query
                assert whole.split() == [*query.split(), *text.split()]
            elif kind in ("next", "answers"):
                assert (query, *found) in following
                assert task.corpus[itself] == query
                assert kind == "next" or (query.endswith("?") and not found[0].endswith("?"))
            elif kind == "titles":
                assert found == next(lines[1:] for lines in documents if lines[0] == query)
            else:
                assert len(words(query)) == 4
                rarest = sorted(often[it] for it in set(words(found[0])))
                assert sorted(often[it] for it in words(query)) == rarest[:4]


def judged_by_command(tmp_path, lines, synonyms):
    text = write(tmp_path / "text.txt", lines)
    model = vectors(tmp_path / "words.txt", synonyms)
    out = tmp_path / "judged.json"
    shown = worked("evaluate", model, "--text", text).out
    page = tmp_path / "page.html"
    worked("evaluate", model, "--text", text, "--json", out, "--html", page)
    judged = json.loads(out.read_text())
    assert judged["sentence"] in shown
    assert judged["sentence"].split(":")[0] in page.read_text()
    return judged


def test_bm25_wins_where_texts_share_numbers_that_the_encoder_does_not_know(tmp_path):
    judged = judged_by_command(tmp_path, part_numbers(), False)
    assert judged["verdict"] == "words"
    assert judged["sentence"].count("made of this text") == 2  # what is compared on which tasks
    assert judged["weight"] > 0.3
    assert judged["differences"]["BM25"]["interval"]["low"] > 0.3
    assert sum(it["words"][0]["right"] for it in judged["queries"]) >= 8
    assert len(judged["queries"]) == 10


def test_an_encoder_that_knows_synonyms_gains_by_exact_words_and_a_better_one_is_told(tmp_path):
    judged = judged_by_command(tmp_path, paraphrases(), True)
    assert judged["verdict"] == "hybrid"  # halves decide, and stay; of keywords more are found
    assert judged["sentence"].endswith("on 2 tasks made of this text, one of them keywords.")
    gained = {it["task"]: it for it in judged["records"] if it["encoder"].endswith(" + BM25")}
    assert gained["halves of text.txt"]["value"] == 1
    assert gained["keywords of text.txt"]["compared"]["difference"] > 0.01
    assert judged["differences"]["BM25"]["interval"]["high"] < -0.3
    other = write(tmp_path / "other.txt", (tmp_path / "words.txt").read_text().splitlines())
    draws = np.random.default_rng(1).normal(size=(len(COMMON), WIDTH))
    worse = [f"{word} {' '.join(map(str, row))}" for word, row in zip(COMMON, draws, strict=True)]
    write(tmp_path / "words.txt", worse)
    better = contrasent.evaluate(
        tmp_path / "words.txt", text=tmp_path / "text.txt", compare=[other]
    )
    assert better.verdict == "other"
    assert better.sentence.startswith(str(other))
    assert {it.encoder for it in better.records} >= {str(other), "BM25"}


class Noisy:
    """Finds a text by its words, and not always."""

    name, pooler = "noisy", "sum"

    def encode(self, texts, **_):
        rows = []
        for text in texts:
            draw = np.random.default_rng(sum(map(ord, text)))
            seeds = [sum((k + 1) * ord(c) for k, c in enumerate(word)) for word in words(text)]
            known = [np.random.default_rng(it).normal(size=12) for it in seeds]
            rows.append(sum(known) + draw.normal(size=12) * len(known) ** 0.5)
        return np.array(rows, np.float32)


def test_each_query_is_scored_by_the_weight_that_the_others_choose(tmp_path):
    path = write(tmp_path / "text.txt", part_numbers()[:90])
    judged = judge(EncoderUse(Noisy()), path)
    tasks, _ = tasks_of(path)
    kinds = {name.split()[0] for name in judged.deciding} | {"keywords"}
    chosen = [task for kind, task in tasks.items() if kind in kinds]
    assert len(chosen) > 1

    def values(task, weight):
        dense = Noisy().encode(task.queries), Noisy().encode(task.corpus)
        queries, corpus = (it / np.linalg.norm(it, axis=1, keepdims=True) for it in dense)
        scores = fuse(queries @ corpus.T, WordIndex.of(task.corpus).scores(task.queries), weight)
        found = zip(scores, task.relevant, task.left_out, strict=True)
        ranks = [relevant_ranks(row, [*of], [*of.values()], itself) for row, of, itself in found]
        return [retrieval_score("ndcg@10", *it) for it in ranks]

    table = {weight: [values(task, weight) for task in chosen] for weight in WEIGHTS}

    def best(part):
        return max(WEIGHTS, key=lambda weight: fmean(fmean(it[part]) for it in table[weight]))

    of_even, of_odd = best(slice(1, None, 2)), best(slice(0, None, 2))
    assert judged.weight == best(slice(None))
    for n, task in enumerate(chosen):
        even, odd = table[of_even][n][::2], table[of_odd][n][1::2]
        of = (task.name.name, "ndcg@10", "noisy + BM25")
        (record,) = (it for it in judged.records if (it.task, it.metric, it.encoder) == of)
        assert record.value == pytest.approx(fmean([*even, *odd]), abs=1e-6)
    json.dumps(asdict(judged))


def test_too_little_text_is_refused_and_what_tells_nothing_is_said(tmp_path):
    path = write(tmp_path / "text.txt", part_numbers()[:20])
    with pytest.raises(DataError, match="too little text"):
        judge(EncoderUse(Noisy()), path)
    lines = [said(16, np.random.default_rng(n)) for n in range(400)]
    unrelated = judge(EncoderUse(Noisy()), write(path, lines))
    assert unrelated.verdict in ("unclear", "words")
    assert "halves of text.txt" in unrelated.undecided


def test_no_query_is_its_own_answer(tmp_path):
    draw, same = np.random.default_rng(4), ["Same line here."] * 2
    lines = [[*same, f"{said(9, draw)} {n}", f"{n} is it"] for n in range(60)]
    blocks = ["\n".join([*it, ""]) for it in lines]
    tasks, _ = tasks_of(write(tmp_path / "text.txt", blocks), documents=True)
    pairs = [json.dumps([f"{n} asks", f"{(n + 1) % 70} asks"]) for n in range(70)]
    tasks |= tasks_of(write(tmp_path / "pairs.jsonl", pairs))[0]
    assert set(tasks) >= {"next", "pairs"}
    for kind in ("next", "pairs"):
        task = tasks[kind]
        for query, wanted, itself in zip(task.queries, task.relevant, task.left_out, strict=True):
            assert task.corpus[itself] == query and itself not in wanted


LONG = [f"in row {n} {n % 60} {sentence(n % 60, 9)} and the number is {n % 60}" for n in range(720)]


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
    (value,) = (r.value for r in score([task], EncoderUse(Noisy()), Options()).records[:1])
    return value, set(task.queries)


def test_held_out_halves_and_next_sentences_are_scored_as_in_plain_loops(tmp_path):
    value, queries = mrr(write(tmp_path / "text.txt", [*LONG[:600], "too short"]))
    pairs = [halves(line) for line in LONG[:600] if halves(line)[0] in queries]
    assert value == pytest.approx(naive_mrr(pairs, Noisy()), abs=1e-9)
    documents = [LONG[n : n + 4] for n in range(0, 720, 4)]
    path = write(tmp_path / "text.txt", [line for d in documents for line in (*d, "")])
    value, queries = mrr(path, True)
    pairs = [(d[n], d[n + 1]) for d in documents for n in range(3) if d[n] in queries]
    assert value == pytest.approx(naive_mrr(pairs, Noisy()), abs=1e-9)


def test_held_out_lines_are_a_tenth_whatever_their_order(tmp_path):
    lines = LONG[:600] + ["short"] * 5
    held = hold_out(open_examples(str(write(tmp_path / "text.txt", lines))))
    rest = held.rest().read_text().splitlines()
    assert held.texts == len(held.task.queries) == 60
    assert len(rest) == 545 and rest.count("short") == 5
    out = [line for line in lines if line not in rest]
    assert {halves(line)[0] for line in out} == set(held.task.queries)
    assert rest == [line for line in lines if line in rest]
    again = hold_out(open_examples(str(write(tmp_path / "other.txt", lines[::-1]))))
    assert sorted(again.task.queries) == sorted(held.task.queries)
    # A line that comes twice is on one side.
    held = hold_out(open_examples(str(write(tmp_path / "text.txt", LONG[:600] * 2))))
    rest = held.rest().read_text().splitlines()
    assert all(rest.count(line) in (0, 2) for line in LONG[:600])
    assert held.texts == 120 == 2 * len(held.task.queries) == 1200 - len(rest)


def test_whole_documents_are_held_out(tmp_path):
    documents = [[f"{sentence(n, 4)} {n} {k}" for k in range(5)] for n in range(150)]
    lines = [line for document in documents for line in (*document, "")]
    held = hold_out(open_examples(str(write(tmp_path / "text.txt", lines))))
    kept = [block.splitlines() for block in held.rest().read_text().strip().split("\n\n")]
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
    kept = [tuple(example) for example in open_examples(str(held.rest()))]
    assert kept == [(a, b) for a, b in map(dict.values, rows) if a not in held.task.queries]
