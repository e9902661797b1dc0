"""Servers: what they are asked, and encoders of OpenAI's form or Text Embeddings Inference's."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urldefrag
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import CheckpointError, first_line
from contrasent.model.loading import LookupEncoder

logger = logging.getLogger("contrasent")

KEY = "CONTRASENT_API_KEY"
"""The variable of the environment with the key of a server."""
_AT_ONCE, _TOGETHER = 32, 4
"""Texts of a request, which is TEI's limit, and requests at a time."""
_SECONDS, _WAITS, _MOST_BYTES = 60.0, (1.0, 2.0, 4.0, 8.0), 1 << 28
"""Of an answer, and between tries."""
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
"""Answers that another try may change."""


def post(url: str, body: object, seconds: float = _SECONDS) -> bytes:
    """The answer of a server to JSON, asked for again where that may help.

    CheckpointError if it gives none, or none in so many ``seconds``.
    """
    key, headers = os.environ.get(KEY), {"Content-Type": "application/json"}
    for wait in (*_WAITS, None):
        try:
            request = Request(url, json.dumps(body).encode(), headers)
            if key:  # it stays here where the server sends elsewhere
                request.add_unredirected_header("Authorization", f"Bearer {key}")
            with urlopen(request, timeout=seconds) as answer:
                return bytes(answer.read(_MOST_BYTES))
        except HTTPError as error:
            said = error.read(2000).decode(errors="replace").strip()
            problem = f"answers {error.code} {error.reason}: {said[:200]}"
            passes, after = error.code in _PASSING, error.headers.get("Retry-After", "")
        except (OSError, HTTPException, ValueError) as error:
            problem, after = f"does not answer: {first_line(error)}", ""
            passes = not isinstance(error, ValueError)  # of what is no address
        if wait is None or not passes:
            break
        logger.warning("%s %s; asking again", url, problem)
        time.sleep(max(wait, min(float(after), _SECONDS) if after.isdecimal() else 0.0))
    raise CheckpointError(f"{url} {problem}")


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
        self._probe = self._ask(["A probe."])

    @property
    def full_width(self) -> int:
        return int(self._probe.shape[1])

    def fingerprint(self) -> str:
        """A hash of the address, and of where the embedding of a text is largest.

        Its numbers would not do: a server rounds them by what else it embeds.
        """
        known = ("endpoint", self.name, self.full_width, int(np.abs(self._probe).argmax()))
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        parts = [texts[n : n + _AT_ONCE] for n in range(0, len(texts), _AT_ONCE)]
        with ThreadPoolExecutor(_TOGETHER) as pool:
            return np.concatenate([*pool.map(self._ask, parts)]), 0

    def _ask(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embeddings of a few texts."""
        body: dict[str, Any] = {"inputs": [*texts], "truncate": True}
        if not self.is_tei:
            body = {"input": [*texts], "encoding_format": "float"}
            body |= {"model": self.model} if self.model else {}
        try:
            return self._rows(post(self.url, body, _SECONDS), len(texts))
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}. What was embedded so far is kept. An address ends with "
                f"/v1/embeddings#MODEL or /embed; a key is read from the variable {KEY}"
            ) from error

    def _rows(self, answer: bytes, count: int) -> NDArray[np.float32]:
        """The ``count`` rows of an answer."""
        try:
            told = json.loads(answer)
            if not self.is_tei:
                told = [it["embedding"] for it in sorted(told["data"], key=lambda it: it["index"])]
            rows: NDArray[np.float32] = np.array(told, np.float32)
        except (ValueError, TypeError, LookupError) as error:
            raise CheckpointError(
                f"{self.url} answers with no embeddings: {answer[:200]!r}"
            ) from error
        width = getattr(self, "_probe", rows).shape[-1]
        if rows.shape != (count, width) or not rows.size or not np.isfinite(rows).all():
            told = f"{[*rows.shape]} numbers, not all finite, for {count} texts"
            raise CheckpointError(f"{self.url} answers {told}")
        return rows
