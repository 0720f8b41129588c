"""Metrics in Prometheus' text format."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 900)


class Metrics:
    """What a server counts. Nothing in it says what was sent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("stentor_requests", "Requests by route and status.", ["route", "status"], **names)
        self.seconds = Histogram("stentor_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, **names)
        self.active = Gauge("stentor_requests_active", "Requests that have not been answered.", **names)
        self.waiting = Gauge("stentor_queue_seconds", "Audio that waits for a model.", ["model"], **names)
        self.audio = Counter("stentor_audio_seconds", "Audio of recordings and of speech.", ["model"], **names)
        self.batches = Counter("stentor_batches", "Batches that a model has had.", ["model"], **names)
        self.pieces = Counter("stentor_pieces", "Windows and pieces in those batches.", ["model"], **names)
        self.busy = Counter("stentor_model_seconds", "Time that a model worked.", ["model"], **names)

    def batch(self, model: str, seconds: float, pieces: int) -> None:
        """Count a batch of a model, and the time that it took."""
        self.batches.labels(model).inc()
        self.pieces.labels(model).inc(pieces)
        self.busy.labels(model).inc(seconds)
