"""``data build`` on real text, against the same counts in plain loops."""

import json

import pytest
from helpers.building import built, write

pytestmark = pytest.mark.acceptance

LETTERS = {"e": "entailment", "n": "neutral", "c": "contradiction"}


def squeezed(text):
    return " ".join(text.split())


def rows_of(path):
    """Premise, hypothesis and label of every row that has a gold label."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if path.suffix == ".jsonl" and line.strip():
            row = json.loads(line)
            first, second = (
                row.get(a) or row[b]
                for a, b in (("premise", "sentence1"), ("hypothesis", "sentence2"))
            )
            label = LETTERS.get(row.get("label"), row.get("gold_label"))
        elif path.suffix == ".tsv" and line and not line.startswith("sentence1\t"):
            first, second, label = line.rstrip("\r").split("\t")
        else:
            continue
        if label != "-" and squeezed(first) != squeezed(second):
            yield squeezed(first), squeezed(second), label


@pytest.fixture
def nli(shared):
    folder = shared / "data" / "nli"
    names = ("snli_counterfactual/train.tsv", "snli_counterfactual/dev.tsv")
    names += ("mnli/mnli_train_sample.tsv", "mnli/mnli_dev_sample.tsv")
    return [folder / it for it in (*names, "base_wiki/train.jsonl", "breaking_nli/dataset.jsonl")]


def hypotheses(paths):
    """Hypotheses of each premise by their label."""
    found = {}
    for path in paths:
        for premise, hypothesis, label in rows_of(path):
            of = found.setdefault(premise, {name: {} for name in LETTERS.values()})
            of[label][hypothesis] = None
    return found


@pytest.mark.parametrize("per", ["entailment", "premise"])
@pytest.mark.parametrize("make", ["triplets", "triplets+neutral"])
def test_triplets(nli, tmp_path, make, per):
    examples, said = built("nli", *nli, "--make", make, "--per", per, folder=tmp_path)
    found = hypotheses(nli)
    expected = 0
    for of in found.values():
        negatives = [
            set(of[label]) - set(of["entailment"])
            for label in ("contradiction", "neutral")[: 1 + make.endswith("neutral")]
        ]
        if of["entailment"] and all(negatives):
            expected += len(of["entailment"]) if per == "entailment" else 1
    assert len(examples) == said["examples"] == expected > 800
    for premise, positive, contradiction, *neutral in examples:
        assert positive in found[premise]["entailment"]
        assert contradiction in found[premise]["contradiction"]
        assert all(it in found[premise]["neutral"] for it in neutral)
    assert said["counts"]["unlabelled"] == 131


@pytest.mark.parametrize("split", ["dev", "test"])
def test_entailed_sentences_share_as_many_words_as_the_paper_says(shared, tmp_path, split):
    parts = [shared / "data" / "nli" / "snli" / f"{it}.{split}" for it in ("s1", "s2", "labels")]
    rows = zip(*(part.read_text(encoding="utf-8").splitlines() for part in parts), strict=True)
    source = write(tmp_path / "snli.tsv", [["premise", "hypothesis", "label"], *rows])
    _, said = built("nli", source, "--make", "entailment", folder=tmp_path)
    assert said["counts"]["rows"] == {"dev": 9842, "test": 9824}[split]
    # 39 % of SNLI and MNLI together
    assert said["overlap"] == pytest.approx(0.39, abs=0.01)


def test_duplicate_questions_share_as_many_words_as_the_paper_says(shared, tmp_path):
    source = shared / "data" / "paraphrase" / "qqp_sample.tsv"
    examples, said = built("duplicates", source, folder=tmp_path)
    assert said["counts"]["labels"] == {"not": 6110, "duplicate": 3490}
    assert len(examples) + said["counts"]["repeated"] + said["counts"]["identical"] == 3490
    assert said["overlap"] == pytest.approx(0.60, abs=0.01)
