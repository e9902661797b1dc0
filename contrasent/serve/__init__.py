"""The HTTP server: its options, which the command line gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import StringConstraints as Text

from contrasent.options import InPrecision, Loading, Named
from contrasent.settings import Spelling, settings


@settings
class ServeOptions(Named, Loading, InPrecision):
    """Options of ``serve``."""

    index: Annotated[Path | None, Spelling(metavar="DIR")] = None
    """An index that MODEL built, to search."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all of this machine."""

    port: Annotated[NonNegativeInt, Field(lt=2**16)] = 8080
    """Port to listen on; 0 for any that is free."""

    workers: PositiveInt = 1
    """Processes that answer; they share the pages of the weights."""

    threads: PositiveInt | None = None
    """Threads of matrix products; else the cores, shared out."""

    name: str | None = None
    """Name of the model in answers; else the end of MODEL."""

    api_key: Annotated[
        Annotated[str, Text(strip_whitespace=True, min_length=1)] | None,
        Spelling(variable="CONTRASENT_API_KEY"),
    ] = Field(None, repr=False)
    """The bearer token that clients must send."""

    bitwise: bool = False
    """Give bitwise the same vectors whatever else is in the batch."""

    batch_tokens: PositiveInt = 4096
    """Tokens computed at once."""

    max_wait: PositiveFloat = 0.5
    """Seconds of work in the queue from which requests get 429."""

    cache_mb: NonNegativeInt = 256
    """Megabytes of embeddings to keep; 0 for none."""

    shared_cache: Annotated[
        Annotated[str, Text(pattern="^(rediss?|unix)://")] | None, Spelling(metavar="URL")
    ] = None
    """A Redis or Valkey server for embeddings, as redis://HOST:6379, which workers and other
    servers share."""

    payload_limit: PositiveInt = 16000000
    """Bytes of a request's body."""

    max_texts: PositiveInt = 10000
    """Texts of a request."""

    max_requests: PositiveInt = 512
    """Requests answered at the same time."""

    drain: NonNegativeFloat = 30.0
    """Seconds for requests in progress after SIGTERM."""

    cors: Annotated[list[str] | None, Spelling(metavar="ORIGIN")] = None
    """A web origin that may call; repeatable."""

    allowed_host: Annotated[list[str] | None, Spelling(metavar="NAME")] = None
    """A name by which it may be called, as *.example.org; repeatable. Else localhost, its address,
    and with 0.0.0.0 every number."""

    @property
    def served_name(self) -> str:
        """The name of the model in answers."""
        path = Path(self.model)
        return self.name or (path.resolve() if path.name in ("", "..") else path).name
