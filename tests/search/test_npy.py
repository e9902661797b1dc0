import numpy as np
import pytest

from contrasent.errors import CheckpointError
from contrasent.search.storage import IndexRows, NpyWriter, open_rows, write_segment


@pytest.mark.parametrize("rows", [0, 1, 5, 1003])
@pytest.mark.parametrize("width", [1, 384])
def test_numpy_reads_what_was_appended(tmp_path, rows, width):
    whole = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    path = tmp_path / "rows.npy"
    with NpyWriter(path, width) as writer:
        for start in range(0, rows, 100):
            writer.append(whole[start : start + 100])
    read = np.load(path)
    assert read.dtype == np.float32 and read.shape == (rows, width)
    assert (read == whole).all()


@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3), (6,)])
def test_rows_of_another_width_are_refused(tmp_path, shape):
    with (
        NpyWriter(tmp_path / "rows.npy", 6) as writer,
        pytest.raises(CheckpointError, match=r"expected \(n, 6\)"),
    ):
        writer.append(np.zeros(shape, np.float32))


def test_other_number_formats_are_converted(tmp_path):
    path = tmp_path / "rows.npy"
    with NpyWriter(path, 2) as writer:
        writer.append(np.array([[1, 2], [3, 4]], dtype=np.float64)[:, ::-1])
    assert open_rows(path, 2, 2, "").tolist() == [[2, 1], [4, 3]]


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((3, 2)), np.zeros((2, 3), np.float32), np.array([["a", "b"]] * 3)],
)
def test_another_matrix_is_refused(tmp_path, wrong):
    path = tmp_path / "rows.npy"
    np.save(path, wrong)
    with pytest.raises(CheckpointError, match=r"expected 3 rows of 2 float32 numbers; try again"):
        open_rows(path, 3, 2, "try again")


def test_a_pickle_is_never_loaded(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_rows(path, 1, 1, "")


def test_a_segment_has_a_vector_for_each_text(tmp_path):
    rows = IndexRows(np.zeros((1, 2), np.float32), ["0", "1"], ["a dog", "a cat"])
    with pytest.raises(CheckpointError, match="1 vectors for 2 texts"):
        write_segment(tmp_path, 1, [rows], 2)
    assert not list((tmp_path / "segments").iterdir())
