"""What is read of the transfer tasks' files, and what is said of damaged ones."""

import hashlib

import pytest
from helpers.tiny_transfer import write_transfer

from contrasent.errors import DataError
from contrasent.evaluation.transfer import load_transfer


@pytest.fixture
def root(tmp_path):
    return write_transfer(tmp_path / "senteval")


def put(root, path, data):
    (root / path).write_bytes(data)
    return root / path


def test_blank_lines_count_and_shorter_sentences_come_first(root):
    good = put(root, "CR/custrev.pos", b"a very  good one \n\nwell\n")
    bad = put(root, "CR/custrev.neg", b"poor\n \nbad bad\n")
    task = load_transfer("cr", root)
    (part,) = task.parts.values()
    assert part.texts == ("", "", "poor", "well", "bad bad", "a very good one")
    assert part.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert task.sha256 == hashlib.sha256(good.read_bytes() + bad.read_bytes()).hexdigest()


def test_classes_and_parts_are_those_of_the_task(root):
    """Questions are Latin-1, without their fine class; subjective sentences are class 0."""
    put(root, "TREC/train_5500.label", "NUM:d How far ?\nHUM:ind Who is Pel\xe9 ?\n".encode("l1"))
    put(root, "SUBJ/subj.objective", b"fact here\n")
    put(root, "SUBJ/subj.subjective", b"opinion\n")
    part = load_transfer("subj", root).parts["all"]
    assert (part.texts, part.labels.tolist()) == (("opinion", "fact here"), [0, 1])
    assert list(load_transfer("sst2", root).parts) == ["train", "dev", "test"]
    task = load_transfer("trec", root)
    assert task.parts["train"].texts == ("How far ?", "Who is Pel\xe9 ?")
    assert task.parts["train"].labels.tolist() == [5, 3]
    assert (task.classes, set(task.parts)) == (6, {"train", "test"})


def test_paraphrases_have_a_mark_a_header_and_literal_quotes(root):
    path = "MRPC/msr_paraphrase_test.txt"
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = '1\t7\t8\t" One " said\tone\n0\t9\t1\ta\tb  c\n'
    put(root, path, f"\ufeff{header}{rows}".encode())
    task = load_transfer("mrpc", root)
    assert task.of_pairs
    assert task.parts["test"].texts == ("a", '" One " said', "b c", "one")
    assert task.parts["test"].labels.tolist() == [0, 1]
    # Pairs are ordered by both lengths and the class.
    rows = ("1\t0\t0\ta\tb b", "0\t0\t0\tc\td d", "0\t0\t0\te\tf", "1\t0\t0\tg g\th")
    put(root, path, (header + "\n".join(rows) + "\n").encode())
    part = load_transfer("mrpc", root).parts["test"]
    assert part.texts == ("e", "c", "a", "g g", "f", "d d", "b b", "h")


@pytest.mark.parametrize(
    ("path", "name", "data", "said"),
    [
        ("SST/binary/sentiment-dev", "sst2", b"fine \t1\nfine 0\n", ":2: a row has 2 columns"),
        ("SST/binary/sentiment-dev", "sst2", b"a\t1\nb\t2\n", ":2: a row has 2 columns"),
        ("TREC/TREC_10.label", "trec", b"HUM:x Who ?\nDATE:x When ?\n", ":2: 'DATE:x When ?' ins"),
        ("MRPC/msr_paraphrase_train.txt", "mrpc", b"Q\ti\ti\ts\ts\n1\t2\t3\ta\n", ":2: a row has"),
    ],
)
def test_damaged_files_are_explained_with_their_line(root, path, name, data, said):
    put(root, path, data)
    with pytest.raises(DataError) as caught:
        load_transfer(name, root)
    assert str(root / path) + said in str(caught.value)
