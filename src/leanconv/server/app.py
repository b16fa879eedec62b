"""The server's addresses: the Open Inference Protocol v2, metrics, and pages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leanconv import __version__
from leanconv.server.connections import Exchange, Scope, Send, refusal_response
from leanconv.server.limits import BAD, BRACKET_BYTES, BUSY, FAILED, JSON_FACTOR, RefusedError
from leanconv.server.metrics import CONTENT_TYPE
from leanconv.server.models import ServedModel
from leanconv.server.protocol import decode, encode
from leanconv.server.service import GoneError, Receive, Service
from leanconv.server.views import Pages

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def application(service: Service, local: bool) -> Any:
    """The ASGI application.

    Args:
        service: answers the requests.
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

    handlers = {RefusedError: _refused, HTTPException: _not_offered(routes), Exception: _failed}
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
    return refusal_response(error)


def _not_offered(routes: Iterable[Route]) -> Any:
    """Answers requests for addresses that there are not, or not for their method."""
    offered = ", ".join(
        f"{'POST' if 'POST' in methods else 'GET'} {route.path_format}"
        for route in routes
        for methods in (route.methods or (),)
    )

    async def not_offered(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = (error.headers or {}).get("Allow", "")
        expected = " or ".join(sorted(allowed.split(", "))) + " there" if allowed else offered
        text = f"got {request.method} {request.url.path[:200]}; expected {expected}"
        return JSONResponse({"error": text}, error.status_code, error.headers)

    return not_offered


async def _failed(_: Request, error: Exception) -> Response:
    text = f"a defect of leanconv ({type(error).__name__}); the server's log says more"
    response = refusal_response(RefusedError(FAILED, text))
    response.headers["connection"] = "close"  # uvicorn closes it: no request may follow on it
    return response


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
                    await refusal_response(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def _is_local(host: str) -> bool:
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
        except MemoryError:
            status = BUSY
            said = "there is no memory for the request now; try again later"
            await exchange.refuse(RefusedError(BUSY, said, retry_s=1))
        except Exception:
            status = FAILED  # Starlette answers and logs it
            raise
        finally:
            self._service.metrics.answered(model, status, time.monotonic_ns() - begin)

    async def _answer(self, model: ServedModel, exchange: Exchange) -> None:
        service, plans = self._service, model.plans
        with service.requests.share() as share:
            length, json_length = exchange.lengths()
            parsing = json_length * JSON_FACTOR
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
            results = await service.results(
                model, asked, share, exchange.receive, exchange.deadline
            )
            head = {"model_name": model.name, "model_version": model.version}
            if asked.id is not None:
                head["id"] = asked.id
            text, json_bytes = encode(head, asked.outputs, plans.outputs, results)
            del results  # views of a whole batch, which a client that reads slowly must not hold
            await exchange.answer(text, json_bytes)


def _bracket_bytes(text: memoryview) -> int:
    """Bytes of the lists and objects of JSON beyond those of its numbers."""
    held = bytes(text)
    return (held.count(b"[") + held.count(b"{")) * BRACKET_BYTES
