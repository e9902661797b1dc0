"""Prometheus metrics, and the log as JSON lines."""

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
_NUMBERS = tuple(2.0**n for n in range(14))
_SHARED = "PROMETHEUS_MULTIPROC_DIR"
_COUNTERS = {
    "requests": "Requests answered, by route and status.",
    "rejected": "Requests refused because of overload.",
    "cancelled_texts": "Texts dropped because their clients left.",
    "texts": "Texts embedded, cached ones included.",
    "tokens": "Tokens of these texts.",
    "truncated_texts": "Texts that were longer than the model reads.",
    "cache_hits": "Texts answered from memory.",
    "cache_misses": "Texts that were computed.",
    "cache_shared": "Texts that joined an equal one in the queue.",
    "cache_fetched": "Texts answered from the shared cache.",
}
_GAUGES = {
    "contrasent_requests_in_progress": "Requests being answered.",
    "contrasent_cache_bytes": "Bytes of the cache.",
    "contrasent_cache_texts": "Texts in the cache.",
    "te_queue_size": "Texts that wait or are computed.",
    "contrasent_queue_seconds": "Seconds that the queue will take, about.",
    "contrasent_index_texts": "Texts in the index.",
}
_HISTOGRAMS = {
    "contrasent_request_seconds": "Seconds of a request, by route.",
    "te_request_duration": "Seconds of a request.",
    "te_request_tokenization_duration": "Seconds of a call of the tokenizer.",
    "te_request_queue_duration": "Seconds that a text waited.",
    "te_request_inference_duration": "Seconds in which the batch of a text was computed.",
    "te_request_input_length": "Tokens of a computed text.",
    "te_batch_next_size": "Texts taken at once.",
    "te_batch_next_tokens": "Tokens taken at once.",
}
"""``te_`` names are those that dashboards of text-embeddings-inference show."""
_LABELS = {"requests": ("route", "status"), "contrasent_request_seconds": ("route",)}


class Metrics:
    """What the server counts, of this process or, with workers, of all of them.

    Names are those that `promtool check metrics` asks for.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"contrasent_{name}", text, _LABELS.get(name, ()), registry=registry)
            for name, text in _COUNTERS.items()
        }
        self._gauges = {}
        for name, text in _GAUGES.items():
            mode: Any = "livemostrecent" if name == "contrasent_index_texts" else "livesum"
            self._gauges[name] = Gauge(name, text, registry=registry, multiprocess_mode=mode)
        self._histograms = {
            name: Histogram(
                name,
                text,
                _LABELS.get(name, ()),
                buckets=_SECONDS if text.startswith("Seconds") else _NUMBERS,
                registry=registry,
            )
            for name, text in _HISTOGRAMS.items()
        }

    def count(self, name: str, amount: float = 1, *labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def set(self, **values: float) -> None:
        """How much there is now."""
        for name, value in values.items():
            self._gauges[name].set(value)

    def observe(self, *labels: str, **values: float) -> None:
        """Put values into their histograms."""
        for name, value in values.items():
            histogram = self._histograms[name]
            (histogram.labels(*labels) if labels else histogram).observe(value)

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
