"""Routers: queries by one encoder, documents by another, as in sentence-transformers."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from helpers.command_line import refused, worked
from helpers.serving import batcher_of, serving
from helpers.tiny_glove import vectors_of, write_vectors
from helpers.tiny_models import SENTENCES, save_tiny, static_encoder
from transformers import AutoTokenizer

import contrasent
from contrasent import Router, SentenceEncoder, load_encoder
from contrasent.errors import CheckpointError, ConfigError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.retrieval import embed_sides
from contrasent.search.index import Index

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

pytestmark = pytest.mark.filterwarnings("ignore:.*(were cut at|does not say how):UserWarning")
BAR = 2e-6
PROMPTS = {"query": "a dog reads : ", "document": "the "}
CALLS = ("encode", "encode_query", "encode_document")


def dense(width, to):
    return modules.Dense(width, to, activation_function=torch.nn.Identity())


@pytest.fixture(scope="module")
def table(tiny_bert):
    torch.manual_seed(2)
    rows = torch.randn(len(AutoTokenizer.from_pretrained(tiny_bert)), 16).numpy()
    return modules.StaticEmbedding(AutoTokenizer.from_pretrained(tiny_bert), rows)


def student(folder, width=24):
    """A tiny BERT of 16 dimensions with a Dense to the teacher's width."""
    torch.manual_seed(3)
    start = modules.Transformer(str(save_tiny(folder, seed=4)))
    return [start, modules.Pooling(16, "mean"), dense(16, width), modules.Normalize()]


def teacher(folder):
    sizes = {"hidden_size": 24, "intermediate_size": 32}
    start = modules.Transformer(str(save_tiny(folder, "roberta", seed=5, **sizes)))
    start.document_length = 6
    return [start, modules.Pooling(24, "cls"), modules.Normalize()]


def with_a_shared_end(folder, _):
    query, document = student(folder / "q"), teacher(folder / "d")
    router = modules.Router({"document": document[:-1], "query": query[:-1]})
    return [router, modules.Normalize()]


def after_a_shared_start(folder, _):
    torch.manual_seed(6)
    start = modules.Transformer(str(save_tiny(folder / "s")))
    parts = {"query": [dense(16, 8)], "document": [dense(16, 8), modules.Normalize()]}
    return [start, modules.Pooling(16, "mean"), modules.Router(parts, "query")]


def by_a_table(folder, table):
    document = [modules.Transformer(str(save_tiny(folder / "d"))), modules.Pooling(16, "mean")]
    return [modules.Router.for_query_document([table, modules.Normalize()], document)]


def usual(folder, _):
    both = student(folder / "q"), teacher(folder / "d")
    return [modules.Router.for_query_document(*both)]


def alike(ours, theirs, **options):
    for call in CALLS:
        mine = getattr(ours, call)(SENTENCES, precision="fp32", on_overflow="truncate", **options)
        other = getattr(theirs, call)(SENTENCES, **options)
        assert mine.shape == other.shape and np.abs(mine - other).max() <= BAR, (call, options)


@pytest.mark.parametrize("kind", ["Router", "Asym"])
@pytest.mark.parametrize("layout", [usual, with_a_shared_end, after_a_shared_start, by_a_table])
def test_folders_of_sentence_transformers(layout, kind, table, tmp_path):
    parts = {"modules": layout(tmp_path, table), "prompts": PROMPTS}
    model = st.SentenceTransformer(**parts, device="cpu", default_prompt_name="document")
    model.save(str(tmp_path / "theirs"), create_model_card=False)
    if kind == "Asym":  # as it was called, and where its settings were
        rows = tmp_path / "theirs/modules.json"
        rows.write_text(rows.read_text().replace("base.modules.router.Router", "models.Asym"))
        place = next((tmp_path / "theirs").rglob("router_config.json"))
        place.rename(place.with_name("config.json"))
    ours = load_encoder(tmp_path / "theirs", device="cpu")
    alike(ours, model)
    alike(ours, model, truncate_dim=5, normalize_embeddings=True)
    ours.save(tmp_path / "ours")
    again = load_encoder(tmp_path / "ours", device="cpu")
    alike(again, st.SentenceTransformer(str(tmp_path / "ours"), device="cpu"))
    alike(again, model)
    if layout is not by_a_table:  # whose length sentence-transformers cannot set
        ours.max_seq_length = model.max_seq_length = 5
        alike(ours, model)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folders of a student and a teacher."""
    folder = tmp_path_factory.mktemp("pair")
    for name, make in (("student", student), ("teacher", teacher)):
        prompts = {"query": f"{name} : ", "document": "the "}
        model = st.SentenceTransformer(modules=make(folder / f"{name}-start"), prompts=prompts)
        model.save(str(folder / name), create_model_card=False)
    return folder / "student", folder / "teacher"


@pytest.fixture(scope="module")
def folder(pair, tmp_path_factory):
    path = tmp_path_factory.mktemp("router") / "router"
    worked("export", pair[1], path, "--query", pair[0])
    return path


def test_each_role_has_the_vectors_of_its_encoder(pair, folder):
    queries, documents = (SentenceEncoder(it, device="cpu") for it in pair)
    full = {"precision": "fp32"}
    expected = queries.encode_query(SENTENCES, **full), documents.encode_document(SENTENCES, **full)
    for router in (Router(*pair), load_encoder(folder, device="cpu")):
        alike(router, st.SentenceTransformer(str(folder), device="cpu"))
        found = router.encode_query(SENTENCES, **full), router.encode_document(SENTENCES, **full)
        np.testing.assert_allclose(found, expected, atol=BAR)
        assert router.prompts == {"query": "student : ", "document": "the "}
        rows = embed_sides(SENTENCES[:2], SENTENCES, EncoderUse(router))
        np.testing.assert_allclose(rows[1], expected[1], atol=BAR)
        np.testing.assert_allclose(rows[0], expected[0][:2], atol=BAR)


def test_a_table_keeps_leaving_out_unknown_pieces(tiny_encoder, tmp_path):
    table = static_encoder(tiny_encoder, 8)
    table.unknown = tiny_encoder.tokenizer.vocabulary_map["[UNK]"]
    table.save(tmp_path / "table")
    texts = ["dog zzz runs zzz", "the zzz dog"]
    for saved in (load_encoder, st.SentenceTransformer):
        rows = saved(str(tmp_path / "table")).encode(texts)
        np.testing.assert_allclose(rows, table.encode(texts), atol=BAR)
    table.normalize = False
    with pytest.raises(ConfigError, match="leaves words out of means: save it with normalize"):
        table.save(tmp_path / "other")


def test_the_fingerprint_is_of_both(pair, folder, tmp_path):
    prints = {load_encoder(folder).fingerprint(), Router(pair[0], pair[0]).fingerprint()}
    for role in ("query", "document"):
        other = tmp_path / role
        shutil.copytree(folder, other)
        limits = other / role / "sentence_bert_config.json"
        limits.write_text(json.dumps({**json.loads(limits.read_text()), "max_seq_length": 9}))
        prints.add(load_encoder(other).fingerprint())
    assert len(prints) == 4


def test_an_index_and_files_hold_documents_and_queries(pair, folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES) + "\n")
    worked("data", "check", text, "--encoder", folder)
    worked("index", "build", folder, text, tmp_path / "index")
    index = Index.open(tmp_path / "index")
    queries, documents = (SentenceEncoder(it, device="cpu") for it in pair)
    cosines = queries.encode_query(SENTENCES) @ documents.encode_document(SENTENCES).T
    found = worked("search", tmp_path / "index", SENTENCES[0], "--top-k", 3, "--json").out
    hits = [json.loads(line) for line in found.splitlines()]
    order = np.argsort(-cosines[0])[:3]
    assert [SENTENCES[n] for n in order] == [hit["text"] for hit in hits]
    np.testing.assert_allclose([hit["score"] for hit in hits], cosines[0, order], atol=BAR)
    assert index.encoder(device="cpu").fingerprint() == load_encoder(folder).fingerprint()
    for role, encode in (("query", queries.encode_query), ("document", documents.encode_document)):
        said = worked("encode", folder, text, tmp_path / f"{role}.npy", "--role", role).err
        rows = np.load(tmp_path / f"{role}.npy")
        np.testing.assert_allclose(rows, encode(SENTENCES), atol=BAR)
        assert ("cut" in said) == (role == "document")
        shards = tmp_path / f"{role}-shards"
        worked("encode", folder, text, shards, "--role", role, "--shards", "parquet")
    worked("index", "build", folder, tmp_path / "document-shards", tmp_path / "second")
    again = Index.open(tmp_path / "second").search(load_encoder(folder), SENTENCES[:1], 3)
    assert [hit.text for hit in again[0]] == [hit["text"] for hit in hits]
    with pytest.raises(AssertionError, match="was written by another encoder, with another prompt"):
        worked("index", "build", folder, tmp_path / "query-shards", tmp_path / "third")


def test_a_server_takes_both_at_once(folder):
    router = load_encoder(folder, device="cpu")
    asked = [(text, role) for text in SENTENCES for role in ("query", "document", None)]
    with serving(batcher_of(router)) as server, ThreadPoolExecutor(8) as pool:
        bodies = [{"inputs": [text], "input_type": role} for text, role in asked]
        rows = [answer.json[0] for answer in pool.map(partial(server.call, "/embed"), bodies)]
    calls = {"query": router.encode_query, "document": router.encode_document, None: router.encode}
    expected = [calls[role](text, precision="fp32") for text, role in asked]
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_what_has_no_meaning_for_a_router_is_refused(pair, folder, tiny_bert, tmp_path):
    with pytest.raises(ConfigError, match="a Router of 16 and 24 dimensions compares nothing"):
        Router(tiny_bert, pair[1])
    write_vectors(tmp_path / "words.txt", vectors_of(["dog"], 24))
    with pytest.raises(ConfigError, match="is no model that a Router's folder can hold"):
        Router(tmp_path / "words.txt", pair[1]).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    said = "holds a static table or a Router, and no transformer alone"
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    with pytest.raises(CheckpointError, match=said):
        contrasent.fit(folder, data=tmp_path / "text.txt", output=tmp_path / "whitened")
    assert said in refused("export", folder, tmp_path / "onnx", "--format", "onnx-int8")
    with pytest.raises(CheckpointError, match=said):
        contrasent.train(encoder=folder, data=SENTENCES, output=tmp_path / "run")
    assert "has no pooler cls, only router" in refused(
        "similarity", folder, "a", "b", "--pooler", "cls"
    )
    path = folder / "router_config.json"
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    stated = json.loads(path.read_text())
    stated["parameters"]["route_mappings"] = {"('query', 'image')": "query"}
    (other / path.name).write_text(json.dumps(stated))
    with pytest.raises(CheckpointError, match="route_mappings may change what a text gives"):
        load_encoder(other)
