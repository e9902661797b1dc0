"""Prometheus metrics, under names of our own and under those of text-embeddings-inference (TEI)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTS = tuple(2.0**n for n in range(14))
_SHARED = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """What the server counts, of this process or, with workers, of all of them.

    Names are those that Prometheus asks for (`promtool check metrics`); those of TEI's dashboards
    stand beside them where they are such names too.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"contrasent_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, over_workers: Any = "livesum") -> Gauge:
            return Gauge(name, text, registry=registry, multiprocess_mode=over_workers)

        def histogram(name: str, text: str, of: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=of, registry=registry)

        self.requests = counter("requests", "Requests answered.", "route", "status")
        self.request_seconds = histogram(
            "contrasent_request_seconds", "Seconds of a request.", _SECONDS, "route"
        )
        self.in_progress = gauge("contrasent_requests_in_progress", "Requests being answered.")
        self.rejected = counter("rejected", "Requests refused because of overload.")
        self.cancelled = counter("cancelled_texts", "Texts dropped because their clients left.")
        self.texts = counter("texts", "Texts embedded, cached ones included.")
        self.tokens = counter("tokens", "Tokens of these texts.")
        self.truncated = counter("truncated_texts", "Texts that were longer than the model reads.")
        self.cache_hits = counter("cache_hits", "Texts answered from memory.")
        self.cache_misses = counter("cache_misses", "Texts that were computed.")
        self.cache_shared = counter("cache_shared", "Texts that joined an equal one in the queue.")
        self.cache_fetched = counter("cache_fetched", "Texts answered from the shared cache.")
        self.cache_bytes = gauge("contrasent_cache_bytes", "Bytes of the cache.")
        self.cache_texts = gauge("contrasent_cache_texts", "Texts in the cache.")
        self.queue_texts = gauge("contrasent_queue_texts", "Texts that wait or are computed.")
        self.queue_seconds = gauge("contrasent_queue_seconds", "Seconds that the queue takes.")
        self.index_texts = gauge("contrasent_index_texts", "Texts in the index.", "livemostrecent")
        self.batch_texts = histogram("contrasent_batch_texts", "Texts taken at once.", _COUNTS)
        self.batch_tokens = histogram("contrasent_batch_tokens", "Tokens taken at once.", _COUNTS)
        tei = "As in text-embeddings-inference."
        self._te_queue = gauge("te_queue_size", tei)
        self._te = {
            name: histogram(f"te_{name}", tei, _SECONDS if "duration" in name else _COUNTS)
            for name in (
                "request_duration",
                "request_tokenization_duration",
                "request_queue_duration",
                "request_inference_duration",
                "request_input_length",
                "batch_next_size",
                "batch_next_tokens",
            )
        }

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request by the path template of its route."""
        self.requests.labels(route, str(status)).inc()
        self.request_seconds.labels(route).observe(seconds)
        self._te["request_duration"].observe(seconds)

    def tokenized(self, seconds: float) -> None:
        """Count a call of the tokenizer."""
        self._te["request_tokenization_duration"].observe(seconds)

    def batch(self, texts: int, tokens: int) -> None:
        """Count what was taken from the queue at once."""
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)
        self._te["batch_next_size"].observe(texts)
        self._te["batch_next_tokens"].observe(tokens)

    def computed(self, waited: float, seconds: float, tokens: int) -> None:
        """Count a text that waited, and was computed in so many seconds with its batch."""
        self._te["request_queue_duration"].observe(waited)
        self._te["request_inference_duration"].observe(seconds)
        self._te["request_input_length"].observe(tokens)

    def set_queue(self, texts: int, seconds: float) -> None:
        """How long the queue is now."""
        self.queue_texts.set(texts)
        self.queue_seconds.set(seconds)
        self._te_queue.set(texts)

    def set_cache(self, size: int, texts: int) -> None:
        """How large the cache is now, in bytes and in texts."""
        self.cache_bytes.set(size)
        self.cache_texts.set(texts)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        if _SHARED not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


class JsonLines(logging.Formatter):
    """One JSON object per line of the log; ``extra={"fields": {...}}`` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


LOG = logging.getLogger("contrasent.serve")


def log_json() -> Callable[[], None]:
    """Write the log of the server, and uvicorn's, as JSON lines to standard error; undo it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [LOG, logging.getLogger("uvicorn")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def undo() -> None:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True

    return undo
