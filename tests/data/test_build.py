from itertools import combinations

import pytest
from helpers.building import built, premises, write
from helpers.command_line import worked

from contrasent.data.examples import LABELS, NliLabels, open_examples
from contrasent.errors import ConfigError

E, N, C = LABELS
ROWS = (
    ("p", "e1", E),
    ("q", "qe", E),
    ("p", "n1", N),
    ("p", "c1", C),
    ("q", "qn", N),
    ("p", "e2", E),
    ("p", "?", "-"),
    ("p", "c2", C),
    ("r", "rc", C),
    ("p", "e3", E),
    ("p", "e1", E),
)


@pytest.fixture
def nli(tmp_path):
    """Build from rows of premise, hypothesis and label; the examples and the report."""

    def build(rows=ROWS, *words):
        source = write(tmp_path / "nli.tsv", premises(*rows))
        return built("nli", source, *words, folder=tmp_path)

    return build


def test_triplets_are_those_of_the_premises_that_have_both(nli):
    examples, said = nli()
    assert said["header"] == ["sent0", "sent1", "hard_neg"]
    assert said["made"] == "premise, entailment, contradiction; one of these for each entailment"
    assert [example[:2] for example in examples] == [("p", "e1"), ("p", "e2"), ("p", "e3")]
    assert {example[2] for example in examples} == {"c1", "c2"}
    counts = said["counts"]
    assert (counts["rows"], counts["unlabelled"], counts["other"]) == (11, 1, 2)
    assert (counts["incomplete"], counts["repeated"]) == (2, 1)
    assert counts["labels"] == {E: 5, N: 2, C: 3}


def test_a_triplet_may_have_several_contradictions_all_different(nli):
    rows = [("p", f"e{k}", E) for k in range(3)] + [("p", f"c{k}", C) for k in range(4)]
    rows += [("q", "qe", E), ("q", "qc", C), ("p", "n", N)]
    examples, said = nli(rows, "--contradictions", 2)
    assert said["header"] == ["sent0", "sent1", "hard_neg_1", "hard_neg_2"]
    assert [example[:2] for example in examples] == [("p", f"e{k}") for k in range(3)]
    used = [negative for example in examples for negative in example[2:]]
    assert all(len(set(example[2:])) == 2 for example in examples)
    assert set(used[:4]) == {"c0", "c1", "c2", "c3"}
    assert set(used[4:]) == set(used[:2])
    assert said["counts"]["incomplete"] == 1
    both, said = nli(rows, "--contradictions", 2, "--make", "triplets+neutral")
    assert said["header"][-1] == "hard_neg_3"
    assert {example[-1] for example in both} == {"n"}


def test_every_hypothesis_is_equally_likely_per_premise(nli):
    rows = []
    for number in range(600):
        rows += [(f"p{number}", f"{word}{k}", word) for word in (E, C) for k in range(3)]
    examples, said = nli(rows, "--per", "premise")
    assert [premise for premise, *_ in examples] == [f"p{number}" for number in range(600)]
    assert said["examples"] == 600
    for view, word in ((1, E), (2, C)):
        for k in range(3):
            # 4.5 standard deviations of a binomial of 600 draws with probability 1/3
            assert abs(sum(it[view] == f"{word}{k}" for it in examples) - 200) < 52


@pytest.mark.parametrize("make", [*LABELS, "all"])
def test_pairs_are_the_rows_of_the_labels(nli, make):
    examples, said = nli(ROWS, "--make", make)
    wanted = [(p, h) for p, h, label in ROWS if label == make or (make == "all" and label != "-")]
    assert examples == list(dict.fromkeys(wanted))
    assert said["header"] == ["sent0", "sent1"]
    assert said["counts"]["repeated"] == len(wanted) - len(examples)
    assert said["counts"]["other"] == 10 - len(wanted)


def test_what_would_teach_nothing_or_the_opposite_is_left_out(nli):
    rows = [("p", "p ", E), ("p", "e", E), ("p", "e", C), ("p", "c", C), ("p", "", E)]
    rows += [("q", "e", E), ("q", "e", C)]
    examples, said = nli(rows)
    assert examples == [("p", "e", "c")]
    counts = said["counts"]
    assert (counts["identical"], counts["contested"], counts["empty"]) == (1, 2, 1)
    assert counts["incomplete"] == 1


AS_ANLI = {"uid": "1", "context": "p", "hypothesis": "e", "label": 1, "reason": ""}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("anli.jsonl", [AS_ANLI, AS_ANLI | {"label": 0}, AS_ANLI | {"label": -1}], "n,e,c"),
        ("snli.jsonl", [{"sentence1": "p", "sentence2": "e", "label": "x", "gold_label": E}], ""),
        ("snli_1.0_dev.txt", premises(("p", "e", E), ("p", '"n', N)), ""),
        ("mnli.csv", 'premise,hypothesis,label\np,"e",Entailment\n"p",n,NEUTRAL\n', ""),
        ("sick.txt", "sentence_A\tsentence_B\tentailment_judgment\r\np\te\tENTAILMENT", ""),
    ],
)
def test_every_form_is_read(tmp_path, name, content, words):
    source = write(tmp_path / name, content)
    order = ("--labels", words) if words else ()
    examples, _ = built("nli", source, "--make", E, *order, folder=tmp_path)
    assert examples == [("p", "e")]


def test_a_data_set_may_say_what_its_numbers_mean():
    assert NliLabels("s", ["Contradiction", "neutral", "ENTAILMENT"], None).understood(2, "") == E
    same = NliLabels("s", LABELS, ["e", "n", "c"])
    assert same.described.endswith("(the data set says so)")
    assert same.understood(None, "") is None
    with pytest.raises(ConfigError, match=r"s: --labels c,n,e does not name the data set's own"):
        NliLabels("s", LABELS, ["c", "n", "e"])
    assert NliLabels("s", ["0", "1", "2"], ["c", "n", "e"]).understood("0", "") == C


@pytest.mark.parametrize("bad", ["p\tx\thidden", "two\tcells", "nul\0\tx\te", "\t\tx"])
def test_rows_that_cannot_be_read_are_skipped_on_demand(bad, tmp_path):
    source = write(tmp_path / "f.tsv", f"premise\thypothesis\tlabel\np\te\te\n{bad}\n{bad}\n")
    words = ("nli", source, "--make", E, "--skip-unreadable")
    examples, report = built(*words, folder=tmp_path)
    assert (examples, report["counts"]["unreadable"]) == ([("p", "e")], 2)
    assert report["counts"]["messages"][1].startswith(f"{source}:4: ")


FLICKR = [
    *[[f"a.jpg#{k}", f"a{k}"] for k in range(5)],
    ["b#2.jpg#0", "b0"],
    ["c.jpg#0", "c0"],
    ["b#2.jpg#1", "b1"],
    ["d.jpg#0", "d0"],
    ["c.jpg#1", " c0 "],
    ["d.jpg#1", ""],
]


def test_any_two_captions_of_an_image_are_a_pair(tmp_path):
    source = write(tmp_path / "results.token", FLICKR)
    examples, said = built("captions", source, folder=tmp_path)
    assert examples == [*combinations([f"a{k}" for k in range(5)], 2), ("b0", "b1")]
    counts = said["counts"]
    assert (counts["rows"], counts["empty"], counts["repeated"]) == (11, 1, 1)
    assert counts["incomplete"] == 2
    (told,) = said["sources"]
    assert told["columns"] == "column 0 as image, column 1 as caption (no header)"
    assert told["labels"] is None


QUORA = [
    ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    ["0", "1", "2", 'Why "so"?', "Why?", "1"],
    ["1", "3", "4", "Who?", "When?", "0"],
    ["2", "5", "6", "How?", "How?", "1"],
    ["3", "5", "6", "", "How?", "1"],
    ["4", "7", "8", "x?", "y?", "-1"],
    ["5", "1", "2", 'Why "so"?', "Why?", "1"],
]


def test_duplicates_are_pairs(tmp_path):
    source = write(tmp_path / "train.tsv", QUORA)
    examples, said = built("duplicates", source, folder=tmp_path)
    assert examples == [('Why "so"?', "Why?")]
    counts = said["counts"]
    assert counts["labels"] == {"duplicate": 4, "not": 1}
    assert (counts["other"], counts["unlabelled"], counts["identical"]) == (1, 1, 1)
    assert (counts["empty"], counts["repeated"]) == (1, 1)


PARANMT = [["a b", "b a", "0.9"], ["c", "d", "0.5"], ["e", "f", "0.25"], ["g", "g", "0.5"]]


def test_paraphrases_are_pairs_whatever_their_score(tmp_path):
    source = write(tmp_path / "para-nmt.txt", PARANMT)
    examples, said = built("paraphrases", source, folder=tmp_path)
    assert "".join(first[0] for first, _ in examples) == "ace"
    assert said["counts"]["identical"] == 1
    assert said["sources"][0]["columns"].endswith("column 2 as score (no header)")


PAIRS = [[f"sentence {k}", f"paraphrase {k}"] for k in range(300)]


def sample(source, count, seed, folder):
    words = ("paraphrases", source, "--sample", count, "--seed", seed)
    return built(*words, folder=folder)


def test_a_sample_follows_from_its_seed_and_not_from_the_order_of_the_rows(tmp_path):
    pairs = write(tmp_path / "pairs.tsv", PAIRS)
    backwards = write(tmp_path / "backwards.tsv", PAIRS[::-1])
    first, report = sample(pairs, 50, 1, tmp_path)
    assert first == [row for row in map(tuple, PAIRS) if row in first] and len(first) == 50
    assert (report["examples"], report["counts"]["unsampled"]) == (50, 250)
    again, same = sample(pairs, 50, 1, tmp_path)
    assert (again, same["sha256"]) == (first, report["sha256"])
    assert sample(backwards, 50, 1, tmp_path)[0] == first[::-1]
    assert sample(pairs, 50, 2, tmp_path)[0] != first
    # A smaller sample of the same seed is a part of the larger one.
    assert set(sample(pairs, 20, 1, tmp_path)[0]) < set(first)


AWKWARD = [['say "x", y', "tab and\u00a0space"], ["comma, here", "émoji 😀"], ["=1", "'"]]


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
def test_every_form_reads_back_as_it_was(tmp_path, kind):
    source = write(tmp_path / "f.jsonl", [{"sent0": a, "sent1": b} for a, b in AWKWARD])
    output = tmp_path / f"made{kind}"
    worked("data", "build", "paraphrases", source, "--output", output)
    bits = output.read_bytes()
    examples = open_examples(str(output))
    assert list(examples) == [(a, b.replace("\u00a0", " ")) for a, b in AWKWARD]
    assert examples.columns.startswith("sent0 as anchor, sent1 as positive")
    text = bits.decode()
    assert "\r" not in text
    assert text.startswith({".csv": "sent0,sent1\n", ".tsv": "sent0\t"}.get(kind, '{"sent0": '))


@pytest.mark.acceptance
@pytest.mark.parametrize("split", ["dev", "test"])
def test_entailed_sentences_share_as_many_words_as_the_paper_says(shared, tmp_path, split):
    parts = [shared / "data" / "nli" / "snli" / f"{it}.{split}" for it in ("s1", "s2", "labels")]
    rows = zip(*(part.read_text(encoding="utf-8").splitlines() for part in parts), strict=True)
    source = write(tmp_path / "snli.tsv", [["premise", "hypothesis", "label"], *rows])
    _, said = built("nli", source, "--make", "entailment", folder=tmp_path)
    assert said["counts"]["rows"] == {"dev": 9842, "test": 9824}[split]
    # 39 % of SNLI and MNLI together
    assert said["overlap"] == pytest.approx(0.39, abs=0.01)


@pytest.mark.acceptance
def test_duplicate_questions_share_as_many_words_as_the_paper_says(shared, tmp_path):
    source = shared / "data" / "paraphrase" / "qqp_sample.tsv"
    examples, said = built("duplicates", source, folder=tmp_path)
    assert said["counts"]["labels"] == {"not": 6110, "duplicate": 3490}
    assert len(examples) + said["counts"]["repeated"] + said["counts"]["identical"] == 3490
    assert said["overlap"] == pytest.approx(0.60, abs=0.01)
