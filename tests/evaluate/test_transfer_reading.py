"""What is read of the transfer tasks' files, and what is said of damaged ones."""

import hashlib

import numpy as np
import pytest
from helpers.tiny_transfer import write_transfer

from contrasent.data.senteval import MissingDataError
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import TRANSFER, TaskName, task_names
from contrasent.evaluation.task_types import Options
from contrasent.evaluation.transfer import TASK_TYPE
from contrasent.evaluation.transfer_data import load_transfer


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


def test_equally_long_sentences_of_a_class_keep_their_order(root):
    put(root, "MR/rt-polarity.pos", b"z z\nb b\na a\n")
    put(root, "MR/rt-polarity.neg", b"y y\n")
    part = load_transfer("mr", root).parts["all"]
    assert part.texts == ("y y", "z z", "b b", "a a")


def test_subjective_sentences_are_class_0(root):
    put(root, "SUBJ/subj.objective", b"fact here\n")
    put(root, "SUBJ/subj.subjective", b"opinion\n")
    part = load_transfer("subj", root).parts["all"]
    assert dict(zip(part.texts, part.labels.tolist(), strict=True)) == {
        "fact here": 1,
        "opinion": 0,
    }


def test_questions_are_latin_1_without_their_fine_class(root):
    put(
        root, "TREC/train_5500.label", "NUM:dist How far ?\nHUM:ind Who is Pel\xe9 ?\n".encode("l1")
    )
    task = load_transfer("trec", root)
    assert task.parts["train"].texts == ("How far ?", "Who is Pel\xe9 ?")
    assert task.parts["train"].labels.tolist() == [5, 3]
    assert (task.classes, set(task.parts)) == (6, {"train", "test"})


def test_a_next_line_character_of_latin_1_is_no_line_end_in_questions(root):
    put(root, "TREC/TREC_10.label", b"NUM:dist How\x85far ?\nHUM:ind Who ?\n")
    assert load_transfer("trec", root).parts["test"].texts == ("Who ?", "How far ?")


def test_paraphrases_have_a_mark_a_header_and_literal_quotes(root):
    path = "MRPC/msr_paraphrase_test.txt"
    put(
        root,
        path,
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t" One " said\tone\n'
        "0\t9\t1\ta\tb  c\n".encode(),
    )
    task = load_transfer("mrpc", root)
    assert task.of_pairs
    assert task.parts["test"].texts == ("a", '" One " said', "b c", "one")
    assert task.parts["test"].labels.tolist() == [0, 1]


def test_pairs_are_ordered_by_both_lengths_and_the_class(root):
    rows = ["1\t0\t0\ta\tb b", "0\t0\t0\tc\td d", "0\t0\t0\te\tf", "1\t0\t0\tg g\th"]
    text = "\n".join(["Quality\tI\tI\tS\tS", *rows]) + "\n"
    put(root, "MRPC/msr_paraphrase_test.txt", text.encode())
    part = load_transfer("mrpc", root).parts["test"]
    assert part.texts == ("e", "c", "a", "g g", "f", "d d", "b b", "h")


def test_sentiments_have_three_parts(root):
    task = load_transfer("sst2", root)
    assert list(task.parts) == ["train", "dev", "test"]
    for part in task.parts.values():
        lengths = [len(text.split()) for text in part.texts]
        assert lengths == sorted(lengths)
        assert np.bincount(part.labels).tolist() == [24, 24]


@pytest.mark.parametrize(
    ("path", "name", "data", "said"),
    [
        ("SST/binary/sentiment-dev", "sst2", b"fine \t1\nfine 0\n", ":2: 1 columns instead of"),
        (
            "SST/binary/sentiment-dev",
            "sst2",
            b"a\t1\nb\t2\n",
            ":2: the class must be 0 or 1, not '2'",
        ),
        ("SST/binary/sentiment-dev", "sst2", b"a\t1\nb\t1\n", ": 2 sentences of 1 classes; 2 are"),
        (
            "TREC/TREC_10.label",
            "trec",
            b"HUM:x Who ?\nDATE:x When ?\n",
            ":2: 'DATE:x When ?' instead of",
        ),
        (
            "TREC/TREC_10.label",
            "trec",
            b"HUM:who\n",
            ":1: 'HUM:who' instead of CLASS:fine question",
        ),
        ("MRPC/msr_paraphrase_train.txt", "mrpc", b"1\t2\t3\ta\tb\n", ":1: expected MRPC's header"),
        ("MRPC/msr_paraphrase_train.txt", "mrpc", b"Q\ti\ti\ts\ts\n1\t2\t3\ta\n", ":2: 4 columns"),
        (
            "MRPC/msr_paraphrase_train.txt",
            "mrpc",
            b"Q\ti\ti\ts\ts\nx\t2\t3\ta\tb\n",
            ":2: the class mu",
        ),
        ("MR/rt-polarity.pos", "mr", b"", ": 24 sentences of 1 classes; 2 are needed"),
    ],
)
def test_damaged_files_are_explained_with_their_line(root, path, name, data, said):
    put(root, path, data)
    with pytest.raises(DataError) as caught:
        load_transfer(name, root)
    assert str(root / path) + said in str(caught.value)


def test_a_missing_file_is_named_with_what_gets_it(root):
    (root / "MPQA/mpqa.neg").unlink()
    with pytest.raises(MissingDataError) as caught:
        load_transfer("mpqa", root)
    assert f"{root / 'MPQA/mpqa.neg'} is missing" in str(caught.value)
    assert "contrasent data fetch" in str(caught.value)


def test_what_can_be_read_is_kept(root):
    (root / "MPQA/mpqa.neg").unlink()
    put(root, "TREC/TREC_10.label", b"x\n")
    options = Options(root)
    loaded = TASK_TYPE.read(TASK_TYPE.names("transfer", options), options)
    assert [TASK_TYPE.named(task).name for task in loaded.tasks] == [
        "mr",
        "cr",
        "subj",
        "sst2",
        "mrpc",
    ]
    missing, damaged = loaded.problems
    assert (missing.task, missing.missing, damaged.task) == ("mpqa", True, "trec")
    assert missing.message == f"{root / 'MPQA/mpqa.neg'} is missing"
    assert "TREC_10.label:1: 'x' instead of" in damaged.message and not damaged.missing


def test_the_folder_may_hold_the_tasks_deeper_and_nothing_else(root, tmp_path):
    (tmp_path / "outer" / "data").mkdir(parents=True)
    root.rename(tmp_path / "outer/data/downstream")
    assert TASK_TYPE.read([TaskName("mr")], Options(tmp_path / "outer")).tasks


@pytest.mark.parametrize(
    ("asked", "splits", "labels", "others"),
    [
        (["transfer"], ["test"], list(TRANSFER), []),
        (["MR", "SST-2", "sst", "sst2-dev"], ["test"], ["mr", "sst2", "sst2-dev"], []),
        (["mr", "sts", "stsb-dev"], ["dev"], ["mr-dev"], ["sts", "stsb-dev"]),
        (["trec"], ["train", "dev", "test"], ["trec", "trec-dev"], []),
        (["mr-test", "mr"], ["test"], ["mr"], []),
        (["some/mr.tsv", ""], ["test"], [], ["some/mr.tsv", ""]),
    ],
)
def test_names(asked, splits, labels, others):
    named = {text: TASK_TYPE.names(text, Options(splits=splits)) for text in asked}
    names = dict.fromkeys(name.label for names in named.values() for name in names or ())
    assert [*names] == labels
    assert [text for text, names in named.items() if names is None] == others


def test_headings_are_the_papers():
    headings = [TaskName(name).heading for name in TRANSFER]
    assert headings == ["MR", "CR", "SUBJ", "MPQA", "SST-2", "TREC", "MRPC"]
    assert TaskName("sst2", "dev").heading == "SST-2 dev"


@pytest.mark.parametrize(
    ("asked", "splits", "said"),
    [
        (["mr-train"], ["test"], "'mr-train': a transfer task has no score on its train split"),
        (["mr", "p.tsv"], ["train"], "'mr' has no score on train, only on dev and test"),
        (["transfer"], ["train"], "no task to score: transfer with split train names none; STS12"),
    ],
)
def test_a_split_without_scores_is_explained(asked, splits, said):
    with pytest.raises(ConfigError) as caught:
        load_suite(asked, Options(splits=splits))
    assert said in str(caught.value)


def test_a_transfer_task_is_no_sts_task():
    with pytest.raises(ConfigError, match="'MR' is a transfer task, which has no correlation"):
        task_names(["MR"])
    with pytest.raises(ConfigError, match="Did you mean 'mrpc'"):
        task_names(["mrcp"])
