"""A user's scored pairs and what is told of those that cannot be scored."""

import numpy as np
import pytest
from helpers import tables

from contrasent import evaluate
from contrasent.errors import DataError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.sts_data import load, read_pairs
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import task_names

PAIRS = [("a b", "c d", 1.0), ("e", "f", 2.5), ("g", "h i", -3.0)]
NAMES = ("id", "sentence1", "sentence2", "score")


def write(path, *, names=NAMES, rows=PAIRS):
    return tables.write(path, names=names, rows=rows)


def test_columns_are_known_by_name(tmp_path):
    source = write(tmp_path / "p.csv")
    found, sha256, note = read_pairs(source)
    assert found == PAIRS
    assert len(sha256) == 64
    assert note.startswith(f"{source}: sentence1 as first sentence, sentence2 as second sentence, ")
    (task_name,) = task_names([source])
    (subset,) = load(task_name).subsets
    assert subset.gold.tolist() == [1.0, 2.5, -3.0]


@pytest.mark.parametrize("name", ["p.tsv", "p.jsonl", "p.parquet"])
@pytest.mark.parametrize("columns", [["left", "right", "how"], ["LEFT", "right", "how"]])
def test_columns_can_be_chosen(tmp_path, name, columns):
    source = write(tmp_path / name, names=("no", "left", "right", "how"))
    found, _, note = read_pairs(source, columns)
    assert found == PAIRS
    assert "chosen by" in note


def test_a_header_above_numbered_columns_is_seen_by_its_score(tmp_path):
    source = write(tmp_path / "p.tsv", names=("no", "left", "right", "rating"))
    found, _, note = read_pairs(source, ["1", "2", "3"])
    assert found == PAIRS
    assert note.endswith("1 as first sentence, 2 as second sentence, 3 as score (chosen by number)")
    with pytest.raises(DataError, match=r"p.tsv:1: the score must be a number, not 'how'"):
        read_pairs(write(tmp_path / "p.tsv", names=("no", "left", "right", "how")), ["1", "2", "3"])


def test_a_data_set_of_the_hub(hub):
    hub.tables["org/pairs", None] = {"test": tables.records(NAMES, PAIRS)}
    (name,) = task_names(["org/pairs@test"])
    task = load(name)
    assert task.subsets[0].first == ("a b", "e", "g")
    hub.revision = "newer"
    assert load(name).sha256 != task.sha256
    assert name.heading == "pairs@test"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\tb\n", "no column is known as the first sentence"),
        (None, "no file "),
    ],
)
def test_a_bad_file_is_a_problem_of_its_own_when_the_others_are_to_be_kept(
    encoder, senteval, tmp_path, text, said
):
    path = tmp_path / "p.tsv"
    if text is not None:
        path.write_text(text)
    suite = load_suite(["stsb", str(path)], Options(senteval))
    (problem,) = suite.problems
    assert problem.task == str(path)
    assert said in problem.message and not problem.missing
    assert [r.task for r in suite.records(EncoderUse(encoder)).records] == ["stsb"] * 6
    with pytest.raises(DataError, match=said):
        evaluate(encoder, ["stsb", str(path)], data_dir=senteval)


def test_the_score_is_the_correlation_of_the_files_pairs(encoder, tmp_path):
    rows = [
        ("red cat", "red dog", 3.0),
        ("old", "new", 1.0),
        ("cat", "house", 0.5),
        ("a", "a b", 4),
    ]
    source = write(tmp_path / "p.parquet", rows=rows)
    cosines = []
    for first, second, _ in rows:
        u, v = encoder.embed(first).astype(float), encoder.embed(second).astype(float)
        cosines.append(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    records = evaluate(encoder, [source])
    (pearson,) = (r.value for r in records if (r.metric, r.aggregation) == ("pearson", "all"))
    assert pearson == pytest.approx(np.corrcoef(cosines, [3, 1, 0.5, 4])[0, 1], abs=1e-9)
