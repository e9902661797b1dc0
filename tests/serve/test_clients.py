"""Programs of others against the server, as their users start them, and its OpenAPI document."""

import subprocess
import sys

import pytest
from helpers.serving import batcher_of, close, serving
from helpers.tiny_models import SENTENCES

from contrasent.model.loading import load_encoder
from contrasent.search.index import Index


@pytest.fixture(scope="module")
def server(encoder, tiny_starts, tmp_path_factory, request):
    if getattr(request, "param", "bert") == "words":
        encoder = load_encoder(tiny_starts["glove"])
    folder = tmp_path_factory.mktemp("served") / "index"
    metadata = [{"number": number} for number, _ in enumerate(SENTENCES)]
    index = Index.build(encoder, SENTENCES, folder, metadata=metadata, precision="fp32")
    with serving(batcher_of(encoder), index) as running:
        yield running


def test_openai(server, expected):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    found = client.embeddings.create(input=SENTENCES, model="tiny").data
    close([row.embedding for row in found], expected)
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.UnprocessableEntityError, match="dimensions is 99"):
        client.embeddings.create(input="a", model="tiny", dimensions=99)


def test_hugging_face(server, expected, monkeypatch):
    from huggingface_hub import InferenceClient, constants

    monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
    client = InferenceClient(server.url)
    close(client.feature_extraction(SENTENCES), expected)
    found = client.sentence_similarity(SENTENCES[0], other_sentences=SENTENCES[1:])
    close(found, expected[1:] @ expected[0])


@pytest.mark.acceptance
@pytest.mark.filterwarnings("ignore:.* sentences have no word")
@pytest.mark.parametrize("server", ["bert", "words"], indirect=True)
def test_schemathesis_finds_nothing_against_the_openapi_document(server, tmp_path):
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    # The document does not say what this encoder takes: its prompts, its dimensions, its tokens.
    statuses = '["2xx", "400", "401", "403", "404", "409", "413", "422", "424", "429", "5xx"]'
    (tmp_path / "schemathesis.toml").write_text(
        f"[checks.positive_data_acceptance]\nexpected-statuses = {statuses}\n"
    )
    command = ("-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", "all")
    # Of a path with two methods the router names the first alone in Allow.
    how = ("--mode", "all", "--max-examples", "30", "--continue-on-failure", "--seed", "7")
    how = ("--exclude-checks", "allow_header_conformance", *how)
    run = subprocess.run(
        (sys.executable, *command, *how), check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout
