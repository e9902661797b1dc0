"""Search and changes over HTTP against the index itself, and the page in a browser."""

import re
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.serving import batcher_of, serving
from helpers.tiny_models import SENTENCES, WORDS

import contrasent
from contrasent.errors import ConfigError
from contrasent.files import exclusive
from contrasent.search import storage
from contrasent.search.index import Index
from contrasent.serve import routes
from contrasent.serve.routes import EmbeddingRoutes

TEXTS = [*SENTENCES, *(f"{first} {second}" for first in WORDS[:12] for second in WORDS[20:22])]


@pytest.fixture
def index(encoder, tmp_path):
    return Index.build(encoder, TEXTS, tmp_path / "index", precision="fp32")


@pytest.fixture
def server(encoder, index):
    with serving(batcher_of(encoder), index) as running:
        yield running


def as_rows(results):
    return [
        [(hit["id"], hit["text"], pytest.approx(hit["score"], abs=1e-5)) for hit in hits]
        for hits in results
    ]


def of_index(results):
    return [[(hit.id, hit.text, hit.score) for hit in hits] for hits in results]


def test_hits_are_those_of_the_index(server, encoder, index):
    queries = ["a dog runs", "no fire"]
    assert f"contrasent_index_texts {len(TEXTS)}." in server.call("/metrics").body.decode()
    found = server.call("/search", {"queries": queries, "top_k": 4, "threshold": 0.1}).json
    assert of_index(index.search(encoder, queries, 4, 0.1)) == as_rows(found["results"])
    ids = server.call("/search", {"queries": ["fire"], "filter": "id like '_1'", "top_k": 3}).json
    assert of_index(index.search(encoder, ["fire"], 3, filter="id like '_1'")) == as_rows(
        ids["results"]
    )
    assert all(hit["id"].endswith("1") for hit in ids["results"][0])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_vectors_are_compared_as_the_encoder_has_them(similarity, normalize, tiny_bert, tmp_path):
    encoder = contrasent.SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    encoder.normalize, encoder.similarity_fn_name, encoder.truncate_dim = normalize, similarity, 8
    index = Index.build(encoder, TEXTS, tmp_path / "index", precision="fp32")
    with serving(batcher_of(encoder), index) as server:
        found = server.call("/search", {"queries": ["no fire"], "mode": "dense"}).json["results"]
        assert of_index(index.search(encoder, ["no fire"])) == as_rows(found)
        server.call("/index", {"texts": [TEXTS[2], "new"]})
        both = {"first": TEXTS[:4], "second": TEXTS[2:9]}
        scores = np.array(server.call("/matrix", both).json)
    opened = Index.open(index.folder)
    twice = np.concatenate([block.vectors for block in opened.blocks()])
    np.testing.assert_allclose(twice[len(TEXTS)], twice[2], atol=1e-5)
    rows = encoder.encode(TEXTS[:9], precision="fp32")
    expected = encoder.similarity(rows[:4], rows[2:])
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert similarity != "cosine" or scores.max() <= 1


def test_words_and_both_are_searched(server, encoder, index):
    for how in ({"mode": "words"}, {"mode": "hybrid", "weight": 0.5}, {"fusion": "ranks"}):
        found = server.call("/search", {"queries": ["a dog runs"], "top_k": 4, **how}).json
        hits = index.search(encoder, ["a dog runs"], 4, **how)
        assert of_index(hits) == as_rows(found["results"])
        assert [it.get("words") for it in found["results"][0]] == [
            hit.words and pytest.approx(hit.words, rel=1e-5) for hit in hits[0]
        ]
    assert server.call("/search", {"queries": "a", "mode": "dense", "weight": 0.5}).status == 422
    facts = server.call("/index").json
    assert facts["words"]["hybrid"] is False
    assert facts["example"] == TEXTS[0]


def test_what_is_acknowledged_is_on_disk(server, encoder, index):
    answer = server.call("/index", {"texts": ["two cats", "three cats"], "remove": ["0", "3"]}).json
    assert (answer["removed"], answer["texts"]) == (2, len(TEXTS))
    written = Index.open(index.folder)
    ids = {id_ for block in written.blocks() for id_ in block.ids}
    assert {*answer["added"]} <= ids
    assert not {"0", "3"} & ids
    [[hit]] = server.call("/search", {"queries": "two cats", "top_k": 1}).json["results"]
    assert hit["text"] == "two cats"
    assert server.call("/index").json["texts"] == len(TEXTS)
    # What another process writes is seen as well.
    written.add(encoder, ["people sing today"])
    hit = server.call("/search", {"queries": "people sing today", "top_k": 1}).json["results"][0][0]
    assert hit["text"] == "people sing today"
    again = {"texts": ["two cats"], "ids": ["1"], "remove": ["1"]}
    assert server.call("/index", again).json["added"] == ["1"]


def test_metadata_is_stored_returned_and_asked_for(server):
    added = {"texts": ["two cats", "three cats"], "metadata": [{"n": 2}, {"n": 3, "of": "cats"}]}
    assert server.call("/index", added).status == 200
    asked = {"queries": "cats", "filter": 'n > 2 and of = "cats"'}
    [[hit]] = server.call("/search", asked).json["results"]
    assert (hit["text"], hit["metadata"]) == ("three cats", {"n": 3, "of": "cats"})
    assert server.call("/index").json["columns"] == {"n": "int64", "of": "string"}
    for condition in ("n >", "m = 1", "n = 'x'"):
        assert server.call("/search", asked | {"filter": condition}).status == 422
    assert server.call("/index", added | {"metadata": [{}]}).status == 409
    with pytest.warns(UserWarning, match="column 'n' holds texts"):  # in the same process
        odd = server.call("/index", {"texts": ["four cats"], "metadata": [{"n": "none"}]})
    assert odd.json["retyped"] == {"n": "string"}


def test_the_map_has_clusters_and_duplicates_until_the_next_change(server, index, monkeypatch):
    server.call("/index", {"texts": ["The old man READS!"]})
    answer = server.call("/index/map").json
    assert answer["clusters"] == contrasent.cluster(index, clusters=3).facts()
    assert answer["duplicates"] == contrasent.duplicates(index).facts()
    [twice] = [it["texts"] for it in answer["duplicates"]["groups"] if it["name"] == TEXTS[1]]
    assert [TEXTS[1], "The old man READS!"] == [it["text"] for it in twice]
    ringed = sum(len(it["texts"]) for it in answer["duplicates"]["groups"])
    assert answer["svg"].count("<circle") == len(TEXTS) + 1
    assert answer["svg"].count("currentColor") == ringed
    monkeypatch.setattr(routes, "_MAPPED", 9)
    assert server.call("/index/map").json == answer
    server.call("/index", {"remove": ["0"]})
    groups = server.call("/index/map").json["clusters"]["groups"]
    texts = {text["id"]: text["text"] for group in groups for text in group["texts"]}
    known = {id_: text for it in index.blocks() for id_, text in zip(it.ids, it.texts, strict=True)}
    assert len(texts) == 9 and texts.items() <= known.items()
    server.call("/index", {"remove": [str(n) for n in range(2, len(TEXTS))]})
    assert server.call("/index/map").status == 422  # too few texts


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="there is no Chromium")
def test_the_page_shows_what_its_address_says(server, tmp_path):
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
    options += ("--dump-dom", "--virtual-time-budget=20000", f"--user-data-dir={tmp_path}")
    for address, shown in (
        ("", f"For example: {min(20, len(TEXTS))} texts for “{TEXTS[0]}”"),
        ("?q=dog+runs&mode=words", "a <mark>dog</mark> <mark>runs</mark> in the street"),
        ("?q=dog&mode=none", "<mark>dog</mark> eats"),
        ("#map", f'aria-label="Map of {len(TEXTS)} texts'),
        ("#compare", 'aria-controls="compare" aria-selected="true"'),
    ):
        command = (BROWSER, *options, f"{server.url}/{address}")
        run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        assert shown in run.stdout
        assert "CONSOLE" not in run.stderr


def test_a_change_that_fails_half_way_removes_nothing(server, index, monkeypatch):
    change = {"texts": ["two cats"], "remove": ["0"]}
    with monkeypatch.context() as patched:
        patched.setattr(storage, "write_segment", Mock(side_effect=OSError("no room")))
        assert server.call("/index", change).status == 500
    zero = np.zeros((1, index.manifest.encoder.width), np.float32)

    async def without_direction(*_, **__):
        return zero, []

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddingRoutes, "vectors", without_direction)
        assert server.call("/index", change).status == 422
    for opened in (index, Index.open(index.folder)):
        assert next(id_ for block in opened.blocks() for id_ in block.ids) == "0"


def test_only_a_change_that_another_process_holds_up_is_overload(server, index, monkeypatch):
    index.patience = 0
    change = {"texts": ["two cats"]}
    with exclusive(index.folder):
        answer = server.call("/index", change)
    assert (answer.status, answer.json["error_type"]) == (503, "Overloaded")
    refuses = Mock(side_effect=ConfigError("the shape is another"))
    monkeypatch.setattr(Index, "change", refuses)
    answer = server.call("/index", change)
    assert (answer.status, answer.json["error"]) == (422, "the shape is another")


def test_what_is_cut_is_told_of_an_index_too(server):
    long = " ".join(["dog"] * 500)
    for path, body in (("/search", {"queries": ["a", long]}), ("/index", {"texts": ["a", long]})):
        assert server.call(path, body).headers["x-truncated"] == "1"


def test_the_folders_that_are_deployed_have_room_for_a_lock():
    deployed = Path(__file__).parents[2] / "deploy"
    unit, image = ((deployed / name).read_text() for name in ("contrasent.service", "Dockerfile"))
    [index] = re.findall(r"--index (\S+)", unit)
    assert f"ReadWritePaths={Path(index).parent}\n" in unit
    [index] = re.findall(r"--index (\S+)", image)
    assert f":{Path(index).parent} " in image


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_index_gone_or_of_another_encoder_is_not_served(server, tiny_encoder, index, is_gone):
    assert server.call("/search", {"queries": "a"}).status == 200
    if is_gone:
        shutil.rmtree(index.folder)
    else:
        Index.build(tiny_encoder, TEXTS, index.folder, precision="fp32", overwrite=True)
    calls = [("/index", body) for body in ({"texts": ["a new text"]}, {"remove": ["0"]}, None)]
    for path, body in (("/search", {"queries": "a"}), *calls):
        answer = server.call(path, body)
        assert (answer.status, answer.json["error_type"]) == (503, "Unhealthy")
        assert answer.json["error"].endswith("restart the server")
    assert is_gone or len(Index.open(index.folder)) == len(TEXTS)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/search", {"queries": []}, 400),
        ("/search", {"queries": " "}, 400),
        ("/search", {"queries": "a", "top_k": 0}, 422),
        ("/search", {"queries": "a", "threshold": 2}, 422),
        ("/index", {"remove": ["nothing"]}, 409),
        ("/index", {"remove": ["\ud800"]}, 422),
        ("/index", {"texts": ["a"], "ids": ["\ud800"]}, 422),
        ("/search", {"queries": ["a"] * 101, "top_k": 1000}, 413),
        ("/index", {"texts": [" "], "remove": ["0"]}, 400),
        ("/index", {"texts": ["a", "b"], "ids": ["0", "0"], "remove": ["0"]}, 409),
        ("/index", {"texts": ["a"], "ids": ["1"], "remove": ["0"]}, 409),
        ("/index", {"texts": ["a"], "ids": []}, 409),
        ("/page/other.js", None, 404),
    ],
)
def test_refusals(server, index, path, body, status):
    answer = server.call(path, body)
    assert answer.status == status
    assert answer.json["error"]
    assert len(Index.open(index.folder)) == len(TEXTS)
