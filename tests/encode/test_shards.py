import json
import weakref

import numpy as np
import pytest
from helpers.dummy_encoder import DummyEncoder
from pyarrow import parquet

from contrasent.encode.shards import Shards, count_cut, open_sentences, write_embeddings
from contrasent.encode.vectors import open_rows
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.files import sha256_of
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import EncoderParts
from contrasent.options import Sharding


class Dies(DummyEncoder):
    """Fails after a number of sentences, as a kill would."""

    def __init__(self, after, **settings):
        super().__init__(**settings)
        self.left = after

    def vector(self, text):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return super().vector(text)


@pytest.mark.parametrize("shard_size", [1, 7, 50, 10_000])
def test_the_matrix_holds_the_vector_of_each_sentence_in_order(write, output, expected, shard_size):
    written = write(shard_size=shard_size)
    rows = np.load(output)
    assert rows.dtype == np.float32 and (rows == expected).all()
    assert (written.rows, written.width, written.resumed) == (50, 8, 0)
    assert [p.name for p in output.parent.iterdir()] == ["rows.npy"]


@pytest.mark.parametrize("shards", [None, "npy"])
@pytest.mark.parametrize("vectors", ["float16", "int8", "binary"])
def test_small_vectors_are_those_of_sentence_transformers(write, output, expected, vectors, shards):
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    write(vectors=vectors, shards=shards)
    paths = sorted(output.glob("0*")) if shards else [output]
    rows = np.concatenate([np.load(path) for path in paths])
    ranges = output / "ranges.npy" if shards else output.with_suffix(".ranges.npy")
    assert ranges.exists() == (vectors == "int8")
    if vectors == "float16":
        theirs = expected.astype(np.float16)
    else:
        kept = np.load(ranges) if ranges.exists() else None
        theirs = quantization.quantize_embeddings(expected, vectors, ranges=kept)
    assert rows.dtype == theirs.dtype and (rows == theirs).all()
    if shards:
        listed = json.loads((output / "manifest.json").read_text())
        assert [it["file"] for it in listed["shards"]] == [path.name for path in paths]
        assert {it["sha256"] for it in listed["shards"]} == {sha256_of(path) for path in paths}
    if ranges.exists() and not shards:
        output.unlink()
        ranges.write_bytes(b"somebody's")
        with pytest.raises(ConfigError, match=r"ranges\.npy exists already"):
            write(vectors=vectors)
        assert ranges.read_bytes() == b"somebody's" and not output.exists()
    with pytest.raises(ConfigError, match=f"only .npy holds {vectors} vectors"):
        write(name="rows.parquet", vectors=vectors)


@pytest.mark.parametrize("after", [0, 7, 49])
@pytest.mark.parametrize("kind", [".npy", ".parquet"])
def test_a_rerun_goes_on_after_the_last_whole_shard(write, output, texts, expected, after, kind):
    output = output.with_suffix(kind)
    with pytest.raises(KeyboardInterrupt):
        write(Dies(after, max_tokens=5), name=output.name)
    assert not output.exists()
    again = DummyEncoder(max_tokens=5)
    written = write(again, name=output.name, batch_tokens=64)
    assert written.resumed == after // 6 * 6
    assert len(again.embedded) == 50 - written.resumed
    assert written.truncated == sum(len(text.split()) > 5 for text in texts)
    if kind == ".npy":
        assert (np.load(output) == expected).all()
    else:
        table = parquet.read_table(output)
        assert table.column_names == ["text", "embedding"]
        assert str(table.schema.field("embedding").type).startswith("fixed_size_list<")
        assert table["text"].to_pylist() == [text.strip() for text in texts]
        assert (np.array(table["embedding"].to_pylist(), np.float32) == expected).all()
        assert table.schema.metadata[b"fingerprint"].decode() == again.fingerprint()
    assert [p.name for p in output.parent.iterdir()] == [output.name]


def test_what_a_prompted_tokenizer_cuts_is_counted(tiny_bert):
    bert = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    tokenizer = bert.tokenizer.with_prompt("the house of {text} is {mask} .")
    parts = EncoderParts(backbone=bert.backbone, tokenizer=tokenizer, pooler="mean", max_tokens=32)
    assert count_cut(SentenceEncoder(parts).eval(), ["." * 28, "a dog"], "") == 1


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ({"encoder": DummyEncoder(salt="x")}, "encoder"),
        ({"encoder": DummyEncoder(width=9)}, "encoder, width"),
        ({"shard_size": 7}, "shard_size"),
        ({"normalize": True}, "normalize"),
        ({"precision": "bf16"}, "precision"),  # also where auto means another
        ({"text": "something\nelse\n" * 25}, "input"),
        ({"manifest": "{"}, "manifest"),
        ({"manifest": "[1]"}, "manifest"),
    ],
)
def test_shards_of_something_else_are_refused(write, source, output, change, other):
    with pytest.raises(KeyboardInterrupt):
        write(Dies(20))
    encoder = change.pop("encoder", None)
    source.write_text(change.pop("text", source.read_text()))
    manifest = output.with_name(".rows.npy.parts") / "manifest.json"
    manifest.write_text(change.pop("manifest", manifest.read_text()))
    with pytest.raises(ConfigError, match=f"another {other}.* or remove the folder to start"):
        write(encoder, **change)
    assert not output.exists()
    write(encoder, overwrite=True, **change)
    assert len(np.load(output)) == 50


def test_an_output_is_replaced_only_when_asked(write, output, expected):
    output.write_text("precious")
    with pytest.raises(ConfigError, match="exists already; pass --overwrite to replace it"):
        write()
    assert output.read_text() == "precious"
    write(overwrite=True)
    assert (np.load(output) == expected).all()
    for name in ("rows.csv", "folder.npy"):
        (output.parent / "folder.npy").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=r"must be a file that ends in .npy or .parquet"):
            write(name=name, overwrite=True)


def test_numbers_that_are_not_finite_are_refused(write, output, texts):
    bad = DummyEncoder(2, vectors={texts[3].strip(): [np.nan, 1.0]})
    with pytest.raises(CheckpointError, match="dummy gives numbers that are not finite: 'senten"):
        write(bad)
    assert not output.exists()


def test_a_bad_row_is_found_before_anything_is_embedded(write, source, output):
    source.write_bytes(b"good\n" * 9 + b"caf\xe9\n")
    encoder = DummyEncoder()
    with pytest.raises(DataError, match=r"texts.txt:10: not UTF-8"):
        write(encoder)
    assert encoder.embedded == [] and list(output.parent.iterdir()) == []


def test_a_source_that_shrinks_is_noticed(source, output, monkeypatch):
    with open_sentences(str(source)) as sentences:
        monkeypatch.setattr(sentences, "count", lambda: 51)
        with pytest.raises(DataError, match="became shorter while it was read"):
            write_embeddings(DummyEncoder(), sentences, output, Sharding(shard_size=10))


def test_rows_of_a_shard_leave_memory_once_they_were_read(write, monkeypatch):
    shards = []
    monkeypatch.setattr(Shards, "finish", lambda self, *_: shards.append(self))
    monkeypatch.setattr("contrasent.encode.shards._CHUNK", 8)
    write(shard_size=50)
    blocks = shards[0].blocks()
    mapped = weakref.ref(next(blocks).base)
    assert mapped() is None and len(next(blocks)) == 8


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((3, 2)), np.zeros((2, 3), np.float32), np.array([{"a": 1}, 2, 3], dtype=object)],
)
def test_another_matrix_is_refused_and_a_pickle_never_loaded(tmp_path, wrong):
    path = tmp_path / "rows.npy"
    np.save(path, wrong, allow_pickle=True)
    with pytest.raises(CheckpointError, match=r"expected 3 rows of 2 float32 numbers; try again"):
        open_rows(path, 3, 2, "try again")
