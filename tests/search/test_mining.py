"""Hard negatives: those of a search in loops, never a positive, and what is refused."""

import csv
import re
from itertools import pairwise

import numpy as np
import pytest
from helpers.command_line import refused, worked
from helpers.dummy_encoder import DummyEncoder

import contrasent
from contrasent.data.examples import open_examples
from contrasent.errors import ConfigError
from contrasent.search import mining
from contrasent.search.mining import find_negatives, letters


class Drawn(DummyEncoder):
    """Vectors of texts, all at once."""

    def encode(self, texts, **options):
        return np.concatenate([*self.encode_stream(texts, **options)])


@pytest.fixture
def pairs():
    """Sixty pairs of twenty anchors; every third positive is another's too, in capitals."""
    draw = np.random.default_rng(0)
    positives = [f"positive {n}" for n in range(40)]
    named = [positives[n] for n in draw.integers(0, 40, 60)]
    return [(f"anchor {n % 20}", it.upper() if n % 3 else it) for n, it in enumerate(named)]


def by_hand(encoder, pairs, corpus, negatives, margin):
    """The examples, pair by pair and sentence by sentence."""
    unit = {text: encoder.encode([text], normalize=True)[0] for text in (*corpus, *sum(pairs, ()))}
    first = {}
    for text in corpus:
        first.setdefault(letters(text), text)
    examples = []
    for anchor, positive in pairs:
        own = float(unit[anchor] @ unit[positive])
        taken = {letters(anchor)}
        for a, p in pairs:
            if letters(a) == letters(anchor):
                taken.add(letters(p))
            if letters(p) == letters(anchor):
                taken.add(letters(a))
        cosines = {
            text: float(unit[anchor] @ unit[text])
            for key, text in first.items()
            if key not in taken and unit[anchor] @ unit[text] <= own - margin * abs(own)
        }
        if len(cosines) >= negatives:
            chosen = sorted(cosines, key=cosines.get, reverse=True)[:negatives]
            examples.append((anchor, positive, *chosen))
    return examples


@pytest.mark.parametrize("negatives", [1, 3])
@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("own", [False, True], ids=["positives", "corpus"])
def test_they_are_those_of_a_search_in_loops(negatives, margin, own, pairs, monkeypatch):
    monkeypatch.setattr(mining, "_SCORES", 500)  # several blocks
    encoder = Drawn(4)
    corpus = [f"text {n}" for n in range(50)] + ["Anchor 3!", "anchor 3", "positive-7"]
    texts = corpus if own else [positive for _, positive in pairs]
    mined = find_negatives(encoder, pairs, corpus if own else None, negatives, margin)
    expected = by_hand(encoder, pairs, texts, negatives, margin)
    assert mined.examples == expected
    assert 0 < mined.without == len(pairs) - len(expected)
    assert (np.diff(mined.hardest) <= 0).all()
    assert (mined.hardest[:, 0] <= mined.positives - margin * abs(mined.positives) + 1e-6).all()


def test_text_without_letters_stays_itself():
    assert letters("A Dog, runs_1!") == "adogruns1" == letters("a dog runs 1")
    assert letters("?!") == "?!" != letters("!")
    assert letters("Straße") == letters("STRASSE")


@pytest.fixture
def desk(tmp_path, tiny_bert, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    contrasent.SentenceEncoder.load(tiny_bert, pooler="mean", head="none").save("encoder")
    words = ["a dog runs", "the man", "a cat runs", "music", "the dog", "a man", "the cat", "a dog"]
    (tmp_path / "pairs.csv").write_text("".join(f"{a},{b}\n" for a, b in pairwise(words)))
    (tmp_path / "one.txt").write_text("a dog\nthe man\n")
    return tmp_path


def test_the_command_writes_what_training_takes(desk):
    said = worked(
        *["data", "mine", "encoder", "pairs.csv", "--output", "mined.csv", "--margin", "0"]
    )
    assert "left out: " in said.out
    header, *rows = csv.reader((desk / "mined.csv").read_text(encoding="utf-8").splitlines())
    assert header == ["sent0", "sent1", "hard_neg"] and rows
    assert open_examples("mined.csv").views == 3
    with pytest.raises(ConfigError, match=r"mined\.csv.* --overwrite"):
        contrasent.mine("encoder", "pairs.csv", output="mined.csv")
    pairs = [*open_examples("pairs.csv")]
    again = contrasent.mine("encoder", pairs, output="again.tsv", margin=0, negatives=2)
    assert (desk / "again.tsv").read_text().startswith("sent0\tsent1\thard_neg_1\thard_neg_2\n")
    assert {example[:3] for example in again.examples} <= {tuple(row) for row in rows}


@pytest.mark.parametrize("name", ["mined.TSV", "mined.csv", "mined.jsonl"])
def test_tabs_and_line_breaks_in_sentences_do_not_break_rows(name, tmp_path):
    pairs = [(f"anchor\t{n}", f"positive\r\n {n}") for n in range(9)]
    mined = find_negatives(Drawn(16), pairs, margin=0)
    mined.write(tmp_path / name)
    written = [*open_examples(str(tmp_path / name))]
    assert [tuple(" ".join(it.split()) for it in row) for row in mined.examples] == [
        tuple(" ".join(it.split()) for it in row) for row in written
    ]
    assert (written == mined.examples) != ("tsv" in name.lower())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("encoder one.txt", "one sentence in a row.* needs an anchor and its positive"),
        ("encoder pairs.csv --negatives 9", "has 9 sentences .* take a larger corpus"),
        ("encoder pairs.csv --margin 1", "--margin cannot be .*less than 1"),
        ("encoder pairs.csv --margin 0.999", "none of the 7 pairs has 1 .* lower the margin"),
    ],
)
def test_what_cannot_be_mined_is_explained(words, message, desk):
    assert re.search(message, refused("data", "mine", *words.split(), "--output", "out.csv"))
    assert not (desk / "out.csv").exists()
