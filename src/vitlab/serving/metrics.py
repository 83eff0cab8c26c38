"""What the service tells Prometheus, by its own client."""

from collections.abc import Callable
from typing import final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from vitlab.core.record import VERSION

__all__ = ["CONTENT_TYPE", "Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@final
class Metrics:
    """The metrics of one service, in a registry of their own: there may be several services in a process."""

    def __init__(self, model: str, *, queued: Callable[[], int], held: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "vitlab_requests",
            "Requests by path and status; gone: the client left.",
            ("path", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "vitlab_request_seconds", "From the head to the end.", ("path",), buckets=SECONDS, registry=registry
        )
        self._batch_images = Histogram(
            "vitlab_batch_images", "Images per batch.", ("task",), buckets=SIZES, registry=registry
        )
        self._batch_seconds = Histogram(
            "vitlab_batch_seconds", "The model's time per batch.", ("task",), buckets=SECONDS, registry=registry
        )
        Gauge("vitlab_queue_images", "Being decoded or waiting.", registry=registry).set_function(queued)
        Gauge("vitlab_held_bytes", "Of bodies.", registry=registry).set_function(held)
        Info("vitlab", "The model that is served.", registry=registry).info({"model": model, "version": VERSION})
        ProcessCollector(registry=registry)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """A request and how long it took; status 0 is a client that left."""
        self._requests.labels(path, str(status) if status else "gone").inc()
        self._seconds.labels(path).observe(seconds)

    def count_batch(self, kind: object, size: int, seconds: float) -> None:
        """A batch of a kind of task, its images and the model's time for it."""
        task = type(kind).__name__.lower()
        self._batch_images.labels(task).observe(size)
        self._batch_seconds.labels(task).observe(seconds)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)
