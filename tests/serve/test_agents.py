"""The tools for agents, called by the SDK's own client over both transports."""

import asyncio
import os
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.command_line import refused, started
from helpers.serving import call
from helpers.tiny_models import SENTENCES

from contrasent.errors import ConfigError
from contrasent.search.index import Index
from contrasent.serve.server import McpOptions, _tools
from contrasent.settings import checked

mcp = pytest.importorskip("mcp", reason="mcp is not installed")
httpx2 = pytest.importorskip("httpx2")

KEY = "\u00f6pen"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


@pytest.fixture
def folders(encoder, tmp_path):
    Index.build(encoder, SENTENCES, tmp_path / "first", precision="fp32")
    years = [{"year": 2019}, {"year": 2021}]
    texts, ids = ["no fire", "a fire"], ["x", "y"]
    Index.build(encoder, texts, tmp_path / "second", ids, metadata=years, precision="fp32")
    return [str(tmp_path / name) for name in ("first", "second")]


@contextmanager
def reached(transport, *words):
    """What the SDK's client connects to, of the command with these words."""
    if transport == "stdio":
        command = ["-m", "contrasent", "mcp", *words]
        yield mcp.StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = started("mcp", *words, "--port", port, "--api-key", KEY)
    try:
        next(line for line in process.stderr if "Uvicorn running on" in line)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def conversation(server):
    async with mcp.Client(server) as client:

        async def call(name, **arguments):
            answer = await client.call_tool(name, arguments)
            return (
                answer.content[0].text if answer.is_error else answer.structured_content["result"]
            )

        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        yield tools
        yield await call("search", query=SENTENCES[2], top_k=3)
        yield [
            *await call("search", query="fire", index="second", mode="words"),
            *await call("search", query="fire", index="second", filter="year < 2020"),
        ]
        yield await call("similar", id="2", top_k=2)
        yield await call("add", texts=["two cats"])
        yield await call("search", query="two cats", top_k=1)
        yield [
            await call("search", query="a", index="third"),
            await call("search", query=" "),
            await call("similar", id="nothing"),
            await call("search", query="a", top_k=0),
            await call("search", query="a", filters="year > 2000"),
            await call("add", texts=["a"], index="second"),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_an_agent_lists_the_tools_and_calls_each(transport, folders, encoder):
    from mcp.client.streamable_http import streamable_http_client

    async def all_of_it(server):
        key = {b"Authorization": f"Bearer {KEY}".encode()}
        async with httpx2.AsyncClient(headers=key, timeout=60) as keyed:
            if transport == "http":
                accept = {"Accept": "application/json, text/event-stream"}
                for other in ({}, {"Authorization": "Bearer shut"}):
                    assert call(server, LIST, **accept, **other).status == 401
                server = streamable_http_client(server, http_client=keyed)
            return [step async for step in conversation(server)]

    first = Index.open(folders[0])
    expected = [hit.known for hit in first.search(encoder, [SENTENCES[2]], 4)[0]]
    with reached(transport, *folders, "--allow-add") as server:
        tools, hits, by_words, near, count, [added], mistakes = asyncio.run(all_of_it(server))
    assert {*tools} == {"search", "similar", "add"}
    assert tools["search"].input_schema["properties"]["index"]["enum"] == ["first", "second"]
    texts = len(SENTENCES)
    assert tools["add"].input_schema["properties"]["index"]["description"] == (
        f"One of first ({texts} texts, columns: none); second (2 texts, columns: year)"
    )
    assert [(hit["id"], hit["text"]) for hit in hits] == [
        (hit["id"], hit["text"]) for hit in expected[:3]
    ]
    assert hits[0]["score"] == pytest.approx(expected[0]["score"], abs=1e-5)
    assert sorted(hit["id"] for hit in by_words) == ["x", "x", "y"]
    assert by_words[-1]["metadata"] == {"year": 2019}
    assert [hit["id"] for hit in near] == [hit["id"] for hit in expected[1:3]]
    assert (count, added["text"], added["id"]) == (len(SENTENCES) + 1, "two cats", str(count - 1))
    first.refresh()
    assert len(first) == count
    said = ("of first, second", "0 is empty", "id 'nothing'", "top_k", "filters", "give ids")
    assert [word for word, mistake in zip(said, mistakes, strict=True) if word not in mistake] == []


def test_nothing_is_added_unless_it_is_allowed(folders):
    for address in ({}, {"port": 8080, "host": "::1", "api_key": KEY}):
        server = _tools(McpOptions(index=[Path(folders[0])], **address))
        tools = asyncio.run(server.list_tools())
        assert [tool.name for tool in tools] == ["search", "similar"]


def test_an_address_that_is_taken_is_told_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = refused("mcp", "nowhere", "--port", taken.getsockname()[1])
    assert "cannot listen on 127.0.0.1" in told


def test_an_empty_key_lets_nobody_in_without_one():
    with pytest.raises(ConfigError, match="api_key"):
        checked(McpOptions, {"index": ["any"], "port": 8080, "api_key": " "})
