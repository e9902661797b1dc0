"""Searches by words and by both against loops over all texts, and the weight that is chosen."""

import json

import numpy as np
import pytest
from helpers.command_line import refused, worked
from helpers.dummy_encoder import DummyEncoder
from helpers.oracles import standardised
from helpers.tiny_models import WORDS

import contrasent
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.model.encoder import SentenceEncoder
from contrasent.search import storage, words
from contrasent.search.index import Index
from contrasent.search.words import WordIndex, WordsInfo

DRAW = np.random.default_rng(0)
TEXTS = [" ".join(f"w{n}" for n in DRAW.zipf(1.3, 9) % 60) + f" t{i}" for i in range(120)]
QUERIES = ["w1 w2 t7", "w3 w30 w31", "unknown", TEXTS[5]]


def by_loops(index, encoder, query, weight):
    """What is fused of each text: id, score, similarity, BM25."""
    blocks = list(index.blocks())
    ids, texts = ([it for b in blocks for it in getattr(b, of)] for of in ("ids", "texts"))
    rows, vector = np.concatenate([b.vectors for b in blocks]).astype(float), encoder.vector(query)
    if index.manifest.similarity == "cosine":
        vector = vector / np.linalg.norm(vector)
    order = {"euclidean": 2, "manhattan": 1}.get(index.manifest.similarity)
    dense = -np.linalg.norm(rows - vector, order, axis=1) if order else rows @ vector
    shared = WordIndex.of(texts).scores_of(query)
    both = (np.array(standardised(it.astype(float))) for it in (dense, shared))
    fused = sum(share * it for share, it in zip((1 - weight, weight), both, strict=True))
    return ids, fused, dense, shared


def changed(encoder, folder):
    """An index of three segments, some texts of which were removed."""
    index = Index.build(encoder, TEXTS[:90], folder)
    index.add(encoder, TEXTS[90:110])
    index.remove([3, 50, 95])
    index.add(encoder, TEXTS[110:])
    return index


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
def test_hybrid_hits_are_the_best_of_the_fusion_of_all_texts(similarity, weight, folder):
    encoder = DummyEncoder()
    encoder.similarity_fn_name = similarity
    index = changed(encoder, folder)
    for query, hits in zip(
        QUERIES, index.search(encoder, QUERIES, 7, mode="hybrid", weight=weight), strict=True
    ):
        ids, fused, dense, shared = by_loops(index, encoder, query, weight)
        order = np.argsort(-fused, kind="stable")[:7]
        assert [hit.score for hit in hits] == pytest.approx(fused[order], abs=1e-5)
        for hit in hits:
            row = ids.index(hit.id)
            assert hit.dense == pytest.approx(dense[row], abs=1e-5)
            assert hit.words == pytest.approx(shared[row], rel=1e-5)
            assert hit.dense_rank == 1 + (dense > dense[row] + 1e-9).sum()
            order = np.argsort(-shared, kind="stable").tolist()
            assert hit.words_rank == (1 + order.index(row) if shared[row] > 0 else None)


def test_words_find_what_shares_them_whatever_was_added_and_removed(encoder, folder):
    index = changed(encoder, folder)
    for query, hits in zip(QUERIES, index.search(None, QUERIES, 9, mode="words"), strict=True):
        ids, *_, shared = by_loops(index, encoder, query, 0)
        order = [n for n in np.argsort(-shared, kind="stable")[:9] if shared[n] > 0]
        assert [hit.id for hit in hits] == [ids[n] for n in order]
        assert [hit.score for hit in hits] == pytest.approx(shared[order], rel=1e-5)
    before = index.search(None, QUERIES, 9, mode="words")
    index.optimize()
    assert [
        [h.text for h in hits] for hits in Index.open(folder).search(None, QUERIES, 9, mode="words")
    ] == [[h.text for h in hits] for hits in before]


def test_reciprocal_ranks(encoder, folder):
    index = changed(encoder, folder)
    [hits] = index.search(encoder, QUERIES[:1], 5, mode="hybrid", fusion="ranks")
    _, _, dense, shared = by_loops(index, encoder, QUERIES[0], 0)
    known = [
        1 / (60 + 1 + (dense > a).sum()) + (b > 0) / (60 + 1 + (shared > b).sum())
        for a, b in zip(dense, shared, strict=True)
    ]
    assert hits[0].score == pytest.approx(max(known), rel=1e-3)
    ranks = hits[0].dense_rank, hits[0].words_rank
    assert hits[0].score == pytest.approx(sum(1 / (60 + it) for it in ranks))


def test_candidates_and_a_sample_of_rows_are_enough(encoder, folder, monkeypatch):
    index = changed(encoder, folder)
    whole = index.search(encoder, QUERIES, 3, mode="hybrid", weight=0.3)
    monkeypatch.setattr(storage, "_CANDIDATES", 1)
    monkeypatch.setattr(words, "_SAMPLE", 60)
    few = index.search(encoder, QUERIES, 3, mode="hybrid", weight=0.3)
    for all_, some in zip(whole, few, strict=True):
        assert some[0].id == all_[0].id
        assert some[0].score == pytest.approx(all_[0].score, rel=0.3)


def test_thresholds_and_patterns_hold_in_a_hybrid_search(encoder, folder):
    index = changed(encoder, folder)
    how = {"mode": "hybrid", "filter": "id like '1%'", "threshold": 0.0}
    [hits] = index.search(encoder, QUERIES[:1], 50, **how)
    assert hits and all(hit.id.startswith("1") and hit.dense >= 0 for hit in hits)
    [few] = index.search(encoder, QUERIES[:1], 2, **how)
    assert [hit.id for hit in few] == [hit.id for hit in hits[:2]]
    assert index.search(encoder, ["w1"], filter="id = 'none'", mode="hybrid") == [[]]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mode": "words", "threshold": 0.5}, "a threshold is one of similarity"),
        ({"mode": "dense", "weight": 0.5}, "a weight is one of hybrid searches"),
        ({"mode": "hybrid", "weight": 0.5, "fusion": "ranks"}, "a weight is one of hybrid"),
        ({"mode": "other"}, "mode cannot be 'other'"),
        ({"mode": "hybrid", "weight": 2}, "weight cannot be 2"),
    ],
)
def test_what_cannot_be_asked_is_refused(how, said, encoder, folder):
    index = Index.build(encoder, TEXTS, folder)
    with pytest.raises(ConfigError, match=said):
        index.search(encoder, ["w1"], **how)
    with pytest.raises(ConfigError, match="give the texts of the queries"):
        index.search_vectors(np.ones((1, encoder.width)), mode="hybrid")
    with pytest.raises(ConfigError, match=r"vectors have shape \(\)"):
        index.search_vectors(None)


def test_an_index_without_words_is_dense_until_it_is_tuned(encoder, folder):
    index = Index.build(encoder, TEXTS, folder, words=False)
    index.add(encoder, ["one more"])
    [hits] = index.search(encoder, [TEXTS[3]], 1)
    assert (hits[0].id, hits[0].words) == ("3", None)
    with pytest.raises(ConfigError, match="index tune"):
        index.search(encoder, ["w1"], mode="hybrid")
    contrasent.tune_index(folder, encoder, weight=0.3)
    index = Index.open(folder)
    assert index.search(None, ["t3 more"], mode="words")[0][0].id in ("3", "120")
    [hits] = index.search(encoder, [TEXTS[3]], 1)  # auto is hybrid now
    assert hits[0].words > 0 and index.manifest.words.weight == 0.3


def test_labelled_queries_choose(encoder, folder, tmp_path):
    """Rare words that a dummy's vectors do not know find their text."""
    index = Index.build(encoder, TEXTS, folder)
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t1\t1\nq2\t2\t1\n")
    with pytest.raises(DataError, match=r"qrels\.tsv.*query"):  # ids of queries are no queries
        contrasent.tune_index(index, encoder, queries=str(tmp_path / "qrels.tsv"))
    assert index.search(encoder, ["t5"], 1)[0][0].words is None  # not measured, so dense
    pairs = [(f"t{n}", str(n)) for n in range(60)]
    chosen = contrasent.tune_index(index, encoder, queries=pairs)
    assert chosen.hybrid and chosen.weight >= 0.3 and chosen.queries == 60
    assert 0 < chosen.low <= chosen.gain <= chosen.high <= 1
    assert index.search(encoder, ["t5"], 1)[0][0].id == "5"
    known = {TEXTS[n]: str(n) for n in range(60)}  # which vectors find, so that words add nothing
    chosen = contrasent.tune_index(index, encoder, queries=known.items())
    assert not chosen.hybrid and chosen.gain <= 0
    kept = index.manifest.words
    assert contrasent.tune_index(index, encoder, queries=[("t1", 1), ("t2", 2)]).queries == 2
    index.set_words(kept)
    for wrong in ("x", None):
        with pytest.raises(DataError, match=f"1: \\('t1', {wrong!r}\\) is no query with the id of"):
            contrasent.tune_index(index, encoder, queries=[("t1", wrong)])
    for row in (None, "t1", ("t1", "1", "2"), (None, "1"), ("", "1")):
        with pytest.raises(DataError, match=r"1: .* is no query with the id of a text"):
            contrasent.tune_index(index, encoder, queries=[row])
    for few in ([], [("t1", "1")]):
        with pytest.raises(DataError, match=f"{len(few)} queries are too few"):
            contrasent.tune_index(index, encoder, queries=few)
    assert index.manifest.words == kept


@pytest.mark.filterwarnings("ignore:.* have no word:UserWarning")
def test_the_texts_choose(tiny_bert, tmp_path):
    """Halves of a text share a word that no other text has, which a random encoder does not see."""
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    filler = [" ".join(DRAW.choice(WORDS, 9)) for _ in range(160)]
    texts = [f"k{n} {filler[n]} k{n} {filler[n + 80]}" for n in range(80)]
    index = Index.build(encoder, texts, tmp_path / "index", precision="fp32")
    chosen = contrasent.tune_index(index)
    assert chosen == index.manifest.words == Index.open(index.folder).manifest.words
    assert (chosen.chosen_by, chosen.hybrid) == ("text", True) and chosen.queries >= 80
    assert index.search(encoder, ["k7"], 1)[0][0].id == "7"
    few = Index.build(encoder, texts[:9], tmp_path / "few", precision="fp32")
    assert contrasent.tune_index(few, encoder) == WordsInfo()


def test_a_damaged_table_of_words_is_explained(encoder, folder):
    Index.build(encoder, TEXTS, folder)
    path = folder / "segments/000001.words"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"000001.words cannot be read"):
        Index.open(folder)
    Index.build(encoder, [*TEXTS, "another"], folder.with_name("other"))
    path.write_bytes((folder.with_name("other") / "segments/000001.words").read_bytes())
    with pytest.raises(CheckpointError, match="cannot be read"):
        Index.open(folder).search(None, ["w1"], mode="words")


def test_commands(tiny_bert, tmp_path):
    corpus, folder = tmp_path / "corpus.txt", tmp_path / "index"
    corpus.write_text("\n".join(TEXTS))
    said = worked("index", "build", tiny_bert, corpus, folder, "--weight", 0.2).err
    assert "searches are hybrid, weight 0.2" in said
    hits = worked("search", folder, "t7", "--json", "--top-k", 2).out.splitlines()
    assert json.loads(hits[0])["id"] == "7" and json.loads(hits[0])["words_rank"] == 1
    [hit] = worked("search", folder, "t7", "--mode", "words", "--json").out.splitlines()
    assert json.loads(hit)["id"] == "7"
    queries = tmp_path / "queries.tsv"
    queries.write_text("query\tid\n" + "\n".join(f"t{n}\t{n}" for n in range(60)))
    assert "+" in worked("index", "tune", folder, "--queries", queries).err
    assert json.loads(worked("index", "info", folder).out)["words"]["chosen_by"] == "queries"
    worked("index", "build", tiny_bert, corpus, folder, "--no-words", "--overwrite")
    refused("search", folder, "t7", "--mode", "words")
