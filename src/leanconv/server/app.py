"""The server's addresses: the Open Inference Protocol v2, metrics, and pages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leanconv import __version__
from leanconv.server.limits import BRACKET_BYTES, JSON_FACTOR, Limits
from leanconv.server.metrics import CONTENT_TYPE
from leanconv.server.models import ServedModel
from leanconv.server.protocol import JSON_LENGTH, decode, encode
from leanconv.server.refusals import (
    BAD,
    NO_CODING,
    NO_LENGTH,
    TOO_LARGE,
    TOO_SLOW,
    RefusedError,
)
from leanconv.server.service import GoneError, Service
from leanconv.server.views import Pages
from leanconv.units import format_bytes

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Scope = Mapping[str, Any]

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_LINGER_S, _LINGER_BYTES = 2, 2**26  # a body that is refused is read so far, and thrown away
_ALIGNMENT = 64


def application(service: Service, local: bool) -> Any:
    """The ASGI application.

    Args:
        service: what answers.
        local: whether requests must name this machine as their host, so that no page of the
            internet can make a browser on it send some.
    """
    pages = Pages(service)
    infer = Infer(service)
    model = "/v2/models/{name}"
    routes = [
        Route("/v2/health/live", _live),
        Route("/v2/health/ready", _ready),
        Route("/v2", _server),
        Route("/v2/repository/index", _index(service), methods=["POST"]),
        Route("/metrics", _metrics(service)),
        *pages.routes(),
    ]
    for prefix in (model, model + "/versions/{version}"):
        routes += [
            Route(prefix + "/infer", infer, methods=["POST"]),
            Route(prefix + "/ready", _model_ready(service)),
            Route(prefix, _metadata(service)),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    handlers: dict[Any, Any] = {RefusedError: _refused}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return _OnlyLocal(app) if local else app


# -- what is not inference -------------------------------------------------------------------------
async def _live(_: Request) -> Response:
    return JSONResponse({"live": True})


async def _ready(_: Request) -> Response:
    return JSONResponse({"ready": True})


async def _server(_: Request) -> Response:
    extensions = ["binary_tensor_data", "model_repository"]
    return JSONResponse({"name": "leanconv", "version": __version__, "extensions": extensions})


def _metrics(service: Service) -> Any:
    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    return metrics


def _index(service: Service) -> Any:
    async def index(_: Request) -> Response:
        rows = [
            {"name": each.name, "version": each.version, "state": "READY", "reason": ""}
            for each in service.models
        ]
        return JSONResponse(rows)

    return index


def _named(service: Service, parameters: Mapping[str, str]) -> ServedModel:
    return service.models.found(parameters["name"], parameters.get("version"))


def _model_ready(service: Service) -> Any:
    async def ready(request: Request) -> Response:
        found = _named(service, request.path_params)
        return JSONResponse({"name": found.name, "ready": True})

    return ready


def _metadata(service: Service) -> Any:
    async def metadata(request: Request) -> Response:
        found = _named(service, request.path_params)
        return JSONResponse(found.metadata(service.models.versions(found.name)))

    return metadata


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return _refusal(error)


def _refusal(error: RefusedError) -> Response:
    headers = {} if error.retry_s is None else {"retry-after": str(error.retry_s)}
    return JSONResponse({"error": str(error)}, error.status, headers)


class _OnlyLocal:
    """Requests are refused that name another host, as one is to which a page's name was bound, or
    that a page of another host sends (its origin)."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            for what, default in (("host", "localhost"), ("origin", "http://localhost")):
                given = headers.get(what, default)
                if not _is_local(given.partition("://")[2] or given):
                    error = RefusedError(BAD, f"got the {what} {given[:100]!r}; expected localhost")
                    await _refusal(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _is_local(host: str) -> bool:
    """Whether a host, with a port or without, is this machine."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.lower() in _LOCAL_NAMES


# -- inference -------------------------------------------------------------------------------------
class Infer:
    """POST …/infer."""

    def __init__(self, service: Service) -> None:
        self._service, self._limits = service, service.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever comes; count it."""
        begin = time.monotonic_ns()
        exchange = Exchange(scope, receive, send, self._limits)
        model, status = None, 499  # what logs of servers have for a client that has gone
        try:
            model = _named(self._service, scope["path_params"])
            await self._answer(model, exchange)
            status = 200
            model.answered_in(time.monotonic_ns() - begin)
        except RefusedError as error:
            status = error.status
            await exchange.refuse(error)
        except GoneError:
            return
        finally:
            self._service.metrics.answered(model, status, time.monotonic_ns() - begin)

    async def _answer(self, model: ServedModel, exchange: Exchange) -> None:
        service, plans = self._service, model.plans
        with service.requests.share() as share:
            length, json_length = exchange.lengths()
            parsing = (length if json_length is None else json_length) * JSON_FACTOR
            share.take(length + parsing)
            model.expected += 1
            try:
                body = await exchange.body(length, json_length)
                nested = _bracket_bytes(body[:json_length])
                share.take(nested)
                parsing += nested
                asked = decode(body, json_length, plans.inputs, plans.outputs)
            finally:
                model.expected -= 1
            share.give(parsing)
            share.take(sum(array.nbytes for array in asked.arrays))
            binary = all(binary for _, binary in asked.outputs)
            results = await service.results(
                model, asked.arrays, binary, share, exchange.receive, exchange.deadline
            )
            head = {"model_name": model.name, "model_version": model.version}
            if asked.id is not None:
                head["id"] = asked.id
            text, json_bytes = encode(head, asked.outputs, plans.outputs, results)
            del results  # views of a whole batch, which a client that reads slowly must not hold
            await exchange.send(200, text, json_bytes)


class Exchange:
    """One request and its answer.

    Args:
        scope, receive, send: of ASGI.
        limits: of requests.

    Attributes:
        receive: what comes next from the client.
        deadline: for the result, of the event loop's clock.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.receive, self._send, self._limits = receive, send, limits
        self._headers = Headers(scope=scope)
        self._left = True  # of the body
        self.deadline = asyncio.get_running_loop().time() + limits.request_s

    def lengths(self) -> tuple[int, int | None]:
        """Bytes of the body, and how many of them are JSON; None for all.

        Raises:
            RefusedError: they are not said, or too many.
        """
        limits, headers = self._limits, self._headers
        coding = headers.get("content-encoding", "identity")
        if coding != "identity":
            raise RefusedError(NO_CODING, f"got content-encoding {coding[:50]!r}; expected none")
        if "content-length" not in headers or "transfer-encoding" in headers:
            raise RefusedError(NO_LENGTH, "got no Content-Length; expected it: no chunked bodies")
        length = _number(headers["content-length"], "Content-Length")
        given = headers.get(JSON_LENGTH)
        json_length = None if given is None else _number(given, JSON_LENGTH)
        if length > limits.body_bytes:
            raise RefusedError(
                TOO_LARGE,
                f"got {length} bytes; expected at most {format_bytes(limits.body_bytes)}: send "
                "fewer images at once, or raise --max-body",
            )
        if json_length is not None and json_length > length:
            raise RefusedError(BAD, f"got {JSON_LENGTH} {json_length} of {length} bytes")
        if (length if json_length is None else json_length) > limits.json_bytes:
            raise RefusedError(
                TOO_LARGE,
                f"got more than {format_bytes(limits.json_bytes)} of JSON; send binary tensors "
                f"(the header {JSON_LENGTH}, and binary_data_size)",
            )
        return length, json_length

    async def body(self, length: int, json_length: int | None) -> memoryview:
        """The whole body; what follows the JSON begins at a multiple of `_ALIGNMENT`.

        Raises:
            RefusedError: it does not come in time.
            GoneError: the client has gone.
        """
        shift = -(json_length or 0) % _ALIGNMENT
        buffer = memoryview(bytearray(shift + length))[shift:]
        left = self.deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(self._read(buffer), left)
        except asyncio.TimeoutError as error:
            self._left = False  # nothing is waited for any more
            raise RefusedError(
                TOO_SLOW, f"the body did not come within {self._limits.request_s} s"
            ) from error
        return buffer

    async def _read(self, buffer: memoryview) -> None:
        done = 0
        while self._left:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            part = message.get("body", b"")
            buffer[done : done + len(part)] = part
            done += len(part)
            self._left = message.get("more_body", False)

    async def send(self, status: int, text: bytes, json_bytes: int | None) -> None:
        """Answer by a body of which so many bytes are JSON; None for all."""
        headers = {"content-length": str(len(text))}
        headers["content-type"] = "application/json"
        if json_bytes is not None:
            headers["content-type"] = "application/octet-stream"
            headers[JSON_LENGTH] = str(json_bytes)
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": text})

    async def refuse(self, error: RefusedError) -> None:
        """Answer by an error; then close, if the body was not read."""
        text = json.dumps({"error": str(error)}).encode()
        headers = {"content-length": str(len(text)), "content-type": "application/json"}
        if error.retry_s is not None:
            headers["retry-after"] = str(error.retry_s)
        unread = self._left or error.status == TOO_SLOW
        if unread:
            headers["connection"] = "close"
        await self._start(error.status, headers)
        await self._send({"type": "http.response.body", "body": text, "more_body": unread})
        if unread:
            # Closing while bytes arrive would reset the connection before the answer is read.
            with contextlib.suppress(asyncio.TimeoutError, GoneError):
                await asyncio.wait_for(self._drain(), _LINGER_S)
            await self._send({"type": "http.response.body", "body": b""})

    async def _drain(self) -> None:
        count = 0
        while self._left and count < _LINGER_BYTES:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            count += len(message.get("body", b""))
            self._left = message.get("more_body", False)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


def _bracket_bytes(text: memoryview) -> int:
    """Bytes of the lists and objects of JSON beyond those of its numbers."""
    held = bytes(text)
    return (held.count(b"[") + held.count(b"{")) * BRACKET_BYTES


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise RefusedError(BAD, f"got {what} {text[:50]!r}; expected a number of bytes")
    return int(text)
