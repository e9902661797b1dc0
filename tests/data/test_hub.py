import sys
from types import SimpleNamespace

import pytest

from contrasent.data.examples import open_examples
from contrasent.errors import DataError, MissingExtraError

ROWS = [
    {"anchor": " a ", "positive": "b", "n": 1},
    {"anchor": None, "positive": "b", "n": 2},
    {"anchor": "c", "positive": "d", "n": 3},
]


@pytest.fixture
def hub(hub):
    hub.rows = ROWS
    return hub


def test_a_data_set_is_streamed_at_one_revision(hub):
    examples = open_examples("org/name")
    hub.revision = "newer"
    for _ in range(2):
        assert list(examples) == [("a", "b"), ("c", "d")]
    assert (examples.views, examples.skipped, examples.source) == (2, 1, "org/name")
    assert examples.columns == "anchor as anchor, positive as positive (by name; ignored: n)"
    settings = {"split": "train", "revision": "abc", "streaming": True}
    assert hub.asked == [("org/name", None, settings)] * 3
    others = [open_examples("org/name"), open_examples("org/name", ["anchor"])]
    hashes = {it.sha256 for it in (examples, *others, open_examples("org/name@test"))}
    assert len(hashes) == 4 and open_examples("org/name").sha256 in hashes


@pytest.mark.usefixtures("hub")
def test_a_failure_while_loading_is_explained(monkeypatch):
    def fail(*_, **__):
        raise ValueError("Unknown split 'dev'.\nShould be one of ['train']")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", fail)
    with pytest.raises(DataError, match=r"data set 'org/name@dev': Unknown split 'dev'.; check"):
        open_examples("org/name@dev")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[datasets\]'"):
        open_examples("org/name")


@pytest.mark.acceptance
@pytest.mark.filterwarnings("default")
def test_the_real_library_gives_the_rows(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    api = SimpleNamespace(dataset_info=lambda _: SimpleNamespace(sha="abc"))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "rows").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows/train.parquet")
    load = datasets.load_dataset

    def local(_, config, **settings):
        settings.pop("revision")
        return load(str(tmp_path / "rows"), config, cache_dir=str(tmp_path / "cache"), **settings)

    monkeypatch.setattr(datasets, "load_dataset", local)
    assert list(open_examples("org/name")) == [("a", "b"), ("c", "d")]
