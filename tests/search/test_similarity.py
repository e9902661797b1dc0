"""The similarity that an encoder states decides what is near, as in sentence-transformers."""

import json

import numpy as np
import pytest
import torch
from helpers.command_line import refused, worked
from helpers.dummy_encoder import DummyEncoder
from helpers.serving import batcher_of, serving
from helpers.tables import write_retrieval
from helpers.tiny_models import SENTENCES, WORDS

import contrasent
from contrasent.encode.shards import FinishedShards
from contrasent.errors import CheckpointError, ConfigError
from contrasent.metrics import METRICS
from contrasent.model.encoder import SentenceEncoder
from contrasent.search.index import Index
from contrasent.search.nearest import KINDS, MILVUS

SIMILARITIES = "cosine", "dot", "euclidean", "manhattan"
TEXTS = [f"text number {n}" for n in range(300)]
QUERIES = [f"query {n}" for n in range(30)]
SOME = [*SENTENCES, *(f"{first} {second}" for first in WORDS[:9] for second in WORDS[20:24])]


def dummy(similarity):
    """Vectors whose lengths differ up to four times and more."""
    encoder = DummyEncoder(16)
    lengths = np.geomspace(0.5, 2, len(TEXTS) + len(QUERIES))
    encoder.vectors = {
        text: encoder.vector(text) * length
        for text, length in zip([*TEXTS, *QUERIES], lengths, strict=True)
    }
    encoder.similarity_fn_name = similarity
    return encoder


def by_hand(name, query, row):
    a, b = query.astype(float), row.astype(float)
    return {
        "cosine": lambda: a @ b / np.sqrt((a @ a) * (b @ b)),
        "dot": lambda: a @ b,
        "euclidean": lambda: -np.sqrt(((a - b) ** 2).sum()),
        "manhattan": lambda: -np.abs(a - b).sum(),
    }[name]()


@pytest.mark.parametrize("kind", [name for name, row in KINDS.items() if row.least <= 200])
@pytest.mark.parametrize("name", SIMILARITIES)
def test_an_index_ranks_by_it(name, kind, folder):
    encoder = dummy(name)
    if kind in MILVUS:
        pytest.importorskip("pymilvus")
    if name == "manhattan" and kind != "flat":
        with pytest.raises(ConfigError, match=f"{kind} cannot rank by manhattan"):
            Index.build(encoder, TEXTS, folder, kind=kind)
        assert encoder.embedded == [] and not folder.exists()
        return
    index = Index.build(encoder, TEXTS[:200], folder, kind=kind)
    index.add(encoder, TEXTS[200:])
    index.remove(["7"])
    assert index.manifest.similarity == name
    vectors = np.stack([encoder.vectors[query] for query in QUERIES])
    missed = 0
    for hits in index.search(encoder, QUERIES, 5), index.search_vectors(vectors, 5):
        for query, of_query in zip(vectors, hits, strict=True):
            scored = [(by_hand(name, query, encoder.vectors[text]), text) for text in TEXTS]
            del scored[7]
            best = sorted(scored, reverse=True)[:5]
            if KINDS[kind].make or "hnsw" in kind:
                texts = {text for _, text in best}
                missed += len(texts - {hit.text for hit in of_query})
                continue
            assert [hit.text for hit in of_query] == [text for _, text in best]
            assert [h.score for h in of_query] == pytest.approx([s for s, _ in best], rel=1e-5)
    assert missed <= (0.08 if kind == "binary" else 0.05) * 10 * len(QUERIES)
    limit = index.search(encoder, QUERIES[:1], 5)[0][2].score
    [kept] = index.search(encoder, QUERIES[:1], 5, threshold=limit)
    assert len(kept) == 3
    if kind == "flat":
        index.optimize()
        assert index.search(encoder, QUERIES[:1], 5, threshold=limit)[0] == kept


@pytest.mark.parametrize("vectors", ["float16", "int8", "binary"])
@pytest.mark.parametrize("name", SIMILARITIES)
def test_small_vectors_are_ranked_by_it(name, vectors, folder):
    """After every kind of change, in every mode, as by a plain loop over what is stored."""
    encoder = dummy(name)
    if name == "manhattan" and vectors == "binary":
        with pytest.raises(ConfigError, match="binary vectors cannot rank by manhattan"):
            Index.build(encoder, TEXTS, folder, vectors=vectors)
        return
    index = Index.build(encoder, TEXTS[:200], folder, vectors=vectors)
    index.add(encoder, TEXTS[200:])
    index.remove(["7"])
    kept = index.manifest.vectors
    assert kept.form == vectors.replace("binary", "int8") and kept.recall > 0.9
    assert vectors != "binary" or index.manifest.ann.recall == kept.recall
    blocks = [*index.blocks()]
    texts = [text for block in blocks for text in block.texts]
    stored = dict(zip(texts, np.concatenate([block.vectors for block in blocks]), strict=True))
    own, missed = "dot" if name == "cosine" else name, 0
    for query in QUERIES:
        vector = encoder.vectors[query]
        if name == "cosine":
            vector = vector / np.linalg.norm(vector)
        scored = {text: by_hand(own, vector, row) for text, row in stored.items()}
        best = sorted(scored, key=scored.get, reverse=True)
        dense = index.search(encoder, [query], 5)[0]
        hybrid = index.search(encoder, [query], 5, mode="hybrid", weight=0.5)[0]
        both = [(h.dense or h.score, h.text) for h in (*dense, *hybrid)]
        assert [score for score, _ in both] == pytest.approx(
            [scored[text] for _, text in both], rel=1e-6, abs=1e-6
        )
        some = index.search(encoder, [query], 5, filter="id like '1%'")[0]
        missed += len({*best[:5]} - {hit.text for hit in dense})
        missed += len({*[t for t in best if t[12] == "1"][:5]} - {hit.text for hit in some})
        above = index.search(encoder, [query], 5, threshold=scored[best[2]] - 1e-6)[0]
        assert {hit.text for hit in above} == {*best[:3]} & {hit.text for hit in dense}
    assert missed <= (25 if vectors == "binary" else 0)
    before = index.search(encoder, QUERIES, 5)
    index.optimize("flat")
    after = np.concatenate([block.vectors for block in Index.open(folder).blocks()])
    assert (after == np.stack([*stored.values()])).all()
    assert vectors == "binary" or Index.open(folder).search(encoder, QUERIES, 5) == before


@pytest.mark.parametrize("name", SIMILARITIES)
def test_exact_search_orders_near_ties_as_float64_does(name, folder):
    """Rows that differ in the last bits of float32, far from the origin."""
    rows = 30 + np.random.default_rng(0).standard_normal((600, 16)).astype(np.float32) * 1e-4
    encoder = DummyEncoder(16, vectors=dict(zip([f"t{n}" for n in range(600)], rows, strict=True)))
    encoder.vectors["q"] = rows[0] + 1e-4
    encoder.similarity_fn_name = name
    index = Index.build(encoder, [f"t{n}" for n in range(600)], folder)
    stored = np.concatenate([block.vectors for block in index.blocks()])
    query = encoder.vectors["q"]
    if name == "cosine":
        query = query / np.linalg.norm(query)
    own = "dot" if name == "cosine" else name
    scores = [by_hand(own, query, row) for row in stored]
    order = np.argsort(-np.array(scores), kind="stable")[:10]
    assert [hit.id for hit in index.search(encoder, ["q"], 10)[0]] == [str(n) for n in order]


def test_shards_of_another_length_are_refused(tmp_path):
    encoder = dummy("dot")
    shards = FinishedShards(tmp_path, {"encoder": encoder.fingerprint(), "normalize": True})
    with pytest.raises(CheckpointError, match="by dot; build the index from the texts"):
        next(shards.blocks(encoder))


@pytest.fixture(scope="module")
def stated(tiny_bert, tmp_path_factory):
    """A folder for each similarity, of an encoder whose vectors have different lengths."""
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    norm = encoder.backbone.model.encoder.layer[-1].output.LayerNorm
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        norm.weight.mul_(torch.rand(norm.weight.shape, generator=draw) * 3)
        norm.bias.normal_(generator=draw)
    home = tmp_path_factory.mktemp("stated")
    encoder.prompts = {"query": "look for: ", "document": "a text: "}
    for name in SIMILARITIES:
        encoder.similarity_fn_name = name
        encoder.save(home / name)
    return home


@pytest.fixture(params=SIMILARITIES)
def name(request):
    return request.param


@pytest.fixture
def theirs(stated, name):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(stated / name), device="cpu")


def test_evaluation_ranks_and_correlates_as_sentence_transformers(stated, name, theirs, tmp_path):
    queries, texts = SOME[:20], SOME[20:]
    scores = theirs.similarity(theirs.encode_query(queries), theirs.encode_document(texts))
    best = scores.argmax(1).tolist()
    task, sides = tmp_path / "task", (("d", texts), ("q", queries))
    corpus, asked = ({f"{it}{n}": text for n, text in enumerate(side)} for it, side in sides)
    write_retrieval(task, corpus, asked, [(f"q{n}", f"d{row}", 1) for n, row in enumerate(best)])
    pairs = tmp_path / "pairs.tsv"
    gold = np.random.default_rng(0).integers(0, 6, 20)
    rated = list(zip(queries, texts, gold.tolist(), strict=False))
    pairs.write_text("\n".join("\t".join(map(str, row)) for row in rated))
    records = contrasent.evaluate(stated / name, tasks=[str(task), str(pairs)])
    by_metric = {it.metric: it for it in records if it.aggregation in ("all", "mean")}
    assert by_metric["recall@1"].value == 1
    assert {it.similarity for it in records} == {None if name == "cosine" else name}
    sides = ([row[side] for row in rated] for side in (0, 1))
    alike = theirs.similarity_pairwise(*map(theirs.encode, sides))
    expected = METRICS["spearman"](alike.numpy(), gold)
    assert by_metric["spearman"].value == pytest.approx(expected, abs=1e-6)


def test_commands_rank_by_it(stated, name, theirs, tmp_path):
    folder, corpus = stated / name, tmp_path / "corpus.txt"
    corpus.write_text("\n".join(SOME))
    told = worked("similarity", folder, SOME[0], SOME[1], "--json").out
    expected = theirs.similarity(*map(theirs.encode, SOME[:2])).item()
    assert json.loads(told)[name] == pytest.approx(expected, rel=1e-4)
    worked("index", "build", folder, corpus, tmp_path / "index", "--precision", "fp32")
    told = worked("search", tmp_path / "index", "dog runs", "--json", "--top-k", 3).out
    scores = theirs.similarity(theirs.encode_query(["dog runs"]), theirs.encode_document(SOME))[0]
    best = scores.topk(3)
    hits = [json.loads(line) for line in told.splitlines()]
    assert [hit["text"] for hit in hits] == [SOME[row] for row in best.indices]
    assert [hit["score"] for hit in hits] == pytest.approx(best.values.tolist(), rel=1e-4)
    for words in (["similarity", folder, corpus, "a dog"], ["search", tmp_path / "index", corpus]):
        assert f"'{corpus}' is taken as a text" in worked(*words).err
    gone = worked("index", "remove", tmp_path / "index", corpus, "--missing-ok")
    assert "is taken" not in gone.err
    assert "'' is taken as a text" in worked("similarity", folder, "", "a" * 999).err
    asked = worked if name == "dot" else refused  # beyond the best of all but the dot product
    asked("search", tmp_path / "index", "dog", "--threshold", 3)
    told = worked("neighbours", folder, "--corpus", corpus, "--query", "dog runs", "--json", "-")
    nearest = json.loads(told.out)["queries"][0]["nearest"]
    assert [it["text"] for it in nearest[:3]] == [SOME[row] for row in best.indices]


@pytest.mark.parametrize("name", [it for it in SIMILARITIES if it != "dot"], indirect=True)
def test_mined_negatives_are_those_of_sentence_transformers(stated, name, theirs):
    """It scales embeddings to length 1 whatever is stated: its dot products are cosines."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    positives = list(dict.fromkeys(SOME[20:]))
    anchors = list(dict.fromkeys(f"{text} today" for text in SOME))
    pairs = list(zip(anchors, positives, strict=False))
    rows = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [p for _, p in pairs]})
    if name != "cosine":
        theirs.similarity_fn_name = name
        encode = theirs.encode
        theirs.encode = lambda *a, **b: encode(*a, **{**b, "normalize_embeddings": False})
    mined = mine_hard_negatives(
        rows, theirs, num_negatives=2, relative_margin=0.0, range_max=len(positives) - 1,
        output_format="n-tuple", verbose=False, use_faiss=False,
    )  # fmt: skip
    expected = [tuple(row.values()) for row in mined]
    assert expected
    ours = contrasent.mine(stated / name, pairs, negatives=2, margin=0.0, precision="fp32")
    assert ours.examples == expected


def test_a_server_ranks_by_it(stated, name, theirs, tmp_path):
    encoder = SentenceEncoder.load(stated / name, device="cpu")
    index = Index.build(encoder, SOME, tmp_path / "index", precision="fp32")

    with serving(batcher_of(encoder), index) as server:
        hits = server.call("/search", {"queries": ["dog runs"], "top_k": 3}).json["results"][0]
        expected = index.search(encoder, ["dog runs"], 3)[0]
        assert [(hit["text"], hit["score"]) for hit in hits] == [
            (hit.text, pytest.approx(hit.score, rel=1e-4)) for hit in expected
        ]
        server.call("/index", {"texts": ["dog runs"], "ids": ["new"]})
        stored = [row for block in index.blocks() for row in block.vectors][-1]
        vector = theirs.encode_document(["dog runs"], normalize_embeddings=name == "cosine")[0]
        assert stored == pytest.approx(vector, abs=1e-4)
        rows = theirs.encode(SOME[:4])
        asked = {"inputs": {"source_sentence": SOME[0], "sentences": SOME[1:4]}}
        expected = theirs.similarity(rows[:1], rows[1:])[0].tolist()
        assert server.call("/similarity", asked).json == pytest.approx(expected, rel=1e-3)
        asked = {"first": SOME[:1], "second": SOME[1:4]}
        assert server.call("/matrix", asked).json[0] == pytest.approx(expected, rel=1e-3)


def test_a_threshold_is_on_its_scale(stated, name, theirs, tmp_path):
    pairs = list(zip(SOME[:20], SOME[20:], strict=False))
    sides = (map(theirs.encode_document, pair) for pair in pairs)
    scores = [theirs.similarity_pairwise(*both).item() for both in sides]
    middle = float(np.median(scores))
    file = tmp_path / "pairs.tsv"
    rows = (f"{a}\t{b}\t{int(s > middle)}" for (a, b), s in zip(pairs, scores, strict=True))
    file.write_text("\n".join(rows))
    told = json.loads(worked("calibrate", stated / name, file).out)
    assert told["similarity"] == name and told["reached"]["f1"] == 1
    below, above = max(s for s in scores if s <= middle), min(s for s in scores if s > middle)
    assert told["threshold"] == pytest.approx((below + above) / 2, rel=1e-3)
