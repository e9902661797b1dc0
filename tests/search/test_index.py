import json
import shutil

import numpy as np
import pytest
from helpers.command_line import tree
from helpers.dummy_encoder import DummyEncoder

import contrasent
from contrasent import SentenceEncoder
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.search.index import Hit, Index

TEXTS = [f"text number {i}" for i in range(40)]


def test_build_add_move_open_gives_what_one_build_gives(encoder, folder, tmp_path):
    index = Index.build(encoder, TEXTS[:10], folder)
    index.add(encoder, TEXTS[10:11])
    index.add(encoder, iter(TEXTS[11:]))
    assert len(index) == 40
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    whole = Index.build(encoder, TEXTS, tmp_path / "whole")
    queries = ["a", "b", TEXTS[0], TEXTS[39]]
    assert Index.open(moved).search(encoder, queries, 40) == whole.search(encoder, queries, 40)


@pytest.mark.filterwarnings("ignore:.* have no word:UserWarning")
def test_an_encoder_is_given_or_named(tiny_bert, folder, tmp_path):
    given = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    given.save(saved := tmp_path / "saved")
    index = Index.build(saved, TEXTS[:9], folder)
    for encoder in (given, saved, str(saved)):
        index.add(encoder, ["one more"])
        assert index.search(encoder, ["a dog"]) == index.search(given, ["a dog"])
    index.add(None, ["the last"])  # by the one that the index names
    index.reembed(str(saved))
    assert contrasent.tune_index(index, saved, weight=0.5).weight == 0.5
    assert len(index) == 13
    uses = (
        lambda it: Index.build(it, TEXTS, tmp_path / "new"),
        lambda it: index.add(it, TEXTS),
        lambda it: index.search(it, TEXTS),
        index.reembed,
        lambda it: contrasent.tune_index(index, it),
        lambda it: contrasent.evaluate(it, text=TEXTS),
        lambda it: contrasent.mine(it, [("a", "b"), ("c", "d")]),
        lambda it: contrasent.Router(given, it),
        contrasent.load_encoder,
    )
    for use in uses:
        with pytest.raises(CheckpointError, match="'3' is not a local folder"):
            use(3)
    with pytest.raises(CheckpointError, match="'None' is not a local folder"):
        uses[0](None)
    assert len(index) == 13 and not (tmp_path / "new").exists()


def test_bytes_and_ranges_of_an_index_are_those_of_sentence_transformers(encoder, folder):
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    texts = [f"text {n}" for n in range(150)]
    index = Index.build(encoder, texts, folder, vectors="int8")
    [full] = Index.build(encoder, texts, folder.with_name("full")).blocks()
    rows = full.vectors
    stored, ranges = (np.load(folder / f"segments/{name}.npy") for name in ("000001", "ranges"))
    assert (ranges == [rows.min(axis=0), rows.max(axis=0)]).all()
    assert (stored == quantization.quantize_embeddings(rows, "uint8", ranges=ranges)).all()
    [block] = index.blocks()
    assert (np.abs(block.vectors - rows) <= np.ptp(ranges, axis=0) / 255 * 0.51).all()
    hits = quantization.semantic_search_faiss(
        rows[:5], stored, corpus_precision="uint8", ranges=ranges, rescore_multiplier=15
    )[0]
    ours = index.search_vectors(rows[:5], 10)
    assert [[it["corpus_id"] for it in of] for of in hits] == [
        [int(h.id) for h in of] for of in ours
    ]


def test_ids_are_kept_and_the_callers_lists_are_left_alone(encoder, folder):
    texts, ids = TEXTS[:4], ["d", "c", 7, "a"]
    index = Index.build(encoder, texts, folder, ids)
    assert (texts, ids) == (TEXTS[:4], ["d", "c", 7, "a"])
    assert index.search(encoder, [TEXTS[2]], 1)[0][0] == Hit("7", TEXTS[2], pytest.approx(1.0))
    index.add(encoder, TEXTS[4:7], ["e", "50%", "日_5"])
    assert index.search(encoder, [TEXTS[4]], 1)[0][0].id == "e"
    for like, found in (("_", "dc7ae"), ("%\\%", ["50%"]), ("日\\__", ["日_5"]), ("5\\%", [])):
        hits = index.search(encoder, ["q"], filter=f"id like '{like}'")[0]
        assert {hit.id for hit in hits} == {*found}


def test_texts_survive_and_queries_have_the_precision_of_the_index(encoder, folder):
    texts = ["zwei\nZeilen", "日本語 ✓", 'quote " tab \t end', "x\r\ny"]
    index = Index.build(encoder, texts, folder, precision="bf16")
    assert [hits[0].text for hits in index.search(encoder, texts, 1)] == texts
    index.add(encoder, ["more"])
    assert encoder.precisions == ["bf16"] * 3


@pytest.mark.parametrize(
    ("texts", "ids", "said"),
    [
        ([], None, "there is no text to index"),
        (["a", " "], None, "text 1 is no text: ' '; leave it out, with its id"),
        (["a", None], None, "text 1 is no text: None"),
        (["a", "b"], ["1"], "there are 1 ids, but 2 texts"),
        (["a", "b"], ["1", "1"], "id '1' of text 1 is empty, or another"),
        (["a", "b"], ["1", ""], "id '' of text 1 is empty"),
        (["a", "b"], ["1", float("nan")], "id '' of text 1 is empty"),
        (iter(["a", "b"]), ["1"], "there are 1 ids, but 2 texts"),
        (iter(["a"]), ["1", "2"], "there are 2 ids, but 1 texts"),
    ],
)
def test_texts_and_ids_that_do_not_fit_are_refused(encoder, folder, texts, ids, said):
    with pytest.raises(DataError) as caught:
        Index.build(encoder, texts, folder, ids)
    assert said in str(caught.value)
    assert list(folder.parent.iterdir()) == []


def test_wrong_additions_leave_the_index_as_it_was(encoder, folder):
    index = Index.build(encoder, TEXTS[:2], folder, ["x", "y"])
    before = tree(folder)
    for texts, ids, said in [
        (["new"], ["y"], "id 'y' is in the index already"),
        (["new"], None, "have ids of their own: give ids"),
        (["new", ""], ["1", "2"], "text 1 is no text"),
        ([], [], "there is no text to index"),
    ]:
        with pytest.raises(DataError, match=said):
            index.add(encoder, texts, ids)
    assert tree(folder) == before
    assert len(Index.open(folder)) == len(index) == 2


@pytest.mark.parametrize(
    ("vector", "said"),
    [([0, 0], "without a direction .* text 1"), ([np.nan, 1], "finite"), ([np.inf, 1], "finite")],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_vector_without_a_direction_is_refused(folder, vector, said):
    encoder = DummyEncoder(2, vectors={"bad": vector})
    with pytest.raises(CheckpointError, match=f"{said}: 'bad'"):
        Index.build(encoder, ["good", "bad"], folder)
    assert not folder.exists()


def test_an_index_is_replaced_only_when_asked_and_nothing_else_is(encoder, folder):
    Index.build(encoder, TEXTS, folder)
    with pytest.raises(ConfigError, match="exists already; pass --overwrite to replace it"):
        Index.build(encoder, TEXTS[:2], folder)
    assert len(Index.build(encoder, TEXTS[:2], folder, overwrite=True)) == 2
    other = folder.with_name("thesis")
    other.mkdir()
    other.joinpath("chapter.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="it is not an index, so it is left alone"):
        Index.build(encoder, TEXTS, other, overwrite=True)
    assert other.joinpath("chapter.txt").read_text() == "years of work"
    for foreign in ('{"format": "contrasent-parts-1"}', '{"format": 2}', "[]", "{"):
        other.joinpath("manifest.json").write_text(foreign)
        with pytest.raises(ConfigError, match="it is not an index, so it is left alone"):
            Index.build(encoder, TEXTS, other, overwrite=True)
    other.joinpath("manifest.json").write_text('{"format": "contrasent-index-0"}')
    assert len(Index.build(encoder, TEXTS, other, overwrite=True)) == 40


def changed(*keys):
    """Set what the manifest has under these keys but the last, which is the value."""

    def change(folder):
        path, (*outer, name, value) = folder / "manifest.json", keys
        read = target = json.loads(path.read_text())
        for key in outer:
            target = target[key]
        target[name] = value
        path.write_text(json.dumps(read))

    return change


def cut(name, size):
    def change(folder):
        path = folder / "segments" / name
        path.write_bytes(path.read_bytes()[:size])

    return change


def longer(folder):
    with (folder / "segments/000001.npy").open("ab") as file:
        file.write(b"\0" * 32)


def of_other_rows(folder):
    shutil.copy(folder / "segments/000002.arrow", folder / "segments/000001.arrow")


BROKEN = [
    (changed("format", "contrasent-index-9"), "format is 'contrasent-index-9'"),
    (changed("encoder", "width", "8"), "encoder.width is '8': Input should be a valid integer"),
    (changed("encoder", {}), "is damaged"),
    (changed("collection", "others"), "collection is 'others'"),
    (changed("segments", []), "segments is []"),
    (changed("segments", 0, "rows", 39), "expected 39 rows of 8 float32"),
    (changed("encoder", "width", 9), "expected 40 rows of 9 float32"),
    (changed("segments", 0, "name", "000009"), "000009.npy cannot be read"),
    *((cut("000001.npy", size), "000001.npy cannot be read") for size in (300, 20)),
    *((cut("000001.arrow", size), "000001.arrow cannot be read") for size in (300, 20)),
    (longer, "000001.npy cannot be read"),
    (of_other_rows, "000001.arrow cannot be read"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_index_is_explained(encoder, folder, change, said):
    index = Index.build(encoder, TEXTS, folder)
    assert isinstance(index.snapshot.vectors[0], np.memmap)
    index.add(encoder, ["more"])
    change(folder)
    with pytest.raises(CheckpointError) as caught:
        Index.open(folder)
    assert said in str(caught.value)


def test_an_index_opened_before_an_addition_loses_nothing_when_it_adds(encoder, folder):
    Index.build(encoder, TEXTS[:2], folder)
    first, second = Index.open(folder), Index.open(folder)
    first.add(encoder, ["from the first"])
    second.add(encoder, ["from the second"])
    texts = {hit.text for hit in Index.open(folder).search(encoder, ["q"], 10)[0]}
    assert texts == {*TEXTS[:2], "from the first", "from the second"}


@pytest.mark.parametrize("kind", ["flat", "milvus"])
def test_similar_texts_are_those_nearest_to_the_vector_of_one(encoder, folder, kind):
    if kind == "milvus":
        pytest.importorskip("milvus_lite")
    index = Index.build(encoder, ["x"], folder, ids=["9"], kind=kind)
    index.add(encoder, texts := TEXTS[:30], ids=range(30, 60))
    index.remove([33, 40])
    rows = np.stack([*map(encoder.vector, ["x", *texts])]).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = dict(zip(["9", *map(str, range(30, 60))], rows @ rows[5], strict=True))
    for gone in ("33", "40", "34"):
        del cosines[gone]
    best = sorted(cosines, key=cosines.get, reverse=True)[:4]
    hits = index.similar(34, 4)
    assert [hit.id for hit in hits] == best
    assert [hit.score for hit in hits] == pytest.approx([cosines[id_] for id_ in best], abs=1e-6)
    with pytest.raises(DataError, match="'33'"):
        index.similar("33")
