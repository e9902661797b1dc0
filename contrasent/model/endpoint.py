"""Servers: what they are asked, and encoders of OpenAI's form or Text Embeddings Inference's."""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urldefrag
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import CheckpointError, first_line, logger
from contrasent.files import cached
from contrasent.model.loading import LookupEncoder

KEY = "CONTRASENT_API_KEY"
"""The variable of the environment with the key of a server."""
_AT_ONCE, _TOGETHER = 32, 4  # texts of a request, which is TEI's limit, and requests at a time
_SECONDS, _WAITS, _MOST_BYTES = 60.0, (1.0, 2.0, 4.0, 8.0), 1 << 28
"""Of an answer, and between tries."""
_PROBE, _ROUNDING = "probe.npy", 0.02
"""The file of its embedding, and by which part of its length that may change with other load."""
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504)  # answers that another try may change
_OF_TEXT = (400, 413, 422)  # and those that another text may: too long, or none for its filter


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Ask no other server than the one that was named."""


_OPENER = build_opener(_NoRedirect)


class Requests(ThreadPoolExecutor):
    """Threads that ask servers; once the block fails, or is interrupted, none asks again."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.over = Event()

    def __exit__(self, *error: Any) -> None:
        if any(error):
            self.over.set()
        super().__exit__(*error)


def post(url: str, body: object, seconds: float, over: Event, refused: bytes = b"") -> bytes:
    """A server's answer, asked for again where that may help; for none ``refused``, or an error."""
    key, headers = "".join(os.environ.get(KEY, "").split()), {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    for wait in (*_WAITS, None):
        try:
            request = Request(url, json.dumps(body).encode(), headers)
            with _OPENER.open(request, timeout=seconds) as answer:
                whole = bytes(answer.read(_MOST_BYTES))
                if not answer.length:
                    return whole
            problem, passes, after = "does not answer: it broke off", True, ""
        except HTTPError as error:
            message = ""
            with suppress(OSError, HTTPException):  # it may break off, too
                message = error.read(2000).decode(errors="replace").strip()[:200]
            problem = f"answers {error.code} {error.reason}: {message}"
            passes, after = error.code in _PASSING, error.headers.get("Retry-After", "")
            if refused and error.code in _OF_TEXT:
                logger.warning("%s %s; it goes on without", url, problem)
                return refused
        except (OSError, HTTPException, ValueError) as error:
            problem, after = f"does not answer: {first_line(error)}", ""
            passes = not isinstance(error, ValueError)  # of what is no address
        if wait is None or not passes:
            break
        tell = logger.debug if after else logger.warning  # a busy server says when to come again
        tell("%s %s; asking again", url, problem)
        if over.wait(max(wait, min(float(after), _SECONDS) if after.isdecimal() else 0.0)):
            break
    raise CheckpointError(f"{url} {problem}; a key is read from the variable {KEY}")


class EndpointEncoder(LookupEncoder):
    """An encoder that a server computes; what it does with long texts, only the server knows."""

    pooler = engine = "endpoint"
    known_part = "embedding"
    normalize = False
    at_once = 1_024  # what is lost at most when the server breaks off

    def __init__(self, address: str) -> None:
        """Ask for an embedding; CheckpointError if the server gives none."""
        self.name = address
        self.url, self.model = urldefrag(address)
        self.is_tei = self.url.endswith("/embed")
        if not (self.is_tei or self.url.endswith("/embeddings")):
            end = "/embeddings" if self.url.endswith("/v1") else "/v1/embeddings"
            self.url = self.url.rstrip("/") + end
        self._probe = self._ask(["A probe."], Event())
        self.full_width = int(self._probe.shape[1])

    def fingerprint(self) -> str:
        """A hash of the address, and of where the embedding of a text is largest.

        Its numbers would not do: a server rounds them by what else it embeds.
        """
        known = ("endpoint", self.name, self.full_width, int(np.abs(self._probe).argmax()))
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def local_fingerprint(self) -> str:
        """A hash of the address and its probe, kept while the model there gives about the same."""

        def read(entry: Path) -> str:
            kept: np.ndarray = np.load(entry / _PROBE)
            if np.linalg.norm(kept - self._probe) > _ROUNDING * np.linalg.norm(kept):
                raise ValueError("it is of another model")
            return hashlib.sha256(self.name.encode() + kept.tobytes()).hexdigest()

        key, what = [self.name, self.full_width], "embeddings of a probe"
        return cached("probes", what, key, read, lambda it: np.save(it / _PROBE, self._probe))

    def look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, int, int]:
        parts = [texts[n : n + _AT_ONCE] for n in range(0, len(texts), _AT_ONCE)]
        with Requests(_TOGETHER) as pool:
            ask = partial(self._ask, over=pool.over)
            return np.concatenate([*pool.map(ask, parts)]), 0, 0

    def _ask(self, texts: Sequence[str], over: Event) -> NDArray[np.float32]:
        body: dict[str, Any] = {"inputs": [*texts], "truncate": True}
        if not self.is_tei:
            body = {"input": [*texts], "encoding_format": "float"}
            body |= {"model": self.model} if self.model else {}
        answer = post(self.url, body, _SECONDS, over)
        rows: NDArray[np.float32] = np.zeros(0, np.float32)
        with suppress(ValueError, TypeError, LookupError, OverflowError, RecursionError):
            content = json.loads(answer)
            if not self.is_tei:
                ordered = sorted(content["data"], key=lambda row: row["index"])
                content = [row["embedding"] for row in ordered]
            rows = np.array(content, np.float32, ndmin=1)
        shape = len(texts), self.full_width or rows.shape[-1]
        if rows.shape != shape or not rows.size or not np.isfinite(rows).all():
            raise CheckpointError(
                f"{self.url} answers with no {len(texts)} embeddings, but {[*rows.shape]} numbers, "
                f"or not finite: {answer[:200]!r}; an address ends with /v1/embeddings#MODEL or "
                "/embed"
            )
        return rows
