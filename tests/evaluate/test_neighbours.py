"""``contrasent neighbours``: against loops over all sentences, the table, real text."""

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tiny_sentences import write

from contrasent.evaluation import neighbours
from contrasent.evaluation.embed import EncoderUse
from contrasent.files import write_text
from contrasent.model.protocol import Conventions
from contrasent.records import lines_of_kind

LINES = [
    *("the old house", "red cat", "a green dog runs", "old dog", "red cat", "", "Red  Cat"),
    *("new cat", "blue house", "the house", "dog", "old dog"),
]
KEPT = [line for line in LINES if line]
QUERIES = ("red cat", "old house", "dog runs", "OLD DOG")


@pytest.fixture
def corpus(tmp_path):
    return neighbours.read_corpus(str(write(tmp_path / "corpus.txt", LINES)))


@pytest.mark.parametrize("top_k", [1, 3, 50])
def test_neighbours_are_the_best_of_all_sentences(encoder, corpus, top_k):
    """Lines count where they first stand, and not where they are the query."""
    found = neighbours.find_neighbours(
        EncoderUse(encoder), corpus, neighbours.Queries(QUERIES, "given"), top_k
    )
    assert [query.text for query in found.queries] == [*QUERIES]
    for query in found.queries:
        scored = []
        for row, line in enumerate(KEPT):
            if line not in KEPT[:row] and line.lower().split() != query.text.lower().split():
                u, v = (encoder.embed(text).astype(float) for text in (query.text, line))
                scored.append((line, u @ v / np.sqrt((u @ u) * (v @ v)), row))
        expected = sorted(scored, key=lambda it: (-round(it[1], 6), it[2]))[:top_k]
        assert [(it.text, it.row) for it in query.nearest] == [(a, c) for a, _, c in expected]
        for near, (_, cosine, _) in zip(query.nearest, expected, strict=True):
            assert near.score == pytest.approx(cosine, abs=1e-6)
    left_out = [query.left_out for query in found.queries]
    assert left_out == [("red cat", "Red  Cat"), (), (), ("old dog",)]


class Fixed:
    """Embeddings by sentence."""

    name, pooler = "fixed", "none"
    conventions = Conventions(prompts={"query": "find: ", "document": ""})

    def __init__(self, rows):
        self.rows = rows

    def encode(self, sentences, *, prompt, **_):
        assert prompt == ("find: " if sentences == ["q"] else "")
        return np.array([self.rows[sentence] for sentence in sentences], dtype=np.float32)


@pytest.mark.parametrize(
    ("rows", "expected", "without"),
    [
        ({"e": [2, 0], "c": [0, 1], "a": [7, 0], "d": [3, 0], "b": [1, 0]}, "ead", 0),
        ({"a": [0, 0], "b": [-1, 0], "c": [0, 1]}, "cb", 1),
    ],
)
def test_equal_cosines_are_in_the_order_of_rows_and_zeros_apart(tmp_path, rows, expected, without):
    encoder = EncoderUse(Fixed({**rows, "q": [1, 0]}))
    corpus = neighbours.read_corpus(str(write(tmp_path / "lines.txt", rows)))
    found = neighbours.find_neighbours(encoder, corpus, neighbours.Queries(("q",), ""), 3)
    assert "".join(near.text for near in found.queries[0].nearest) == expected
    assert found.without_vector == without
    assert found.prompts == {"query": "find: ", "document": ""}


def test_a_task_is_a_corpus_of_both_sentences_of_its_pairs(senteval):
    rows = (senteval / "STS/STSBenchmark/sts-dev.csv").read_text().splitlines()
    sentences = [" ".join(cell.split()) for row in rows for cell in row.split("\t")[5:7]]
    found = neighbours.read_corpus("stsb-dev", data_dir=senteval)
    assert found.sentences == len(sentences) == 14
    assert found.texts == tuple(dict.fromkeys(sentences))
    assert [sentences[row] for row in found.rows] == [*found.texts]
    repeated = "".join(f"g\tf\t2012\t1\t1.0\t{pair}\n" for pair in ("a\tb", "b\tc", "c\ta"))
    (senteval / "STS/STSBenchmark/sts-train.csv").write_text(repeated)
    again = neighbours.read_corpus("stsb-train", data_dir=senteval)
    assert (again.texts, [*again.rows], again.sentences) == (("a", "b", "c"), [0, 1, 3], 6)
    assert neighbours.read_corpus("sts13", data_dir=senteval).sentences == 2 * (6 + 7 + 8)


def test_queries_come_from_papers_files_and_the_command_line(tmp_path, corpus):
    (tmp_path / "q.txt").write_text("one\ntwo\n")
    named = neighbours.read_queries("diffcse-table9", (), corpus)
    assert named.texts == neighbours.PUBLISHED["diffcse-table9"].texts
    assert named.asked == "Chuang et al. 2022 (DiffCSE), Table 9"
    both = neighbours.read_queries(str(tmp_path / "q.txt"), ["three"], corpus)
    assert both.texts == ("one", "two", "three")
    assert both.asked == f"{tmp_path / 'q.txt'}, 1 given"
    assert neighbours.read_queries(None, ["three"], corpus).asked == "1 given"


def test_the_command_prints_and_saves(tmp_path, tiny_bert, tiny_roberta, corpus):
    saved = tmp_path / "out" / "found.jsonl"
    told = [tiny_bert, tiny_roberta, "--corpus", corpus.source, "--query", "red cat"]
    said = worked("neighbours", *told, "--top-k", 2, "--query", "dog", "--json", saved)
    assert said.out.startswith("Query: red cat\n")
    assert said.out.count("#1") == said.out.count("#2") == 2
    assert "#3" not in said.out
    again = worked("neighbours", *told, "--top-k", 2, "--query", "dog", "--json", "-")
    found = neighbours.read_neighbours(saved)
    write_text(tmp_path / "printed.jsonl", again.out)
    assert neighbours.read_neighbours(tmp_path / "printed.jsonl") == found
    assert [it.encoder for it in found] == [str(tiny_bert), str(tiny_roberta)]
    for it in found:
        assert [query.text for query in it.queries] == ["red cat", "dog"]
        assert [len(query.nearest) for query in it.queries] == [2, 2]
    write_text(tmp_path / "again.jsonl", lines_of_kind("neighbours", found))
    assert (tmp_path / "again.jsonl").read_bytes() == saved.read_bytes()
