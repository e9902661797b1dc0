"""``contrasent data leaks``: overlap against loops over all texts, the table, real files."""

import pytest
from helpers.tiny_transfer import write_transfer

from contrasent.data.examples import open_examples
from contrasent.evaluation.leaks import find_leaks, normalised
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.suite import load_suite

TRIPLETS = [
    ("Red cat.", "The OLD house!", "a green dog"),
    ("old dog", "new  cat", "red cat"),
    ("never", "never!", "blue"),
    ("unheard of", "words", "here"),
]
PAIRS = [
    ("red cat", "the old house", 1.0),
    ("a green dog", "old dog", 2.0),
    ("new cat", "old dog", 3.0),
    ("Never", "never", 4.0),
    ("blue", "blue", 4.5),
    ("red cat", "something else", 5.0),
    ("...", "!", 2.5),
]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["sent0,sent1,hard_neg", *(",".join(row) for row in TRIPLETS)]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    text = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS)
    (tmp_path / "own.tsv").write_text(text)
    return tmp_path


def letters(text):
    return "".join(c for c in text.lower() if c.isalnum())


def counted_in_loops(form):
    """Sentences, pairs seen anywhere and pairs in one example, by comparing all with all."""

    def same(a, b):
        return form(a) == form(b) != ""

    def has(row, sentence):
        return any(same(sentence, other) for other in row)

    sentences = seen = together = 0
    for a, b, _ in PAIRS:
        found = [any(has(row, sentence) for row in TRIPLETS) for sentence in (a, b)]
        sentences += sum(found)
        seen += all(found)
        together += any(
            same(a, row[i]) and same(b, row[j])
            for row in TRIPLETS
            for i in range(3)
            for j in range(3)
            if i != j
        )
    return sentences, seen, together


def test_counts_are_those_of_loops():
    found = find_leaks(open_examples("train.csv"), load_suite(["own.tsv"]))
    (task,) = found.tasks
    assert (task.sentences, task.pairs, found.examples) == (14, 7, 4)
    expected = counted_in_loops(letters)
    assert (task.seen, task.pairs_seen, task.pairs_together) == expected == (11, 5, 3)
    assert (task.task, task.split, task.heading) == ("own.tsv", "test", "own.tsv")
    assert task.first == (
        ("train.csv:2", "Red cat."),
        ("train.csv:2", "The OLD house!"),
        ("train.csv:2", "a green dog"),
    )


def test_forms_of_a_sentence():
    assert normalised("It 's_a -LRB- Éclair, No. 2!") == "itsalrbéclairno2"
    assert normalised(" ?! ") == ""


def test_every_kind_of_task_is_looked_at(senteval, monkeypatch):
    monkeypatch.setenv("CONTRASENT_DATA", str(write_transfer(senteval)))
    source = senteval / "STS/STSBenchmark/sts-test.csv"
    rows = [line.split("\t") for line in source.read_text().splitlines()]
    source.write_text("\n".join("\t".join([*r[:4], "5.0", *r[5:]]) for r in rows[:2]) + "\n")
    with source.open("a") as file:
        file.write("g\tf\t2012\t1\t1.0\tlast one\tand another\n")
    train = senteval / "train.tsv"
    train.write_text("".join(f"{row[5]}\t{row[6]}\n" for row in rows[:2]))
    names = ["stsb", "stsb-retrieval", "mr", "trec-dev", "mrpc"]
    suite = load_suite(names, Options(senteval))
    found = {t.task: t for t in find_leaks(open_examples(str(train)), suite).tasks}
    splits = {name: found[name].split for name in ("stsb", "mr", "trec", "mrpc")}
    assert splits == {"stsb": "test", "mr": "all", "trec": "train", "mrpc": "test"}
    assert (found["stsb"].seen, found["stsb"].pairs_together, found["stsb"].pairs) == (4, 2, 3)
    ranked = found["stsb-retrieval"]
    assert ranked.pairs_together == ranked.pairs == 4
    assert (found["mr"].pairs, found["mr"].seen) == (0, 0)
    assert found["mrpc"].pairs * 2 == found["mrpc"].sentences


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("train", "columns", "expected"),
    [
        ("nli/nli_triplets.csv", None, [149, 0, 0, 79, 0, 75, 70, 284]),
        ("paraphrase/flickr8k_captions.tsv", ["1"], [3, 0, 7, 1493, 0, 280, 243, 334]),
        ("paraphrase/qqp_sample.tsv", ["question1", "question2"], [0] * 8),
    ],
)
def test_the_overlap_of_real_files_is_the_published_one(shared, train, columns, expected):
    tasks = ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb-dev", "stsb", "sickr"]
    data = shared / "data"
    suite = load_suite(tasks, Options(data / "senteval"))
    found = find_leaks(open_examples(str(data / train), columns), suite)
    assert [task.seen for task in found.tasks] == expected
