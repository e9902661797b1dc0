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
    "requests_in_progress": "Requests being answered.",
    "cache_bytes": "Bytes of the cache.",
    "cache_texts": "Texts in the cache.",
    "queue_texts": "Texts that wait or are computed.",
    "queue_seconds": "Seconds that the queue will take, about.",
    "index_texts": "Texts in the index.",
}
_HISTOGRAMS = {
    "request_seconds": "Seconds of a request, by route.",
    "tokenization_seconds": "Seconds of a call of the tokenizer.",
    "queue_wait_seconds": "Seconds that a text waited.",
    "inference_seconds": "Seconds in which the batch of a text was computed.",
    "text_tokens": "Tokens of a computed text.",
    "batch_texts": "Texts taken at once.",
    "batch_tokens": "Tokens taken at once.",
}
_TEI = {
    "request_seconds": "te_request_duration",
    "tokenization_seconds": "te_request_tokenization_duration",
    "queue_wait_seconds": "te_request_queue_duration",
    "inference_seconds": "te_request_inference_duration",
    "text_tokens": "te_request_input_length",
    "batch_texts": "te_batch_next_size",
    "batch_tokens": "te_batch_next_tokens",
    "queue_texts": "te_queue_size",
}
"""Names of TEI's dashboards; its counts end as Prometheus lets only parts of histograms end."""
_LABELS = {"requests": ("route", "status"), "request_seconds": ("route",)}


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
        self._gauges: dict[str, Gauge] = {}
        for name, text in _GAUGES.items():
            mode: Any = "livemostrecent" if name == "index_texts" else "livesum"
            for full in _names(name):
                how = {"registry": registry, "multiprocess_mode": mode}
                self._gauges[full] = Gauge(full, text, **how)
        self._histograms: dict[str, Histogram] = {}
        for name, text in _HISTOGRAMS.items():
            buckets = _SECONDS if name.endswith("seconds") else _NUMBERS
            for full in _names(name):
                labels = () if full.startswith("te_") else _LABELS.get(name, ())
                self._histograms[full] = Histogram(
                    full, text, labels, buckets=buckets, registry=registry
                )

    def count(self, name: str, amount: float = 1, *labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def set(self, **values: float) -> None:
        """How much there is now."""
        for name, value in values.items():
            for full in _names(name):
                self._gauges[full].set(value)

    def observe(self, route: str | None = None, **values: float) -> None:
        """Put values into their histograms; one of a request into that of its route."""
        for name, value in values.items():
            own, *others = (self._histograms[full] for full in _names(name))
            (own if route is None else own.labels(route)).observe(value)
            for other in others:
                other.observe(value)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        if _SHARED not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


def _names(name: str) -> tuple[str, ...]:
    return (f"contrasent_{name}", _TEI[name]) if name in _TEI else (f"contrasent_{name}",)


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
