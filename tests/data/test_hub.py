import sys

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


@pytest.mark.parametrize(
    ("source", "config", "split"),
    [
        ("org/name:en", "en", "train"),
        ("org/name@test", None, "test"),
        ("org/my-name.2:en-de_x@train[:10%]", "en-de_x", "train[:10%]"),
    ],
)
def test_config_and_split_are_part_of_the_source(hub, source, config, split):
    open_examples(source)
    assert hub.asked[0][0] == source.split(":")[0].split("@")[0]
    assert (hub.asked[0][1], hub.asked[0][2]["split"]) == (config, split)


def test_the_hash_follows_revision_split_and_columns(hub):
    hashes = {open_examples("org/name").sha256}
    assert open_examples("org/name").sha256 in hashes
    hashes |= {open_examples("org/name@test").sha256, open_examples("org/name", ["anchor"]).sha256}
    hub.revision = "newer"
    hashes.add(open_examples("org/name").sha256)
    assert len(hashes) == 4


def test_what_exists_as_a_file_is_a_file(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org/name.txt").write_text("a\n")
    assert list(open_examples("org/name.txt")) == [("a",)]
    for source in ("org/missing", "nowhere/missing.csv.gz"):
        with pytest.raises(DataError, match=f"there is no file {source}"):
            open_examples(source)
    assert not hub.asked


@pytest.mark.usefixtures("hub")
def test_a_failure_while_loading_is_explained(monkeypatch):
    def fail(*_, **__):
        raise ValueError("Unknown split 'dev'.\nShould be one of ['train']")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", fail)
    with pytest.raises(DataError) as caught:
        open_examples("org/name@dev")
    said = "cannot read the data set 'org/name@dev': Unknown split 'dev'.; check the name, config"
    assert str(caught.value).startswith(said)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[datasets\]'"):
        open_examples("org/name")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_real_library_gives_the_rows(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "rows").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows/train.parquet")
    load = datasets.load_dataset

    def local(_, config, **settings):
        settings.pop("revision")
        return load(str(tmp_path / "rows"), config, cache_dir=str(tmp_path / "cache"), **settings)

    monkeypatch.setattr(datasets, "load_dataset", local)
    monkeypatch.setattr("contrasent.data.readers._revision", lambda _: "abc")
    assert list(open_examples("org/name")) == [("a", "b"), ("c", "d")]
