"""Vectors in files in place of an encoder."""

import gzip

import numpy as np
import pytest
from helpers.tiny_sts import StsTasks

from contrasent.errors import CheckpointError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import TaskName
from contrasent.evaluation.vectors import load_or_open
from contrasent.options import Loading


@pytest.fixture
def task(senteval):
    return load(TaskName("sts13"), senteval)


@pytest.fixture
def rows(task, encoder):
    """First sentences of all pairs, then the second."""
    sides = [
        [s for subset in task.subsets for s in getattr(subset, k)] for k in ("first", "second")
    ]
    return np.stack([encoder.embed(sentence) for side in sides for sentence in side])


def given(task):
    return task.row_layout()


def open_vectors(path, layouts):
    return load_or_open(Loading(), path, layouts)


def saved(path, matrix):
    np.save(path, matrix)
    return str(path)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_matrix_is_scored_as_the_encoder_that_made_it(
    tmp_path, task, rows, encoder, together, kind
):
    half = len(rows) // 2
    matrix = np.stack([rows[:half], rows[half:]], axis=1) if together else rows
    vectors = open_vectors(saved(tmp_path / "v.npy", matrix.astype(kind)), [given(task)])
    read = StsTasks([task])
    scores = read.records(EncoderUse(vectors, vectors.resolve_precision("auto")))
    assert [r.value for r in scores.records] == [
        r.value for r in read.records(EncoderUse(encoder)).records
    ]
    first = scores.records[0]
    assert (first.encoder, first.pooler, first.precision) == (vectors.name, "vectors", "fp32")


def test_pairs_in_several_files_are_joined_as_pairs(tmp_path, task, rows, encoder):
    half = len(rows) // 2
    pairs = np.stack([rows[:half], rows[half:]], axis=1)
    parts = [saved(tmp_path / f"{n}.npy", it) for n, it in enumerate((pairs[:3], pairs[3:]))]
    joined = open_vectors("+".join(parts), [given(task)])
    read = StsTasks([task])
    found, expected = (read.records(EncoderUse(it)).records for it in (joined, encoder))
    assert [r.value for r in found] == [r.value for r in expected]
    parts[1] = saved(tmp_path / "rows.npy", rows[6:])
    with pytest.raises(CheckpointError, match="cannot be joined"):
        open_vectors("+".join(parts), [given(task)])


def test_a_matrix_of_another_length_is_an_error(tmp_path, task, rows):
    path = saved(tmp_path / "v.npy", rows[:-1])
    with pytest.raises(CheckpointError) as caught:
        open_vectors(path, [given(task)])
    assert str(caught.value) == (
        f"{path} has {len(rows) - 1} rows, but STS13 needs {len(rows)}: {len(rows) // 2} first "
        f"sentences of the scored pairs, then {len(rows) // 2} second sentences of the scored pairs"
    )


def test_rows_in_another_order_are_noticed_by_a_sentence_that_comes_twice(tmp_path, encoder):
    path = tmp_path / "p.tsv"
    path.write_text("red cat\told dog\t1\nred cat\tnew dog\t2\nblue\tgreen\t3\n")
    task = load(TaskName(str(path)))
    (subset,) = task.subsets
    pairs = zip(subset.first, subset.second, strict=True)
    mixed = np.stack([encoder.embed(sentence) for pair in pairs for sentence in pair])
    with pytest.raises(
        CheckpointError, match="rows 0 and 1 differ, but belong to the same sentence"
    ):
        open_vectors(saved(tmp_path / "v.npy", mixed), [given(task)])


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (np.zeros(4), "holds float64 numbers of shape (4,); a row of floating-point"),
        (np.zeros((4, 2), int), "holds int64 numbers of shape (4, 2)"),
        (np.array(["a"]), "holds <U1 numbers"),
    ],
)
def test_other_matrices_are_refused(tmp_path, task, matrix, said):
    with pytest.raises(CheckpointError) as caught:
        open_vectors(saved(tmp_path / "v.npy", matrix), [given(task)])
    assert said in str(caught.value)


def test_nan_in_a_matrix_is_an_error(tmp_path, task, rows):
    rows[3, 1] = np.nan
    vectors = open_vectors(saved(tmp_path / "v.npy", rows), [given(task)])
    with pytest.raises(CheckpointError, match=r"1 of .* texts an embedding with NaN"):
        StsTasks([task]).records(EncoderUse(vectors))


GLOVE = "the 1 0 2\ncat 0.5 -1 0\nDog 3 3 3\ndog 4 4 4\n"


@pytest.mark.parametrize("name", ["glove.txt", "crawl.vec", "glove.txt.gz"])
def test_a_sentence_is_the_mean_of_its_words(tmp_path, name):
    text = ("4 3\n" if name == "crawl.vec" else "") + GLOVE
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    with pytest.warns(UserWarning, match="1 of 4 sentences have no word"):
        found = open_vectors(str(path), []).encode(
            ["The cat runs", "cat cat Dog", "dog", "runs"], precision="fp32", show_progress=False
        )
    expected = [[0.75, -0.5, 1], [4 / 3, 1 / 3, 1], [4, 4, 4], [0, 0, 0]]
    assert found == pytest.approx(np.array(expected), abs=1e-6)
