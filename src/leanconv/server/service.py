"""The server behind HTTP: models, the threads that plan and compute, counters."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from math import ceil
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from leanconv.errors import LeanConvError
from leanconv.graph.ir import TensorType, owner
from leanconv.progress import working
from leanconv.server.batching import Batcher, Job
from leanconv.server.limits import (
    BAD,
    BUSY,
    FAILED,
    NO_FORM,
    NUMBER_BYTES,
    TOO_LONG,
    Limits,
    RefusedError,
    RequestBytes,
    Share,
    refusal,
)
from leanconv.server.models import Models, ServedModel
from leanconv.server.plans import Group, Plans, Wanted
from leanconv.server.protocol import Inference
from leanconv.types import as_dtype
from leanconv.units import format_bytes

log = logging.getLogger(__name__)
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_Result = TypeVar("_Result")

# Bytes for a number of an answer's JSON while it is made: its text, in pieces and in the answer.
_JSON_BYTES = 2 * NUMBER_BYTES
Planned = Future[bool]  # and not of the group: an evicted one must not stay in memory
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = tuple(m * 10**e / 1000 for e in range(5) for m in (1, 2, 5))  # upper ends of classes
_MOST_ROWS = tuple(2**n for n in range(11))
_MODEL = ("model", "version")


class GoneError(Exception):
    """The client has closed the connection: nobody waits for the result."""


class Service:
    """Models that answer requests.

    Args:
        models: all of them, ready.
        limits: of the server.
    """

    def __init__(self, models: Models, limits: Limits) -> None:
        self.models, self.limits = models, limits
        self.requests = RequestBytes(limits.request_bytes)
        networks = [model.plans for model in models]
        self._planning = Planning(limits.planning, limits.plan_bytes, networks)
        self._batcher = Batcher(limits.queued, limits.delay_ns, lambda *ran: self.metrics.ran(*ran))
        self.metrics = Metrics(
            models,
            lambda: float(self.requests.held),
            lambda: float(self._batcher.waiting),
            lambda: float(self._planning.waiting),
        )

    def close(self) -> None:
        """Compute all queued jobs, and end the threads."""
        self._planning.close()
        self._batcher.close()

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._batcher.waiting

    async def results(
        self,
        model: ServedModel,
        asked: Inference,
        share: Share,
        receive: Receive,
        deadline: float,
    ) -> list[np.ndarray]:
        """The outputs for a request's arrays.

        Args:
            model: which.
            asked: arrays that fit its inputs, and how outputs are sent.
            share: in which the results are counted.
            receive: what says that the client is gone.
            deadline: of the event loop's clock.

        Raises:
            RefusedError: there are none in time, or the model does not take the arrays.
            GoneError: the client is gone.
        """
        wanted, group = await self._planned(model, asked.arrays, receive, deadline)
        types = group.outputs(wanted.rows)
        counted = self._result_bytes(asked, types)
        share.take(counted)
        job = Job(model.plans, group, asked.arrays, wanted.rows, lambda: model.expected > 0)
        self._batcher.submit(job)
        try:
            found = await _first(asyncio.wrap_future(job.future), receive, deadline)
        finally:
            if job.future.cancel():
                self._batcher.forget(job)
        if found is None:
            raise RefusedError(
                TOO_LONG, f"no result within {self.limits.request_s} s; try again later", retry_s=1
            )
        self.metrics.waited(model, job.begun_ns - job.queued_ns)
        if None in types:  # now they are known
            made = [TensorType(each.shape, as_dtype(each.dtype)) for each in found]
            owners = {id(each): each.nbytes for each in map(owner, found)}
            spare = sum(owners.values()) - sum(kind.bytes for kind in made)
            share.take(self._result_bytes(asked, made) - counted + max(0, spare))
        return found

    def _result_bytes(self, asked: Inference, types: Sequence[TensorType | None]) -> int:
        """Bytes that results take until they are sent, as far as their types are known.

        Raises:
            RefusedError: too many are wanted as JSON, of which the whole server waits for the end.
        """
        sent = [(types[index], binary) for index, binary in asked.outputs]
        numbers = sum(kind.elements for kind, binary in sent if kind and not binary)
        if numbers * NUMBER_BYTES > self.limits.json_bytes:
            raise RefusedError(
                NO_FORM,
                f"the answer may have more than {format_bytes(self.limits.json_bytes)} of JSON; "
                "ask for binary data, or raise --max-json",
            )
        raw = sum(kind.bytes for kind, binary in sent if kind and binary)
        return sum(kind.bytes for kind in types if kind) + raw + numbers * _JSON_BYTES

    async def _planned(
        self, model: ServedModel, arrays: Sequence[np.ndarray], receive: Receive, deadline: float
    ) -> tuple[Wanted, Group]:
        """The plans for a request; those of a new shape are waited for, for `plan_s` at most."""
        plans, clock = model.plans, asyncio.get_running_loop().time
        until = min(deadline, clock() + self.limits.plan_s)
        while True:
            wanted = plans.wanted(arrays)
            if wanted.rows == 0:  # before a plan for an image of which no byte was sent
                raise RefusedError(BAD, "got no image; expected a first extent of at least 1")
            group = plans.found(wanted.key)
            if group is not None:
                return wanted, group
            if not self.limits.groups:
                raise RefusedError(BAD, f"the shape is not planned; expected {_planned(model)}")
            planned = _shielded(self._planning.planned(plans, wanted))
            if await _first(planned, receive, until) is None:
                raise RefusedError(
                    BUSY,
                    "the shape is new and is being planned; try again later",
                    retry_s=max(1, ceil(self.limits.plan_s)),
                )

    def status(self) -> dict[str, Any]:
        """Return the numbers that the page shows, and fetches again each second."""
        return {
            "request_bytes": self.requests.held,
            "waiting": self.waiting,
            "models": [
                {
                    "name": model.name,
                    "version": model.version,
                    "answered": model.answered,
                    **_quantiles(list(model.latencies)),
                    "plan_bytes": model.plans.held_bytes,
                    "planned": len(model.plans.groups()),
                }
                for model in self.models
            ],
        }


def _planned(model: ServedModel) -> str:
    """The shapes of a model's requests that are planned, for a message."""
    shapes = []
    for _, group in model.plans.groups():
        inputs = group.smallest.inputs.items()
        shapes.append(", ".join(f"{name} {list(kind.shape)}" for name, kind in inputs))
    return " or ".join(shapes) or "nothing: no shape was given when the server was started"


def _quantiles(latencies: list[int]) -> dict[str, int | None]:
    if not latencies:
        return {"p50_ns": None, "p99_ns": None}
    ordered = sorted(latencies)
    return {
        "p50_ns": ordered[len(ordered) // 2],
        "p99_ns": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }


def _shielded(future: Planned) -> asyncio.Future[bool]:
    """Return a future that waits for another one: giving it up does not cancel the other."""
    inner = asyncio.wrap_future(future)
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asyncio.shield(inner)


async def _first(
    result: asyncio.Future[_Result], receive: Receive, deadline: float
) -> _Result | None:
    """A result, unless the client goes first, or time is up: then None.

    Raises:
        RefusedError: there is an error instead.
        GoneError: the client has gone.
    """
    gone = asyncio.ensure_future(receive())  # behind the body comes nothing but its end
    left = deadline - asyncio.get_running_loop().time()
    awaited: set[asyncio.Future[Any]] = {result, gone}
    try:
        await asyncio.wait(awaited, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        if gone.done():
            raise GoneError
        return None
    except LeanConvError as error:
        raise refusal(error) from error
    finally:
        gone.cancel()
        result.cancel()


class _StoppedError(Exception):
    """Ends the planning when the server ends."""


class Planning:
    """A thread that plans shapes, so that requests for others go on meanwhile.

    The event loop's thread alone uses it.

    Args:
        most: groups that may wait.
        limit: the most that the plans of all networks may take together; None for any.
        networks: all of the server.
    """

    def __init__(self, most: int, limit: int | None, networks: Iterable[Plans]) -> None:
        self._most, self._limit, self._networks = most, limit, tuple(networks)
        self._waiting: dict[tuple[int, object], Planned] = {}
        self._work = queue.SimpleQueue[tuple[Plans, Wanted, Planned] | None]()
        self._stopping = False
        self._thread = threading.Thread(target=self._plan_all, name="leanconv-plans", daemon=True)
        self._thread.start()

    def planned(self, plans: Plans, wanted: Wanted) -> Planned:
        """Have a request's group planned; return a future that is True when it is.

        Raises:
            RefusedError: too many are being planned.
        """
        key = id(plans), wanted.key
        self._waiting = {k: f for k, f in self._waiting.items() if not f.done()}
        found = self._waiting.get(key)
        if found is None:
            if len(self._waiting) >= self._most or self._stopping:
                raise RefusedError(
                    BUSY, f"{self._most} shapes are being planned; try again later", retry_s=5
                )
            found = self._waiting[key] = Future()
            self._work.put((plans, wanted, found))
        return found

    @property
    def waiting(self) -> int:
        """Groups that are being planned, or wait for it."""
        return sum(not future.done() for future in self._waiting.values())

    def close(self) -> None:
        """Stop planning, and end the thread."""
        self._stopping = True
        self._work.put(None)
        self._thread.join()

    def _plan_all(self) -> None:
        while (work := self._work.get()) is not None:
            plans, wanted, future = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                with working("a new shape", self._look):
                    plans.plan(wanted, self._left(plans))
                future.set_result(True)
            except (LeanConvError, RefusedError) as error:
                future.set_exception(error)
            except _StoppedError:
                future.set_exception(RefusedError(BUSY, "the server is stopping", retry_s=5))
            except Exception as error:
                log.exception("planning failed")
                what = f"planning failed: {type(error).__name__}: {error}"
                future.set_exception(RefusedError(FAILED, what))

    def _left(self, plans: Plans) -> int | None:
        """The most that the plans of a network may take beside those of all others."""
        if self._limit is None:
            return None
        others = sum(each.held_bytes for each in self._networks if each is not plans)
        return self._limit - others

    def _look(self, _stage: str, _done: int, _total: int) -> None:
        if self._stopping:
            raise _StoppedError


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
