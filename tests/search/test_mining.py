"""Hard negatives and candidates: those of a search in loops, never a positive; what is refused."""

import csv
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.command_line import refused, worked
from helpers.dummy_encoder import DummyEncoder
from helpers.oracles import standardised
from sentence_transformers import CrossEncoder

import contrasent
from contrasent.data.examples import open_examples, open_training
from contrasent.errors import ConfigError
from contrasent.objectives.rank_distil import RankDistil
from contrasent.search import mining
from contrasent.search.mining import find_candidates, find_negatives, letters
from contrasent.search.words import WordIndex


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


def test_vowel_signs_and_tones_tell_words_apart_and_text_without_letters_stays_itself():
    for pair in (("वह आता है", "वह आती है"), ("ป่า", "ป้า"), ("ကျ", "ကြ"), ("כֹּל", "כָּל")):
        assert len(set(map(letters, pair))) == 2, pair
    assert letters("वह आता है।") == letters("वह आता है") and letters("က။") == letters("က")
    assert letters("A Dog, runs_1!") == "adogruns1" == letters("a dog runs 1")
    assert letters("?!") == "?!" != letters("!")
    assert letters("Straße") == letters("STRASSE")
    assert letters("cafe\u0301 \uff12") == letters("Café 2") != letters("cafe 2")


@pytest.mark.parametrize("count", [2, 5])
def test_candidates_are_in_turn_near_and_of_the_same_words(count, monkeypatch):
    """For thirty anchors that share words with positives, some of which share none."""
    monkeypatch.setattr(mining, "_SCORES", 200)  # several blocks
    encoder, draw, words = Drawn(4), np.random.default_rng(1), [f"word{n}" for n in range(12)]
    pairs = []
    for n in range(30):
        anchor = " ".join(draw.choice(words, 2)) if n % 3 else f"alone{n}"
        pairs.append((anchor, f"{' '.join(draw.choice(words, 4))} {'filler ' * n}{n}"))
    mined = find_candidates(encoder, pairs, None, count, 0.3)
    names = (f"candidate_{n + 1}" for n in range(count))
    assert mined.header == ("anchor", *names, "scores")
    texts = [positive for _, positive in pairs]
    of_words = WordIndex.of(texts).scores([anchor for anchor, _ in pairs])
    unit = {it: encoder.encode([it], normalize=True)[0] for it in (*texts, *dict(pairs))}
    for n, (anchor, _) in enumerate(pairs):
        cosines = [float(unit[anchor] @ unit[text]) for text in texts]
        own = {it for a, it in pairs if a == anchor}
        near = sorted(range(30), key=lambda t: -cosines[t])
        alike = sorted((t for t in range(30) if of_words[n][t] > 0), key=lambda t: -of_words[n][t])
        expected, places = [n], [t for t in near if texts[t] not in own]
        shared = [t for t in alike if texts[t] not in own]
        for rank in range(30):
            for order in (places, shared):
                if rank < len(order) and order[rank] not in expected:
                    expected.append(order[rank])
        assert mined.examples[n] == (anchor, *(texts[t] for t in expected[:count]))
        z = zip(standardised(cosines), standardised(of_words[n].tolist()), strict=True)
        fused = [0.7 * dense + 0.3 * words for dense, words in z]
        found = [mined.positives[n], *mined.hardest[n]]
        np.testing.assert_allclose(found, [fused[t] for t in expected[:count]], atol=1e-5)


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
    said = worked("data", "mine", "encoder", "pairs.csv", "--output", "mined.csv", "--margin", "0")
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


@pytest.fixture
def reranker(tmp_path, tiny_bert):
    """A function: the folder of a cross-encoder of so many labels."""

    def save(labels):
        cross = CrossEncoder(str(tiny_bert), num_labels=labels, device="cpu")
        torch.manual_seed(0)
        torch.nn.init.normal_(cross.model.classifier.weight)
        cross.save_pretrained(str(tmp_path / f"cross-{labels}"))
        return f"cross-{labels}"

    return save


@pytest.mark.usefixtures("desk")
def test_teachers_score_candidates_by_their_roles(reranker):
    prompts = {"query": "the dog ", "document": "music "}
    teacher = contrasent.SentenceEncoder.load("encoder", prompts=prompts)
    teacher.save("teacher")
    by_encoder = contrasent.mine("encoder", "pairs.csv", candidates=3, teacher="teacher")
    cross = CrossEncoder(reranker(1), device="cpu")
    by_cross = contrasent.mine("encoder", "pairs.csv", candidates=3, reranker="cross-1")
    assert by_encoder.examples == by_cross.examples and len(by_cross.examples) == 7
    for n, (anchor, *texts) in enumerate(by_cross.examples):
        queries, documents = teacher.encode_query([anchor]), teacher.encode_document(texts)
        cosines = teacher.similarity(queries, documents)[0]
        found = [by_encoder.positives[n], *by_encoder.hardest[n]]
        np.testing.assert_allclose(found, cosines, atol=1e-5)
        logits = cross.predict([(anchor, it) for it in texts], activation_fn=torch.nn.Identity())
        np.testing.assert_allclose([by_cross.positives[n], *by_cross.hardest[n]], logits, atol=1e-4)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("name", ["lists.csv", "lists.jsonl", "lists.tsv"])
def test_lists_are_mined_and_trained_on_with_the_prompts_of_roles(name, monkeypatch):
    encoder = contrasent.SentenceEncoder.load("encoder")
    encoder.conventions = replace(encoder.conventions, prompts={"query": "two dog "})
    encoder.save("prompted")
    said = worked("data", "mine", "prompted", "pairs.csv", "--candidates", "3", "--output", name)
    assert "7 examples of 7 pairs" in said.out and "margin" not in said.out
    seen = []
    forward = RankDistil.forward

    def keep(self, encoded, batch):
        seen.append(batch)
        return forward(self, encoded, batch)

    monkeypatch.setattr(RankDistil, "forward", keep)
    how = ["--evaluation.task", "none", "--evaluation.final", "none", "--batch-size", "7"]
    how += ["--data.max_tokens", "32", "--encoder", "prompted", "--data", name]
    worked("train", "rank-distil", *how, "--max-steps", "1", "--output", "run")
    tokens = seen[0].token_ids.tolist()
    texts = [tokens[a:b] for a, b in pairwise(seen[0].offsets.tolist())]
    anchors, candidates, *_ = [*zip(*open_training(name, "lists"), strict=True)]
    ids = encoder.tokenizer.ids
    assert sorted(texts[:7]) == sorted(map(list, ids([f"two dog {it}" for it in anchors], 32)[0]))
    assert sorted(texts[7:14]) == sorted(map(list, ids(candidates, 32)[0]))


def test_a_reranker_of_three_classes_is_refused(desk, reranker):
    given = ["data", "mine", "encoder", "pairs.csv", "--candidates", "3", "--output", "out.csv"]
    message = " ".join(refused(*given, "--reranker", reranker(3)).split())
    assert "is no reranker, which gives a pair one score; name a cross" in message
    assert not (desk / "out.csv").exists()


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
