"""What /metrics says, for Prometheus: requests, latency, and which model is in use since when.

With several workers, prometheus_client keeps the numbers of all of them in files of a shared folder, named by the environment
variable PROMETHEUS_MULTIPROC_DIR, and any worker answers for all.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE")


class Metrics:
    """Of one application, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._kept: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}  # looking them up takes longer than counting
        self.requests = Counter("srns_requests", "Requests answered", ["method", "route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "srns_request_seconds", "From headers to answer", ["route"], buckets=BUCKETS, registry=self.registry
        )
        self.reloads = Counter("srns_model_reloads", "Newer models taken into use", registry=self.registry)
        self.failures = Counter("srns_model_reload_failures", "Newer models that could not be loaded", registry=self.registry)
        self._info = self._gauge("srns_model_info", "1, with the name of the run", "run")
        self._loaded = self._gauge("srns_model_loaded_timestamp_seconds", "When the model in use was loaded")
        self._users = self._gauge("srns_users", "Users of the model with training interactions")
        self._items = self._gauge("srns_items", "Items of the model")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode="livemostrecent")

    def model_loaded(self, run: str, when: float, users: int, items: int) -> None:
        self._info.labels(run).set(1)
        self._loaded.set(when)
        self._users.set(users)
        self._items.set(items)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method if method in METHODS else "other", route, status)
        if (kept := self._kept.get(key)) is None:
            kept = self._kept[key] = (self.requests.labels(*map(str, key)), self.seconds.labels(route))
        kept[0].inc()
        kept[1].observe(seconds)

    def text(self) -> bytes:
        if FOLDER not in os.environ:
            return generate_latest(self.registry)
        every = CollectorRegistry()
        multiprocess.MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return generate_latest(every)
