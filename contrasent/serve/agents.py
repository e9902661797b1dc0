"""Tools for agents: indexes over the Model Context Protocol, by its official SDK."""

import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AnyHttpUrl, Field, PositiveInt

from contrasent.errors import ContrasentError, pick, require_extra
from contrasent.options import MovedEncoder
from contrasent.serve.server import ServeOptions
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from mcp.server import MCPServer

_Count = Annotated[int, Field(ge=1, le=1000)]
_Hits = list[dict[str, Any]]


@settings
class McpOptions(MovedEncoder):
    """Options of ``mcp``."""

    index: Annotated[list[Path], ARGUMENT]
    """Folders made by 'contrasent index build'; agents know an index by its folder's name."""

    allow_add: bool = False
    """Let agents add texts."""

    port: PositiveInt | None = None
    """Answer by streamable HTTP at http://HOST:PORT/mcp; else on standard input and output."""

    host: Annotated[str, Spelling(of=ServeOptions)] = "127.0.0.1"

    api_key: Annotated[str | None, Spelling(of=ServeOptions, variable="CONTRASENT_API_KEY")] = (
        Field(None, repr=False)
    )


def run_mcp(options: McpOptions) -> None:
    """Answer agents until the input ends, or over HTTP until SIGTERM or Ctrl-C."""
    require_extra("a server for agents", "mcp", "mcp")
    server = _tools(options)
    if options.port is None:
        server.run()
    else:
        server.run("streamable-http", host=options.host, port=options.port)


def _tools(options: McpOptions) -> "MCPServer[Any]":
    from mcp.server import MCPServer
    from mcp.server.auth.provider import AccessToken
    from mcp.server.auth.settings import AuthSettings
    from mcp.server.mcpserver.exceptions import ToolError

    from contrasent.search import Index

    class Key:
        async def verify_token(self, token: str) -> AccessToken | None:
            same = hmac.compare_digest(token.encode(), str(options.api_key).encode())
            return AccessToken(token=token, client_id="agent", scopes=[]) if same else None

    indexes, encoders, lock = dict[str, Index](), dict[str, Any](), Lock()
    for path in options.index:
        index, name = Index.open(path), path.resolve().name
        indexes[str(path) if name in indexes else name] = index
        fingerprint = index.manifest.encoder.fingerprint
        if fingerprint not in encoders:
            encoders[fingerprint] = index.encoder(options.encoder, options.device)

    @contextmanager
    def using(name: str) -> Iterator[tuple[Index, Any]]:
        """The newest state of an index, for one call at a time; the agent is told of mistakes."""
        with lock:
            try:
                index = indexes[pick("index", name, indexes)]
                index.refresh_if_written()
                yield index, encoders[index.manifest.encoder.fingerprint]
            except (ContrasentError, OSError) as error:
                raise ToolError(str(error)) from error

    about = list[str]()
    for name, index in indexes.items():
        columns = ", ".join(it for it in index.manifest.columns if not it.startswith("_"))
        about.append(f"{name} ({len(index)} texts, columns: {columns or 'none'})")
    known = "; ".join(about)
    named = Field(description=f"One of {known}", json_schema_extra={"enum": [*indexes]})
    first = next(iter(indexes))
    url = AnyHttpUrl(f"http://{options.host}")
    server: MCPServer[Any] = MCPServer(
        "contrasent",
        instructions=f"Search texts by meaning and by words: {known}.",
        token_verifier=Key() if options.api_key else None,
        auth=AuthSettings(issuer_url=url, resource_server_url=None) if options.api_key else None,
    )

    @server.tool()
    def search(
        query: str,
        index: Annotated[str, named] = first,
        top_k: _Count = 10,
        mode: Literal["auto", "dense", "words", "hybrid"] = "auto",
        filter: str | None = None,  # noqa: A002 - as everywhere
    ) -> _Hits:
        """Find texts for a query, best first: by meaning (dense), by words, or by both (hybrid).

        A filter is a condition on columns of the index: year >= 2020 and source = "faq".
        """
        with using(index) as (opened, encoder):
            [hits] = opened.search(encoder, [query], top_k, mode=mode, filter=filter)
        return [hit.known for hit in hits]

    @server.tool()
    def similar(id: str, index: Annotated[str, named] = first, top_k: _Count = 10) -> _Hits:  # noqa: A002
        """Find the texts nearest in meaning to the one that has an id, best first."""
        with using(index) as (opened, _):
            return [hit.known for hit in opened.similar(id, top_k)]

    if options.allow_add:

        @server.tool()
        def add(
            texts: list[str], ids: list[str] | None = None, index: Annotated[str, named] = first
        ) -> int:
            """Add texts, with ids if the others have ids of their own, and count them all."""
            with using(index) as (opened, encoder):
                opened.add(encoder, texts, ids)
                return len(opened)

    return server
