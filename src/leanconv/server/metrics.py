"""The server's counters, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from leanconv.server.models import ServedModel
from leanconv.server.plans import Plans

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = tuple(m * 10**e / 1000 for e in range(5) for m in (1, 2, 5))  # upper ends of classes
_MOST_ROWS = tuple(2**n for n in range(11))
_MODEL = ("model", "version")


class Metrics:
    """Counters of one server.

    Args:
        models: all of it.
        in_flight: gives bytes of the requests in flight.
        waiting: gives how many wait for their turn.
        planning: gives how many shapes are being planned.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        in_flight: Callable[[], float],
        waiting: Callable[[], float],
        planning: Callable[[], float],
    ) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def classes(name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(name, text, _MODEL, buckets=buckets, registry=registry)

        self._requests = Counter(
            "leanconv_requests", "Requests for results", (*_MODEL, "status"), registry=registry
        )
        self._seconds = classes(
            "leanconv_request_seconds", "From the headers of a request to its result"
        )
        self._waited = classes("leanconv_queue_seconds", "How long requests waited for their turn")
        self._ran = classes("leanconv_batch_seconds", "How long batches took to compute")
        self._rows = classes("leanconv_batch_images", "Images of batches", _MOST_ROWS)
        held = Gauge(
            "leanconv_plan_bytes", "Weights, arena and code of a model", _MODEL, registry=registry
        )
        groups = Gauge("leanconv_planned_shapes", "Shapes planned", _MODEL, registry=registry)
        for name, text, read in (
            ("leanconv_request_bytes", "Bytes of requests in flight", in_flight),
            ("leanconv_queue_requests", "Requests that wait for their turn", waiting),
            ("leanconv_planning_shapes", "Shapes that are being planned", planning),
        ):
            Gauge(name, text, registry=registry).set_function(read)
        self._labels = {}
        for model in models:
            labels = model.name, model.version
            self._labels[id(model.plans)] = labels
            plans = model.plans
            held.labels(*labels).set_function(lambda plans=plans: float(plans.held_bytes))
            groups.labels(*labels).set_function(lambda plans=plans: float(len(plans.groups())))

    def answered(self, model: ServedModel | None, status: int, duration_ns: int) -> None:
        """Count a request; without a model if there is none of its name."""
        labels = (model.name, model.version) if model else ("", "")
        self._requests.labels(*labels, str(status)).inc()
        if model:
            self._seconds.labels(*labels).observe(duration_ns / 1e9)

    def waited(self, model: ServedModel, duration_ns: int) -> None:
        """Count how long a request waited for its turn."""
        self._waited.labels(model.name, model.version).observe(duration_ns / 1e9)

    def ran(self, plans: Plans, rows: int, duration_ns: int) -> None:
        """Count a batch."""
        labels = self._labels[id(plans)]
        self._rows.labels(*labels).observe(rows)
        self._ran.labels(*labels).observe(duration_ns / 1e9)

    def text(self) -> bytes:
        """All counters, in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text
