"""The routes: vectors equal to the encoder's, others' clients, refusals, limits and counts."""

import base64
import copy
import gzip
import json
import re
import signal
import socket
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit

import numpy as np
import pytest
from helpers.command_line import refused, started
from helpers.serving import batcher_of, call, close, serving
from helpers.tiny_models import SENTENCES, static_encoder

from contrasent.model.protocol import Conventions, QueryExpansion
from contrasent.serve import application, routes
from contrasent.serve.routes import EmbedRequest, OpenAIRequest, SimilarityRequest


@pytest.fixture(scope="module")
def server(encoder):
    with serving(batcher_of(encoder), payload_limit=50_000, max_texts=500) as running:
        yield running


def test_every_form_of_an_answer_has_the_vectors_of_the_encoder(server, encoder, expected):
    openai = server.call("/v1/embeddings", {"input": SENTENCES, "model": "any"}).json
    assert [row["index"] for row in openai["data"]] == list(range(len(SENTENCES)))
    close([row["embedding"] for row in openai["data"]], expected)
    ids = encoder.tokenizer.ids(SENTENCES, None)[0]
    assert openai["usage"]["prompt_tokens"] == sum(map(len, ids))

    packed = {"input": SENTENCES, "encoding_format": "base64"}
    rows = server.call("/v1/embeddings", packed).json["data"]
    close([np.frombuffer(base64.b64decode(r["embedding"]), "<f4") for r in rows], expected)

    close(server.call("/embed", {"inputs": SENTENCES}).json, expected)
    raw = server.call("/embed", {"inputs": SENTENCES, "normalize": False}).json
    close(raw, encoder.encode(SENTENCES, normalize=False, precision="fp32"))
    rows = server.call(
        "/embed", {"inputs": SENTENCES, "dimensions": 4, "truncation_direction": "right"}
    ).json
    first = expected[:, :4]
    close(rows, first / np.linalg.norm(first, axis=1, keepdims=True))


def test_a_field_that_clients_send_is_taken(server, expected):
    whole = {"model": "any", "user": "me", "encoding_format": "float", "dimensions": 16}
    (row,) = server.call("/v1/embeddings", {"input": SENTENCES[0], **whole}).json["data"]
    close(row["embedding"], expected[0])
    read = {"truncate": True, "prompt_name": None}
    given = {"inputs": SENTENCES[:1], "encoding_format": "float", "normalize": True, **read}
    close(server.call("/embed", given).json, expected[:1])
    inputs = {"source_sentence": SENTENCES[0], "sentences": ["dog " * 80]}
    body = {"inputs": inputs, "parameters": read}
    assert server.call("/similarity", body).status == 200
    assert server.call("/similarity", body | {"parameters": {"truncate": False}}).status == 413


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/embeddings", {"input": "a"}, OpenAIRequest),
        ("/embed", {"inputs": "a"}, EmbedRequest),
        ("/", {"inputs": "a"}, EmbedRequest),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, None),
    ],
)
def test_null_means_unset(server, path, body, kind):
    fields = SimilarityRequest.model_fields if kind is None else kind.model_fields
    nulls = {name: None for name, field in fields.items() if not field.is_required()}
    assert server.call(path, nulls | body).body == server.call(path, body).body
    for name in fields.keys() - nulls.keys():
        assert server.call(path, body | {name: None}).status == 422


def test_an_input_type_is_a_role_with_its_prompt_and_length(encoder):
    prompting = copy.copy(encoder)
    expansion = QueryExpansion(strategy="fixed", length=6, attend=True)
    prompting.conventions = Conventions(
        prompts={"query": "the dog ", "document": "no man "}, query_expansion=expansion
    )
    text = "a fire burns in the big green house"
    with serving(batcher_of(prompting)) as server:

        def row(**options):
            answer = server.call("/v1/embeddings", {"input": text, **options})
            return answer.json["data"][0]["embedding"], answer.headers["x-truncated"]

        for name, prompt in (("passage", "no man "), (None, "")):
            expected = prompting.encode(prompt + text, prompt="", normalize=True, precision="fp32")
            close(row(input_type=name)[0], expected)
        found, cut = row(input_type="query")
        with pytest.warns(UserWarning, match="were cut at 6 tokens"):
            close(found, prompting.encode_query(text, normalize=True, precision="fp32"))
        assert cut == "1"
        text = "a"
        found, cut = row(input_type="query")
        close(found, prompting.encode_query(text, normalize=True, precision="fp32"))
        assert cut == "0"
        assert row(input_type="passage", prompt_name="query") == row(prompt_name="query")


def test_token_ids_are_refused_with_what_to_do(server):
    for ids in ([2, 7, 3], [[2, 7, 3]]):
        refused = server.call("/v1/embeddings", {"input": ids})
        assert refused.status == 422
        assert "check_embedding_ctx_length=False" in refused.json["message"]


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        ("", {}, 200),
        ("", {"host": "[::1]:8080"}, 200),
        ("", {"host": "EVIL.example"}, 400),
        ("", {"host": ""}, 400),
        ("", {"host": "192.168.0.1"}, 400),
        ("", {"host": "localhost.evil.example"}, 400),
        ("0.0.0.0", {"host": "192.168.0.1:80"}, 200),
        ("0.0.0.0", {"host": "evil.example"}, 400),
        ("*.Example.org", {"host": "a.example.org"}, 200),
        ("*", {"host": "evil.example"}, 200),
        ("", {"host": "localhost:3", "origin": "http://localhost:3"}, 200),
        ("", {"origin": "http://localhost:3"}, 403),
        ("", {"host": "localhost", "origin": "https://localhost.evil"}, 403),
    ],
)
def test_only_who_means_this_server_is_answered(server, monkeypatch, host, headers, status):
    options = replace(server.gate.options, allowed_host=[host] if host else None)
    monkeypatch.setattr(server.gate, "options", options)
    assert server.call("/embed", {"inputs": "a"}, **headers).status == status
    assert server.call("/health", **headers).status == 200
    read = server.call("/info", **headers)
    assert read.status == (status if status == 400 else 200)


def test_who_runs_out_of_memory_is_told_what_to_do(encoder, monkeypatch, caplog):
    batcher = batcher_of(encoder)
    full = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")
    with serving(batcher) as server, monkeypatch.context() as patched:
        patched.setattr(batcher, "_rows", Mock(side_effect=full))
        answer = server.call("/embed", {"inputs": ["a", "b"]})
        assert (answer.status, answer.json["error_type"]) == (503, "Overloaded")
        assert "smaller --batch-tokens" in answer.json["error"]
        patched.undo()
        assert server.call("/embed", {"inputs": ["a", "b"]}).status == 200
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("kind", ["encoder", "static"])
def test_what_is_cut_is_told_and_refused_on_request(kind, encoder):
    if kind == "static":
        encoder = static_encoder(encoder, 4)
        encoder.max_tokens = 16
    longest = encoder.max_tokens - (2 if kind == "encoder" else 0)
    full, long = (" ".join(["dog"] * n) for n in (longest, longest + 1))
    assert encoder.cut(["a", full, long]) == [False, False, True]
    with serving(batcher_of(encoder)) as server:
        answer = server.call("/v1/embeddings", {"input": ["a", full, long]})
        assert (answer.headers["x-truncated"], answer.json["truncated"]) == ("1", [2])
        answer = server.call("/embed", {"inputs": ["a", full, long], "truncate": False})
        assert answer.status == 413
        assert "text 2" in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/embed", b"{", 422, "Validation"),
        ("/embed", b'{"inputs": "\xff"}', 400, "Validation"),
        ("/embed", {"inputs": "a \ud800"}, 422, "Validation"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "Validation"),
        ("/embed", {"inputs": ["a"] * 501}, 413, "Validation"),
        ("/embed", {"inputs": "a" * 60_000}, 413, "Validation"),
        ("/embed", {"inputs": "a" * 20_000_000}, 413, "Validation"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty"),
        ("/matrix", {"first": ["a"] * 1001, "second": ["a"] * 1001}, 413, "Validation"),
        ("/embed", {"inputs": "a", "input": "b"}, 422, "Validation"),
        ("/embed", gzip.compress(b"{}", mtime=0), 400, "Validation"),
        ("/embed", {"inputs": "a", "truncation_direction": "left"}, 422, "Validation"),
        ("/nothing", None, 404, "Validation"),
    ],
)
def test_refusals_look_as_those_of_others(server, path, body, status, kind):
    answer = server.call(path, body)
    assert answer.status == status
    assert answer.json["error_type"] == kind
    told = answer.json["error"]
    assert told["message"] if path.startswith("/v1") else told
    assert server.call("/health").status == 200


def test_a_body_that_is_not_said_to_be_json_is_refused(server):
    for path in ("/embed", "/", "/v1/embeddings"):
        answer = server.call(path, {"inputs": "a"}, content_type="text/plain")
        assert answer.status == 415
        assert "Content-Type: application/json" in str(answer.json["error"])


def test_a_text_of_a_million_characters_is_refused(server, monkeypatch):
    monkeypatch.setattr(routes, "_CHARACTERS", 100)
    for path, name in (("/embed", "inputs"), ("/v1/embeddings", "input")):
        assert server.call(path, {name: ["a", "b" * 100]}).status == 200
        assert server.call(path, {name: ["a", "b" * 101]}).status == 413


def test_pages_of_one_origin_may_send_and_read_all_headers(encoder):
    origin = "https://example.org"
    with serving(batcher_of(encoder), cors=[origin]) as server:
        answer = server.call("/v1/embeddings", {"input": "a"}, origin=origin)
        assert answer.headers["access-control-allow-origin"] == origin
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "x-truncated", "retry-after"} == set(exposed)


def test_a_request_keeps_its_id(server):
    assert server.call("/health", x_request_id="mine-1").headers["x-request-id"] == "mine-1"
    odd = server.call("/health", x_request_id="two words").headers["x-request-id"]
    assert len(odd) == 32


def test_metrics_count_and_have_names_that_prometheus_asks_for(encoder):
    with serving(batcher_of(encoder)) as server:
        for _ in range(3):
            server.call("/embed", {"inputs": ["a dog", "a cat"]})
        server.call("/embed", {"inputs": []})
        lines = server.call("/metrics").body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["contrasent_cache_hits_total"]) == 4
    assert float(values["contrasent_cache_misses_total"]) == 2
    assert float(values['contrasent_requests_total{route="/embed",status="200"}']) == 3
    assert float(values["te_batch_next_size_sum"]) == 2
    assert float(values["contrasent_cache_texts"]) == 2
    helped = {line.split()[2] for line in lines if line.startswith("# HELP")}
    assert helped == {line.split()[2] for line in lines if line.startswith("# TYPE")}
    # What the dashboard and the alerts ask for is there; a label without a value is not yet.
    known = {name.partition("{")[0] for name in values} | {
        line.split()[2] for line in lines if "# HELP" in line
    }
    deployed = Path(__file__).parents[2] / "deploy"
    asked = "".join(path.read_text() for path in deployed.iterdir())
    assert set(re.findall(r"contrasent_\w+", asked)) <= known | {
        f"{n}_{end}" for n in known for end in ("total", "bucket", "sum", "count")
    }


def test_a_key_is_asked_for_where_something_is_told(encoder):
    with serving(batcher_of(encoder), api_key="secret\n") as server:
        for path in ("/info", "/metrics", "/v1/models"):
            assert server.call(path).status == 401
            assert server.call(path, authorization="Bearer secre").status == 401
            assert server.call(path, authorization="bearer Secret").status == 401
            for scheme in ("Bearer", "bearer"):
                assert server.call(path, authorization=f"{scheme} secret").status == 200
        assert server.call("/", {"inputs": "a"}).status == 401
        assert server.call("/health").status == 200


def test_overload_is_answered_at_once(encoder, monkeypatch):
    batcher = batcher_of(encoder)
    with serving(batcher) as server:
        monkeypatch.setattr(type(batcher), "wait", property(lambda _: 90.4))
        answer = server.call("/v1/embeddings", {"input": "a new text"})
        assert answer.status == 429
        assert answer.headers["retry-after"] == "90"
        assert answer.json["error_type"] == "Overloaded"
        server.gate.in_progress += 10**6
        paths = ("/ping", "/health", "/info")
        assert [server.call(it).status for it in paths] == [200, 200, 429]
        for path in ("/ping", "/health"):  # as monitors ask
            asked = urllib.request.Request(f"{server.url}{path}", method="HEAD")
            assert urllib.request.urlopen(asked, timeout=30).status == 200
        server.gate.in_progress -= 10**6


def test_a_body_that_does_not_come_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(application, "_BODY_SECONDS", 0.2)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"POST /embed HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 10\r\n\r\n{")
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_a_client_that_leaves_frees_its_texts(encoder, monkeypatch):
    batcher, go = batcher_of(encoder), threading.Event()
    with serving(batcher) as server:
        rows = batcher._rows
        monkeypatch.setattr(batcher, "_rows", lambda *given: go.wait(30) and rows(*given))
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({"inputs": SENTENCES}).encode()
        with socket.create_connection((host, int(port)), timeout=20) as client:
            head = (
                "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            client.sendall(head.encode() + body)
            until(lambda: batcher.queued == len(SENTENCES))
        until(lambda: batcher.queued == 0)
        go.set()


def until(reached):
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def workers(tiny_bert, *more, **how):
    """A server of two processes, and its address; nothing of it is left."""
    process = started("serve", tiny_bert, "--port", 0, "--workers", 2, *more, **how)
    try:
        line = next(line for line in process.stderr if '"listening"' in line)
        url = json.loads(line)["url"].rstrip("/")
        until(lambda: call(f"{url}/health").status == 200)
        yield process, url
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_workers_answer_as_one_and_end_well(tiny_bert, number, code):
    """Who still waits when the time to drain is over is told."""
    key, secret = {"authorization": "Bearer secret"}, {"CONTRASENT_API_KEY": "secret"}
    how = ("--threads", 1, "--name", "tiny", "--drain", 1)
    with workers(tiny_bert, *how, env=secret) as (process, url):
        for n in range(20):
            assert call(f"{url}/embed", {"inputs": [f"dog {n}"]}, **key).status == 200
        page = call(f"{url}/metrics", **key).body.decode()
        assert 'contrasent_requests_total{route="/embed",status="200"} 20.0' in page
        where = urlsplit(url).hostname, urlsplit(url).port
        head = "POST /embed HTTP/1.1\r\nhost: [::1]\r\nauthorization: Bearer secret\r\n"
        with socket.create_connection(where) as waiting:
            waiting.sendall(f"{head}content-length: 9\r\n\r\n{{".encode())
            until(lambda: b"in_progress 2.0" in call(f"{url}/metrics", **key).body)
            process.send_signal(number)
            answer = waiting.makefile("rb").read()
        log = process.stderr.read()  # until all workers have closed it
        assert process.wait(30) == code, log
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"the server is stopping" in answer
    assert "Traceback" not in log, log
    requests = [json.loads(line) for line in log.splitlines() if '"request"' in line]
    assert sum(r["path"] == "/embed" and r["status"] == 200 for r in requests) == 20
    assert len({r["request_id"] for r in requests}) == len(requests)


def test_bad_settings_are_refused_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refused("serve", tmp_path, "--port", port)
